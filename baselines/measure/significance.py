"""Certainty of measures: intervals of means, paired tests of two systems, and the differences that can be detected.

The tests are scipy's. Smucker, Allan and Carterette (2007, "A comparison of statistical significance tests for
information retrieval evaluation") recommend both for means over queries. Detectable differences follow Sakai (2016,
"Statistical significance, power, and sample sizes: a systematic review of SIGIR and TOIS, 2006-2015").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.measures import Values

LEVEL = 0.95
RESAMPLES = 2_000  # of an interval
TEST_RESAMPLES = 9_999  # with what was observed, 10,000
TESTS = ("t", "randomisation")  # the first is the default
_DRAWN_AT_ONCE = 1 << 22  # numbers held: 32 MB
_SIGNS_AT_ONCE = 1 << 21  # signs held: 16 MB
_QUANTILES = (np.arange(2_000) + 0.5) / 2_000

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


def rank_agreement(
    first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, Interval]:
    """Kendall's tau-b of two lists of values of the same items, and its percentile bootstrap's interval over items.

    Ties within a list are taken into account. A draw whose tau is not defined, since all values of one list are equal,
    is passed over. Not a number where the lists themselves are like this.
    """
    from scipy.stats import kendalltau

    values, random = np.asarray([first, second], np.float64), np.random.default_rng(seed)
    drawn = (values[:, random.integers(values.shape[1], size=values.shape[1])] for _ in range(resamples))
    taus = [float(kendalltau(*each).statistic) for each in (values, *drawn)]
    low, high = np.nanquantile(taus[1:], [(1 - level) / 2, (1 + level) / 2]).tolist()
    return taus[0], (low, high)


def paired(
    first: Values, second: Values, *, level: float, resamples: int = TEST_RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Compare the values of two systems, shape (queries,), at least two, in the same order.

    The same values and seed give the same numbers. ``level``: the share of ``interval``, such as 0.95.

    Returns:
        ``difference`` of the means; ``interval``: its ends by Student's t, not corrected; ``deviation``: the standard
        deviation of the queries' differences; ``wins``, ``ties``, ``losses``: the number of queries on which the first
        is better, as good, worse; for each of ``TESTS`` ``p``, the two-sided p-value, not corrected.
    """
    differences = first - second
    p_value = randomisation(differences, resamples=resamples, seed=seed)
    # Student's t divides by how much they vary: without that the other test stands in.
    vary, student_p, interval = np.ptp(differences) > 0, p_value, (float(differences[0]), float(differences[0]))
    if vary:
        student_p, interval = student(first, second, level)
    return {
        "difference": float(differences.mean()),
        "interval": list(interval),
        "deviation": float(differences.std(ddof=1)) if vary else 0.0,
        "wins": int((differences > 0).sum()),
        "ties": int((differences == 0).sum()),
        "losses": int((differences < 0).sum()),
        "t": {"p": student_p},
        "randomisation": {"p": p_value},
    }


def student(first: Values, second: Values, level: float) -> tuple[float, tuple[float, float]]:
    """Student's paired t-test, two-sided: (p-value, the interval of the difference of the means).

    Not defined where all differences are equal.
    """
    from scipy.stats import ttest_rel

    found = ttest_rel(first, second)
    low, high = found.confidence_interval(level)
    return float(found.pvalue), (float(low), float(high))


def randomisation(differences: Values, *, resamples: int = TEST_RESAMPLES, seed: int = 0) -> float:
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
    at_once = max(1, _SIGNS_AT_ONCE // len(changed))
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


def detectable(deviation: float, queries: int, *, alpha: float, power: float) -> float:
    """The true difference of two means that Student's paired t-test, two-sided, finds with a probability of ``power``.

    Args:
        deviation: the standard deviation of the queries' differences.
        queries: their number, at least two.
        alpha: the level of the test.
        power: the probability of a p-value of at most ``alpha``, 0.5 to 0.99.

    Returns:
        In the unit of ``deviation``. May be above 1, where a measure ends: then these queries cannot show any.
    """
    return float(_errors(queries, alpha, power) * deviation / np.sqrt(queries))


@lru_cache
def _errors(queries: int, alpha: float, power: float) -> float:
    """The detectable difference in standard errors of the mean."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    freedom = queries - 1
    # By the definition of the noncentral t: a normal value over the root of a chi-squared one, taken here at its
    # quantiles. scipy's own nct is not a number where the tails are far out.
    limits = t.isf(alpha / 2, freedom) * np.sqrt(chi2.ppf(_QUANTILES, freedom) / freedom)

    def missing(shift: float) -> float:
        return power - float(np.mean(norm.sf(limits - shift) + norm.cdf(-limits - shift)))

    return float(brentq(missing, 0, limits[-1] + 10))


def groups(systems: Sequence[str], apart: Collection[tuple[str, str]]) -> list[list[str]]:
    """The largest groups of systems none of which is told apart from another of its group.

    This is the compact letter display of Piepho (2004, "An algorithm for a letter-based representation of all-pairwise
    comparisons"): begin with one group of all; each pair that is told apart splits every group that holds both; a group
    within another one goes. A system may be in several: a and b, b and c may look alike where a and c do not.

    Args:
        systems: the best first; the groups and their members are in this order.
        apart: the pairs that are told apart.
    """
    place = {system: number for number, system in enumerate(systems)}
    found = {frozenset(place.values())}
    for pair in apart:
        both = {place[system] for system in pair}
        split = {part for group in found for part in ([group - {one} for one in both] if both <= group else [group])}
        found = {group for group in split if not any(group < other for other in split)}
    return [[systems[number] for number in group] for group in sorted(map(sorted, found))]
