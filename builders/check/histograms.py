"""Histograms of a release as PNG. With the same version of matplotlib, the same counts give the same bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from builders.core.images import draw_image
from builders.store.table3 import LengthCounter

_SHOWN = 0.99  # share of the passages in the histogram; the longest passages would make all bars too thin
_COLOUR = "#2a6f97"


def draw(lengths: dict[str, LengthCounter], positives: dict[str, LengthCounter]) -> dict[str, bytes]:
    """Return the histograms as {file name: bytes of the PNG}. The arguments are fields of :class:`.count.Figures`."""
    drawn = {
        "passage-length.png": (lengths, "passages", _draw_lengths),
        "positives-per-query.png": (positives, "queries", _draw_positives),
    }
    return {name: _image(*panels) for name, panels in drawn.items() if panels[0]}


def _image(counters: dict[str, LengthCounter], unit: str, bars: Callable[[Any, LengthCounter], str]) -> bytes:
    def draw_panels(figure: Any) -> None:
        panels = np.atleast_1d(figure.subplots(1, len(counters)))
        for panel, (name, counter) in zip(panels, counters.items(), strict=True):
            panel.spines[["top", "right"]].set_visible(False)
            panel.tick_params(labelsize=8)
            panel.set_xlabel(bars(panel, counter), fontsize=8)
            panel.set_title(f"{name}: {counter.count:,} {unit}", fontsize=10)
            panel.set_ylabel(unit, fontsize=8)

    return draw_image(draw_panels, "png", width=5 * len(counters), height=3.2)


def _draw_lengths(panel: Any, counter: LengthCounter) -> str:
    """Draw bars of equal width. Return the label of the axis, with the number of longer passages."""
    last = max(counter.quantile(_SHOWN), 1)
    width = max(1, round(last / 60))
    bars = [int(counter.counts[low : low + width].sum()) for low in range(0, last + 1, width)]
    panel.bar([low * width for low in range(len(bars))], bars, width=width, align="edge", color=_COLOUR)
    panel.axvline(counter.mean, color="black", linewidth=0.8, linestyle="--")
    return f"characters (dashed: mean {counter.mean:,.0f}; {counter.count - sum(bars):,} longer passages not shown)"


def _draw_positives(panel: Any, counter: LengthCounter) -> str:
    last = max(5, counter.quantile(_SHOWN))
    bars = [int(n) for n in np.pad(counter.counts, (0, last + 1))[1:last]]
    panel.bar(range(1, last + 1), [*bars, counter.count - sum(bars)], color=_COLOUR)
    return f"positive passages per query (last bar: {last} or more)"
