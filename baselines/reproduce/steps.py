"""Steps: verbs with their arguments, recorded in the order in which they run."""

import importlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.reproduce.step_settings import NO_SETTINGS, StepSettings
from baselines.train.recipe import FROM_RECIPE, Recipe, read_recipe
from builders.core.verbs import load_function, verb_spec

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

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the verb."""
        return load_function(_find_verb(self.verb)[1])

    def words(self) -> list[str]:
        """Return the words after ``python -m``. Arguments that equal their default are also written."""
        words = verb_spec(self.function).words(self.arguments, with_defaults=True)
        return [_find_verb(self.verb)[0], *self.verb.split(), *words]

    def shell_words(self, processes: int = 1) -> list[str]:
        """Return the words after ``python``. For a training in several processes, torchrun runs the command."""
        if self.verb != "train" or processes == 1:
            return ["-m", *self.words()]
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return ["-m", *torchrun, "-m", *self.words()]

    def shell_line(self, processes: int = 1) -> str:
        """Return the command as typed in a shell."""
        return "python " + shlex.join(self.shell_words(processes))

    def recipe(self) -> Recipe:
        """Return the recipe of a training, with the values of ``--set``."""
        return read_recipe(self.arguments["recipe"], self.arguments.get("set", ()))


def _find_verb(verb: str) -> tuple[str, str]:
    """Return the program and the target ("module:function") of a verb, or of a step of a verb."""
    name, _, step = verb.partition(" ")
    for program in ("baselines", "builders"):
        verbs = importlib.import_module(f"{program}.__main__").VERBS
        if name in verbs:
            return program, importlib.import_module(verbs[name]).STEPS[step] if step else verbs[name]
    raise KeyError(verb)


class Steps:
    """The recorded steps. A call records a step and returns it: ``do("mine", run=run, out="negatives.jsonl")``.

    Attributes:
        release: the release directory.
        out: the folder of `reproduce --out`, which all outputs are in.
        split: the split that `reproduce` measures on.
        variant: "-scratch" for recipes without pretrained weights, otherwise "".
        settings: changed values of recipes and options.
        recorded: the steps by name. A step comes after the steps whose outputs it reads.
    """

    def __init__(
        self,
        release: Path,
        out: Path,
        split: str = "dev",
        *,
        scratch: bool = False,
        settings: StepSettings = NO_SETTINGS,
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
        # "set" is the set of the release, except for `train`, where it is a list of changed values of the recipe.
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
        """Return the recipe that trains the starting checkpoint of ``recipe``. "": no recipe trains it.

        ``recipe`` is a full name, which may end in "-scratch". The result is without "-scratch".
        """
        start = read_recipe(recipe, self.settings.of_recipe(recipe)).model.start
        return start.removeprefix(FROM_RECIPE).removesuffix(SCRATCH) if start.startswith(FROM_RECIPE) else ""


def inputs_of(value: Any) -> list[Step]:
    """Return the steps in an argument's value: a step, the steps of a list, or none for any other value."""
    values = value if isinstance(value, list) else [value]
    return [element for element in values if isinstance(element, Step)]


def steps_behind(steps: Mapping[str, Step], name: str) -> list[Step]:
    """Return a step and all steps that it depends on, in the order in which they run."""
    names = {name}
    # A step is recorded after the steps that it needs, so one pass from the last step finds all of them.
    for step in reversed(list(steps.values())):
        if step.name in names:
            names.update(step.needs)
    return [step for step in steps.values() if step.name in names]
