"""Exact search by inner product over vectors in files. This module does not import PyTorch.

The score of a pair is the inner product of its embeddings, computed in 64 bits and rounded to the digits of 32 bits. A
score therefore depends only on the pair, not on the engine, the batch or the number of devices. A fast 32-bit engine
(FAISS or PyTorch) selects candidates, which are then scored exactly. Rounding errors of the engine may exclude a
passage of the top k, above all among ties. Queries that may lack a passage get a second pass over all passages.

Memory holds a few blocks of passages per device, and about 6 kB per query (embedding and candidates, at 768 dimensions
and 100 candidates).
"""

import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from baselines.core.passages import Passages, Rows
from baselines.retrieve.search_engines import Engine, FaissEngine, Floats, Vectors, widened
from builders.core.jobs import in_threads
from builders.core.progress import progress

Scores = npt.NDArray[np.float64]
BLOCK = 1 << 16  # passages: 200 MB in 32 bits at 768 dimensions
_PAIRS = 8_192  # pairs per step of exact scoring
_POLL = 0.2  # seconds between two looks at the engines
_ROWS = 1 << 14  # rows converted per step: 50 MB in 32 bits at 768 dimensions


class StoredVectors(Protocol):
    """The embeddings of passages in files."""

    @property
    def rows(self) -> int:
        """Number of embeddings."""

    @property
    def dim(self) -> int:
        """Number of dimensions."""

    @property
    def longest(self) -> float:
        """Largest Euclidean norm of an embedding, rounded up."""

    @property
    def exponent(self) -> int:
        """Power of two by which engines divide the embeddings, to keep products within 32 bits."""

    @property
    def chosen(self) -> Rows | None:
        """The rows of the corpus in ascending order, if the embeddings are of some rows only."""

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[int, Any]]:
        """Yield (first row, at most ``rows`` embeddings), in order."""


def largest_norm(block: Vectors) -> float:
    """Return the largest Euclidean norm of a row."""
    blocks = (widened(block[start : start + _ROWS]) for start in range(0, len(block), _ROWS))
    squares = [np.einsum("ij,ij->i", wide, wide).max() for wide in blocks]
    return float(np.sqrt(np.max(squares, initial=0)))


