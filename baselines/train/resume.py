"""Resume a killed training.

The folder ``DIR.training`` beside the checkpoint ``DIR`` has the states of a running training. ``about.json`` lists
everything the training depends on. Each ``checkpoint-STEP`` is a state. The manifest of a state's files is written
last. ``DIR.training`` also has TensorBoard's logs.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from baselines.core.checkpoint import write_json
from builders.core.cache import FileEntry, describe, wrong_file
from builders.core.errors import InputError, log
from builders.core.typed import read_json

_ABOUT, _SEAL, _STATE = "about.json", "sealed.json", "checkpoint-"


class _Seal(Struct):
    """The manifest of a state, written after all of the state's files."""

    seconds: float
    processes: int
    files: list[FileEntry]


def states_of(out: Path) -> Path:
    """The folder of training states for the checkpoint ``out``."""
    return out.with_name(f"{out.name}.training")


@contextlib.contextmanager
def states_kept(out: Path, about: dict[str, Any], *, anew: bool) -> Iterator[Path]:
    """Yield the folder of states. An :class:`InputError` in the block removes the folder if it has no states.

    The folder is emptied first if ``anew`` is true, or if the states belong to another training (recipe, data or
    starting checkpoint differ). Raises :class:`InputError` if the folder has files that no training wrote.
    """
    states, earlier = states_of(out), None
    if states.exists() and any(path.name[0] != "." for path in states.iterdir()):
        if not (states / _ABOUT).is_file():
            problem = f"is needed for the training's states but has other files (no {_ABOUT}); choose another --out"
            raise InputError(problem, path=states)
        earlier = None if anew else read_json(states / _ABOUT, dict[str, Any], "--again starts anew")
    if earlier not in (None, about) and _steps(states):
        differences = ", ".join(_differences(earlier, about))
        log.warning("%s: training anew, because %s changed since these states were saved", states, differences)
    if earlier != about:
        shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True, exist_ok=True)
    write_json(states / _ABOUT, about)
    try:
        yield states
    except InputError:
        if not _steps(states):
            shutil.rmtree(states)
        raise


def _differences(left: Any, right: Any, key: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            found
            for name in sorted({*left, *right})
            for found in _differences(left.get(name), right.get(name), f"{key}.{name}" if key else name)
        ]
    return [] if left == right else [key]


def seal(state: Path, seconds: float, processes: int) -> None:
    """Write the manifest of a state after every process has saved its part. ``seconds``: training time so far."""
    names = sorted(path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file())
    write_json(state / _SEAL, to_builtins(_Seal(seconds, processes, [describe(state, name) for name in names])))


def last_state(states: Path, processes: int) -> tuple[Path | None, float]:
    """Return the newest intact state saved by ``processes`` processes, and its training seconds; else (None, 0.0).

    Newer states that cannot be used are removed, with a warning.
    """
    for path in reversed(_steps(states)):
        try:
            sealed = read_json(path / _SEAL, _Seal)
            wrong = ((entry.path, wrong_file(path / entry.path, entry)) for entry in sealed.files)
            fault = next((f"{name} {problem}" for name, problem in wrong if problem), "")
            if sealed.processes != processes:
                fault = f"saved by {sealed.processes} processes; this training has {processes}"
        except FileNotFoundError:
            fault = "the training was killed during the save"
        except InputError as error:
            fault = str(error)
        if not fault:
            return path, sealed.seconds
        log.warning("%s cannot be used (%s); removed", path, fault)
        shutil.rmtree(path)
    return None, 0.0


def _steps(states: Path) -> list[Path]:
    names = [path.name for path in states.glob(f"{_STATE}*") if path.name.removeprefix(_STATE).isdecimal()]
    return [states / name for name in sorted(names, key=lambda name: int(name.removeprefix(_STATE)))]
