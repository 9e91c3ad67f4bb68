"""A settings file: other values for recipes, and other options for the steps' commands.

```toml
["*"]                      # every recipe that is trained
train.seed = 1

[de-bm25-neg]              # one recipe
model.start = "models/a-small-one"
train.max_steps = 100

[options.rerank]           # every step of a verb
top-k = 20
```
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from baselines.train.recipe import read_recipe
from builders.core.errors import InputError
from builders.core.files import read_toml

EVERY = "*"
OPTIONS = "options"
_OF_THE_STEP = ("--set", "--split")  # what a step is about; the words in braces are the step's own, too


@dataclass(frozen=True)
class Settings:
    """``recipes``: ``SECTION.KEY=VALUE`` words by recipe (or ``*``); ``options``: by verb, its options' values."""

    recipes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, str | bool]] = field(default_factory=dict)
    path: Path | None = None

    def of_recipe(self, name: str) -> list[str]:
        """The words for a recipe: those of every recipe, then its own, which win."""
        return [*self.recipes.get(EVERY, ()), *self.recipes.get(name, ())]

    def with_options(self, words: Sequence[str]) -> list[str]:
        """The words of a step as ``matrix.toml`` has them, with the options of its verb in them.

        Raises :class:`InputError` for an option that says what the step is about.
        """
        found = list(words)
        for name, value in self.options.get(words[1], {}).items():
            option = f"--{name}"
            place = found.index(option) + 1 if option in found else None
            if option in _OF_THE_STEP or (place and found[place].startswith("{")):
                raise self._error(words[1], f"{option} is what the step is about; it cannot be set")
            if isinstance(value, bool):
                found += [option] * (value and place is None)
            elif place:
                found[place] = value
            else:
                found += [option, value]
        return found

    def check(self, command: Sequence[str]) -> None:
        """Raise :class:`InputError` for an option that the command's verb does not take, or takes otherwise."""
        verb = command[1]
        if verb not in self.options:
            return
        parser = _Parser(allow_abbrev=False, add_help=False)
        importlib.import_module(_verbs()[verb]).add_arguments(parser)
        try:
            parser.parse_args(list(command[2:]))
        except ValueError as error:
            raise self._error(verb, str(error)) from None

    def shown(self) -> list[str]:
        """The options as one types them, a verb each: ``rerank --top-k 20``."""
        return [
            " ".join([verb, *(f"--{name}" + ("" if value is True else f" {value}") for name, value in options.items())])
            for verb, options in self.options.items()
        ]

    def _error(self, verb: str, message: str) -> InputError:
        return InputError(f"{OPTIONS}.{verb}: {message}", path=self.path)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def read_settings(path: Path) -> Settings:
    """Read a settings file. Raises :class:`InputError` for a recipe, a key or a verb that is not there."""
    content = read_toml(path)
    options = _options(content.pop(OPTIONS, {}), path)
    recipes: dict[str, list[str]] = {}
    for recipe, sections in content.items():
        if not isinstance(sections, dict) or not all(isinstance(values, dict) for values in sections.values()):
            raise InputError(f"{recipe}: expected a table a recipe, with keys such as train.epochs = 3", path=path)
        words = [
            f"{section}.{key}={_value(value, f'{recipe}.{section}.{key}', path)}"
            for section, values in sections.items()
            for key, value in values.items()
        ]
        if recipe != EVERY:  # what stands for every recipe is read with each that is trained
            try:
                read_recipe(recipe, words)
            except InputError as error:
                raise InputError(f"{recipe}: {error}", path=path) from None
        recipes[recipe] = words
    return Settings(recipes, options, path)


def _options(content: Any, path: Path) -> dict[str, dict[str, str | bool]]:
    found: dict[str, dict[str, str | bool]] = {}
    if not isinstance(content, dict) or not all(isinstance(options, dict) for options in content.values()):
        raise InputError(f"expected a table a verb: [{OPTIONS}.rerank], then top-k = 20", path=path)
    for verb, options in content.items():
        if verb not in _verbs():
            raise InputError(f"{OPTIONS}.{verb}: no verb of baselines; expected {', '.join(_verbs())}", path=path)
        found[verb] = {name: _value(value, f"{OPTIONS}.{verb}.{name}", path) for name, value in options.items()}
    return found


def _value(value: Any, key: str, path: Path) -> str | bool:
    """A value as one types it. A list or a table is none: written into a word, it would pass for a text."""
    if not isinstance(value, str | int | float):
        raise InputError(f"{key}: expected a text, a number or true", path=path)
    return value if isinstance(value, bool) else str(value)


def _verbs() -> Mapping[str, str]:
    verbs: Mapping[str, str] = importlib.import_module("baselines.__main__").VERBS
    return verbs
