"""The picture of `evaluate --plot`: MRR@10 by question type, and the ranks of the first positive passages.

Runs differ by marker and by row, and ranks by shades of grey, so that the picture needs no colours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from baselines.measure.groups import Groups, measure_groups
from baselines.measure.measures import PAPER
from baselines.measure.plot_labels import BLACK, FONT_SIZE, GREY, PALE, label_width, set_row_labels, shorten_names
from builders.core.image_fonts import choose_fonts
from builders.core.images import make_figure

ALL_QUERIES = "all questions"
_MRR = "MRR@10"
# Last rank and shade of each class of ranks. Lists are measured to rank 50.
_RANK_CLASSES = ((1, "#202020"), (3, "#5c5c5c"), (5, "#8a8a8a"), (10, "#b4b4b4"), (50, "#dadada"))
_NO_POSITIVE = "not in the top 50"
_DARK_CLASSES = 2  # number of classes whose bars have white numbers
# A run's marker and the colour inside it.
_SHAPES = "osD^vPX*"
_FILLS = (BLACK, "white", GREY)
MOST_RUNS = len(_SHAPES) * len(_FILLS)
_LEAST_NUMBERED = 6  # percent; narrower segments have no number
# Inches.
_PANEL_WIDTH = 3.2
_ROW_HEIGHT = 0.2
_FRAME_HEIGHT = 1.2


@dataclass(frozen=True)
class TypeMark:
    """The mean MRR@10 of a run on the questions of a type, with its interval, percent."""

    type_name: str
    question_count: int
    mean: float
    low: float
    high: float


def evaluation_figure(run_names: Sequence[str], tables: Sequence[pa.Table], question_types: Groups) -> Any:
    """Return the picture of an evaluation as a ``matplotlib.figure.Figure``.

    Args:
        run_names: name of each run, at most :data:`MOST_RUNS`.
        tables: the values by query of each run (:func:`baselines.measure.measures.measure_run`).
        question_types: numbers of the questions of each type. All questions are drawn first.
    """
    names = shorten_names(run_names)
    marks_by_run = [type_marks(table, question_types) for table in tables]
    type_labels = [f"{mark.type_name} ({mark.question_count:,})" for mark in marks_by_run[0]]
    fonts = choose_fonts([*names, *type_labels])
    names = [fonts.drawable(name) for name in names]
    type_labels = [fonts.drawable(label) for label in type_labels]

    def draw_panels(figure: Any) -> None:
        type_axes, rank_axes = figure.subplots(1, 2)
        _draw_types(type_axes, type_labels, names, marks_by_run)
        _draw_ranks(rank_axes, names, [rank_shares(table) for table in tables])
        if len(names) > 1:
            handles, labels = type_axes.get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper left", ncols=1, fontsize=FONT_SIZE, frameon=False)
        handles, labels = rank_axes.get_legend_handles_labels()
        title = "rank of the first positive:"
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(labels),
            fontsize=FONT_SIZE,
            frameon=False,
            title=title,
            title_fontsize=FONT_SIZE,
        )

    # On the left, each type has a line for each run, but at least two. On the right, each run has two lines. The legend
    # of the runs adds one line for each run.
    left_lines = len(type_labels) * max(2, len(names))
    right_lines = 2 * len(names)
    height = _FRAME_HEIGHT + _ROW_HEIGHT * (max(left_lines, right_lines) + len(names))
    width = 2 * _PANEL_WIDTH + label_width(names) + label_width(type_labels)
    return make_figure(draw_panels, width=width, height=height, families=fonts.families)


def type_marks(table: pa.Table, question_types: Groups) -> list[TypeMark]:
    """Return the marks of a run: all questions, then each type. ``table`` has the run's values by query."""
    groups = {ALL_QUERIES: list(range(len(table)))} | question_types
    marks = []
    for group in measure_groups(table, groups):
        low, high = group["intervals"][PAPER[_MRR]]
        mean = group[PAPER[_MRR]]
        marks.append(TypeMark(group["group"], group["queries"], 100 * mean, 100 * low, 100 * high))
    return marks


def rank_shares(table: pa.Table) -> dict[str, float]:
    """Return the percentage of questions whose first positive has a rank of each class, by the class's name.

    ``table`` has the run's values by query.
    """
    counts = dict.fromkeys([*_class_names(), _NO_POSITIVE], 0)
    for rank in table["first_positive_rank"].to_pylist():
        counts[_class_of(rank)] += 1
    return {name: 100 * count / len(table) for name, count in counts.items()}


def _class_names() -> list[str]:
    """Return the names of the classes of ranks: 1, 2-3 ..."""
    names = []
    first_rank = 1
    for last_rank, _ in _RANK_CLASSES:
        names.append(str(last_rank) if first_rank == last_rank else f"{first_rank}-{last_rank}")
        first_rank = last_rank + 1
    return names


def _class_of(rank: int | None) -> str:
    """Return the name of a rank's class. None, for a list without a positive, has the class of ranks below 50."""
    for name, (last_rank, _) in zip(_class_names(), _RANK_CLASSES, strict=True):
        if rank is not None and rank <= last_rank:
            return name
    return _NO_POSITIVE


def _draw_types(
    axes: Any, type_labels: Sequence[str], names: Sequence[str], marks_by_run: Sequence[Sequence[TypeMark]]
) -> None:
    """Draw a row for each type of question, with the runs under each other."""
    set_row_labels(axes, type_labels)
    for row in range(0, len(type_labels), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=PALE, alpha=0.5, linewidth=0)
    for run_number, (name, marks) in enumerate(zip(names, marks_by_run, strict=True)):
        # The runs divide the height of a row evenly. A row is 1 high, and its middle has a whole number.
        shift = (run_number + 1) / (len(names) + 1) - 0.5
        heights = [row + shift for row in range(len(marks))]
        shape = _SHAPES[run_number % len(_SHAPES)]
        fill = _FILLS[run_number // len(_SHAPES)]
        for height, mark in zip(heights, marks, strict=True):
            axes.plot([mark.low, mark.high], [height, height], color=GREY, linewidth=1.4, solid_capstyle="butt")
        means = [mark.mean for mark in marks]
        axes.plot(means, heights, shape, color=BLACK, markerfacecolor=fill, markersize=4, label=name)
    axes.set_title(f"{_MRR}, %, with 95 % intervals", fontsize=FONT_SIZE + 1)


def _draw_ranks(axes: Any, names: Sequence[str], shares_by_run: Sequence[Mapping[str, float]]) -> None:
    """Draw a bar for each run, with a segment for each class of ranks."""
    set_row_labels(axes, names)
    shades = [shade for _, shade in _RANK_CLASSES] + ["white"]
    starts = [0.0] * len(names)
    for number, class_name in enumerate([*_class_names(), _NO_POSITIVE]):
        widths = [shares[class_name] for shares in shares_by_run]
        axes.barh(
            range(len(names)),
            widths,
            0.62,
            left=starts,
            color=shades[number],
            edgecolor=BLACK,
            linewidth=0.5,
            clip_on=False,
            label=class_name,
        )
        for row, width in enumerate(widths):
            if width >= _LEAST_NUMBERED:
                colour = "white" if number < _DARK_CLASSES else BLACK
                middle = starts[row] + width / 2
                axes.text(middle, row, f"{width:.0f}", color=colour, fontsize=7, ha="center", va="center")
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_title("questions by the rank of the first positive, %", fontsize=FONT_SIZE + 1)
