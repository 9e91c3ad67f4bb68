"""The smallest difference between two systems that a set of queries can show.

Sakai (2016, "Statistical significance, power, and sample sizes: a systematic review of SIGIR and TOIS, 2006-2015").
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

_QUANTILES = (np.arange(2_000) + 0.5) / 2_000


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
