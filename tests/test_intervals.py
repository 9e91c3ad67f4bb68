"""The intervals of means over queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from baselines.measure.evaluate import evaluate
from baselines.measure.qrels import Qrels
from baselines.measure.significance import of_means, official_intervals
from builders.store.runs import Run


def test_the_interval_of_a_share_is_the_binomial_one() -> None:
    # 1,000 queries, a third of them found: the normal approximation's ends are 1/3 -+ 1.96 * sqrt(1/3 * 2/3 / 1000).
    values = np.arange(1000)[:, None] % 3 == 0
    ((low, high),) = of_means(values)
    half = 1.96 * (values.mean() * (1 - values.mean()) / 1000) ** 0.5
    assert low == pytest.approx(values.mean() - half, abs=0.002)
    assert high == pytest.approx(values.mean() + half, abs=0.002)


def test_the_intervals_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
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


def test_the_official_measures_of_a_run_have_their_intervals() -> None:
    queries = [f"q{number}" for number in range(40)]
    # Of four queries: one found at rank 1, one at 2, one at 20, one nowhere.
    ranks = [(1, 2, 20, None)[number % 4] for number in range(40)]
    hits = {}
    for query, rank in zip(queries, ranks, strict=True):
        ids = [f"{query}-{place}" for place in range(1, 31)]
        if rank:
            ids[rank - 1] = "good"
        hits[query] = [(each, -float(place)) for place, each in enumerate(ids)]
    result, by_query = evaluate(Run(Path("run"), hits), Qrels("made up", {query: {"good": 1} for query in queries}))
    found = official_intervals(by_query)
    assert list(found) == ["MRR@10", "recall@1", "recall@50"]
    for name, (low, high) in found.items():
        assert 0 < low < result["official"][name] < high < 1
