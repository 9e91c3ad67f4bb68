"""The states of a training while it runs, in ``DIR.training`` beside the checkpoint: from them a killed one goes on.

The folder holds ``about.json`` (what is trained on what), ``checkpoint-STEP`` folders, sealed when they are whole, and
TensorBoard's logs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.typed import Sha256, read_json

_ABOUT, _SEAL, _STATE = "about.json", "sealed.json", "checkpoint-"


class _Seal(Struct):
    """What is written of a state last."""

    seconds: float
    files: dict[str, Sha256]


def states_of(out: Path) -> Path:
    """The folder of the states of the training that ends in ``out``."""
    return out.with_name(f"{out.name}.training")


@contextlib.contextmanager
def states_kept(out: Path, about: dict[str, Any], resume: bool) -> Iterator[None]:
    """Inside, the folder of states is there. It stays after the block, also after an error where it holds a state.

    Without ``resume`` it is emptied first. :class:`InputError` where it holds states of another training (other recipe,
    data or start), or is another's folder.
    """
    states = states_of(out)
    earlier = _about_of(states)
    if resume and earlier not in (None, about) and _any_state(states):
        raise InputError(
            f"is of another training ({', '.join(_differences(earlier, about))} differ); --no-resume starts anew",
            path=states,
        )
    if not resume or earlier != about:  # nothing there to go on from
        shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True, exist_ok=True)
    write_text(states / _ABOUT, json.dumps(about, ensure_ascii=False, indent=1) + "\n")
    try:
        yield
    except InputError:
        if not _any_state(states):
            shutil.rmtree(states)
        raise


def _about_of(states: Path) -> dict[str, Any] | None:
    """What is trained there; None where nothing is. :class:`InputError` where the folder was not made for states."""
    if not states.exists() or not any(path.name[0] != "." for path in states.iterdir()):
        return None
    try:
        return read_json(states / _ABOUT, dict[str, Any])
    except FileNotFoundError:
        problem = f"would hold the training's states, and is something else (no {_ABOUT}); expected another --out"
        raise InputError(problem, path=states) from None
    except InputError:  # of no training, then
        return {}


def _any_state(states: Path) -> bool:
    return bool(_steps(states))


def _differences(left: Any, right: Any, key: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right})
        return [found for k in keys for found in _differences(left.get(k), right.get(k), f"{key}.{k}" if key else k)]
    return [] if left == right else [key or "everything"]


def seal(state: Path, seconds: float) -> None:
    """Say of a state, once every process has written its part, that it is whole: the SHA-256 of each of its files.

    ``seconds``: how long the training has taken so far.
    """
    write_text(state / _SEAL, json.dumps({"seconds": seconds, "files": _files(state)}, indent=1) + "\n")


def last_state(states: Path, processes: int) -> tuple[Path, float] | None:
    """(the newest state that is as it was sealed, the seconds until then); None where there is none.

    A state that a kill left half-written, or with a file that was changed since, is passed over: of the two that are
    kept, the earlier one is gone on from.
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
    return None


def _files(state: Path) -> dict[str, str]:
    """Path in the state -> SHA-256."""
    found = {path.relative_to(state).as_posix(): path for path in state.rglob("*") if path.is_file()}
    return {name: sha256_of(path) for name, path in sorted(found.items()) if path.name[0] != "." and name != _SEAL}


def _fault(found: dict[str, str], sealed: dict[str, Sha256], processes: int) -> str:
    needed = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    if lacking := sorted({*sealed, *needed} - found.keys()):
        return f"{lacking[0]} is missing"
    return next((f"{name} is damaged" for name, digest in found.items() if sealed.get(name) != digest), "")


def remove_broken(states: Path, keep: Path | None) -> None:
    """Remove the states that :func:`last_state` passed over, newer ones than ``keep``."""
    steps = _steps(states)
    for path in steps[0 if keep is None else steps.index(keep) + 1 :]:
        shutil.rmtree(path)


def _steps(states: Path) -> list[Path]:
    """The folders of states, the oldest first."""
    names = [path.name for path in states.glob(f"{_STATE}*") if path.name.removeprefix(_STATE).isdecimal()]
    return [states / name for name in sorted(names, key=lambda name: int(name.removeprefix(_STATE)))]
