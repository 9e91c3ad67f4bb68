"""Confidence intervals of means over queries."""

import numpy as np
import pytest
from scipy import stats

from baselines.measure.significance import of_means, rank_agreement


def test_the_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(5).exponential(size=(300, 2))
    found = of_means(values, resamples=5000)
    theirs = stats.bootstrap((values,), np.mean, axis=0, n_resamples=5000, method="percentile", rng=1)
    expected = zip(theirs.confidence_interval.low, theirs.confidence_interval.high, strict=True)
    for (low, high), (their_low, their_high) in zip(found, expected, strict=True):
        assert low == pytest.approx(their_low, abs=0.01) and high == pytest.approx(their_high, abs=0.01)


def test_the_same_values_have_the_same_intervals_and_equal_ones_none() -> None:
    values = np.random.default_rng(0).random((50, 1))
    assert of_means(values) == of_means(values) != of_means(values, seed=1)
    assert of_means(np.ones((9, 1))) == [(1.0, 1.0)]


def test_rank_agreement_is_scipy_s_tau_with_its_bootstrap() -> None:
    random = np.random.default_rng(2)
    first = random.normal(size=40).round(1)  # with ties
    second = first + random.normal(size=40)
    tau, interval = rank_agreement(first, second)
    assert tau == stats.kendalltau(first, second).statistic
    drawn = stats.bootstrap(
        (first, second),
        lambda *each: stats.kendalltau(*each).statistic,
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=2_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert interval == pytest.approx((drawn.low, drawn.high), abs=0.02) and interval[0] < tau < interval[1]
    assert [rank_agreement(first, each)[0] for each in (first, -first)] == pytest.approx([1, -1])
