"""Resume a killed training, and recognise a finished one.

``DIR.training`` beside the checkpoint ``DIR`` holds the states of a training while it runs: ``about.json`` (everything
the training depends on), ``checkpoint-STEP`` folders, sealed with their files' SHA-256 when they are whole, and
TensorBoard's logs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from baselines.checkpoint import TRAINING, check_hashes, files_sha256, write_json
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.typed import Sha256, read_json

if TYPE_CHECKING:
    from baselines.train.train import Job

_ABOUT, _SEAL, _STATE = "about.json", "sealed.json", "checkpoint-"


class _Trained(Struct):
    """The part of a finished training's ``training.json`` that is read here."""

    about: dict[str, Any]


class _Seal(Struct):
    """The last file that is written into a state."""

    seconds: float
    files: dict[str, Sha256]


def is_done(job: Job) -> bool:
    """True if the output is the checkpoint of exactly this training.

    Where the commit of a start on the hub cannot be asked for now, the one that the training began from counts. Raises
    :class:`InputError` where something else is in the output's place, or a file of the checkpoint is damaged.
    """
    out = job.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        about = read_json(out / TRAINING, _Trained).about
    except (FileNotFoundError, NotADirectoryError):
        raise InputError("exists and is no checkpoint of `train`; expected a new path", path=out) from None
    commit = about.pop("start_commit", None)
    if about != job.about_but_commit:
        return False
    try:
        if job.commit != commit:
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
def states_kept(out: Path, about: dict[str, Any], resume: bool) -> Iterator[None]:
    """Make the folder of states for the block. It stays afterwards, also after an error if it holds a state.

    Without ``resume`` the folder is emptied first. Raises :class:`InputError` if it holds states of another training
    (recipe, data or start differ), or is somebody else's folder.
    """
    states = states_of(out)
    earlier = _about_of(states)
    if resume and earlier not in (None, about) and _steps(states):
        raise InputError(
            f"is of another training ({', '.join(_differences(earlier, about))} differ); --no-resume starts anew",
            path=states,
        )
    if not resume or earlier != about:  # nothing there to resume from
        shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True, exist_ok=True)
    write_json(states / _ABOUT, about)
    try:
        yield
    except InputError:
        if not _steps(states):
            shutil.rmtree(states)
        raise


def _about_of(states: Path) -> dict[str, Any] | None:
    """Everything that the training of these states depends on; None if the folder is empty or missing.

    Raises :class:`InputError` if the folder was not made for states.
    """
    if not states.exists() or not any(path.name[0] != "." for path in states.iterdir()):
        return None
    try:
        return read_json(states / _ABOUT, dict[str, Any])
    except FileNotFoundError:
        problem = f"would hold the training's states, and is something else (no {_ABOUT}); expected another --out"
        raise InputError(problem, path=states) from None
    except InputError:  # of no training, then
        return {}


def _differences(left: Any, right: Any, key: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right})
        return [found for k in keys for found in _differences(left.get(k), right.get(k), f"{key}.{k}" if key else k)]
    return [] if left == right else [key or "everything"]


def seal(state: Path, seconds: float) -> None:
    """Mark a state as whole, once every process has written its part, by the SHA-256 of each of its files.

    ``seconds``: how long the training has taken so far.
    """
    write_text(state / _SEAL, json.dumps({"seconds": seconds, "files": _files(state)}, indent=1) + "\n")


def last_state(states: Path, processes: int) -> tuple[Path | None, float]:
    """(the newest state that is as it was sealed, the seconds of training until then); (None, 0.0) if there is none.

    Newer ones are removed, with a warning: a kill left them half-written, or a file was changed since.
    """
    for path in reversed(_steps(states)):
        try:
            sealed = read_json(path / _SEAL, _Seal)
            fault = _fault(_files(path), sealed.files, processes)
        except FileNotFoundError:
            fault = "the training was killed while it was written"
        except (OSError, InputError) as error:
            fault = str(error)
        if not fault:
            return path, sealed.seconds
        log.warning("%s is not whole (%s); left out", path, fault)
        shutil.rmtree(path)
    return None, 0.0


def _files(state: Path) -> dict[str, str]:
    return files_sha256(state, lambda name: (last := name.rpartition("/")[2])[0] != "." and last != _SEAL)


def _fault(found: dict[str, str], sealed: dict[str, Sha256], processes: int) -> str:
    needed = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    if lacking := sorted({*sealed, *needed} - found.keys()):
        return f"{lacking[0]} is missing"
    return next((f"{name} is damaged" for name, digest in found.items() if sealed.get(name) != digest), "")


def _steps(states: Path) -> list[Path]:
    """The folders of states, the oldest first."""
    names = [path.name for path in states.glob(f"{_STATE}*") if path.name.removeprefix(_STATE).isdecimal()]
    return [states / name for name in sorted(names, key=lambda name: int(name.removeprefix(_STATE)))]
