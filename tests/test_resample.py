"""Resampling: ranks, nearest neighbours, clusters and training sets against brute force in whole numbers."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import md5

from builders.add.restrain import is_large, restrained
from builders.add.resttest import bucketed
from builders.add.similarity import best_ranks, clusters, fixed_point, nearest, scale
from builders.core.errors import InputError


@st.composite
def vector_sets(draw: Any, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Training and test vectors of few coordinates of few values: many exact ties, many duplicates."""
    dimensions = draw(st.integers(1, 4))
    number = st.integers(-2, 2) if draw(st.booleans()) else st.floats(-1, 1, width=32)
    row = st.lists(number, min_size=dimensions, max_size=dimensions).filter(any)
    trains = draw(st.lists(row, min_size=2, max_size=most))
    tests = draw(st.lists(row, min_size=1, max_size=12))
    return fixed_point(np.array(trains)), fixed_point(np.array(tests))


def brute_ranks(tests: np.ndarray, trains: np.ndarray) -> tuple[list[int], list[int]]:
    """Each training query's best rank among the test queries, and its product there; ties to the lower row."""
    products = tests.astype(int) @ trains.astype(int).T
    best = [(len(trains) + 1, 0)] * len(trains)
    for row in products.tolist():
        order = sorted(range(len(row)), key=lambda train: (-row[train], train))
        for rank, train in enumerate(order, 1):
            best[train] = min(best[train], (rank, -row[train]))
    return [rank for rank, _ in best], [-product for _, product in best]


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_stay_where_float32_is_exact(dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_cauchy((20, dimensions))
    rows = fixed_point(vectors).astype(np.int64)
    assert np.abs(rows).astype(np.float64).max() <= 4096
    assert ((rows * rows).sum(axis=1) <= 2**24).all()
    exact = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(rows @ rows.T / scale(dimensions) ** 2 - exact @ exact.T).max() < 2e-3


def test_only_the_direction_of_a_vector_counts() -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 8))
    for factor in (1e-300, 1e-3, 7.0, 1e300):
        assert (fixed_point(vectors * factor) == fixed_point(vectors)).all()
    assert (fixed_point(np.array([[3.0, 4.0]], np.float16)) == np.rint(np.array([[0.6, 0.8]]) * scale(2))).all()


@settings(deadline=None)
@given(vector_sets(), st.integers(1, 50))
def test_ranks_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray], depth: int) -> None:
    trains, tests = sets
    ranks, products, complete = best_ranks(tests, trains, depth)
    expected, cosines = brute_ranks(tests, trains)
    assert complete <= depth
    assert ranks.tolist() == [rank if rank <= complete else 0 for rank in expected]
    assert all(products[row] == cosines[row] for row in np.flatnonzero(ranks))
    assert complete == len(trains) or depth < len(trains)


@settings(deadline=None)
@given(vector_sets())
def test_nearest_cosines_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray]) -> None:
    trains, tests = sets
    rows = np.arange(0, len(trains), 2)
    expected = (tests.astype(int) @ trains[rows].astype(int).T).max(axis=1) / scale(trains.shape[1]) ** 2
    assert nearest(tests, trains, rows) == pytest.approx(np.clip(expected, -1, 1))
    assert (nearest(tests, trains, rows[:0]) == -1).all()


