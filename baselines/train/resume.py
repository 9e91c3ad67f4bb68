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
from builders.core.cache import FileEntry, describe_file, wrong_file
from builders.core.errors import InputError, log
from builders.core.typed import read_json

_ABOUT = "about.json"
_SEAL = "sealed.json"
_STATE_PREFIX = "checkpoint-"


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

    ``about`` is everything the training depends on, and is written to ``about.json``. The folder is emptied first if
    ``anew`` is true, or if the states belong to another training (recipe, data or starting checkpoint differ). Raises
    :class:`InputError` if the folder has files that no training wrote.
    """
    states = states_of(out)
    earlier_about = None
    if states.exists() and any(not path.name.startswith(".") for path in states.iterdir()):
        if not (states / _ABOUT).is_file():
            problem = f"is needed for the training's states but has other files (no {_ABOUT}); choose another --out"
            raise InputError(problem, path=states)
        if not anew:
            earlier_about = read_json(states / _ABOUT, dict[str, Any], "--again starts anew")
    if earlier_about not in (None, about) and _state_folders(states):
        changed_keys = ", ".join(_changed_keys(earlier_about, about))
        log.warning("%s: training anew, because %s changed since these states were saved", states, changed_keys)
    if earlier_about != about:
        shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True, exist_ok=True)
    write_json(states / _ABOUT, about)
    try:
        yield states
    except InputError:
        if not _state_folders(states):
            shutil.rmtree(states)
        raise


def _changed_keys(earlier: Any, current: Any, key: str = "") -> list[str]:
    """Return the keys whose values differ, for example ``recipe.train.seed``."""
    if not (isinstance(earlier, dict) and isinstance(current, dict)):
        return [] if earlier == current else [key]
    changed_keys = []
    for name in sorted(earlier.keys() | current.keys()):
        inner_key = f"{key}.{name}" if key else name
        changed_keys += _changed_keys(earlier.get(name), current.get(name), inner_key)
    return changed_keys


def seal_state(state: Path, seconds: float, processes: int) -> None:
    """Write the manifest of a state after every process has saved its part. ``seconds``: training time so far."""
    names = sorted(path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file())
    manifest = _Seal(seconds, processes, [describe_file(state, name) for name in names])
    write_json(state / _SEAL, to_builtins(manifest))


def last_state(states: Path, processes: int) -> tuple[Path | None, float]:
    """Return the newest intact state saved by ``processes`` processes, and its training seconds; else (None, 0.0).

    Newer states that cannot be used are removed, with a warning.
    """
    for path in reversed(_state_folders(states)):
        seconds = 0.0
        try:
            manifest = read_json(path / _SEAL, _Seal)
            fault = _first_fault(path, manifest)
            if manifest.processes != processes:
                fault = f"saved by {manifest.processes} processes; this training has {processes}"
            seconds = manifest.seconds
        except FileNotFoundError:
            fault = "the training was killed during the save"
        except InputError as error:
            fault = str(error)
        if not fault:
            return path, seconds
        log.warning("%s cannot be used (%s); removed", path, fault)
        shutil.rmtree(path)
    return None, 0.0


def _first_fault(state: Path, manifest: _Seal) -> str:
    """Describe the first file of a state that is missing or damaged; empty if all files are intact."""
    for entry in manifest.files:
        problem = wrong_file(state / entry.path, entry)
        if problem:
            return f"{entry.path} {problem}"
    return ""


def _state_folders(states: Path) -> list[Path]:
    """Return the folders of states in the order of their steps."""
    folders = {}
    for path in states.glob(f"{_STATE_PREFIX}*"):
        step = path.name.removeprefix(_STATE_PREFIX)
        if step.isdecimal():
            folders[int(step)] = path
    return [folders[step] for step in sorted(folders)]
