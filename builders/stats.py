"""The figures of the paper's Table 3 and Section 2.2.2, for what was built."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def round_stat(value: float | None) -> float | None:
    """Table 3 prints two decimals; four are kept."""
    return None if value is None else round(float(value), 4)


class LengthCounter:
    """Counts lengths, so that mean and median of millions need no list of them."""

    def __init__(self) -> None:
        self._counts: npt.NDArray[np.int64] = np.zeros(1, np.int64)

    def add(self, lengths: npt.NDArray[Any]) -> None:
        counts = np.bincount(lengths)
        if counts.size > self._counts.size:
            self._counts = np.pad(self._counts, (0, counts.size - self._counts.size))
        self._counts[: counts.size] += counts

    @property
    def count(self) -> int:
        return int(self._counts.sum())

    def quantile(self, share: float) -> int:
        """The smallest length that at least ``share`` of all do not exceed."""
        return int(np.searchsorted(np.cumsum(self._counts), share * self.count))

    def summary(self) -> dict[str, float | int | None]:
        """A collection's passages and their characters (code points): mean, median, shortest, longest."""
        if not self.count:
            return {"passages": 0, "mean_chars": None, "median_chars": None, "min_chars": None, "max_chars": None}
        present = np.flatnonzero(self._counts)
        return {
            "passages": self.count,
            "mean_chars": round_stat(float(present @ self._counts[present]) / self.count),
            "median_chars": self.quantile(0.5),
            "min_chars": int(present[0]),
            "max_chars": int(present[-1]),
        }


TABLE3_ROWS = (
    ("queries", "queries"),
    ("positive_passages", "positive passages"),
    ("passages_per_query", "passages per query"),
    ("chars_per_query", "characters per query"),
    ("chars_per_passage", "characters per passage"),
)


def table3_text(stats: dict[str, Any]) -> str:
    """Table 3 of what was built, as aligned text."""
    splits = list(stats["table3"])
    lines = [f"{'':<24}" + "".join(f"{split:>12}" for split in splits)]
    for key, title in TABLE3_ROWS:
        cells = []
        for split in splits:
            value = stats["table3"][split].get(key)
            cells.append("-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}")
        lines.append(f"{title:<24}" + "".join(f"{cell:>12}" for cell in cells))
    for name, length in stats["collections"].items():
        lines.append(
            f"{name}: {length['passages']:,} passages; characters: mean {length['mean_chars']:.2f},"
            f" median {length['median_chars']}, {length['min_chars']} to {length['max_chars']}"
        )
    return "\n".join(lines)
