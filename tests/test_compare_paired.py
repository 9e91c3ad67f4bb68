"""The tests of `compare` against worked examples, scipy's other tests, and definitions written out."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from baselines.measure.significance import detectable, groups, holm, paired, randomisation

# Student (1908): hours of sleep gained by ten patients under two drugs.
ONE = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
OTHER = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def test_student_s_own_example_has_the_values_of_the_textbooks() -> None:
    found = paired(ONE, OTHER, level=0.95)
    assert found["difference"] == pytest.approx(-1.58)
    assert found["t"]["p"] == pytest.approx(0.002833, abs=5e-7)
    assert found["interval"] == pytest.approx([-2.4598858, -0.7001142], abs=5e-8)
    assert (found["wins"], found["ties"], found["losses"]) == (0, 1, 9)
    # Of the 512 ways to swap nine pairs, two are as far out.
    assert found["randomisation"]["p"] == pytest.approx(2 / 512, abs=0.0025)


def test_randomisation_is_scipy_s_exact_permutation_test_but_for_the_draws() -> None:
    values = np.random.default_rng(4).normal(0.4, 1, size=(6, 12)).round(1)
    for differences in values:
        exact = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=5_000).pvalue
        assert randomisation(differences) == pytest.approx(exact, abs=4 * np.sqrt(exact / 5_000))


def test_where_all_differences_are_equal_the_other_test_stands_in_for_student_s() -> None:
    found = paired(np.ones(3), np.zeros(3), level=0.95)
    assert found["t"]["p"] == found["randomisation"]["p"] == pytest.approx(2 / 8, abs=0.02)  # not 0
    assert (found["deviation"], found["interval"]) == (0.0, [1.0, 1.0])
    equal = paired(np.ones(3), np.ones(3), level=0.95)
    assert equal["t"]["p"] == equal["randomisation"]["p"] == 1.0


def test_holm_s_correction_is_that_of_statsmodels() -> None:
    for seed in range(5):
        p_values = np.random.default_rng(seed).beta(0.3, 1, size=1 + 5 * seed).round(3)  # some of them equal
        assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1].tolist())


@pytest.mark.parametrize(("queries", "alpha", "power"), [(10, 0.05, 0.8), (34, 0.05, 0.8), (300, 0.005, 0.9)])
def test_the_detectable_difference_is_that_of_statsmodels(queries: int, alpha: float, power: float) -> None:
    found = detectable(1.0, queries, alpha=alpha, power=power)
    assert TTestPower().power(found, queries, alpha) == pytest.approx(power, abs=5e-4)
    assert detectable(0.3, queries, alpha=alpha, power=power) == pytest.approx(0.3 * found)


def test_groups_are_the_largest_sets_without_a_pair_that_is_told_apart() -> None:
    draw = random.Random(0)
    for _ in range(60):
        systems = "bdaecf"[: draw.randint(2, 6)]
        apart = [pair for pair in itertools.combinations(systems, 2) if draw.random() < 0.4]
        alike = [
            {*some}
            for size in range(1, len(systems) + 1)
            for some in itertools.combinations(systems, size)
            if not any({*pair} <= {*some} for pair in apart)
        ]
        largest = [some for some in alike if not any(some < other for other in alike)]
        found = groups(systems, apart)
        assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
        assert all(group == sorted(group, key=systems.index) for group in found)
