"""The curve of a training, read from a checkpoint's ``training.json`` and drawn with matplotlib."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from baselines.core.checkpoint import TRAINING
from builders.core.typed import read_json

_LOSS, _DEV = "#1f61a0", "#b9541c"


class _Training(Struct):
    """The fields of ``training.json`` that belong to the curve. A row of ``dev`` has the step and the scores."""

    losses: list[tuple[int, float]] = []
    dev: list[dict[str, float]] = []
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


class TrainingCurve(Struct, frozen=True):
    """The curve of a training.

    Attributes:
        measure: name of the first score on the dev split, or "" without an evaluation.
        losses: (step, loss) pairs.
        dev: (step, score as a fraction) pairs.
        steps: number of steps.
        seconds: duration of the training.
        device: the device as text.
    """

    measure: str
    losses: list[tuple[int, float]]
    dev: list[tuple[float, float]]
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


def read_training_curve(checkpoint: Path) -> TrainingCurve:
    """Read the curve of a checkpoint. Raises :class:`InputError` or OSError for a damaged or missing record."""
    training = read_json(checkpoint / TRAINING, _Training)
    measure = ""
    for scores in training.dev:
        measure = measure or next((name for name in scores if name != "step"), "")
    points = [(scores["step"], scores[measure]) for scores in training.dev if "step" in scores and measure in scores]
    return TrainingCurve(measure, training.losses, points, training.steps, training.seconds, training.device)


def draw_curve(panel: Any, curve: TrainingCurve, size: float) -> None:
    """Draw a training into a panel of matplotlib: loss on the left axis from 0, dev scores in percent on the right.

    ``size`` is a font size in points.
    """
    shown = curve.losses[:: max(1, len(curve.losses) // 400)]  # at most 800 points
    panel.set_xlabel("step", fontsize=size)
    panel.set_ylabel("loss", fontsize=size, color=_LOSS)
    panel.plot(*zip(*shown, strict=True) if shown else ([], []), color=_LOSS)
    panel.set_ylim(bottom=0)
    if curve.dev:
        other = panel.twinx()
        other.set_ylabel(f"{curve.measure}, %", fontsize=size, color=_DEV, parse_math=False)
        other.plot(*zip(*((step, 100 * value) for step, value in curve.dev), strict=True), "o-", color=_DEV)
        other.set_ylim(0, 100)
