"""The picture of `compare --plot`: each system's mean and interval, and the groups without significant differences.

The systems are the rows, the best first under the first measure. Each measure has a panel with means and intervals, and
beside it a narrow panel with a column for each group: a line joins the dots of the group's systems.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from baselines.measure.compare_tables import describe_test, measure_title
from baselines.measure.measures import values_of
from baselines.measure.plot_labels import BLACK, FONT_SIZE, GREY, PALE, label_width, set_row_labels, shorten_name
from baselines.measure.significance import Interval, of_means
from builders.core.image_fonts import choose_fonts
from builders.core.images import make_figure

# Inches.
_PANEL_WIDTH = 2.3
_GROUP_WIDTH = 0.16  # of a column
_ROW_HEIGHT = 0.26
_FRAME_HEIGHT = 1.15  # titles, axes and the text below
_MARGIN = 0.4
_LEAST_WIDTH = 5.5  # of the picture, for the text below the panels


@dataclass(frozen=True)
class MeasurePanel:
    """The marks of a measure. Rows are counted from the top.

    Attributes:
        title: name of the measure.
        means: mean of each row, percent.
        intervals: interval of each row's mean, percent.
        groups: rows of each group of systems without significant differences, the best group first.
    """

    title: str
    means: Sequence[float]
    intervals: Sequence[Interval]
    groups: Sequence[Sequence[int]]


def comparison_figure(result: Mapping[str, Any], tables: Sequence[pa.Table]) -> Any:
    """Return the picture of a comparison as a ``matplotlib.figure.Figure``.

    Args:
        result: result of :func:`baselines.measure.comparison.compare_systems`.
        tables: the table of each system, as for ``compare_systems``.
    """
    first_measure = next(iter(result["measures"]))
    # The sort is stable, so equal systems keep their order.
    order = sorted(range(len(tables)), key=lambda number: -result["systems"][number]["means"][first_measure])
    names = []
    for number in order:
        system = result["systems"][number]
        names.append(f"{system['label']}  {shorten_name(system['name'])}")
    fonts = choose_fonts(names)
    names = [fonts.drawable(name) for name in names]
    panels = measure_panels(result, tables, order)

    # Each measure has a panel of means and a narrow panel of groups.
    width_ratios = []
    for panel in panels:
        width_ratios += [_PANEL_WIDTH, _GROUP_WIDTH * (len(panel.groups) + 1)]

    def draw_panels(figure: Any) -> None:
        all_axes = figure.subplots(1, 2 * len(panels), sharey=True, width_ratios=width_ratios)
        for number, panel in enumerate(panels):
            _draw_means(all_axes[2 * number], panel, names)
            _draw_groups(all_axes[2 * number + 1], panel, names)
        figure.supxlabel(_legend(result), fontsize=FONT_SIZE - 1)

    width = label_width(names) + sum(width_ratios) + _MARGIN
    height = _FRAME_HEIGHT + _ROW_HEIGHT * len(names)
    return make_figure(draw_panels, width=max(width, _LEAST_WIDTH), height=height, families=fonts.families)


def measure_panels(result: Mapping[str, Any], tables: Sequence[pa.Table], order: Sequence[int]) -> list[MeasurePanel]:
    """Return the marks of each measure. ``order`` has, for each row from the top, the number of the row's system.

    ``result`` and ``tables`` are those of :func:`comparison_figure`.
    """
    labels = [result["systems"][number]["label"] for number in order]
    panels = []
    for measure, comparison in result["measures"].items():
        means, intervals = [], []
        for number in order:
            means.append(100 * result["systems"][number]["means"][measure])
            values = values_of(tables[number], measure).reshape(-1, 1)
            low, high = of_means(values, seed=result["seed"], level=1 - result["alpha"])[0]
            intervals.append((100 * low, 100 * high))
        groups = []
        for group in comparison["groups"]:
            groups.append(sorted(labels.index(label) for label in group))
        panels.append(MeasurePanel(measure_title(measure), means, intervals, groups))
    return panels


def _draw_means(axes: Any, panel: MeasurePanel, names: Sequence[str]) -> None:
    """Draw the mean and the interval of each row. Every second row has a pale background."""
    set_row_labels(axes, names)
    for row, (mean, (low, high)) in enumerate(zip(panel.means, panel.intervals, strict=True)):
        if row % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color=PALE, alpha=0.5, linewidth=0)
        axes.plot([low, high], [row, row], color=GREY, linewidth=1.6, solid_capstyle="butt")
        axes.plot([mean], [row], "o", color=BLACK, markersize=4)
    axes.set_title(f"{panel.title}, %", fontsize=FONT_SIZE + 1)
    axes.margins(x=0.04)


def _draw_groups(axes: Any, panel: MeasurePanel, names: Sequence[str]) -> None:
    """Draw a column for each group. The line passes rows between the group's systems, which have no dot."""
    for column, rows in enumerate(panel.groups):
        axes.plot([column, column], [rows[0], rows[-1]], color=BLACK, linewidth=1.2)
        axes.plot([column] * len(rows), rows, "o", color=BLACK, markersize=3.4)
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=PALE, alpha=0.5, linewidth=0)
    axes.set_xlim(-0.9, len(panel.groups) - 0.1)
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.spines[:].set_visible(False)


def _legend(result: Mapping[str, Any]) -> str:
    """Return the text below the panels."""
    level = f"{100 * (1 - result['alpha']):g}"
    return (
        f"dot and line: mean and {level} % interval over {result['queries']} queries\n"
        f"dots joined at the right: no significant difference\n({describe_test(result)})"
    )
