"""The best passages of many queries by inner product, a block of passages at a time, exactly.

The score of a pair is the inner product of its 16-bit embeddings, computed in 64 bits and rounded to 32: it depends on
the pair alone, not on the engine, the block, the batch or how many devices there are. Fast engines (FAISS or PyTorch,
in 32 bits; :mod:`baselines.vectors.engines`), one a device, only choose candidates. They are scored again; queries
whose next best candidate might still belong to the best, given how far sums of 32-bit floats can be off (ties, above
all), get a second pass that leaves nothing out.

Memory: a few blocks of passages a device, and of every query its embedding and its candidates (about 6 kB at 768
dimensions and 100 candidates); never the scores of all passages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from baselines.vectors.embeddings import Vectors, widened
from baselines.vectors.engines import Engine, Floats, Halves, Rows
from builders.common.jobs import in_threads

BLOCK = 1 << 16  # passages: 200 MB in 32 bits at 768 dimensions
_PAIRS = 8_192  # scored again at a time
_CACHED = 1 << 17  # numbers widened at a time: they stay in a processor's cache


def candidates(vectors: Vectors, engines: Sequence[Engine], count: int) -> tuple[Floats, Rows]:
    """The ``count`` best rows of each query by the engines' scores, best first, shape (queries, count).

    Fewer columns where there are fewer passages. Every engine keeps ``count`` of the blocks that it gets, each in turn
    one, in a thread of its own: threads are enough where the work is a device's or a library's.
    """
    stopped = threading.Event()

    def feed(number: int) -> tuple[Floats, Rows]:
        engine, blocks = engines[number], islice(vectors.blocks(BLOCK), number, None, len(engines))
        for start, block in in_threads(lambda item: (item[0], engine.prepare(item[1])), blocks, threads=1, ahead=1):
            if stopped.is_set():
                break
            engine.add(start, block)
        return engine.best()

    with ThreadPoolExecutor(len(engines)) as pool:
        fed = [pool.submit(feed, number) for number in range(len(engines))]
        try:
            wait(fed, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()  # what one raises need not wait for the others' blocks
        scores, rows = (np.concatenate(each, axis=1) for each in zip(*(each.result() for each in fed), strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, : min(count, vectors.rows)]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def exact_scores(queries: Halves, vectors: Vectors, rows: Rows) -> Floats:
    """The scores of chosen rows, shape of ``rows`` (queries, n); -inf for a row of -1. The passages are read once."""
    flat = rows.reshape(-1)
    order = np.argsort(flat, kind="stable")
    asked, sorted_rows = order // rows.shape[1], flat[order]
    scores = np.full(len(flat), -np.inf, np.float32)
    for start, block in vectors.blocks(BLOCK):
        low, high = np.searchsorted(sorted_rows, [start, start + len(block)]).tolist()
        for begin in range(low, high, _PAIRS):
            some = slice(begin, min(begin + _PAIRS, high))
            scores[order[some]] = pair_scores(queries[asked[some]], block[sorted_rows[some] - start])
    return scores.reshape(rows.shape)


def pair_scores(left: Halves, right: Halves) -> Floats:
    """The score of each pair of embeddings, shape (pairs,)."""
    sums, step = np.empty(len(left), np.float64), max(1, _CACHED // left.shape[1])
    for low in range(0, len(left), step):
        some = slice(low, low + step)
        wide = (torch.from_numpy(np.ascontiguousarray(side[some])).float().double().numpy() for side in (left, right))
        np.einsum("ij,ij->i", *wide, out=sums[some])
    return sums.astype(np.float32)


def search(
    vectors: Vectors, queries: Halves, engines: Sequence[Engine], top_k: int, count: int, ranks: Callable[[], Rows]
) -> Iterator[tuple[Rows, Floats]]:
    """(rows, scores) of the best of each query, in the queries' order, not ordered; exact for engines of 32 bits.

    At least ``top_k`` where there are so many passages; more where the last ones tie and their ids have to decide.

    Args:
        engines: of these queries, with ``count`` candidates of each; they are used up.
        count: at least ``top_k``.
        ranks: gives each row's rank in the order of the corpus ids; called only where very many passages tie.
    """
    loose, rows = candidates(vectors, engines, count)
    scores = exact_scores(queries, vectors, rows)
    last = _last_of_best(scores, top_k)
    if rows.shape[1] < vectors.rows:
        wide = widened(queries)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        # The bound on the error of a 32-bit sum of products, twice for good measure.
        slack = vectors.dim * 2.0**-22 * lengths * vectors.longest
        open_ = np.flatnonzero(loose[:, -1] + slack >= last)
    else:
        slack, open_ = np.zeros(len(queries)), np.array([], np.int64)
    settled = _second_pass(vectors, queries[open_], (last - slack)[open_], top_k, ranks) if len(open_) else []
    closed = dict(zip(open_.tolist(), settled, strict=True))
    for number in range(len(queries)):
        if number in closed:
            yield closed[number]
        else:
            keep = scores[number] >= last[number]
            yield rows[number][keep], scores[number][keep]


def rescored(queries: Halves, vectors: Vectors, rows: Rows, top_k: int) -> Iterator[tuple[Rows, Floats]]:
    """:func:`search` for candidates that 16-bit arithmetic chose: scored exactly, nothing added."""
    scores = exact_scores(queries, vectors, rows)
    last = _last_of_best(scores, top_k)
    for number in range(len(queries)):
        keep = (scores[number] >= last[number]) & (rows[number] >= 0)
        yield rows[number][keep], scores[number][keep]


def _last_of_best(scores: Floats, top_k: int) -> Floats:
    """Each query's ``top_k``-th highest score; -inf where it has no so many."""
    if scores.shape[1] < top_k:
        return np.full(len(scores), -np.inf, np.float32)
    result: Floats = -np.partition(-scores, top_k - 1, axis=1)[:, top_k - 1]
    return result


def _second_pass(
    vectors: Vectors, queries: Halves, limits: npt.NDArray[Any], top_k: int, ranks: Callable[[], Rows]
) -> list[tuple[Rows, Floats]]:
    """The ``top_k`` best of each query (score, then id) among all passages whose 32-bit score reaches its limit."""
    best = [(np.array([], np.int64), np.array([], np.float32))] * len(queries)
    wide, order = widened(queries), ranks()
    for start, block in vectors.blocks(BLOCK):
        passages = widened(block)
        for low in range(0, len(queries), 256):
            reached = wide[low : low + 256] @ passages.T >= limits[low : low + 256, None]
            for number in (np.flatnonzero(reached.any(1)) + low).tolist():
                inside = np.flatnonzero(reached[number - low])
                new = [
                    pair_scores(np.repeat(queries[number : number + 1], len(some), axis=0), block[some])
                    for some in np.split(inside, range(_PAIRS, len(inside), _PAIRS))
                ]
                rows = np.concatenate([best[number][0], inside + start])
                scores = np.concatenate([best[number][1], *new])
                first = np.lexsort((order[rows], -scores))[:top_k]
                best[number] = rows[first], scores[first]
    return best
