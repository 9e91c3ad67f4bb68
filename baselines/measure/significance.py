"""Confidence intervals of means, paired significance tests of two systems, and detectable differences.

The tests are scipy's t-test and randomisation test. Smucker, Allan and Carterette (2007, "A comparison of statistical
significance tests for information retrieval evaluation") recommend these tests. Detectable differences follow Sakai
(2016, "Statistical significance, power, and sample sizes: a systematic review of SIGIR and TOIS, 2006-2015").
"""

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.measure_options import TEST_RESAMPLES
from baselines.measure.measures import Values

LEVEL = 0.95
RESAMPLES = 2_000  # for an interval
_QUANTILES = (np.arange(2_000) + 0.5) / 2_000

Interval = tuple[float, float]


def of_means(
    values: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> list[Interval]:
    """Return the percentile bootstrap interval of each column's mean (Efron and Tibshirani 1993, Section 13.3).

    ``values`` has the shape (queries, measures). A resample draws the same number of queries, with replacement. All
    columns use the same resamples. The same values and seed give the same intervals. ``level`` is the share of the
    resampled means inside the interval. Returns (low, high) for each measure, in the unit of the values.
    """
    table = np.asarray(values, np.float64)
    queries, random = len(table), np.random.default_rng(seed)
    means = np.empty((resamples, table.shape[1]))
    at_once = max(1, (1 << 22) // (queries * table.shape[1]))  # numbers in memory: 32 MB
    for start in range(0, resamples, at_once):
        drawn = random.integers(queries, size=(min(at_once, resamples - start), queries))
        means[start : start + at_once] = table[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def rank_agreement(
    first: Values,
    second: Values,
    *,
    same_queries: bool,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[float, Interval]:
    """Return Kendall's tau-b between two orders of the same systems, and its bootstrap interval over queries.

    ``first`` and ``second`` have the shape (queries, systems). Each table orders the systems by the means of its
    columns. ``same_queries`` is True if the rows of both tables are the same queries, so that a resample draws the same
    rows from both tables. Tau-b corrects for ties. It is NaN if all systems are equal. Resamples without a tau are
    skipped.
    """
    from scipy.stats import kendalltau

    random = np.random.default_rng(seed)

    def means() -> Iterator[tuple[Values, Values]]:
        yield first.mean(axis=0), second.mean(axis=0)
        for _ in range(resamples):
            rows = random.integers(len(first), size=len(first))
            others = rows if same_queries else random.integers(len(second), size=len(second))
            yield first[rows].mean(axis=0), second[others].mean(axis=0)

    taus = [float(kendalltau(*each).statistic) for each in means()]
    low, high = np.nanquantile(taus[1:], [(1 - level) / 2, (1 + level) / 2]).tolist()
    return taus[0], (low, high)


def paired(
    first: Values, second: Values, *, level: float, resamples: int = TEST_RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Compare the values of two systems on the same queries, in the same order. The same seed gives the same result.

    Args:
        first, second: shape (queries,), with at least two queries.
        level: confidence level of the interval, for example 0.95.

    Returns:
        ``difference`` of the means, and its ``interval`` by Student's t (not corrected). ``deviation``: standard
        deviation of the differences by query. ``wins``, ``ties``, ``losses``: numbers of queries on which the first
        system is better, equal or worse. Each test of ``measure_options.TESTS`` has
        ``p``, the two-sided p-value (not corrected).
    """
    differences = first - second
    p_value = randomisation(differences, resamples=resamples, seed=seed)
    # Student's t is not defined if all differences are equal. The randomisation test's p-value then serves both tests.
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
    """Run Student's paired two-sided t-test. Returns (p-value, interval of the difference of the means).

    The test is not defined if all differences are equal.
    """
    from scipy.stats import ttest_rel

    found = ttest_rel(first, second)
    low, high = found.confidence_interval(level)
    return float(found.pvalue), (float(low), float(high))


def randomisation(differences: Values, *, resamples: int = TEST_RESAMPLES, seed: int = 0) -> float:
    """Run Fisher's two-sided randomisation test. Returns the p-value, at least 2 / (resamples + 1).

    A resample swaps the two systems' values of each query with probability 1/2, which flips the difference's sign. The
    p-value is twice the share of samples with a mean at least as far from 0 in the direction of the observed mean. The
    observed sample counts as a sample.
    """
    from scipy.stats import monte_carlo_test

    changed = differences[differences != 0]  # swapping a tie changes nothing
    if not len(changed):
        return 1.0
    random = np.random.default_rng(seed)

    def signs(size: tuple[int, ...]) -> Values:
        return random.integers(0, 2, size, np.int8) * 2.0 - 1

    def total(drawn: Values, axis: int = -1) -> Any:
        return drawn @ changed

    observed = np.ones(len(changed))  # no sign is flipped
    at_once = max(1, (1 << 21) // len(changed))  # signs in memory: 16 MB
    test = monte_carlo_test(observed, signs, total, vectorized=True, n_resamples=resamples, batch=at_once)
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) corrected p-values, in the order of the input.

    The smallest of n p-values is multiplied by n, the next p-value by n - 1, and so on. A larger p-value never gets a
    smaller corrected value. scipy has only corrections of the false discovery rate. statsmodels has Holm's correction,
    but it is slow (1 s for the import, and 50 ms for garbage collection in each call).
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1)
    return [float(value) for value in corrected]


def detectable(deviation: float, queries: int, *, alpha: float, power: float) -> float:
    """Return the smallest true difference that Student's paired two-sided t-test detects with probability ``power``.

    ``deviation`` is the standard deviation of the differences by query, of at least two queries. The test detects a
    difference if its p-value is at most ``alpha``. ``power`` is from 0.5 to 0.99. Returns the difference in the unit of
    ``deviation``. A result above 1 means that no possible difference is detectable.
    """
    return float(_errors(queries, alpha, power) * deviation / np.sqrt(queries))


@lru_cache
def _errors(queries: int, alpha: float, power: float) -> float:
    """Return the detectable difference in standard errors of the mean."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    freedom = queries - 1
    # A noncentral t is a normal variable over the root of a chi-squared variable. The chi-squared variable is replaced
    # by its quantiles. scipy's nct is not used, because it returns NaN far out in the tails.
    limits = t.isf(alpha / 2, freedom) * np.sqrt(chi2.ppf(_QUANTILES, freedom) / freedom)

    def missing(shift: float) -> float:
        return power - float(np.mean(norm.sf(limits - shift) + norm.cdf(-limits - shift)))

    return float(brentq(missing, 0, limits[-1] + 10))


def groups(systems: Sequence[str], apart: Collection[tuple[str, str]]) -> list[list[str]]:
    """Return the largest groups of systems without a significant difference inside a group.

    This is the compact letter display of Piepho (2004, "An algorithm for a letter-based representation of all-pairwise
    comparisons"). Begin with one group of all systems. Each pair with a significant difference splits every group that
    contains both systems. Then a group inside another group is removed. A system may be in several groups.

    ``systems`` has the best system first. Groups and their members are in the order of ``systems``. ``apart`` has the
    pairs with a significant difference.
    """
    place = {system: number for number, system in enumerate(systems)}
    found = {frozenset(place.values())}
    for pair in apart:
        both = {place[system] for system in pair}
        split = {part for group in found for part in ([group - {one} for one in both] if both <= group else [group])}
        found = {group for group in split if not any(group < other for other in split)}
    return [[systems[number] for number in group] for group in sorted(map(sorted, found))]
