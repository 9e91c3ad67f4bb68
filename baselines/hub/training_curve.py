"""The curve of a training, read from a checkpoint's ``training.json`` and drawn with matplotlib."""

from pathlib import Path
from typing import Any

from msgspec import Struct

from baselines.core.checkpoint import TRAINING
from builders.core.typed import read_json

_LOSS_COLOUR = "#1f61a0"
_MEASURE_COLOUR = "#b9541c"
_CURVE_POINTS = 400  # a curve gets at most twice as many points


class _Training(Struct):
    """The fields of ``training.json`` that belong to the curve. A row of ``dev`` is {"step": ..., score name: ...}."""

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
    # The first score of the first evaluation with scores is drawn. Steps without this score are skipped.
    measure = ""
    for scores in training.dev:
        score_names = [name for name in scores if name != "step"]
        if score_names and not measure:
            measure = score_names[0]
    points = [(scores["step"], scores[measure]) for scores in training.dev if "step" in scores and measure in scores]
    return TrainingCurve(measure, training.losses, points, training.steps, training.seconds, training.device)


def draw_curve(panel: Any, curve: TrainingCurve, font_size: float) -> None:
    """Draw a training into a panel of matplotlib: loss on the left axis from 0, dev scores in percent on the right.

    ``panel`` is an ``Axes``. ``font_size`` is in points.
    """
    # A thinned curve looks the same, and is drawn quickly.
    point_distance = max(1, len(curve.losses) // _CURVE_POINTS)
    drawn_losses = curve.losses[::point_distance]
    panel.set_xlabel("step", fontsize=font_size)
    panel.set_ylabel("loss", fontsize=font_size, color=_LOSS_COLOUR)
    panel.plot([step for step, _ in drawn_losses], [loss for _, loss in drawn_losses], color=_LOSS_COLOUR)
    panel.set_ylim(bottom=0)
    # The scores have an axis of their own, because losses are no percentages.
    if curve.dev:
        right_axis = panel.twinx()
        right_axis.set_ylabel(f"{curve.measure}, %", fontsize=font_size, color=_MEASURE_COLOUR, parse_math=False)
        steps = [step for step, _ in curve.dev]
        percentages = [100 * score for _, score in curve.dev]
        right_axis.plot(steps, percentages, "o-", color=_MEASURE_COLOUR)
        right_axis.set_ylim(0, 100)
