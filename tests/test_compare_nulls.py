"""Counted: systems without a difference are told apart as often as the level says, and detectable ones as the power."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from commands import ROOT
from scipy import stats

from baselines.measure.significance import detectable


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/false_alarms.py, from which docs/compare.md's figures are."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import false_alarms

    return false_alarms


def reciprocal_ranks(seed: int, *qualities: float, queries: int = 150) -> list[Any]:
    """Values of systems that find a query's positive passage at a rank of their own, or beyond 10."""
    random = np.random.default_rng(seed)
    ranks = [random.geometric(quality, queries) for quality in qualities]
    return [np.where(rank <= 10, 1 / rank, 0.0) for rank in ranks]


@pytest.mark.parametrize("null", ["swapped", "redrawn"])
def test_one_in_twenty_pairs_without_a_difference_is_a_false_alarm(benchmark: ModuleType, null: str) -> None:
    one, other = reciprocal_ranks(2, 0.5, 0.3)
    draws = 400
    found = benchmark.alarms([(one, other)], null, 100, draws, resamples=199)
    low, high = stats.binom.ppf([0.001, 0.999], draws, 0.05) / draws
    assert low <= found["t"] <= high
    assert low <= found["randomisation"] <= high


def test_holm_keeps_false_alarms_of_whole_families_to_one_in_twenty(benchmark: ModuleType) -> None:
    draws = 150
    found = benchmark.family_alarms(reciprocal_ranks(3, 0.5, 0.5, 0.4, 0.3, 0.2), draws)
    assert found["Holm"] <= stats.binom.ppf(0.999, draws, 0.05) / draws
    assert found["uncorrected"] > 0.15  # of ten pairs, some pair is nearly always far out


@pytest.mark.parametrize(("queries", "alpha"), [(8, 0.05), (100, 0.05), (100, 0.005)])
def test_a_detectable_difference_is_detected_as_often_as_the_power_says(queries: int, alpha: float) -> None:
    difference = detectable(0.3, queries, alpha=alpha, power=0.8)
    drawn = np.random.default_rng(5).normal(difference, 0.3, size=(4_000, queries))
    share = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue <= alpha)
    assert share == pytest.approx(0.8, abs=0.03)
