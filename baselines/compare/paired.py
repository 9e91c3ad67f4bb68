"""Two systems on the same queries: what lies between them, and whether chance alone would bring as much.

The tests are scipy's. Smucker, Allan and Carterette (2007, "A comparison of statistical
significance tests for information retrieval evaluation") recommend both for means over queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
TESTS = ("t", "randomisation")  # the first is the default

RESAMPLES = 9_999  # with what was observed, 10,000
_DRAWN_AT_ONCE = 1 << 21  # signs held: 16 MB


@dataclass(frozen=True)
class Paired:
    """One pair of systems under one measure.

    ``difference``: of the means. ``interval``: its ends by Student's t, not corrected. ``deviation``: the standard
    deviation of the queries' differences. ``wins``, ``ties``, ``losses``: on how many queries the first is better, as
    good, worse. ``p``: the two-sided p-value of each of ``TESTS``, not corrected.
    """

    difference: float
    interval: tuple[float, float]
    deviation: float
    wins: int
    ties: int
    losses: int
    p: dict[str, float]


def paired(first: Values, second: Values, *, level: float, resamples: int = RESAMPLES, seed: int = 0) -> Paired:
    """Compare the values of two systems, shape (queries,), at least two, in the same order.

    ``level``: the share of ``interval``, such as 0.95. The same values and seed give the same numbers.
    """
    differences = first - second
    p = {"randomisation": randomisation(differences, resamples=resamples, seed=seed)}
    if vary := np.ptp(differences) > 0:
        p["t"], interval = student(first, second, level)
    else:  # Student's t divides by how much they vary: the other test stands in
        p["t"], interval = p["randomisation"], (float(differences[0]), float(differences[0]))
    return Paired(
        difference=float(differences.mean()),
        interval=interval,
        deviation=float(differences.std(ddof=1)) if vary else 0.0,
        wins=int((differences > 0).sum()),
        ties=int((differences == 0).sum()),
        losses=int((differences < 0).sum()),
        p=p,
    )


def student(first: Values, second: Values, level: float) -> tuple[float, tuple[float, float]]:
    """Student's paired t-test, two-sided: (p-value, the interval of the difference of the means).

    Not defined where all differences are equal.
    """
    from scipy.stats import ttest_rel

    found = ttest_rel(first, second)
    low, high = found.confidence_interval(level)
    return float(found.pvalue), (float(low), float(high))


def randomisation(differences: Values, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Fisher's randomisation test, two-sided: were the two systems' values of each query swapped by a coin?

    A swap turns the sign of the query's difference. The p-value is the share of the drawn swaps, and of the observed
    one, whose mean is as far out; the smallest that can come out is 2 / (resamples + 1).
    """
    from scipy.stats import monte_carlo_test

    changed = differences[differences != 0]  # turning a tie changes nothing
    if not len(changed):
        return 1.0
    random = np.random.default_rng(seed)

    def signs(size: tuple[int, ...]) -> Values:
        return random.integers(0, 2, size, np.int8) * 2.0 - 1

    def total(drawn: Values, axis: int = -1) -> Any:
        return drawn @ changed

    observed = np.ones(len(changed))  # no sign is turned
    at_once = max(1, _DRAWN_AT_ONCE // len(changed))
    test = monte_carlo_test(observed, signs, total, vectorized=True, n_resamples=resamples, batch=at_once)
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) corrected p-values, in the order given: at most one in 20 such lists has a false alarm at 0.05.

    The smallest of n is taken n times, the next one n - 1 times, and so on; none is below the one before. scipy has
    corrections of the false discovery rate alone; statsmodels', which is the same, collects garbage at every call
    (50 ms, with its import 1 s).
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return [float(each) for each in corrected]
