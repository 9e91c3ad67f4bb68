"""A settings file, which changes values of recipes and options of the steps.

```toml
["*"]                      # every recipe
train.seed = 1

[de-bm25-neg]              # one recipe
model.start = "models/a-small-one"

[options.rerank]           # every step of a verb
top-k = 20
```
"""

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from baselines.train.recipe import read_recipe
from baselines.train.recipe_changes import inherit_values
from builders.core.errors import InputError, UsageError
from builders.core.options import check_value, did_you_mean
from builders.core.read_files import read_toml
from builders.core.verbs import load_function, verb_spec

EVERY = "*"
OPTIONS = "options"
# Options that say what a step is. Options whose values are outputs of other steps are also of this kind.
_DEFINING = {"release", "set", "split", "out", "recipe", "action"}
OptionValue = str | bool | int | float


@dataclass(frozen=True)
class StepSettings:
    """Changed values of recipes (``SECTION.KEY=VALUE`` by recipe or ``*``) and of options (by verb).

    The names of options have no dashes in front, for example ``top-k``. ``path`` is the settings file, for errors.
    """

    recipes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, OptionValue]] = field(default_factory=dict)
    path: Path | None = None
    start: str | None = None  # replaces every pretrained starting checkpoint

    def of_recipe(self, name: str) -> list[str]:
        """Return the values for a recipe: for ``*``, for the recipe itself (with ``like``), and ``start``, in order."""
        values = [*self.recipes.get(EVERY, ()), *inherit_values(name, self.recipes)]
        if self.start is not None and read_recipe(name, values).model.is_pretrained:
            # The recipe's revision is a commit of the model that is replaced.
            values += [f"model.start={self.start}", "model.revision="]
        return values

    def of_verb(self, verb: str, inputs: Collection[str] = ()) -> dict[str, OptionValue]:
        """Return the changed arguments of a verb, by their names in Python.

        ``inputs`` has the Python names of the arguments that are outputs of other steps. Raises :class:`InputError` for
        an option that the verb lacks or that defines the step, and for a wrong value.
        """
        changed_options = self.options.get(verb)
        if not changed_options:
            return {}
        options = {option.name: option for option in verb_spec(load_function(_verbs()[verb])).options}
        flags = [name.replace("_", "-") for name in options]
        arguments = {}
        for flag, value in changed_options.items():
            name = flag.replace("-", "_")
            if name in _DEFINING or name in inputs:
                raise self._error(verb, f"--{flag} defines the step and cannot be set; remove it")
            if flag not in flags:
                raise self._error(verb, f"no option --{flag}{did_you_mean(flag, flags)}")
            try:
                check_value(options[name], value, label=f"--{flag}")
            except UsageError as error:
                raise self._error(verb, str(error)) from None
            arguments[name] = value
        return arguments

    def _error(self, verb: str, message: str) -> InputError:
        return InputError(f"{OPTIONS}.{verb}: {message}", path=self.path)


NO_SETTINGS = StepSettings()


def _verbs() -> Mapping[str, str]:
    """Return the targets of the verbs of baselines. Their list is above all packages, which cannot import it."""
    verbs: Mapping[str, str] = importlib.import_module("baselines.__main__").VERBS
    return verbs


def read_settings(path: Path) -> StepSettings:
    """Read a settings file. Raises :class:`InputError` for an unknown recipe, key or verb."""
    content = read_toml(path)
    # Only the types are checked here. The converted value is not used.
    for name, tables in content.items():
        try:
            msgspec.convert(tables, dict[str, dict[str, OptionValue]])
        except msgspec.ValidationError as error:
            expected = "expected strings, numbers or true in sections, for example train.epochs = 3 or [options.rerank]"
            raise InputError(f"{name}: {expected}", path=path) from error
    options = content.pop(OPTIONS, {})
    for verb in options:
        if verb not in _verbs():
            raise InputError(f"{OPTIONS}.{verb}: no verb of baselines; expected {', '.join(_verbs())}", path=path)
    recipes: dict[str, list[str]] = {}
    for recipe, sections in content.items():
        recipes[recipe] = []
        for section, values in sections.items():
            # A boolean becomes True or False, which `train --set` reads like true and false.
            recipes[recipe] += [f"{section}.{key}={value}" for key, value in values.items()]
    # The values of "*" are checked with each trained recipe.
    for recipe in sorted(recipes.keys() - {EVERY}):
        try:
            read_recipe(recipe, recipes[recipe])
        except InputError as error:
            raise InputError(f"{recipe}: {error}", path=path) from None
    return StepSettings(recipes, options, path)
