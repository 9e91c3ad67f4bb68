"""Resume a killed training, and recognise a finished one.

``DIR.training`` beside the checkpoint ``DIR`` holds the states of a training while it runs: ``about.json`` (everything
the training depends on), ``checkpoint-STEP`` folders, sealed with a manifest of their files when they are whole, and
TensorBoard's logs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from baselines.checkpoint import TRAINING, check_hashes, write_json
from builders.core.cache import FileEntry, describe, wrong_file
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.typed import read_json

_ABOUT, _SEAL, _STATE = "about.json", "sealed.json", "checkpoint-"


class _Trained(Struct):
    """The part of a finished training's ``training.json`` that is read here."""

    about: dict[str, Any]


class _Seal(Struct):
    """The last file that is written into a state."""

    seconds: float
    processes: int
    files: list[FileEntry]


def is_done(out: Path, about: dict[str, Any], ask_commit: Callable[[], str | None]) -> bool:
    """True if ``out`` is the checkpoint of the training that depends on ``about``, and on the commit of its start.

    If the commit cannot be asked for now, the recorded one counts. Raises :class:`InputError` for a damaged checkpoint.
    """
    if not (out / TRAINING).is_file():
        return False
    trained = read_json(out / TRAINING, _Trained).about
    commit = trained.pop("start_commit", None)
    if trained != about:
        return False
    try:
        if ask_commit() != commit:
            return False
    except InputError as error:
        log.warning("%s; %s began from the commit %s", error, out, commit)
    check_hashes(out)
    return True


def start_commit(out: Path, start: str) -> str | None:
    """Return the commit of ``start``, a model on the hub, from which the checkpoint in ``out`` was trained, or None."""
    try:
        about = read_json(out / TRAINING, _Trained).about
    except (FileNotFoundError, NotADirectoryError, InputError):
        return None
    commit = about.get("start_commit")
    return commit if about.get("start") == start and isinstance(commit, str) else None


def states_of(out: Path) -> Path:
    """The folder of the states of the training that ends in ``out``."""
    return out.with_name(f"{out.name}.training")


@contextlib.contextmanager
def states_kept(out: Path, about: dict[str, Any], resume: bool) -> Iterator[Path]:
    """Yield the folder of states. It stays after the block, also after an error if it holds a state.

    Without ``resume`` the folder is emptied first. Raises :class:`InputError` if it holds states of another training
    (recipe, data or start differ), or is somebody else's folder.
    """
    states, earlier = states_of(out), None
    if states.exists() and any(path.name[0] != "." for path in states.iterdir()):
        if not (states / _ABOUT).is_file():
            problem = f"would hold the training's states, and is something else (no {_ABOUT}); expected another --out"
            raise InputError(problem, path=states)
        earlier = read_json(states / _ABOUT, dict[str, Any], "--no-resume starts anew") if resume else None
    if earlier not in (None, about) and _steps(states):
        problem = f"is of another training ({', '.join(_differences(earlier, about))} differ); --no-resume starts anew"
        raise InputError(problem, path=states)
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
        keys = sorted({*left, *right})
        return [found for k in keys for found in _differences(left.get(k), right.get(k), f"{key}.{k}" if key else k)]
    return [] if left == right else [key]


def seal(state: Path, seconds: float, processes: int) -> None:
    """Mark a state as whole, once every process has written its part; ``seconds``: of training so far."""
    names = sorted(path.relative_to(state).as_posix() for path in state.rglob("*") if path.is_file())
    sealed = _Seal(seconds, processes, [describe(state, name) for name in names])
    write_text(state / _SEAL, json.dumps(to_builtins(sealed), indent=1) + "\n")


def last_state(states: Path, processes: int) -> tuple[Path | None, float]:
    """(the newest whole state of so many processes, the seconds of training until then); (None, 0.0) without any.

    Newer ones are removed, with a warning: a kill left them half-written, or a file was changed since.
    """
    for path in reversed(_steps(states)):
        try:
            sealed = read_json(path / _SEAL, _Seal)
            wrong = ((entry.path, wrong_file(path / entry.path, entry)) for entry in sealed.files)
            fault = next((f"{name} {problem}" for name, problem in wrong if problem), "")
            if sealed.processes != processes:
                fault = f"it is of {sealed.processes} processes, and there are {processes}"
        except FileNotFoundError:
            fault = "the training was killed while it was written"
        except InputError as error:
            fault = str(error)
        if not fault:
            return path, sealed.seconds
        log.warning("%s is not whole (%s); removed", path, fault)
        shutil.rmtree(path)
    return None, 0.0


def _steps(states: Path) -> list[Path]:
    """The folders of states, the oldest first."""
    names = [path.name for path in states.glob(f"{_STATE}*") if path.name.removeprefix(_STATE).isdecimal()]
    return [states / name for name in sorted(names, key=lambda name: int(name.removeprefix(_STATE)))]
