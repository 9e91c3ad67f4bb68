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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from baselines.reproduce.verb_calls import find_function, verbs_of
from baselines.train.recipe import like_of, read_recipe
from builders.core.errors import InputError, UsageError
from builders.core.files import read_toml
from builders.core.options import check_value, did_you_mean
from builders.core.verbs import verb_spec

EVERY = "*"
OPTIONS = "options"
# Options that say what a step is. Options whose values are outputs of other steps are also of this kind.
_DEFINING = {"release", "set", "split", "out", "recipe", "action"}
OptionValue = str | bool | int | float


@dataclass(frozen=True)
class Settings:
    """Changed values of recipes (``SECTION.KEY=VALUE`` by recipe or ``*``) and of options (by verb)."""

    recipes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, OptionValue]] = field(default_factory=dict)
    path: Path | None = None
    start: str | None = None  # replaces every pretrained starting checkpoint

    def of_recipe(self, name: str) -> list[str]:
        """Return the values for a recipe. Later values override earlier ones.

        The order is: values for ``*``, values for the recipe that ``like`` names, values for the recipe itself, and
        ``start``. Values for the recipe of ``like`` are skipped if the recipe's own file sets the same key.
        """
        values = [*self.recipes.get(EVERY, ()), *self._of_named_recipe(name)]
        if self.start is not None and read_recipe(name, values).model.is_pretrained:
            values += [f"model.start={self.start}", "model.revision="]
        return values

    def _of_named_recipe(self, name: str) -> list[str]:
        like, keys_in_file = like_of(name)
        inherited = self._of_named_recipe(like) if like else []
        values = [value for value in inherited if value.partition("=")[0] not in keys_in_file]
        return [*values, *self.recipes.get(name, ())]

    def of_verb(self, verb: str, inputs: Collection[str] = ()) -> dict[str, OptionValue]:
        """Return the changed arguments of a verb, by their names in Python.

        ``inputs`` names the arguments that are outputs of other steps. Raises :class:`InputError` for an option that
        the verb lacks or that defines the step, and for a wrong value.
        """
        arguments = {}
        for option, value in self.options.get(verb, {}).items():
            name = option.replace("-", "_")
            if name in _DEFINING or name in inputs:
                raise self._error(verb, f"--{option} defines the step and cannot be set; remove it")
            self._check_option(verb, option, value)
            arguments[name] = value
        return arguments

    def _check_option(self, verb: str, option: str, value: OptionValue) -> None:
        options = {each.name.replace("_", "-"): each for each in verb_spec(find_function(verb)).options}
        if option not in options:
            raise self._error(verb, f"no option --{option}{did_you_mean(option, options)}")
        try:
            check_value(options[option], value, label=f"--{option}")
        except UsageError as error:
            raise self._error(verb, str(error)) from None

    def describe_options(self, verb: str, without: Collection[str]) -> list[str]:
        """Return the changed options of a verb as on a command line, ``rerank --top-k 20``, except ``without``."""
        lines = []
        for option, value in self.options.get(verb, {}).items():
            if option not in without:
                lines.append(f"{verb} --{option}" if value is True else f"{verb} --{option} {value}")
        return lines

    def _error(self, verb: str, message: str) -> InputError:
        return InputError(f"{OPTIONS}.{verb}: {message}", path=self.path)


NO_SETTINGS = Settings()


def read_settings(path: Path) -> Settings:
    """Read a settings file. Raises :class:`InputError` for an unknown recipe, key or verb."""
    content = read_toml(path)
    for name, tables in content.items():
        try:
            msgspec.convert(tables, dict[str, dict[str, OptionValue]])
        except msgspec.ValidationError as error:
            expected = "expected strings, numbers or true in sections, for example train.epochs = 3 or [options.rerank]"
            raise InputError(f"{name}: {expected}", path=path) from error
    options = content.pop(OPTIONS, {})
    verbs = verbs_of("baselines")
    for verb in options:
        if verb not in verbs:
            raise InputError(f"{OPTIONS}.{verb}: no verb of baselines; expected {', '.join(verbs)}", path=path)
    recipes: dict[str, list[str]] = {}
    for recipe, sections in content.items():
        recipes[recipe] = []
        for section, values in sections.items():
            recipes[recipe] += [f"{section}.{key}={value}" for key, value in values.items()]
    for recipe in sorted(recipes.keys() - {EVERY}):  # the values of "*" are checked with each trained recipe
        try:
            read_recipe(recipe, recipes[recipe])
        except InputError as error:
            raise InputError(f"{recipe}: {error}", path=path) from None
    return Settings(recipes, options, path)
