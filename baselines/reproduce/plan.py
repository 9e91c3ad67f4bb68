"""The plan of ``reproduce``: steps, recorded in the order in which they run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.reproduce.step_settings import NO_SETTINGS, Settings
from baselines.reproduce.verb_calls import words_of
from baselines.train.recipe import FROM_RECIPE, Recipe, read_recipe

SCRATCH = "-scratch"  # end of the names of recipes without pretrained weights


@dataclass(frozen=True)
class Step:
    """A verb with its arguments.

    Attributes:
        name: path of the output in the folder of `reproduce --out`.
        verb: the verb as on the command line, for example "mine" or "annotate pool".
        arguments: the arguments of the verb's function, by name. Paths are texts.
        output: the file or directory that the verb writes.
        needs: names of the steps whose outputs the verb reads.
    """

    name: str
    verb: str
    arguments: Mapping[str, Any]
    output: Path
    needs: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Return the step's command: the words after ``python -m``."""
        return words_of(self.verb, self.arguments)

    def recipe(self) -> Recipe:
        """Return the recipe of a training, with the values of ``--set``."""
        return read_recipe(self.arguments["recipe"], self.arguments.get("set", ()))


class Steps:
    """The steps of a plan. A call records a step and returns it: ``do("mine", run=run, out="negatives.jsonl")``.

    Attributes:
        split: the split that `reproduce` measures on.
        variant: "-scratch" for recipes without pretrained weights, otherwise "".
        recorded: the steps by name. A step comes after the steps whose outputs it reads.
    """

    def __init__(
        self,
        release: Path,
        out: Path,
        split: str = "dev",
        *,
        scratch: bool = False,
        settings: Settings = NO_SETTINGS,
    ) -> None:
        self.release = release
        self.out = out
        self.split = split
        self.variant = SCRATCH if scratch else ""
        self.settings = settings
        self.recorded: dict[str, Step] = {}

    def __call__(self, verb: str, *, out: str, after: Sequence[Step] = (), **arguments: Any) -> Step:
        """Record a step with the settings of its verb. If rows share a step, the step is recorded once.

        Args:
            verb: the verb as on the command line.
            out: name of the output, which is also the step's name.
            after: steps that come before this step, although no argument names their outputs.
            arguments: arguments of the verb's function. A step, or a list of steps, stands for the outputs.

        Raises:
            InputError: a setting does not fit the verb or the recipe.
        """
        if out in self.recorded:
            return self.recorded[out]
        values: dict[str, Any] = {"release": str(self.release)}
        inputs: dict[str, list[Step]] = {}
        for name, value in arguments.items():
            values[name] = value
            if steps := inputs_of(value):
                inputs[name] = steps
                paths = [str(step.output) for step in steps]
                values[name] = paths if isinstance(value, list) else paths[0]
        if values.get("set") == "main":  # the default of every verb
            del values["set"]
        if verb == "train":
            changed_values = [*values.get("set", ()), *self.settings.of_recipe(values["recipe"])]
            if changed_values:
                values["set"] = changed_values
        values |= self.settings.of_verb(verb, inputs)
        output = self.out / out
        values["out"] = str(output)
        before = [step.name for steps in (after, *inputs.values()) for step in steps]
        self.recorded[out] = Step(out, verb, values, output, tuple(dict.fromkeys(before)))
        return self.recorded[out]

    def starting_recipe(self, recipe: str) -> str:
        """Return the recipe that trains the starting checkpoint of a recipe, without the variant, or ""."""
        start = read_recipe(recipe, self.settings.of_recipe(recipe)).model.start
        return start.removeprefix(FROM_RECIPE).removesuffix(SCRATCH) if start.startswith(FROM_RECIPE) else ""


def inputs_of(value: Any) -> list[Step]:
    """Return the steps among the values of an argument."""
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, Step)]


def steps_behind(steps: Mapping[str, Step], name: str) -> dict[str, Step]:
    """Return a step and all steps that it depends on, in the order of the plan."""
    names: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        names.add(current)
        waiting += steps[current].needs
    return {each: step for each, step in steps.items() if each in names}
