"""Histograms of a release as PNG. With the same version of matplotlib, the same counts give the same bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from builders.core.images import draw_image
from builders.store.table3 import LengthCounter

# Share of the passages in the histogram; the longest passages would make all bars too thin.
_DRAWN_SHARE = 0.99
_LENGTH_BARS = 60  # about so many bars
_LEAST_LAST_BAR = 5  # positives per query of the last bar, at least
_COLOUR = "#2a6f97"


def draw_histograms(
    length_counters: dict[str, LengthCounter], positive_counters: dict[str, LengthCounter]
) -> dict[str, bytes]:
    """Return the histograms as {file name: bytes of the PNG}.

    The arguments are fields of :class:`.count.ReleaseFigures`.
    """
    images = {}
    if length_counters:
        images["passage-length.png"] = _draw_counters(length_counters, "passages", _draw_lengths)
    if positive_counters:
        images["positives-per-query.png"] = _draw_counters(positive_counters, "queries", _draw_positives)
    return images


def _draw_counters(
    counters: dict[str, LengthCounter], unit: str, draw_bars: Callable[[Any, LengthCounter], str]
) -> bytes:
    """Draw a panel for each counter. ``draw_bars`` draws the bars of a panel and returns the label of its axis."""

    def draw_panels(figure: Any) -> None:
        # subplots returns an array, or for one counter a single panel.
        panels = np.atleast_1d(figure.subplots(1, len(counters)))
        for panel, (name, counter) in zip(panels, counters.items(), strict=True):
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
            panel.set_xlabel(draw_bars(panel, counter), fontsize=8)
            panel.set_title(f"{name}: {counter.count:,} {unit}", fontsize=10)
            panel.set_ylabel(unit, fontsize=8)

    return draw_image(draw_panels, "png", width=5 * len(counters), height=3.2)


def _draw_lengths(panel: Any, counter: LengthCounter) -> str:
    """Draw bars of equal width. Return the label of the axis, with the number of longer passages."""
    last_length = max(counter.quantile(_DRAWN_SHARE), 1)
    bar_width = max(1, round(last_length / _LENGTH_BARS))
    starts = range(0, last_length + 1, bar_width)
    heights = [int(counter.counts[start : start + bar_width].sum()) for start in starts]
    panel.bar(list(starts), heights, width=bar_width, align="edge", color=_COLOUR)
    panel.axvline(counter.mean, color="black", linewidth=0.8, linestyle="--")
    longer_passages = counter.count - sum(heights)
    return f"characters (dashed: mean {counter.mean:,.0f}; {longer_passages:,} longer passages not shown)"


def _draw_positives(panel: Any, counter: LengthCounter) -> str:
    """Draw a bar for each number of positives from 1. The last bar has all queries with more positives.

    Every counted query has at least one positive, so no bar for 0 is missing. Return the label of the axis.
    """
    last_bar = max(_LEAST_LAST_BAR, counter.quantile(_DRAWN_SHARE))
    padded_counts = np.pad(counter.counts, (0, last_bar + 1))  # also for numbers that no query has
    heights = [int(query_count) for query_count in padded_counts[1:last_bar]]
    heights.append(counter.count - sum(heights))
    panel.bar(range(1, last_bar + 1), heights, color=_COLOUR)
    return f"positive passages per query (last bar: {last_bar} or more)"
