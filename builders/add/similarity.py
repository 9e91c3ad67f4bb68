"""Cosines between query embeddings, their nearest neighbours and their clusters, the same on every machine.

A float sum depends on its order, so on the number of threads and on the processor, and near-ties then fall either way.
Here every vector is scaled to one length below 4,096 and rounded to whole numbers. A scalar product of two of them, and
every part of its sum, then stays within 2**24 (Cauchy-Schwarz), where float32 holds whole numbers exactly: the product
is the same in any order of summation. A cosine is off by about 0.0001, less than half-precision embeddings are. Ties
are real ties and go to the lower row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.progress import progress

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_LENGTH = 4096
_AT_ONCE = 1 << 22  # products computed at a time: 100 MB with the sorting
_ROUNDS = 100


def scale(dimensions: int) -> float:
    """The length that vectors are scaled to: what rounding adds to it, half a unit a number, still fits."""
    return math.floor(_LENGTH - math.sqrt(dimensions) / 2)


def fixed_point(vectors: npt.NDArray[Any]) -> Floats:
    """Scale the rows (n, d), finite and not all zero, to one length and round them to whole numbers in float32."""
    rows = vectors.astype(np.float64)
    rows /= np.abs(rows).max(axis=1, keepdims=True)  # so that no square overflows or vanishes
    rows *= scale(rows.shape[1]) / np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    result: Floats = np.rint(rows).astype(np.float32)
    return result


def _products(tests: Floats, trains: Floats) -> Iterator[Floats]:
    """Yield the scalar products of some rows of ``tests`` at a time with all rows of ``trains``."""
    step = max(1, _AT_ONCE // len(trains))
    with progress(total=len(tests), unit="query", label="neighbours") as bar:
        for start in range(0, len(tests), step):
            found = tests[start : start + step] @ trains.T
            yield found
            bar.update(len(found))


def best_ranks(tests: Floats, trains: Floats) -> tuple[Ints, Ints]:
    """The nearness of every training query to the test queries.

    Args:
        tests: (m, d), trains: (n, d), both of :func:`fixed_point`.

    Returns:
        ranks (n,): the best rank, from 1, that a training query has among the neighbours of any test query;
        products (n,): the largest scalar product at that rank.
    """
    best = np.full(len(trains), np.iinfo(np.int64).max)
    ranks = np.arange(1, len(trains) + 1) << 32
    for products in _products(tests, trains):
        order = np.sort((-products.astype(np.int64) << 32) + np.arange(len(trains)), axis=1)
        # The least of (rank, -product) wins: one number for both, the product moved up to be positive.
        np.minimum.at(best, order & 0xFFFFFFFF, ranks + (order >> 32) + (1 << 25))
    return best >> 32, (1 << 25) - (best & 0xFFFFFFFF)


def nearest(tests: Floats, trains: Floats, rows: Ints) -> npt.NDArray[np.float64]:
    """Every test query's largest cosine with a training query of ``rows``; -1 where there are no rows."""
    if not len(rows):
        return np.full(len(tests), -1.0)
    products = np.concatenate([found.max(axis=1) for found in _products(tests, trains[rows])])
    result: npt.NDArray[np.float64] = np.clip((products / scale(tests.shape[1]) ** 2).astype(np.float64), -1, 1)
    return result


def clusters(vectors: Floats, starts: Ints) -> Ints:
    """Spherical k-means: every row's cluster, from 0, the largest cluster first.

    Args:
        vectors: (n, d) of :func:`fixed_point`.
        starts: the rows that the centres start from, one a cluster.

    Ends when no row moves, or after 100 rounds. A cluster that loses all rows starts again from the row that is
    farthest from its centre.
    """
    centres = vectors[starts]
    labels = np.full(len(vectors), -1)
    for _ in progress(range(_ROUNDS), unit="round", label="k-means"):
        products = vectors @ centres.T
        before, labels = labels, products.argmax(axis=1)
        if (before == labels).all():
            break
        members = [np.flatnonzero(labels == cluster) for cluster in range(len(centres))]
        sums = np.stack([vectors[rows].sum(axis=0, dtype=np.float64) for rows in members])
        filled = np.array([len(rows) > 0 for rows in members])
        # Opposite vectors can cancel out: such a cluster's centre is its first row.
        for cluster in np.flatnonzero(filled & ~sums.any(axis=1)):
            sums[cluster] = vectors[members[cluster][0]]
        centres[filled] = fixed_point(sums[filled])
        far = np.argsort(products.max(axis=1), kind="stable")
        centres[~filled] = vectors[far[: int((~filled).sum())]]
    order = np.argsort(-np.bincount(labels, minlength=len(centres)), kind="stable")
    numbers: Ints = np.argsort(order)[labels]
    return numbers
