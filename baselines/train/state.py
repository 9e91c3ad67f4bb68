"""What a training leaves: its states beside the checkpoint while it runs, the checkpoint directory at its end.

``DIR.training/`` holds ``about.json`` (what is trained on what), ``checkpoint-STEP`` folders and TensorBoard's logs;
``DIR`` is the model itself with ``recipe.json``, ``training.json`` and ``loss.png``, there only when it is whole.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders.common.command import InputError, log
from builders.common.files import atomic_text, write_text
from builders.common.folders import replace_directory

TRAINING = "training.json"
_ABOUT = "about.json"


def states_of(out: Path) -> Path:
    """The folder of the states of the training that ends in ``out``."""
    return out.with_name(f"{out.name}.training")


def is_done(out: Path, about: dict[str, Any]) -> bool:
    """Whether ``out`` is the end of just this training. :class:`InputError` where something else is in its place."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    try:
        return bool(json.loads((out / TRAINING).read_text(encoding="utf-8"))["about"] == about)
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError("exists and is no checkpoint of `train`; expected a new path", path=out) from None


def open_states(out: Path, about: dict[str, Any], resume: bool) -> Path:
    """The folder of states, made or found. Without ``resume`` it is emptied.

    :class:`InputError` where it belongs to another training: other recipe, data or start.
    """
    states = states_of(out)
    if not resume:
        shutil.rmtree(states, ignore_errors=True)
    states.mkdir(parents=True, exist_ok=True)
    path = states / _ABOUT
    if path.is_file():
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            earlier = {}
        if earlier != about:
            raise InputError(
                f"is of another training ({', '.join(_differences(earlier, about))} differ); --no-resume starts anew",
                path=states,
            )
    write_text(path, json.dumps(about, ensure_ascii=False, indent=1) + "\n")
    return states


def _differences(left: Any, right: Any, key: str = "") -> list[str]:
    if isinstance(left, dict) and isinstance(right, dict):
        keys = sorted({*left, *right})
        return [found for k in keys for found in _differences(left.get(k), right.get(k), f"{key}.{k}" if key else k)]
    return [] if left == right else [key or "everything"]


def last_state(states: Path, processes: int) -> Path | None:
    """The newest whole ``checkpoint-STEP``; those that a kill left half-written are removed."""
    whole: list[tuple[int, Path]] = []
    for path in states.glob("checkpoint-*"):
        # trainer_state.json is the last file that the trainer writes, every process' random state comes before it.
        names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
        try:
            step = int(path.name.removeprefix("checkpoint-"))
            content = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
            if content["global_step"] != step or not all((path / name).is_file() for name in names):
                raise ValueError
            whole.append((step, path))
        except (OSError, ValueError, KeyError):
            log.warning("%s is not whole (the training was killed while it was written); left out", path)
    return max(whole)[1] if whole else None


def remove_broken(states: Path, keep: Path | None) -> None:
    """Remove the states that :func:`last_state` passed over, newer ones than ``keep``."""
    for path in states.glob("checkpoint-*"):
        if keep is None or int(path.name.split("-")[-1]) > int(keep.name.split("-")[-1]):
            shutil.rmtree(path)


def seconds_of(state: Path) -> float:
    """How long the training had taken when a state was written."""
    try:
        return float((state / "seconds").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0


def write_checkpoint(
    out: Path, building: Path, save: Callable[[Path], None], recipe: dict[str, Any], training: dict[str, Any]
) -> None:
    """Write the checkpoint directory in ``building`` (``save`` puts the model there), then move it to ``out``."""
    folder = building / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save(folder)
    write_text(folder / "recipe.json", json.dumps(recipe, ensure_ascii=False, indent=1) + "\n")
    with atomic_text(folder / TRAINING) as file:
        json.dump(training, file, ensure_ascii=False, indent=1)
        file.write("\n")
    draw_losses(folder / "loss.png", training["losses"], training["dev"], recipe["name"])
    replace_directory(folder, out)


def draw_losses(path: Path, losses: list[list[float]], dev: list[dict[str, float]], name: str) -> None:
    """The loss over the steps, and MRR@10 of the dev sample, as PNG. Left out (and said) without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.warning("no %s: matplotlib is not installed", path.name)
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    shown = [(step, loss) for step, loss in losses if math.isfinite(loss)]
    axes.plot([step for step, _ in shown], [loss for _, loss in shown], color="tab:blue", label="training loss")
    axes.set(title=name, xlabel="step", ylabel="training loss")
    axes.set_ylim(bottom=0)
    if dev:
        right = axes.twinx()
        right.plot([row["step"] for row in dev], [100 * row["MRR@10"] for row in dev], "o-", color="tab:orange")
        right.set(ylabel="MRR@10 of the dev sample, %", ylim=(0, 100))
    figure.savefig(path, dpi=120, metadata={"Software": None})
