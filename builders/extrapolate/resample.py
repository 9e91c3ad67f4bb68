"""Which queries go into which set: the two resampling methods of Zhan et al. (arXiv 2204.11447), on vectors alone.

Vectors are rows of ``similarity.fixed_point``; ids are sorted, so that the lower row is the lower id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from builders.common.command import InputError
from builders.extrapolate.similarity import Floats, Ints, best_ranks, clusters, nearest


@dataclass(frozen=True)
class TrainingSet:
    """One set of training queries.

    Attributes:
        kind: "interpolation" or "extrapolation".
        size: how many queries.
        ranks: K: the set is taken from every test query's K nearest (interpolation), or holds none of them.
        rows: the chosen training rows, ascending.
    """

    kind: str
    size: int
    ranks: int
    rows: Ints


@dataclass(frozen=True)
class Buckets:
    """Training and test queries by bucket.

    Attributes:
        trains, tests: the bucket, from 0, of every training (n,) and test (m,) query.
        nearest: (m, K), a test query's largest cosine with a training query of each bucket.
    """

    trains: Ints
    tests: Ints
    nearest: npt.NDArray[np.float64]


def restrained(
    train_ids: Sequence[str], trains: Floats, tests: Floats, sizes: Sequence[int], exclude: int, seed: int
) -> list[TrainingSet]:
    """For each size, smallest first, an interpolation and an extrapolation set of exactly so many training queries.

    A training query's rank is the best that it has among the neighbours of any test query. The interpolation set takes
    queries by rank, then by cosine, then by id. K is the last rank taken from, or ``exclude`` if that is more; the
    extrapolation set is drawn, by ``seed``, from the training queries of rank above K.

    Raises:
        InputError: a size that leaves fewer than that many to draw from; names the largest possible.
    """
    total = len(trains)
    wanted = min(max(sizes), total // 2 + 1)  # with more than half taken, too few are left in any case
    depth = min(total, max(2 * exclude, 64, 8 * -(-wanted // len(tests))))
    while True:
        ranks, products, complete = best_ranks(tests, trains, depth)
        if (complete >= exclude and np.count_nonzero(ranks) >= wanted) or complete == total:
            break
        depth = min(total, 4 * depth)
    ranks[ranks == 0] = total + 1
    reached = np.searchsorted(np.sort(ranks), np.arange(complete + 1), side="right")  # queries up to each rank
    first = min(exclude, complete)
    largest = int(np.minimum(reached, total - reached)[first:].max())
    if max(sizes) > largest:
        raise InputError(
            f"a size of {max(sizes):,} is too large for {total:,} training queries: with every test query's nearest"
            f" {first:,} or more left out of the extrapolation set, {largest:,} is the largest possible"
        )
    order = np.lexsort((-products, ranks))  # stable: the lower row first
    lots = drawn(train_ids, seed)
    sets = []
    for size in sorted(set(sizes)):
        last = int(ranks[order[size - 1]])
        sets.append(TrainingSet("interpolation", size, last, np.sort(order[:size])))
        last = max(last, exclude)
        rest = lots[ranks[lots] > last]
        sets.append(TrainingSet("extrapolation", size, last, np.sort(rest[:size])))
    return sets


def drawn(ids: Sequence[str], seed: int) -> Ints:
    """The rows of ``ids`` in an order drawn by ``seed``: by a hash of seed and id, the same in every numpy version."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def bucketed(
    train_ids: Sequence[str], test_ids: Sequence[str], trains: Floats, tests: Floats, count: int, seed: int
) -> Buckets:
    """Cluster training and test queries together; ``seed`` draws the queries that the centres start from.

    Raises:
        InputError: fewer queries than buckets, or a bucket without training or without test queries.
    """
    total = len(trains) + len(tests)
    if total < count:
        raise InputError(f"{total:,} queries do not fill {count} buckets")
    vectors = _joined(trains, tests)
    labels = clusters(vectors, drawn([*train_ids, *test_ids], seed)[:count])
    of_trains, of_tests = labels[: len(trains)], labels[len(trains) :]
    for name, part in (("training", of_trains), ("test", of_tests)):
        missing = np.flatnonzero(np.bincount(part, minlength=count) == 0)
        if len(missing):
            raise InputError(
                f"k-means left bucket {missing[0] + 1} of {count} without {name} queries; choose fewer buckets or"
                " another seed"
            )
    cosines = [nearest(tests, trains, np.flatnonzero(of_trains == bucket)) for bucket in range(count)]
    return Buckets(of_trains, of_tests, np.stack(cosines, axis=1))


def _joined(trains: Floats, tests: Floats) -> Floats:
    """Both as one array: the one that they are parts of, where they stand in it one after the other; else a copy."""
    base = trains.base
    if base is not None and base is tests.base and base.shape == (len(trains) + len(tests), trains.shape[1]):
        whole: Floats = base
        if whole.ctypes.data == trains.ctypes.data and tests.flags.c_contiguous:
            return whole
    return np.concatenate([trains, tests])
