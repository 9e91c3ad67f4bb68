"""Histograms of a release as PNG. The same counts give the same bytes, on one version of matplotlib."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from builders.store.table3 import LengthCounter

_SHOWN = 0.99  # a tail of a few very long passages would press all others into one bar
_COLOUR = "#2a6f97"


def draw(lengths: dict[str, LengthCounter], positives: dict[str, LengthCounter]) -> dict[str, bytes]:
    """The histograms as PNG files: name to bytes.

    Args:
        lengths: characters a passage, by corpus config.
        positives: positive passages a query, by column of Table 3.
    """
    images = {}
    if lengths:
        images["passage-length.png"] = draw_lengths(lengths)
    if positives:
        images["positives-per-query.png"] = draw_positives(positives)
    return images


def draw_lengths(lengths: dict[str, LengthCounter]) -> bytes:
    """Characters a passage: one panel a corpus config, bars of equal width, the tail beyond 99 % named, not drawn."""
    figure, panels = _panels(len(lengths))
    for panel, (config, counter) in zip(panels, lengths.items(), strict=True):
        last = max(counter.quantile(_SHOWN), 1)
        width = max(1, round(last / 60))
        bars = [int(counter.counts[low : low + width].sum()) for low in range(0, last + 1, width)]
        panel.bar([low * width for low in range(len(bars))], bars, width=width, align="edge", color=_COLOUR)
        panel.axvline(counter.mean, color="black", linewidth=0.8, linestyle="--")
        beyond = counter.count - sum(bars)
        panel.set_title(f"{config}: {counter.count:,} passages", fontsize=10)
        panel.set_xlabel(f"characters (mean {counter.mean:,.0f}, dashed; {beyond:,} longer ones not shown)", fontsize=8)
        panel.set_ylabel("passages", fontsize=8)
    return _png(figure)


def draw_positives(positives: dict[str, LengthCounter]) -> bytes:
    """Positive passages a query: one panel a labelled split; what has more than the last bar's is added to it."""
    figure, panels = _panels(len(positives))
    for panel, (column, counter) in zip(panels, positives.items(), strict=True):
        last = max(5, counter.quantile(_SHOWN))
        bars = [int(n) for n in np.pad(counter.counts, (0, last + 1))[1:last]]
        bars.append(counter.count - sum(bars))
        panel.bar(range(1, last + 1), bars, color=_COLOUR)
        panel.set_title(f"{column}: {counter.count:,} queries", fontsize=10)
        panel.set_xlabel(f"positive passages a query (last bar: {last} and more)", fontsize=8)
        panel.set_ylabel("queries", fontsize=8)
    return _png(figure)


def _panels(number: int) -> tuple[Any, list[Any]]:
    # Not pyplot: no display, no global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * number, 3.2), dpi=110, layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(1, number)))
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    return figure, panels


def _png(figure: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()
