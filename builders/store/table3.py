"""The statistics of the paper's Table 3 and Section 2.2.2 for a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.results import Table
from builders.core.tables import align_rows, round_stat

# Lower limits of the bars in a card's histograms. The last bar has no upper limit.
LENGTH_EDGES = (0, 32, 64, 128, 192, 256, 320, 384, 512, 768, 1024, 2048, 4096)
POSITIVES_EDGES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 50)
# Keys of table3_column, and the titles of the rows.
TABLE3_ROWS = (
    ("queries", "queries"),
    ("positive_passages", "positive passages"),
    ("passages_per_query", "passages per query"),
    ("chars_per_query", "characters per query"),
    ("chars_per_passage", "characters per passage"),
)
# Keys of LengthCounter.summary.
LENGTH_KEYS = ("passages", "mean_chars", "median_chars", "min_chars", "max_chars")


def table3_column(
    query_count: int, query_chars: int, positive_count: int, passage_lengths: LengthCounter
) -> dict[str, float | int | None]:
    """Return a column of Table 3 for a split of the benchmark, or for the test split of an out-of-domain set.

    ``query_chars`` is the total number of characters (code points) of the queries. ``positive_count`` is the number of
    (query, positive passage) pairs, 0 without labels. ``passage_lengths`` has the lengths of the passages in these
    pairs.
    """
    # A figure that would divide by zero is null, and is shown as a dash.
    passages_per_query = None
    chars_per_query = None
    if query_count:
        chars_per_query = round_stat(query_chars / query_count)
        if positive_count:
            passages_per_query = round_stat(positive_count / query_count)
    return {
        "queries": query_count,
        "positive_passages": positive_count or None,
        "passages_per_query": passages_per_query,
        "chars_per_query": chars_per_query,
        "chars_per_passage": round_stat(passage_lengths.mean),
    }


class LengthCounter:
    """Count texts by length: ``counts[n]`` texts have length n. The counts need less memory than a list of lengths.

    ``lengths`` are the lengths of the first texts. :meth:`add` adds further texts.
    """

    def __init__(self, lengths: npt.NDArray[Any] = np.zeros(0, np.int64)) -> None:  # noqa: B008
        self.counts: npt.NDArray[np.int64] = np.bincount(lengths, minlength=1).astype(np.int64)

    def add(self, lengths: npt.NDArray[Any], text_counts: npt.NDArray[Any] | None = None) -> None:
        """Add ``text_counts[i]`` texts of length ``lengths[i]``, by default one text for each length."""
        counts = np.bincount(lengths, text_counts).astype(np.int64)
        if counts.size > self.counts.size:
            self.counts = np.pad(self.counts, (0, counts.size - self.counts.size))
        self.counts[: counts.size] += counts

    @property
    def count(self) -> int:
        """The number of texts."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float | None:
        """The mean length; None without texts."""
        if not self.count:
            return None
        total_length = np.arange(self.counts.size) @ self.counts
        return float(total_length) / self.count

    def histogram(self, edges: Sequence[int] = LENGTH_EDGES) -> list[dict[str, int | None]]:
        """Return bars ``{"from", "to", "count"}`` with inclusive limits, without empty bars at the two ends.

        ``edges`` are the bars' lower limits, rising from 0. The last bar has no upper limit (``to`` is None).
        """
        bars: list[dict[str, int | None]] = []
        # Pair each lower limit with the next one.
        upper_edges = [*edges[1:], None]
        for low, high in zip(edges, upper_edges, strict=True):
            text_count = int(self.counts[low:high].sum())
            bars.append({"from": low, "to": None if high is None else high - 1, "count": text_count})
        # Empty bars in the middle stay, so that the bars have no gaps.
        while bars and not bars[-1]["count"]:
            bars.pop()
        while bars and not bars[0]["count"]:
            bars.pop(0)
        return bars

    def quantile(self, share: float) -> int:
        """Return the smallest length L such that at least ``share`` of all lengths are at most L."""
        return int(np.searchsorted(np.cumsum(self.counts), share * self.count))

    def summary(self) -> dict[str, Any]:
        """Return statistics of passages for ``stats.json``. The counted lengths are numbers of characters.

        The keys are ``LENGTH_KEYS`` and ``histogram``. Without passages, mean, median, minimum and maximum are None.
        """
        median = shortest = longest = None
        if self.count:
            lengths = np.flatnonzero(self.counts)
            median = self.quantile(0.5)
            shortest = int(lengths[0])
            longest = int(lengths[-1])
        return {
            "passages": self.count,
            "mean_chars": round_stat(self.mean),
            "median_chars": median,
            "min_chars": shortest,
            "max_chars": longest,
            "histogram": self.histogram(),
        }


def table3_text(stats: dict[str, Any]) -> str:
    """Format Table 3 and the lengths of the passages as aligned text. ``stats`` is the content of ``stats.json``."""
    columns = stats["table3"]
    rows = [["", *columns]]
    for key, title in TABLE3_ROWS:
        figures = [format_figure(column.get(key)) for column in columns.values()]
        rows.append([title, *figures])
    lines = align_rows(rows, widths=(24, 12))
    for name, lengths in stats["collections"].items():
        lines.append(format_lengths(name, lengths))
    return "\n".join(lines)


def format_lengths(config: str, lengths: dict[str, Any]) -> str:
    """Return the lengths of a collection's passages as a line. ``lengths`` has the keys ``LENGTH_KEYS``.

    Figures are None for a collection without passages.
    """
    passage_count = format_figure(lengths["passages"])
    mean = format_figure(lengths["mean_chars"])
    median = format_figure(lengths["median_chars"])
    shortest = format_figure(lengths["min_chars"])
    longest = format_figure(lengths["max_chars"])
    figures = f"mean {mean}, median {median}, {shortest} to {longest}"
    return f"{config}: {passage_count} passages; characters: {figures}"


def format_figure(value: float | None) -> str:
    """Format a figure of Table 3: counts in full, means with two digits, None as "-"."""
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def table3_tables(stats: dict[str, Any]) -> list[Table]:
    """Return Table 3, and a table with the lengths of the passages of each collection.

    ``stats`` is the content of ``stats.json``.
    """
    columns = stats["table3"]
    figure_rows = []
    for key, title in TABLE3_ROWS:
        figures = [column.get(key) for column in columns.values()]
        figure_rows.append([title, *figures])
    length_rows = []
    for name, summary in stats["collections"].items():
        length_rows.append([name, *(summary[key] for key in LENGTH_KEYS)])
    return [
        Table(["statistic", *columns], figure_rows, title="Table 3"),
        Table(["collection", *LENGTH_KEYS], length_rows, title="Lengths of the passages in characters"),
    ]
