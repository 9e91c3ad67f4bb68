"""Drawings of Figure 2 of the paper (Section 3.4) and of the training curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baselines.hub.training_curve import TrainingCurve, draw_curve
from baselines.measure.measures import PAPER
from baselines.reproduce.report import MeasuredRow
from builders.core.images import draw_image
from builders.core.write_files import write_bytes

# The paper's caption says "before (light blue) and after (dark blue)".
_COLOURS = {"before": "#a9cce3", "after": "#1f618d"}
_ERROR_BARS = {"elinewidth": 0.8}
_PANEL = 3.6  # width and height of a panel, in inches
_GROUP_WIDTH = 0.8  # of the bars of a system together; the systems' centres are 1 apart
_HIGHEST_PERCENT = 108  # end of the y axis, with space for the number above a bar of 100 %


def draw_figures(measured_rows: Sequence[MeasuredRow], out: Path) -> list[Path]:
    """Draw each figure of the rows as PNG and SVG into the folder ``out``, and return the files.

    Rows of tables and of the pool belong to no figure, so they are ignored.
    """
    paths: list[Path] = []
    for number in sorted({measured.row.figure for measured in measured_rows if measured.row.figure}):
        in_figure = [measured for measured in measured_rows if measured.row.figure == number]
        # All rows of a figure are measured on the same split, for example figure2.dev.png.
        for form in ("png", "svg"):
            path = out / f"figure{number}.{in_figure[0].reference.split}.{form}"
            write_bytes(path, _draw_rows(in_figure, form))
            paths.append(path)
    return paths


def _draw_rows(measured_rows: Sequence[MeasuredRow], form: str) -> bytes:
    """Draw the rows of one figure, and return the bytes of the image. ``form`` is png or svg.

    Each measure has a panel. A panel has a group of bars for each system, with a bar for each series.
    """

    def draw_panels(figure: Any) -> None:
        panels = figure.subplots(1, len(PAPER), sharey=True)
        for panel, metric in zip(panels, PAPER, strict=True):
            _draw_bars(panel, measured_rows, metric)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)

    return draw_image(draw_panels, form, width=_PANEL * len(PAPER), height=_PANEL, name="figure")


def _draw_bars(panel: Any, measured_rows: Sequence[MeasuredRow], metric: str) -> None:
    """Draw the bars of one measure with their 95 % intervals into a panel, an ``Axes`` of matplotlib.

    ``metric`` is a name of ``PAPER``. A system is a row title. Its series are ``before`` and ``after``.
    """
    systems = list(dict.fromkeys(measured.row.title for measured in measured_rows))
    series_names = list(dict.fromkeys(measured.row.series for measured in measured_rows))
    width = _GROUP_WIDTH / len(series_names)
    for number, series in enumerate(series_names):
        in_series = [measured for measured in measured_rows if measured.row.series == series]
        # A system's bars lie side by side, and the group is centred on the system's position.
        shift = (number - (len(series_names) - 1) / 2) * width
        positions = [systems.index(measured.row.title) + shift for measured in in_series]
        values = [measured.ours[metric] for measured in in_series]
        lows, highs = zip(*(measured.intervals[metric] for measured in in_series), strict=True)
        # matplotlib refuses negative lengths, which rounding can cause where an interval ends at the score.
        errors = np.clip([np.subtract(values, lows), np.subtract(highs, values)], 0, None)
        bars = panel.bar(
            positions, values, width, yerr=errors, color=_COLOURS[series], label=series, error_kw=_ERROR_BARS
        )
        panel.bar_label(bars, fmt="%.1f", padding=1, fontsize=7)
    panel.set_title(f"{metric}, %", fontsize=10)
    panel.set_xticks(range(len(systems)), [title.replace(" > ", " >\n") for title in systems], fontsize=7)
    panel.set_ylim(0, _HIGHEST_PERCENT)
    panel.tick_params(axis="y", labelsize=8)
    panel.spines[["top", "right"]].set_visible(False)


def curve_svg(name: str, training: Mapping[str, Any]) -> str:
    """Return a training's curve as SVG.

    ``name`` makes the ids inside the SVG differ from the ids of other images. ``training`` is one of the report's
    ``trainings`` (:func:`baselines.reproduce.report.training_curves`).
    """
    curve = msgspec.convert(training, TrainingCurve)

    def draw(figure: Any) -> None:
        draw_curve(figure.subplots(), curve, font_size=8)

    return svg_of(draw_image(draw, "svg", width=3.6, height=1.8, name=name).decode())


def svg_of(svg_file_text: str) -> str:
    """Return the <svg> element of the text of an SVG file, without the XML declaration, for use in HTML."""
    return svg_file_text[svg_file_text.index("<svg") :]
