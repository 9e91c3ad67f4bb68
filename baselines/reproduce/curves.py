"""The trainings behind the rows: the loss over the steps, and what was measured on dev meanwhile, as SVG."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from baselines.checkpoint import TRAINING
from baselines.reproduce.matrix import Step
from builders.core.errors import InputError, log
from builders.core.typed import read_json

WIDTH, HEIGHT = 380, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 64, 12, 30  # margins
_MOST = 400  # points of a line
_LOSS, _DEV = "#1f61a0", "#b9541c"


class _Training(Struct):
    """What is shown of a ``training.json``."""

    losses: list[tuple[int, float]] = []
    dev: list[dict[str, float]] = []
    steps: int = 0
    seconds: float = 0.0
    device: str = ""


def trainings(plan: Mapping[str, Step]) -> list[dict[str, Any]]:
    """Of every training of a plan: ``recipe``, ``losses`` as [step, loss], ``dev`` as [step, fraction] of ``measure``.

    One whose record cannot be read is left out, and said.
    """
    found = []
    for step in plan.values():
        if step.command[1] != "train":
            continue
        try:
            read = read_json(step.output / TRAINING, _Training)
        except (InputError, OSError) as error:
            log.warning("no curve of %s: %s", step.output, error)
            continue
        measure = next((name for row in read.dev for name in row if name != "step"), "")
        dev = [[row["step"], row[measure]] for row in read.dev if "step" in row and measure in row]
        found.append(
            {
                "recipe": step.command[2],
                "losses": [list(each) for each in read.losses],
                "measure": measure,
                "dev": dev,
                "steps": read.steps,
                "seconds": read.seconds,
                "device": read.device,
            }
        )
    return found


def curve(training: Mapping[str, Any]) -> str:
    """One training's lines: loss on the left axis from 0, its dev measure in percent on the right, steps below."""
    losses, dev = training["losses"], training["dev"]
    last = max([step for step, _ in (*losses, *dev)], default=1) or 1
    most = max([loss for _, loss in losses], default=1.0) or 1.0
    label = f"training {training['recipe']}: loss over steps"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}">',
        _frame(last, most, training["measure"] if dev else ""),
        _line([(_x(step, last), _y(loss, most)) for step, loss in _thinned(losses)], _LOSS),
    ]
    if dev:
        points = [(_x(step, last), _y(value, 1.0)) for step, value in dev]
        parts.append(_line(points, _DEV))
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{_DEV}"/>' for x, y in points]
    return "".join([*parts, "</svg>"])


def _thinned(points: Sequence[Any]) -> Sequence[Any]:
    return points[:: max(1, len(points) // _MOST)]


def _x(step: float, last: float) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * step / last


def _y(value: float, most: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * min(max(value / most, 0.0), 1.0)


def _line(points: Sequence[tuple[float, float]], colour: str) -> str:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _frame(last: float, most: float, measure: str) -> str:
    """The axes with their ends."""
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    texts = [
        (_LEFT - 4, _TOP + 8, "end", _LOSS, f"{most:.3g}"),
        (_LEFT - 4, bottom, "end", _LOSS, "0"),
        (_LEFT - 4, (_TOP + bottom) / 2, "end", _LOSS, "loss"),
        (_LEFT, bottom + 14, "middle", "#555", "0"),
        (right, bottom + 14, "middle", "#555", f"{last:,.0f}"),
        ((_LEFT + right) / 2, bottom + 14, "middle", "#555", "step"),
    ]
    if measure:
        texts += [
            (right + 4, _TOP + 8, "start", _DEV, "100 %"),
            (right + 4, bottom, "start", _DEV, "0"),
            (right + 4, (_TOP + bottom) / 2, "start", _DEV, measure),
        ]
    lines = f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}V{_TOP}" fill="none" stroke="#bbb"/>'
    return lines + "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}" font-size="10">'
        f"{html.escape(text)}</text>"
        for x, y, anchor, colour, text in texts
    )
