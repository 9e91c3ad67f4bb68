"""How a run was made, from what lies beside it: the commands that `reproduce` noted, the recipes of the models."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from baselines.bundle.packed import Environment
from baselines.hub.checkpoint import RECIPE, TRAINING
from baselines.reproduce.code import code_of
from baselines.train.recipe import FROM_RECIPE, read_recipe
from builders.common.command import VERSION, InputError
from builders.common.typed import read_json


class _Stamp(Struct):
    """What is read of the stamp that `reproduce` writes beside a step's output (baselines/reproduce/steps.py)."""

    command: list[str] = []


def commands_behind(output: Path) -> list[list[str]]:
    """The commands that made an output of `reproduce` and what it was made from, the first one first.

    Words as they were given; none where no stamp lies beside it.
    """
    found: dict[Path, list[str]] = {}

    def follow(path: Path) -> None:
        command = _command(path)
        if command and path not in found:
            found[path] = command  # also ends a circle
            for other in _read_by(command, path):
                follow(other)
            found[path] = found.pop(path)  # behind what it was made from

    follow(output)
    return list(found.values())


def _command(output: Path) -> list[str]:
    try:
        return read_json(output.with_name(f".{output.name}.step.json"), _Stamp).command
    except (OSError, ValueError, InputError):  # none there, no path, or another's file
        return []


def _read_by(command: list[str], output: Path) -> list[Path]:
    """What a command was given, and the checkpoint beside its output that a training started from."""
    pairs = list(itertools.pairwise(command))
    found = [Path(value) for option, value in pairs if option.startswith("--") and option != "--out"]
    if command[1:2] == ["train"] and len(command) > 2:
        with contextlib.suppress(InputError):  # a recipe of another version
            start = read_recipe(command[2], [value for option, value in pairs if option == "--set"]).model.start
            found += [output.parent / start.removeprefix(FROM_RECIPE)] * start.startswith(FROM_RECIPE)
    return found


def plain(command: list[str], folder: Path) -> list[str]:
    """A command without paths of this machine, also behind ``=``.

    What lies in ``folder`` is named from there; of other absolute paths the last part is left.
    """
    pairs = (word.rpartition("=") for word in command)
    return [f"{key}{equals}{_shortened(value, folder)}" for key, equals, value in pairs]


def _shortened(word: str, folder: Path) -> str:
    path = Path(word)
    if not path.is_absolute():
        return word
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def recipes_of(models: list[Path]) -> dict[str, bytes]:
    """The recipe and the record of each checkpoint, by their name in a bundle; a folder without a recipe is none.

    Without paths of the machine, as of :func:`plain`.
    """
    found: dict[str, bytes] = {}
    names: set[str] = set()
    for model in dict.fromkeys(path.resolve() for path in models if (path / RECIPE).is_file()):
        name = next(each for n in itertools.count(1) if (each := model.name + f"-{n}" * (n > 1)) not in names)
        names.add(name)
        for file in (RECIPE, TRAINING):
            if (model / file).is_file():
                content = _without_paths(read_json(model / file, dict[str, Any]))
                found[f"models/{name}/{file}"] = json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"
    return found


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def models_in(commands: list[list[str]]) -> list[Path]:
    """What the commands trained, or name as ``--model``."""
    return [
        Path(value)
        for words in commands
        for option, value in itertools.pairwise(words)
        if option == "--model" or (option == "--out" and words[1:2] == ["train"])
    ]


@functools.cache
def environment() -> Environment:
    """Of this process: versions, no paths and no names of machines or people."""
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
    return Environment(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        project=VERSION,
        code=code_of("baselines.measure.evaluate"),
        packages=dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    )


def as_json(value: Struct) -> bytes:
    """As a file of a bundle."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
