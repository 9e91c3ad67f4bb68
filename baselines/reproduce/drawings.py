"""Drawings of Figure 2 of the paper (Section 3.4) and of the training curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baselines.hub.training_curve import TrainingCurve, draw_curve
from baselines.measure.measures import PAPER
from baselines.reproduce.report import MeasuredRow
from builders.core.files import write_bytes
from builders.core.images import draw_image

# The paper's caption says "before (light blue) and after (dark blue)".
_COLOURS = {"before": "#a9cce3", "after": "#1f618d"}
_ERROR_BARS = {"elinewidth": 0.8}
_PANEL = 3.6  # width and height of a panel, in inches


def draw_figures(measured_rows: Sequence[MeasuredRow], out: Path) -> list[Path]:
    """Draw each figure of the rows as PNG and SVG into ``out``, and return the files."""
    paths: list[Path] = []
    for number in sorted({measured.row.figure for measured in measured_rows if measured.row.figure}):
        in_figure = [measured for measured in measured_rows if measured.row.figure == number]
        for form in ("png", "svg"):
            path = out / f"figure{number}.{in_figure[0].reference.split}.{form}"
            write_bytes(path, _draw_rows(in_figure, form))
            paths.append(path)
    return paths


def _draw_rows(measured_rows: Sequence[MeasuredRow], form: str) -> bytes:
    """Draw a panel for each measure. A panel has a group of bars for each system, with a bar for each series."""

    def draw_panels(figure: Any) -> None:
        panels = figure.subplots(1, len(PAPER), sharey=True)
        for panel, metric in zip(panels, PAPER, strict=True):
            _draw_bars(panel, measured_rows, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)

    return draw_image(draw_panels, form, width=_PANEL * len(PAPER), height=_PANEL, name="figure")


def _draw_bars(panel: Any, measured_rows: Sequence[MeasuredRow], metric: str) -> None:
    systems = list(dict.fromkeys(measured.row.title for measured in measured_rows))
    series_names = list(dict.fromkeys(measured.row.series for measured in measured_rows))
    width = 0.8 / len(series_names)
    for number, series in enumerate(series_names):
        in_series = [measured for measured in measured_rows if measured.row.series == series]
        shift = (number - (len(series_names) - 1) / 2) * width
        places = [systems.index(measured.row.title) + shift for measured in in_series]
        values = [measured.ours[metric] for measured in in_series]
        lows, highs = zip(*(measured.intervals[metric] for measured in in_series), strict=True)
        errors = np.clip([np.subtract(values, lows), np.subtract(highs, values)], 0, None)
        bars = panel.bar(places, values, width, yerr=errors, color=_COLOURS[series], label=series, error_kw=_ERROR_BARS)
        panel.bar_label(bars, fmt="%.1f", padding=1, fontsize=7)
    panel.set_title(f"{metric}, %", fontsize=10)
    panel.set_xticks(range(len(systems)), [title.replace(" > ", " >\n") for title in systems], fontsize=7)
    panel.set_ylim(0, 108)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def curve_svg(name: str, training: Mapping[str, Any]) -> str:
    """Return a training's curve, a JSON value of the report, as SVG."""
    curve = msgspec.convert(training, TrainingCurve)

    def draw(figure: Any) -> None:
        draw_curve(figure.subplots(), curve, font_size=8)

    return svg_of(draw_image(draw, "svg", width=3.6, height=1.8, name=name).decode())


def svg_of(file: str) -> str:
    """Return the <svg> element of an SVG file, for use in HTML."""
    return file[file.index("<svg") :]
