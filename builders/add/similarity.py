"""Cosines between query embeddings, their nearest neighbours and their clusters, the same on every machine.

A float sum depends on its order, so on the number of threads and on the processor, and near-ties then fall either way.
Here every vector is scaled to one length below 4,096 and rounded to whole numbers. A scalar product of two of them, and
every part of its sum, then stays within 2**24 (Cauchy-Schwarz), where float32 holds whole numbers exactly: FAISS gives
the same product in any order of summation. A cosine is off by about 0.0001, less than half-precision embeddings are.
Ties are real ties and go to the lower row.
"""

from __future__ import annotations

import concurrent.futures
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.progress import progress

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_LENGTH = 4096
_BLOCK = 1 << 16  # rows copied at a time: 200 MB at 768 dimensions
_NEIGHBOURS = 1 << 22  # neighbours held at a time: 100 MB with the sorting
_SUM = 4096  # rows of numbers up to 4,096 that float32 adds exactly
_SMALL = 1_000_000  # products that are not worth another thread
_ROUNDS = 100


def _knn(queries: Floats, base: Floats, k: int) -> tuple[Floats, Ints]:
    """The ``k`` largest scalar products of every query with rows of ``base``, and the rows; ties in any order."""
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it logs which of its builds it loads
    import faiss

    # A thread of ours for each share of the queries, each with FAISS on one thread: where other programs use the cores
    # too, FAISS's own threads wait for each other at every small step, and took up to forty times as long.
    threads = min(faiss.omp_get_max_threads(), 1 + len(queries) * len(base) // _SMALL)
    shares = [share for share in np.array_split(queries, threads) if len(share)]
    with concurrent.futures.ThreadPoolExecutor(threads, initializer=faiss.omp_set_num_threads, initargs=(1,)) as pool:
        found = list(pool.map(lambda share: faiss.knn(share, base, k, metric=faiss.METRIC_INNER_PRODUCT), shares))
    return np.concatenate([products for products, _ in found]), np.concatenate([rows for _, rows in found])


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


def _blocks(rows: Ints, size: int) -> Iterator[Ints]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def best_ranks(tests: Floats, trains: Floats, depth: int) -> tuple[Ints, Ints, int]:
    """The nearness of every training query to the test queries.

    Args:
        tests: (m, d), trains: (n, d), both of :func:`fixed_point`.
        depth: neighbours looked up for every test query.

    Returns:
        ranks (n,): the best rank, from 1, that a training query has among the neighbours of any test query; 0 where it
        has none up to the third value;
        products (n,): the largest scalar product at that rank;
        the depth up to which the ranks are complete: less than asked where a tie is cut.
    """
    depth = min(depth, len(trains))
    none = np.iinfo(np.int64).max
    best = np.full(len(trains), none)
    complete = depth
    positions = np.arange(1, depth + 1)
    with progress(total=len(tests), unit="query", label="neighbours") as bar:
        for batch in _blocks(np.arange(len(tests)), max(1, _NEIGHBOURS // depth)):
            products, rows = _knn(tests[batch], trains, depth)
            # FAISS cuts a tie at the end of the list anywhere: what stands above it is certain, the tie is not.
            certain = depth if depth == len(trains) else int((products > products[:, -1:]).sum(axis=1).min())
            complete = min(complete, certain)
            order = np.sort(((-products.astype(np.int64)) << 32) + rows, axis=1)[:, :certain]
            # The least of (rank, -product) wins: one number for both, the product moved up to be positive.
            keys = (positions[:certain] << 32) + (order >> 32) + (1 << 25)
            np.minimum.at(best, order & 0xFFFFFFFF, keys)
            bar.update(len(batch))
    ranks = np.where(best == none, 0, best >> 32)
    ranks[ranks > complete] = 0
    return ranks, (1 << 25) - (best & 0xFFFFFFFF), complete


def nearest(tests: Floats, trains: Floats, rows: Ints) -> npt.NDArray[np.float64]:
    """Every test query's largest cosine with a training query of ``rows``; -1 where there are no rows."""
    best: npt.NDArray[np.float64] = np.full(len(tests), -1.0)
    for block in _blocks(rows, _BLOCK):
        products, _ = _knn(tests, trains[block], 1)
        best = np.maximum(best, products[:, 0] / scale(tests.shape[1]) ** 2)
    result: npt.NDArray[np.float64] = np.minimum(best, 1.0)
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
    with progress(unit="round", label="k-means") as bar:
        for _ in range(_ROUNDS):
            products, rows = _knn(vectors, centres, len(centres))
            table = np.empty_like(products)
            np.put_along_axis(table, rows, products, axis=1)
            before, labels = labels, table.argmax(axis=1)
            if (before == labels).all():
                break
            sums, counts = _sums(vectors, labels, len(centres))
            filled = counts > 0
            centres[filled] = fixed_point(sums[filled])
            if not filled.all():
                far = np.argsort(table.max(axis=1), kind="stable")
                centres[~filled] = vectors[far[: int((~filled).sum())]]
            bar.update()
    order = np.argsort(-np.bincount(labels, minlength=len(centres)), kind="stable")
    numbers: Ints = np.argsort(order)[labels]
    return numbers


def _sums(vectors: Floats, labels: Ints, count: int) -> tuple[npt.NDArray[np.float64], Ints]:
    """Every cluster's sum of rows (its centre, but for the length; never exactly zero) and number of rows."""
    sums = np.zeros((count, vectors.shape[1]))
    for start in range(0, len(vectors), _SUM):
        block, of = vectors[start : start + _SUM], labels[start : start + _SUM]
        for cluster in range(count):
            sums[cluster] += block[of == cluster].sum(axis=0)
    counts = np.bincount(labels, minlength=count)
    # Opposite vectors can cancel out: such a cluster keeps a centre, its first row.
    for empty in np.flatnonzero((counts > 0) & ~sums.any(axis=1)):
        sums[empty] = vectors[np.flatnonzero(labels == empty)[0]]
    return sums, counts
