"""Figure 2 (Section 3.4): each system by the judgments before and after people corrected them, as bars."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from baselines.measure.measures import PAPER
from baselines.reproduce.report import Measured
from builders.core.errors import log
from builders.core.files import write_bytes

# The paper's caption: "before (light blue) and after (dark blue)". Any further series is grey.
_COLOURS = {"before": "#a9cce3", "after": "#1f618d"}
_SUFFIXES = ("png", "svg")


def draw_figures(measured: Sequence[Measured], out: Path) -> list[Path]:
    """Draw each figure of the rows into ``out`` as PNG and SVG; the files that were written.

    Without matplotlib there are none, and the log says so.
    """
    found: list[Path] = []
    for number in sorted({each.row.figure for each in measured if each.row.figure}):
        own = [each for each in measured if each.row.figure == number]
        for suffix in _SUFFIXES:
            content = _drawn(own, suffix)
            if content is None:
                log.warning("no figure %d: matplotlib is not installed", number)
                return found
            path = out / f"figure{number}.{own[0].split}.{suffix}"
            write_bytes(path, content)
            found.append(path)
    return found


def _drawn(measured: Sequence[Measured], suffix: str) -> bytes | None:
    """One image: a panel a measure, a group of bars a system, a bar a series with its 95 % interval."""
    try:
        # Not pyplot: no display, no global state.
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return None
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
        values = [each.ours[name] for each in own]
        ends = [each.intervals[name] for each in own]
        panel.bar(
            *(places, values, width),
            color=_COLOURS.get(each_series, "#909497"),
            label=each_series,
            yerr=[
                [max(value - low, 0.0) for value, (low, _) in zip(values, ends, strict=True)],
                [max(high - value, 0.0) for value, (_, high) in zip(values, ends, strict=True)],
            ],
            error_kw={"elinewidth": 0.8, "ecolor": "#424949"},
        )
        for place, value, (_, high) in zip(places, values, ends, strict=True):
            panel.annotate(f"{value:.1f}", (place, max(value, high) + 1), ha="center", fontsize=7)
    panel.set_title(f"{name}, %", fontsize=10)
    panel.set_xticks(range(len(systems)), [title.replace(" > ", " >\n") for title in systems], fontsize=7)
    panel.set_ylim(0, 108)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)