@settings(deadline=None)
@given(
    vector_sets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_training_sets_are_those_of_brute_force(
    sets: tuple[np.ndarray, np.ndarray], sizes: list[int], exclude: int | None, seed: int
) -> None:
    trains, tests = sets
    ids = [f"q{number:03d}" for number in range(len(trains))]
    ranks, products = brute_ranks(tests, trains)
    # The largest possible, by trying every size, and every depth where none is given: the least one that allows it.
    possible, depth = 0, exclude or 1
    for tried in [exclude] if exclude else range(1, len(trains) + 1):
        for size in range(1, len(trains)):
            if size <= sum(rank <= tried for rank in ranks) and size <= sum(rank > tried for rank in ranks):
                possible, depth = max((possible, depth), (size, tried), key=lambda each: (each[0], -each[1]))
    if max(sizes) > possible:
        with pytest.raises(InputError, match=f"{max(sizes)} is too large .* {possible} is the largest possible"):
            restrained(ids, trains, tests, sizes, exclude, seed)
        return
    found = restrained(ids, trains, tests, sizes, exclude, seed)
    assert [(chosen.size, chosen.kind) for chosen in found] == [
        (size, kind) for size in sorted(set(sizes)) for kind in ("interpolation", "extrapolation")
    ]
    order = sorted(range(len(trains)), key=lambda row: (ranks[row], -products[row], row))
    for inter, extra in zip(found[::2], found[1::2], strict=True):
        assert len(set(extra.rows)) == len(extra.rows) == extra.size
        assert sorted(order[: inter.size]) == inter.rows.tolist()
        assert inter.ranks == max(ranks[row] for row in inter.rows)
        assert extra.ranks == depth
        assert min(ranks[row] for row in extra.rows) > depth


@settings(max_examples=60, deadline=None)
@given(vector_sets(), st.none() | st.integers(1, 3), st.integers(0, 3), st.data())
def test_smaller_sets_are_part_of_larger_ones_and_the_two_kinds_share_no_query(
    sets: tuple[np.ndarray, np.ndarray], exclude: int | None, seed: int, data: Any
) -> None:
    trains, tests = sets
    ids = [f"q{number:03d}" for number in range(len(trains))]
    with pytest.raises(InputError) as refused:
        restrained(ids, trains, tests, [len(trains)], exclude, seed)
    possible = int(re.search(r"([\d,]+) is the largest possible", str(refused.value))[1])
    if not possible:
        return
    sizes = [*data.draw(st.lists(st.integers(1, possible), min_size=1, max_size=4)), possible]
    kinds: dict[str, list[set[int]]] = {"interpolation": [], "extrapolation": []}
    for size in sorted(sizes):  # each by a command of its own
        for chosen in restrained(ids, trains, tests, [size], exclude, seed):
            kinds[chosen.kind].append(set(chosen.rows.tolist()))
    for nested in kinds.values():
        assert [len(rows) for rows in nested] == sorted(sizes)
        assert all(small <= large for small, large in itertools.pairwise(nested))
    assert not any(inter & extra for inter in kinds["interpolation"] for extra in kinds["extrapolation"])


def test_a_test_set_is_large_where_there_are_few_training_queries_for_each() -> None:
    assert not is_large(97, 502_939)  # of MS MARCO, what ReSTrain's authors used it for
    assert is_large(6_980, 502_939)  # and what they did not
    assert is_large(2_000, 86_395)


def test_extrapolation_sets_are_drawn_by_the_seed() -> None:
    generator = np.random.default_rng(5)
    trains, tests = fixed_point(generator.normal(size=(400, 8))), fixed_point(generator.normal(size=(5, 8)))
    ids = [md5(str(number)) for number in range(400)]
    one, again, other = (restrained(sorted(ids), trains, tests, [100, 50], None, seed) for seed in (0, 0, 1))
    assert [chosen.rows.tolist() for chosen in one] == [chosen.rows.tolist() for chosen in again]
    assert one[2].rows.tolist() == other[2].rows.tolist()
    assert one[3].rows.tolist() != other[3].rows.tolist()
    # A size does not depend on the other sizes asked for.
    alone = restrained(sorted(ids), trains, tests, [50], None, 0)
    assert [chosen.rows.tolist() for chosen in alone] == [chosen.rows.tolist() for chosen in one[:2]]


def brute_clusters(vectors: np.ndarray, starts: list[int]) -> list[int] | None:
    """Spherical k-means in whole numbers; None where a cluster loses all rows."""
    centres, labels = vectors[starts].astype(int), [-1] * len(vectors)
    for _ in range(100):
        products = (vectors.astype(int) @ centres.T).tolist()
        before, labels = labels, [max(range(len(starts)), key=lambda c: (row[c], -c)) for row in products]
        if before == labels:
            break
        for number in range(len(starts)):
            members = vectors[[label == number for label in labels]].astype(int)
            if not len(members):
                return None
            total = members.sum(axis=0)
            centres[number] = fixed_point((total if total.any() else members[0])[None].astype(float))[0]
    sizes = [labels.count(number) for number in range(len(starts))]
    order = sorted(range(len(starts)), key=lambda number: (-sizes[number], number))
    return [order.index(label) for label in labels]


@settings(max_examples=50, deadline=None)
@given(vector_sets(), st.data())
def test_clusters_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    vectors = sets[0]
    starts = data.draw(st.lists(st.integers(0, len(vectors) - 1), min_size=1, max_size=4, unique=True))
    found = clusters(vectors, np.array(starts))
    expected = brute_clusters(vectors, starts)
    if expected is not None:
        assert found.tolist() == expected
    same: dict[bytes, int] = {}
    for row, label in zip(vectors, found.tolist(), strict=True):
        assert same.setdefault(row.tobytes(), label) == label  # equal queries are never in different buckets


def test_clear_clusters_are_found_and_the_largest_is_the_first() -> None:
    generator = np.random.default_rng(0)
    centres = np.eye(8)[[0, 1, 2]]
    truth = np.repeat([2, 0, 1], [50, 30, 20])
    vectors = fixed_point(centres[truth] + generator.normal(scale=0.05, size=(100, 8)))
    assert clusters(vectors, np.array([0, 50, 80])).tolist() == np.repeat([0, 1, 2], [50, 30, 20]).tolist()
    # Three starts in one cluster: the emptied ones start again elsewhere.
    assert len(set(clusters(np.repeat(vectors[[0, 60, 90]], 5, axis=0), np.array([0, 1, 2])).tolist())) == 3


def test_the_same_clusters_and_ranks_on_any_number_of_threads() -> None:
    code = """
import hashlib, numpy as np
from builders.add.similarity import *
generator = np.random.default_rng(3)
vectors = fixed_point(np.round(generator.normal(size=(9000, 24)), 0) + 0.25)
ranks, products, complete = best_ranks(vectors[:700], vectors[700:], 50)
labels = clusters(vectors, np.arange(5))
print(complete, hashlib.sha256(ranks.tobytes() + products.tobytes() + labels.tobytes()).hexdigest())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).resolve().parent.parent,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(outputs) == 1


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(0, 5))
def test_buckets_hold_every_query_once(seed: int, count: int, draw: int) -> None:
    generator = np.random.default_rng(seed)
    trains, tests = fixed_point(generator.normal(size=(60, 3))), fixed_point(generator.normal(size=(25, 3)))
    tests[:3] = trains[:3]
    ids = [f"q{number:03d}" for number in range(85)]
    try:
        found = bucketed(ids[:60], ids[60:], np.concatenate([trains, tests]), count, draw)
    except InputError as error:
        assert "choose fewer buckets" in str(error)
        return
    assert set(found.trains.tolist()) == set(found.tests.tolist()) == set(range(count))
    assert (found.trains[:3] == found.tests[:3]).all()
    for bucket in range(count):
        rows = np.flatnonzero(found.trains == bucket)
        assert found.nearest[:, bucket] == pytest.approx(nearest(tests, trains, rows))
