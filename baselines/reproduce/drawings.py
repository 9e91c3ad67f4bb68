"""Figure 2 of the paper (Section 3.4) as bars, and the curves of the trainings as SVG."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.measure.measures import PAPER
from baselines.reproduce.report import Measured
from builders.core.files import write_bytes

# The paper's caption: "before (light blue) and after (dark blue)". Any further series is grey.
_COLOURS = {"before": "#a9cce3", "after": "#1f618d"}
_WIDTH, _HEIGHT = 380, 190  # of a curve
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 316, 12, 160  # its axes
_MOST = 400  # points of a line
_LOSS, _DEV, _GREY = "#1f61a0", "#b9541c", "#555"


def draw_figures(measured: Sequence[Measured], out: Path) -> list[Path]:
    """Draw each figure of the rows into ``out`` as PNG and SVG; returns the files."""
    found: list[Path] = []
    for number in sorted({each.row.figure for each in measured if each.row.figure}):
        own = [each for each in measured if each.row.figure == number]
        for suffix in ("png", "svg"):
            path = out / f"figure{number}.{own[0].split}.{suffix}"
            write_bytes(path, _drawn(own, suffix))
            found.append(path)
    return found


def _drawn(measured: Sequence[Measured], suffix: str) -> bytes:
    """One image: a panel a measure, a group of bars a system, a bar a series with its 95 % interval."""
    # Slow to import. Not pyplot: no display, no global state.
    import matplotlib
    from matplotlib.figure import Figure

    systems = list(dict.fromkeys(each.row.title for each in measured))
    series = list(dict.fromkeys(each.row.series for each in measured))
    # A fixed salt: ids in an SVG are random otherwise, and the same figures would give other bytes. Text stays text.
    with matplotlib.rc_context({"svg.hashsalt": "figure", "svg.fonttype": "none"}):
        figure = Figure(figsize=(3.6 * len(PAPER), 3.6), dpi=110, layout="constrained")
        for panel, name in zip(figure.subplots(1, len(PAPER), sharey=True), PAPER, strict=True):
            _bars(panel, measured, systems, series, name)
        figure.legend(*panel.get_legend_handles_labels(), loc="outside upper center", ncols=len(series), fontsize=8)
        content = io.BytesIO()
        nothing = {"Software": None} if suffix == "png" else {"Date": None, "Creator": None}
        figure.savefig(content, format=suffix, metadata=nothing)
    return content.getvalue()


def _bars(panel: Any, measured: Sequence[Measured], systems: list[str], series: list[str], name: str) -> None:
    """One measure: the bars of every system, with the figures above them."""
    width = 0.8 / len(series)
    for number, each_series in enumerate(series):
        own = [each for each in measured if each.row.series == each_series]
        places = [systems.index(each.row.title) + (number - (len(series) - 1) / 2) * width for each in own]
        values = [(each.ours[name], *each.intervals[name]) for each in own]
        panel.bar(
            *(places, [value for value, _, _ in values], width),
            color=_COLOURS.get(each_series, "#909497"),
            label=each_series,
            yerr=[
                [max(value - low, 0.0) for value, low, _ in values],
                [max(high - value, 0.0) for value, _, high in values],
            ],
            error_kw={"elinewidth": 0.8, "ecolor": "#424949"},
        )
        for place, (value, _, high) in zip(places, values, strict=True):
            panel.annotate(f"{value:.1f}", (place, max(value, high) + 1), ha="center", fontsize=7)
    panel.set_title(f"{name}, %", fontsize=10)
    panel.set_xticks(range(len(systems)), [title.replace(" > ", " >\n") for title in systems], fontsize=7)
    panel.set_ylim(0, 108)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def curve(training: Mapping[str, Any]) -> str:
    """One training's lines: loss on the left axis from 0, its dev measure in percent on the right, steps below."""
    losses, dev = training["losses"], training["dev"]
    last = max([step for step, _ in (*losses, *dev)], default=1) or 1
    most = max([loss for _, loss in losses], default=1.0) or 1.0
    label, middle = html.escape(f"training {training['recipe']}: loss over steps"), (_TOP + _BOTTOM) / 2
    words = [
        *(
            (_LEFT - 4, y, "end", _LOSS, text)
            for y, text in ((_TOP + 8, f"{most:.3g}"), (_BOTTOM, 0), (middle, "loss"))
        ),
        *((x, _BOTTOM + 14, "middle", _GREY, text) for x, text in ((_LEFT, 0), (_RIGHT, f"{last:,.0f}"))),
        ((_LEFT + _RIGHT) / 2, _BOTTOM + 14, "middle", _GREY, "step"),
    ]
    lines = _line(losses[:: max(1, len(losses) // _MOST)], last, most, _LOSS)
    if dev:
        axis = ((_TOP + 8, "100 %"), (_BOTTOM, 0), (middle, training["measure"]))
        words += [(_RIGHT + 4, y, "start", _DEV, text) for y, text in axis]
        lines += _line(dev, last, 1.0, _DEV, dots=True)
    texts = "".join(
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{colour}" font-size="10">{html.escape(str(text))}'
        "</text>"
        for x, y, anchor, colour, text in words
    )
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    axes = f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}V{_TOP}" fill="none" stroke="#bbb"/>'
    return f'<svg {size} role="img" aria-label="{label}">{axes}{texts}{lines}</svg>'


def _line(points: Sequence[Sequence[float]], last: float, most: float, colour: str, dots: bool = False) -> str:
    """Points of (step, value) as a line, where ``last`` and ``most`` are the ends of the axes."""
    places = [
        (_LEFT + (_RIGHT - _LEFT) * step / last, _BOTTOM - (_BOTTOM - _TOP) * min(max(value / most, 0.0), 1.0))
        for step, value in points
    ]
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    circles = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places if dots]
    return f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="1.5"/>{"".join(circles)}'
