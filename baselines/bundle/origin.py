"""How a run was made, from what lies beside it: the commands that `reproduce` noted, the recipes of the models."""

from __future__ import annotations

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
            for option, value in itertools.pairwise(command):
                if option.startswith("--") and option != "--out":
                    follow(Path(value))
            found[path] = found.pop(path)  # behind what it was made from

    follow(output)
    return list(found.values())


def _command(output: Path) -> list[str]:
    try:
        return read_json(output.with_name(f".{output.name}.step.json"), _Stamp).command
    except (OSError, ValueError, InputError):  # none there, no path, or another's file
        return []


def plain(command: list[str]) -> list[str]:
    """A command without paths of this machine: of absolute ones, also behind ``=``, the last part alone."""
    pairs = (word.rpartition("=") for word in command)
    return [f"{key}{equals}{_last(value)}" for key, equals, value in pairs]


def _last(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


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
    return _last(value) if isinstance(value, str) else value


def models_in(commands: list[list[str]]) -> list[Path]:
    """What the commands name as ``--model``."""
    return [Path(value) for words in commands for option, value in itertools.pairwise(words) if option == "--model"]


@functools.cache
def environment() -> Environment:
    """Of this process: versions, no paths and no names of machines or people."""
    packages = {each.metadata["Name"]: each.version for each in metadata.distributions() if each.metadata["Name"]}
    return Environment(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        project=VERSION,
        code=code_of("baselines.runs.evaluate"),
        packages=dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    )


def as_json(value: Struct) -> bytes:
    """As a file of a bundle."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
