"""Histograms of a release as PNG. The same counts give the same bytes, on one version of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from builders.store.table3 import LengthCounter

_SHOWN = 0.99  # a tail of a few very long passages would press all others into one bar
_COLOUR = "#2a6f97"


def draw(lengths: dict[str, LengthCounter], positives: dict[str, LengthCounter]) -> dict[str, bytes]:
    """Return the histograms as PNG files: name to bytes.

    Args:
        lengths: characters a passage, by corpus config.
        positives: positive passages a query, by column of Table 3.
    """
    drawn = {
        "passage-length.png": (lengths, "passages", _draw_lengths),
        "positives-per-query.png": (positives, "queries", _draw_positives),
    }
    return {name: _image(*panels) for name, panels in drawn.items() if panels[0]}


def _image(counters: dict[str, LengthCounter], unit: str, bars: Callable[[Any, LengthCounter], str]) -> bytes:
    """Draw a panel for each counter; ``bars`` draws its bars and returns the label below them."""
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    figure = Figure(figsize=(5 * len(counters), 3.2), dpi=110, layout="constrained")
    for panel, (name, counter) in zip(np.atleast_1d(figure.subplots(1, len(counters))), counters.items(), strict=True):
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
        panel.set_xlabel(bars(panel, counter), fontsize=8)
        panel.set_title(f"{name}: {counter.count:,} {unit}", fontsize=10)
        panel.set_ylabel(unit, fontsize=8)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def _draw_lengths(panel: Any, counter: LengthCounter) -> str:
    """Bars of equal width; the label counts the tail beyond 99 %."""
    last = max(counter.quantile(_SHOWN), 1)
    width = max(1, round(last / 60))
    bars = [int(counter.counts[low : low + width].sum()) for low in range(0, last + 1, width)]
    panel.bar([low * width for low in range(len(bars))], bars, width=width, align="edge", color=_COLOUR)
    panel.axvline(counter.mean, color="black", linewidth=0.8, linestyle="--")
    return f"characters (mean {counter.mean:,.0f}, dashed; {counter.count - sum(bars):,} longer ones not shown)"


def _draw_positives(panel: Any, counter: LengthCounter) -> str:
    """A bar a number; queries with more than the last bar's are added to it."""
    last = max(5, counter.quantile(_SHOWN))
    bars = [int(n) for n in np.pad(counter.counts, (0, last + 1))[1:last]]
    panel.bar(range(1, last + 1), [*bars, counter.count - sum(bars)], color=_COLOUR)
    return f"positive passages a query (last bar: {last} and more)"
