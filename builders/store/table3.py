"""The statistics of the paper's Table 3 and Section 2.2.2 for a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.results import Table
from builders.core.tables import aligned, round_stat

# Lower limits of the bars in a card's histograms. The last bar has no upper limit.
LENGTH_EDGES = (0, 32, 64, 128, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096)
POSITIVES_EDGES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 50)


def table3_column(
    queries: int, query_chars: int, judgments: int, passages: LengthCounter
) -> dict[str, float | int | None]:
    """Return a column of Table 3 for a split of the benchmark, or for the test split of an out-of-domain set.

    ``query_chars`` is the total number of characters (code points) of the queries. ``judgments`` is the number of
    (query, positive passage) pairs, 0 without labels. ``passages`` has the lengths of the passages in these pairs.
    """
    return {
        "queries": queries,
        "positive_passages": judgments or None,
        "passages_per_query": round_stat(judgments / queries) if judgments and queries else None,
        "chars_per_query": round_stat(query_chars / queries) if queries else None,
        "chars_per_passage": round_stat(passages.mean),
    }


class LengthCounter:
    """Count texts by length: ``counts[n]`` texts have length n. The counts need less memory than a list of lengths."""

    def __init__(self, lengths: npt.NDArray[Any] = np.zeros(0, np.int64)) -> None:  # noqa: B008
        self.counts: npt.NDArray[np.int64] = np.bincount(lengths, minlength=1).astype(np.int64)

    def add(self, lengths: npt.NDArray[Any], times: npt.NDArray[Any] | None = None) -> None:
        """Add ``times[i]`` texts of length ``lengths[i]``. ``times`` defaults to one text for each length."""
        counts = np.bincount(lengths, times).astype(np.int64)
        if counts.size > self.counts.size:
            self.counts = np.pad(self.counts, (0, counts.size - self.counts.size))
        self.counts[: counts.size] += counts

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float | None:
        return float(np.arange(self.counts.size) @ self.counts) / self.count if self.count else None

    def histogram(self, edges: Sequence[int] = LENGTH_EDGES) -> list[dict[str, int | None]]:
        """Return bars ``{"from", "to", "count"}`` with inclusive limits, without empty bars at the two ends.

        ``edges`` are the bars' lower limits, rising from 0. The last bar has no upper limit (``to`` is None).
        """
        bars: list[dict[str, int | None]] = [
            {"from": low, "to": None if high is None else high - 1, "count": int(self.counts[low:high].sum())}
            for low, high in zip(edges, [*edges[1:], None], strict=True)
        ]
        filled = [position for position, bar in enumerate(bars) if bar["count"]]
        return bars[filled[0] : filled[-1] + 1] if filled else []

    def quantile(self, share: float) -> int:
        """Return the smallest length L such that at least ``share`` of all lengths are at most L."""
        return int(np.searchsorted(np.cumsum(self.counts), share * self.count))

    def summary(self) -> dict[str, Any]:
        """Return the number of passages and statistics of their characters (code points) for ``stats.json``."""
        present = np.flatnonzero(self.counts)
        return {
            "passages": self.count,
            "mean_chars": round_stat(self.mean),
            "median_chars": self.quantile(0.5) if self.count else None,
            "min_chars": int(present[0]) if self.count else None,
            "max_chars": int(present[-1]) if self.count else None,
            "histogram": self.histogram(),
        }


TABLE3_ROWS = (
    ("queries", "queries"),
    ("positive_passages", "positive passages"),
    ("passages_per_query", "passages per query"),
    ("chars_per_query", "characters per query"),
    ("chars_per_passage", "characters per passage"),
)


def table3_text(stats: dict[str, Any]) -> str:
    """Format Table 3 and the lengths of the passages of a release as aligned text."""

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"

    columns = stats["table3"]
    rows = [[title, *(cell(column.get(key)) for column in columns.values())] for key, title in TABLE3_ROWS]
    lines = aligned([["", *columns], *rows], widths=(24, 12))
    lines += [
        f"{name}: {length['passages']:,} passages; characters: mean {length['mean_chars']:.2f},"
        f" median {length['median_chars']}, {length['min_chars']} to {length['max_chars']}"
        for name, length in stats["collections"].items()
    ]
    return "\n".join(lines)


_LENGTHS = ("passages", "mean_chars", "median_chars", "min_chars", "max_chars")


def table3_tables(stats: dict[str, Any]) -> list[Table]:
    """Return Table 3, and a table with the lengths of the passages of each collection."""
    columns = stats["table3"]
    figures = [[title, *(column.get(key) for column in columns.values())] for key, title in TABLE3_ROWS]
    lengths = [[name, *(summary[key] for key in _LENGTHS)] for name, summary in stats["collections"].items()]
    return [
        Table(["statistic", *columns], figures, title="Table 3"),
        Table(["collection", *_LENGTHS], lengths, title="Lengths of the passages in characters"),
    ]
