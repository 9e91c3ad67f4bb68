"""Confidence intervals of means, paired significance tests of two systems, and detectable differences.

The tests are scipy's t-test and randomisation test. Smucker, Allan and Carterette (2007, "A comparison of statistical
significance tests for information retrieval evaluation") recommend these tests. Detectable differences follow Sakai
(2016, "Statistical significance, power, and sample sizes: a systematic review of SIGIR and TOIS, 2006-2015").
"""

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from baselines.measure.measure_options import TEST_RESAMPLES
from baselines.measure.measures import Values

LEVEL = 0.95
RESAMPLES = 2_000  # for an interval
_NUMBERS_AT_ONCE = 1 << 22  # of the resampled tables in memory: 32 MB
_SIGNS_AT_ONCE = 1 << 21  # of the randomisation test in memory: 16 MB
# The midpoints of 2,000 intervals of equal length, as probabilities of quantiles.
_QUANTILE_COUNT = 2_000
_QUANTILES = (np.arange(_QUANTILE_COUNT) + 0.5) / _QUANTILE_COUNT
# Standard errors beyond the largest critical value. At this shift, the power is above 0.99 for every level.
_FAR_SHIFT = 10

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
    query_count, measure_count = table.shape
    random = np.random.default_rng(seed)
    means = np.empty((resamples, measure_count))
    # A block of resamples is drawn at once: fast, and small enough for the memory.
    block_size = max(1, _NUMBERS_AT_ONCE // (query_count * measure_count))
    for start in range(0, resamples, block_size):
        resample_count = min(block_size, resamples - start)
        row_numbers = random.integers(query_count, size=(resample_count, query_count))
        means[start : start + block_size] = table[row_numbers].mean(axis=1)
    lows, highs = np.quantile(means, _tail_quantiles(level), axis=0)
    return list(zip(lows.tolist(), highs.tolist(), strict=True))


def wilson(count: int, total: int, level: float = LEVEL) -> Interval:
    """Return Wilson's interval of the share ``count / total`` (1927). It is not empty if the share is 0 or 1."""
    from scipy.stats import binomtest

    limits = binomtest(count, total).proportion_ci(level, method="wilson")
    return float(limits.low), float(limits.high)


def _tail_quantiles(level: float) -> list[float]:
    """Return the probabilities below the two limits of an interval, for example 0.025 and 0.975 for the level 0.95."""
    return [(1 - level) / 2, (1 + level) / 2]


def rank_agreement(
    first: Values,
    second: Values,
    *,
    same_queries: bool,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> tuple[float | None, Interval | None]:
    """Return Kendall's tau-b between two orders of the same systems, and its bootstrap interval over queries.

    ``first`` and ``second`` have the shape (queries, systems). Each table orders the systems by the means of its
    columns. ``same_queries`` is True if the rows of both tables are the same queries, so that a resample draws the same
    rows from both tables. Tau-b corrects for ties. If all systems of a table have equal means, tau and interval are
    None. Resamples without a tau are skipped. The interval is None, too, if no resample has a tau.
    """
    from scipy.stats import kendalltau

    random = np.random.default_rng(seed)

    def kendall_tau(first_table: Values, second_table: Values) -> float | None:
        tau = float(kendalltau(first_table.mean(axis=0), second_table.mean(axis=0)).statistic)
        return None if math.isnan(tau) else tau

    measured_tau = kendall_tau(first, second)
    if measured_tau is None:
        return None, None
    resampled_taus = []
    for _ in range(resamples):
        first_rows = random.integers(len(first), size=len(first))
        second_rows = first_rows
        if not same_queries:
            second_rows = random.integers(len(second), size=len(second))
        resampled_tau = kendall_tau(first[first_rows], second[second_rows])
        if resampled_tau is not None:
            resampled_taus.append(resampled_tau)
    interval = None
    if resampled_taus:
        low, high = np.quantile(resampled_taus, _tail_quantiles(level)).tolist()
        interval = (low, high)
    return measured_tau, interval


def compare_paired(
    first: Values, second: Values, *, level: float, resamples: int = TEST_RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Compare the values of two systems on the same queries, in the same order. The same seed gives the same result.

    Args:
        first, second: shape (queries,), with at least two queries.
        level: confidence level of the interval, for example 0.95.

    Returns:
        ``difference`` of the means, and its ``interval`` by Student's t (not corrected). ``deviation``: standard
        deviation of the differences by query. ``wins``, ``ties``, ``losses``: numbers of queries on which the first
        system is better, equal or worse. Each test of ``measure_options.TESTS`` has ``p``, the two-sided p-value (not
        corrected).
    """
    differences = first - second
    p_value = randomisation_test(differences, resamples=resamples, seed=seed)
    has_variance = np.ptp(differences) > 0
    if has_variance:
        student_p, interval = student_t_test(first, second, level)
        deviation = float(differences.std(ddof=1))
    else:
        # Student's t is not defined if all differences are equal. The randomisation test's p-value serves both tests.
        student_p = p_value
        interval = (float(differences[0]), float(differences[0]))
        deviation = 0.0
    return {
        "difference": float(differences.mean()),
        "interval": list(interval),
        "deviation": deviation,
        "wins": int((differences > 0).sum()),
        "ties": int((differences == 0).sum()),
        "losses": int((differences < 0).sum()),
        "t": {"p": student_p},
        "randomisation": {"p": p_value},
    }


def student_t_test(first: Values, second: Values, level: float) -> tuple[float, tuple[float, float]]:
    """Run Student's paired two-sided t-test. Returns (p-value, interval of the difference of the means).

    The test is not defined if all differences are equal.
    """
    from scipy.stats import ttest_rel

    test_result = ttest_rel(first, second)
    low, high = test_result.confidence_interval(level)
    return float(test_result.pvalue), (float(low), float(high))


def randomisation_test(differences: Values, *, resamples: int = TEST_RESAMPLES, seed: int = 0) -> float:
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

    # scipy resamples signs, +1 or -1 for each query, and their statistic is the sum of the differences so signed.
    def draw_signs(size: tuple[int, ...]) -> Values:
        return random.integers(0, 2, size, np.int8) * 2.0 - 1

    def signed_sum(signs: Values, axis: int = -1) -> Any:
        return signs @ changed

    test_result = monte_carlo_test(
        np.ones(len(changed)),  # the observed sample: no sign is flipped
        draw_signs,
        signed_sum,
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _SIGNS_AT_ONCE // len(changed)),
    )
    return float(test_result.pvalue)


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) corrected p-values, in the order of the input.

    The smallest of n p-values is multiplied by n, the next p-value by n - 1, and so on. A larger p-value never gets a
    smaller corrected value. scipy has only corrections of the false discovery rate. statsmodels has Holm's correction,
    but it is slow (1 s for the import, and 50 ms for garbage collection in each call).
    """
    p_array = np.asarray(p_values, np.float64)
    order = np.argsort(p_array)
    # For example, 0.01, 0.03 and 0.04 are multiplied by 3, 2 and 1. The result is 0.03, 0.06 and 0.06, because the
    # last value, 0.04, must not be below the value before it.
    factors = np.arange(len(p_array), 0, -1)
    rising = np.maximum.accumulate(p_array[order] * factors)
    corrected = np.empty_like(p_array)
    corrected[order] = np.minimum(rising, 1)
    return [float(p_value) for p_value in corrected]


def detectable_difference(deviation: float, queries: int, *, alpha: float, power: float) -> float:
    """Return the smallest true difference that Student's paired two-sided t-test detects with probability ``power``.

    ``deviation`` is the standard deviation of the differences by query, of at least two queries. The test detects a
    difference if its p-value is at most ``alpha``. ``power`` is from 0.5 to 0.99. Returns the difference in the unit of
    ``deviation``. A result above 1 means that no possible difference is detectable.
    """
    return float(_detectable_shift(queries, alpha, power) * deviation / np.sqrt(queries))


@lru_cache
def _detectable_shift(query_count: int, alpha: float, power: float) -> float:
    """Return the detectable difference in standard errors of the mean."""
    from scipy.optimize import brentq
    from scipy.stats import chi2, norm, t

    freedom = query_count - 1
    # A noncentral t is a normal variable over the root of a chi-squared variable. The chi-squared variable is replaced
    # by its quantiles. scipy's nct is not used, because it returns NaN far out in the tails.
    chi_squared = chi2.ppf(_QUANTILES, freedom)
    critical_values = t.isf(alpha / 2, freedom) * np.sqrt(chi_squared / freedom)

    def missing_power(shift: float) -> float:
        above = norm.sf(critical_values - shift)
        below = norm.cdf(-critical_values - shift)
        return power - float(np.mean(above + below))

    # The power rises with the shift, so the shift is the root between 0 and a point far above all critical values.
    return float(brentq(missing_power, 0, critical_values[-1] + _FAR_SHIFT))


def indistinguishable_groups(systems: Sequence[str], apart: Collection[tuple[str, str]]) -> list[list[str]]:
    """Return the largest groups of systems without a significant difference inside a group.

    This is the compact letter display of Piepho (2004, "An algorithm for a letter-based representation of all-pairwise
    comparisons"). Begin with one group of all systems. Each pair with a significant difference splits every group that
    contains both systems. Then a group inside another group is removed. A system may be in several groups.

    ``systems`` has the best system first. Groups and their members are in the order of ``systems``. ``apart`` has the
    pairs with a significant difference. For example, the systems a, b and c with the one pair (a, c) have the groups
    a b and b c.
    """
    system_numbers = {system: number for number, system in enumerate(systems)}
    number_groups = {frozenset(system_numbers.values())}
    for pair in apart:
        pair_numbers = {system_numbers[system] for system in pair}
        split_groups: set[frozenset[int]] = set()
        for group in number_groups:
            if pair_numbers <= group:
                split_groups.update(group - {number} for number in pair_numbers)
            else:
                split_groups.add(group)
        number_groups = {group for group in split_groups if not any(group < larger for larger in split_groups)}
    ordered_groups = sorted(sorted(group) for group in number_groups)
    return [[systems[number] for number in group] for group in ordered_groups]
