"""How sure a mean over queries is: its interval under another draw of queries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from baselines.runs.measures import PAPER
from baselines.runs.values import values_of

RESAMPLES = 2_000
LEVEL = 0.95
_DRAWN_AT_ONCE = 1 << 22  # numbers held: 32 MB

Interval = tuple[float, float]


def of_means(
    values: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> list[Interval]:
    """The percentile bootstrap's interval of each column's mean (Efron and Tibshirani 1993, Section 13.3).

    Queries are drawn again, with replacement, as many as there are; all columns see the same draws.

    Args:
        values: shape (queries, measures).
        seed: of the draws: the same values have the same intervals.
        resamples: how many draws.
        level: the share of the resampled means between the two ends.

    Returns:
        (low, high) a measure, in the unit of the values.
    """
    table = np.asarray(values, np.float64)
    queries, random = len(table), np.random.default_rng(seed)
    means = np.empty((resamples, table.shape[1]))
    at_once = max(1, _DRAWN_AT_ONCE // (queries * table.shape[1]))
    for start in range(0, resamples, at_once):
        drawn = random.integers(queries, size=(min(at_once, resamples - start), queries))
        means[start : start + at_once] = table[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def official_intervals(by_query: pa.Table, *, seed: int = 0) -> dict[str, Interval]:
    """The 95 % intervals of the official measures, as fractions, from a table of :func:`~.evaluate.evaluate`."""
    columns = np.column_stack([values_of(by_query, name) for name in PAPER.values()])
    return dict(zip(PAPER.values(), of_means(columns, seed=seed), strict=True))