def candidates(vectors: StoredVectors, engines: Sequence[Engine], count: int) -> tuple[Floats, Rows]:
    """Return (scores, rows) of each query's ``count`` best passages by the engines' scores, best first.

    The shape is (queries, count), with fewer columns if the index has fewer passages. Each of the n engines has a
    thread and searches every n-th block. Threads suffice, because devices and libraries work outside Python.
    """
    stopped = threading.Event()
    scanned = [0] * len(engines)  # number of passages that each engine has got

    def feed(number: int) -> tuple[Floats, Rows]:
        engine, blocks = engines[number], islice(vectors.blocks(BLOCK), number, None, len(engines))

        def prepare(item: tuple[int, Vectors]) -> tuple[int, Any]:
            return item[0], engine.prepare(_scale(item[1], vectors.exponent))

        for start, block in in_threads(prepare, blocks, threads=1, ahead=1):
            if stopped.is_set():
                break
            engine.add(start, block)
            scanned[number] += len(block)
        return engine.best()

    with (
        ThreadPoolExecutor(len(engines)) as pool,
        progress(total=vectors.rows, unit="passage", label="search") as bar,
    ):
        fed = [pool.submit(feed, number) for number in range(len(engines))]
        try:
            # The engines' threads only count, and this thread moves the bar.
            while True:
                finished, running = wait(fed, _POLL, return_when=FIRST_EXCEPTION)
                bar.update(sum(scanned) - bar.n)
                if not running or any(each.exception() for each in finished):
                    break
        finally:
            stopped.set()  # after an error, the other engines stop early
        scores, rows = (np.concatenate(each, axis=1) for each in zip(*(each.result() for each in fed), strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, : min(count, vectors.rows)]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _scale(block: Vectors, exponent: int) -> Vectors:
    """Divide embeddings by a power of two, which changes no digits. Most collections have the exponent 0."""
    return np.ldexp(block, -exponent) if exponent else block


def exact_scores(queries: Vectors, vectors: StoredVectors, rows: Rows) -> Scores:
    """Return the exact scores of ``rows``, shape (queries, n). Row -1 has -inf. Each block of passages is read once."""
    flat = rows.reshape(-1)
    order = np.argsort(flat, kind="stable")
    asked, sorted_rows = order // rows.shape[1], flat[order]
    scores = np.full(len(flat), -np.inf)
    with progress(total=int((flat >= 0).sum()), unit="pair", label="score") as bar:
        for start, block in vectors.blocks(BLOCK):
            low, high = np.searchsorted(sorted_rows, [start, start + len(block)]).tolist()
            for begin in range(low, high, _PAIRS):
                some = slice(begin, min(begin + _PAIRS, high))
                scores[order[some]] = pair_scores(queries[asked[some]], block[sorted_rows[some] - start])
                bar.update(some.stop - some.start)
    return scores.reshape(rows.shape)


def pair_scores(left: Vectors, right: Vectors) -> Scores:
    """Return the exact score of each pair of embeddings, shape (pairs,), in steps that fit into a CPU's cache."""
    sums, step = np.empty(len(left), np.float64), max(1, (1 << 17) // left.shape[1])
    for low in range(0, len(left), step):
        some = slice(low, low + step)
        wide = [widened(side[some]).astype(np.float64) for side in (left, right)]
        np.einsum("ij,ij->i", *wide, out=sums[some])
    # Keep 24 binary digits, as 32-bit numbers have, but the range of 64 bits. Tiny products would all be 0 in 32 bits.
    mantissas, exponents = np.frexp(sums)
    return np.ldexp(mantissas.astype(np.float32).astype(np.float64), exponents)


def search(
    vectors: StoredVectors,
    queries: Vectors,
    engines: Sequence[Engine],
    top_k: int,
    count: int,
    ranks: Callable[[], Rows],
) -> Iterator[tuple[Rows, Scores]]:
    """Yield (rows, scores) of each query's ``top_k`` best passages, unsorted. A small collection yields all passages.

    Further passages with the lowest of these scores may follow, because the caller breaks ties by id. The result is
    exact if the engines compute in 32 bits.

    Args:
        engines: new engines for these queries and ``count``. An engine cannot be used for a second search.
        count: number of candidates per query, at least ``top_k``.
        ranks: a function that returns each row's rank in the order of the corpus ids. Only the second pass calls it.
    """
    loose, rows = candidates(vectors, engines, count)
    scores = exact_scores(queries, vectors, rows)
    k = min(top_k, scores.shape[1])
    last = -np.partition(-scores, k - 1, axis=1)[:, k - 1]
    wide = widened(queries)
    # The error bound of a 32-bit sum of products, doubled for safety.
    longest = float(np.ldexp(vectors.longest, -vectors.exponent))
    slack = vectors.dim * 2.0**-22 * np.sqrt(np.einsum("ij,ij->i", wide, wide)) * longest
    engine_last = np.ldexp(last, -vectors.exponent).astype(np.float32)  # comparable with the engines' scores
    open_ = np.flatnonzero((loose[:, -1] + slack >= engine_last) & (rows.shape[1] != vectors.rows))
    settled = _second_pass(vectors, queries[open_], (engine_last - slack)[open_], top_k, ranks) if len(open_) else []
    closed = dict(zip(open_.tolist(), settled, strict=True))
    for number in range(len(queries)):
        if number in closed:
            yield closed[number]
        else:
            keep = scores[number] >= last[number]
            yield rows[number][keep], scores[number][keep]


def _second_pass(
    vectors: StoredVectors, queries: Vectors, limits: npt.NDArray[Any], top_k: int, ranks: Callable[[], Rows]
) -> list[tuple[Rows, Scores]]:
    """Return each query's ``top_k`` best passages (by score, then id) with a 32-bit score of at least ``limits``."""
    best = [(np.array([], np.int64), np.array([], np.float64))] * len(queries)
    wide, order = widened(queries), ranks()
    with progress(total=vectors.rows, unit="passage", label="second pass") as bar:
        for start, block in vectors.blocks(BLOCK):
            passages = widened(_scale(block, vectors.exponent))
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
            bar.update(len(block))
    return best


def nearest(
    vectors: StoredVectors, queries: Vectors, passages: Passages, devices: Sequence[str], top_k: int, engine: str = ""
) -> Iterator[tuple[Rows, Scores]]:
    """Yield (rows, exact scores) of each query's ``top_k`` best passages and of passages that tie with the last.

    ``vectors`` has the embeddings of all ``passages`` or of the rows ``vectors.chosen``. ``queries`` has the shape
    (queries, dimensions). The devices share the blocks of passages. ``engine`` is ``torch`` or ``faiss`` (default:
    ``faiss`` on a CPU with FAISS, else ``torch``).
    """
    chosen = vectors.chosen
    # The engines reserve memory for every candidate.
    top_k = min(top_k, vectors.rows)
    count = min(2 * top_k, vectors.rows)
    faiss = devices[0] == "cpu" and importlib.util.find_spec("faiss") is not None
    engines: list[Engine]
    if (engine or ("faiss" if faiss else "torch")) == "faiss":
        engines = [FaissEngine(queries, count, device) for device in devices]
    else:
        from baselines.retrieve.torch_engine import TorchEngine

        engines = [TorchEngine(queries, count, device) for device in devices]

    def ranks() -> Rows:
        return passages.ranks() if chosen is None else passages.ranks()[chosen]

    for rows, scores in search(vectors, queries, engines, top_k, count, ranks):
        yield rows if chosen is None else chosen[rows], scores
