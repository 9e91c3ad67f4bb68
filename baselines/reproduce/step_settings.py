"""A settings file, which changes values of recipes and options of the steps' commands.

```toml
["*"]                      # every recipe
train.seed = 1

[de-bm25-neg]              # one recipe
model.start = "models/a-small-one"

[options.rerank]           # every step of a verb
top-k = 20
```
"""

import argparse
import importlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from baselines.train.recipe import like_of, read_recipe
from builders.core.errors import InputError
from builders.core.files import read_toml

EVERY = "*"
OPTIONS = "options"
_OF_THE_STEP = ("--set", "--split")  # options that define a step, like options whose values are names in braces
_Value = str | bool | int | float


def verbs(program: str = "baselines") -> Mapping[str, str]:
    """Return the module of each verb of a program, by verb."""
    found: Mapping[str, str] = importlib.import_module(f"{program}.__main__").VERBS
    return found


@dataclass(frozen=True)
class Settings:
    """Changed values of recipes (``SECTION.KEY=VALUE`` by recipe or ``*``) and of options (by verb)."""

    recipes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, _Value]] = field(default_factory=dict)
    path: Path | None = None

    def of_recipe(self, name: str) -> list[str]:
        """Return the values for a recipe. Later values override earlier ones.

        The order is: values for ``*``, values for the recipe that ``like`` names, values for the recipe itself. Values
        for the recipe of ``like`` are skipped if the recipe's own file sets the same key.
        """
        return [*self.recipes.get(EVERY, ()), *self._without_every(name)]

    def _without_every(self, name: str) -> list[str]:
        like, own = like_of(name)
        before = self._without_every(like) if like else []
        return [*(each for each in before if each.partition("=")[0] not in own), *self.recipes.get(name, ())]

    def with_options(self, words: Sequence[str]) -> list[str]:
        """Return the words of a step from ``matrix.toml`` with the options that are set for its verb.

        Raises :class:`InputError` for an option that defines the step.
        """
        found = list(words)
        for name, value in self.options.get(words[1], {}).items():
            option = f"--{name}"
            start = found.index(option) if option in found else len(found)
            earlier = list(itertools.takewhile(lambda word: not word.startswith("--"), found[start + 1 :]))
            if option in _OF_THE_STEP or any(word.startswith("{") for word in earlier):
                raise self._error(words[1], f"{option} defines the step and cannot be set; remove it")
            del found[start : start + 1 + len(earlier)]
            found += [option] if value is True else [option, str(value)]
        return found

    def check(self, command: Sequence[str]) -> None:
        """Raise :class:`InputError` if the command's verb refuses an option or a value."""
        verb = command[1]
        if verb in self.options:
            parser = _Parser(allow_abbrev=False, add_help=False)
            importlib.import_module(verbs()[verb]).add_arguments(parser)
            try:
                parser.parse_args(list(command[2:]))
            except ValueError as error:
                raise self._error(verb, str(error)) from None

    def shown(self, verb: str, but: Collection[str]) -> list[str]:
        """Return the options of a verb as on a command line, ``rerank --top-k 20``, except those in ``but``."""
        own = self.options.get(verb, {}).items()
        return [f"{verb} --{name} {value}".removesuffix(" True") for name, value in own if name not in but]

    def _error(self, verb: str, message: str) -> InputError:
        return InputError(f"{OPTIONS}.{verb}: {message}", path=self.path)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_settings(path: Path) -> Settings:
    """Read a settings file. Raises :class:`InputError` for an unknown recipe, key or verb."""
    content = read_toml(path)
    for name, tables in content.items():
        try:
            msgspec.convert(tables, dict[str, dict[str, _Value]])
        except msgspec.ValidationError as error:
            expected = "expected strings, numbers or true in sections, for example train.epochs = 3 or [options.rerank]"
            raise InputError(f"{name}: {expected}", path=path) from error
    options = content.pop(OPTIONS, {})
    if unknown := next((verb for verb in options if verb not in verbs()), None):
        raise InputError(f"{OPTIONS}.{unknown}: no verb of baselines; expected {', '.join(verbs())}", path=path)
    recipes = {
        recipe: [f"{section}.{key}={value}" for section, values in sections.items() for key, value in values.items()]
        for recipe, sections in content.items()
    }
    for recipe in sorted(recipes.keys() - {EVERY}):  # the values of "*" are checked with each trained recipe
        try:
            read_recipe(recipe, recipes[recipe])
        except InputError as error:
            raise InputError(f"{recipe}: {error}", path=path) from None
    return Settings(recipes, options, path)
