"""The states of a training while it runs, in ``DIR.training`` beside the checkpoint: from them a killed one goes on.

The folder holds ``about.json`` (what is trained on what), ``checkpoint-STEP`` folders and TensorBoard's logs.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders.common.command import InputError, log
from builders.common.files import write_text
from builders.common.typed import read_json

_ABOUT, _SECONDS = "about.json", "seconds"


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
    return next(states.glob("checkpoint-*"), None) is not None


def _differences(left: Any, right: Any, key: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right})
        return [found for k in keys for found in _differences(left.get(k), right.get(k), f"{key}.{k}" if key else k)]
    return [] if left == right else [key or "everything"]


def last_state(states: Path, processes: int) -> Path | None:
    """The newest whole ``checkpoint-STEP``; those that a kill left half-written are passed over."""
    whole: list[tuple[int, Path]] = []
    for path in states.glob("checkpoint-*"):
        # trainer_state.json is the last file that the trainer writes, every process' random state comes before it.
        names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
        try:
            step = int(path.name.removeprefix("checkpoint-"))
            # Python's reader: the libraries may write numbers that are not finite there.
            content = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            if content["global_step"] != step or not all((path / name).is_file() for name in names):
                raise ValueError
            whole.append((step, path))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            log.warning("%s is not whole (the training was killed while it was written); left out", path)
    return max(whole)[1] if whole else None


def remove_broken(states: Path, keep: Path | None) -> None:
    """Remove the states that :func:`last_state` passed over, newer ones than ``keep``."""
    for path in states.glob("checkpoint-*"):
        if keep is None or int(path.name.split("-")[-1]) > int(keep.name.split("-")[-1]):
            shutil.rmtree(path)


def write_seconds(state: Path, seconds: float) -> None:
    """Note in a state how long the training has taken so far."""
    (state / _SECONDS).write_text(str(seconds), encoding="utf-8")


def seconds_of(state: Path) -> float:
    """How long the training had taken when a state was written."""
    try:
        return float((state / _SECONDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0
