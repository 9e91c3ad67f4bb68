"""Exact search by inner product over vectors in files. This module does not import PyTorch.

The score of a pair is the inner product of its embeddings, computed in 64 bits and rounded to the digits of 32 bits. A
score therefore depends only on the pair, not on the engine, the batch or the number of devices. A fast 32-bit engine
(FAISS or PyTorch) selects candidates, which are then scored exactly, on the CPU or by the engine on its device.
Rounding errors of the engine may exclude a passage of the top k, above all among ties. Queries that may lack a passage
get a second pass over all passages.

Memory holds a few blocks of passages per device, and about 6 kB per query (embedding and candidates, at 768 dimensions
and 100 candidates).

Idea: two stages. The engine's score of a pair differs from the exact score by at most ``slack``. The error of a 32-bit
sum of n products is at most about n * 2^-23 * |query| * |passage| (Higham, Accuracy and Stability of Numerical
Algorithms, 2002, section 3.1). ``slack`` is twice this number, with the norm of the longest passage. Let ``lowest`` be
the exact score of the k-th best candidate. A passage that the engine excluded has an engine's score of at most the last
candidate's, so its exact score is at most that plus ``slack``. If the sum is below ``lowest``, no passage is lacking.

Example with k = 2, 3 candidates per query and slack = 0.01:

    ==========  ======================  =========================  ======================================
    query       engine's scores         exact scores               decision
    ==========  ======================  =========================  ======================================
    q1          0.90, 0.80, 0.70        0.901, 0.799, 0.702        0.70 + 0.01 < 0.799: the search is done
    q2          0.90, 0.80, 0.80        0.901, 0.799, 0.801        0.80 + 0.01 >= 0.801: second pass
    ==========  ======================  =========================  ======================================

The second pass multiplies q2 with all passages again, and computes the exact score of every passage with a 32-bit
product of at least 0.801 - 0.01. It breaks ties by the rank of the passage's id: ``np.lexsort`` sorts by its last key
first, so ``np.lexsort((ranks, -scores))`` sorts by falling score and then by rank. For the scores 3, 5, 3 and the ranks
2, 0, 1 the order is [1, 2, 0].
"""

import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from baselines.core.passages import CachedPassages, Rows
from baselines.retrieve.search_engines import FaissEngine, Floats, SearchEngine, Vectors, widen_embeddings
from builders.core.jobs import in_threads
from builders.core.progress import show_progress

Scores = npt.NDArray[np.float64]
BLOCK = 1 << 16  # passages: 200 MB in 32 bits at 768 dimensions
_PAIRS_PER_STEP = 8_192  # pairs per step of exact scoring
_POLL_SECONDS = 0.2  # between two looks at the engines
_ROWS_PER_CONVERSION = 1 << 14  # rows converted per step: 50 MB in 32 bits at 768 dimensions
_NUMBERS_IN_CACHE = 1 << 17  # 1 MB in 64 bits, which fits into a CPU's cache
_QUERIES_PER_PRODUCT = 256  # queries per matrix product of the second pass
# Relative error of each product in a 32-bit sum (2^-23), doubled for safety.
ERROR_PER_PRODUCT = 2.0**-22
# An engine selects twice the passages that are asked for, so second passes are rare.
_CANDIDATES_PER_HIT = 2
_LARGEST_EXACT_SUM = 31.0  # below 2^5, because norms are rounded


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
    largest_squares = []
    for start in range(0, len(block), _ROWS_PER_CONVERSION):
        wide_rows = widen_embeddings(block[start : start + _ROWS_PER_CONVERSION])
        largest_squares.append(_squared_norms(wide_rows).max())
    return float(np.sqrt(np.max(largest_squares, initial=0)))


def _squared_norms(wide_rows: Floats) -> Floats:
    """Return the squared Euclidean norm of each row."""
    squares: Floats = np.einsum("ij,ij->i", wide_rows, wide_rows)
    return squares


def find_candidates(
    passage_vectors: StoredVectors, engines: Sequence[SearchEngine], candidate_count: int
) -> tuple[Floats, Rows]:
    """Return (scores, rows) of each query's ``candidate_count`` best passages by the engines' scores, best first.

    The shape is (queries, count), with fewer columns if the index has fewer passages. Each of the n engines has a
    thread and searches every n-th block. Threads suffice, because devices and libraries work outside Python.
    """
    is_stopped = threading.Event()
    scanned_counts = [0] * len(engines)  # number of passages that each engine has got

    def search_blocks(number: int) -> tuple[Floats, Rows]:
        engine = engines[number]
        engine_blocks = islice(passage_vectors.blocks(BLOCK), number, None, len(engines))

        def prepare_block(start_and_block: tuple[int, Vectors]) -> tuple[int, Any]:
            start, block = start_and_block
            return start, engine.prepare(_divide_by_power(block, passage_vectors.exponent))

        # A further thread prepares the next block while the engine searches this block.
        for start, block in in_threads(prepare_block, engine_blocks, threads=1, ahead=1):
            if is_stopped.is_set():
                break
            engine.add(start, block)
            scanned_counts[number] += len(block)
        return engine.best()

    with (
        ThreadPoolExecutor(len(engines)) as pool,
        show_progress(total=passage_vectors.rows, unit="passage", label="search") as bar,
    ):
        searches = [pool.submit(search_blocks, number) for number in range(len(engines))]
        try:
            # The engines' threads only count, and this thread moves the bar.
            while True:
                finished, running = wait(searches, _POLL_SECONDS, return_when=FIRST_EXCEPTION)
                bar.update(sum(scanned_counts) - bar.n)
                if not running or any(search.exception() for search in finished):
                    break
        finally:
            is_stopped.set()  # after an error, the other engines stop early
        results = [search.result() for search in searches]
    # Merge the engines' best passages.
    scores = np.concatenate([engine_scores for engine_scores, _ in results], axis=1)
    rows = np.concatenate([engine_rows for _, engine_rows in results], axis=1)
    order = np.argsort(-scores, axis=1, kind="stable")[:, : min(candidate_count, passage_vectors.rows)]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _divide_by_power(block: Vectors, exponent: int) -> Vectors:
    """Divide embeddings by a power of two, which changes no digits. Most collections have the exponent 0."""
    return np.ldexp(block, -exponent) if exponent else block


def exact_scores(query_vectors: Vectors, passage_vectors: StoredVectors, rows: Rows) -> Scores:
    """Return the exact scores of ``rows``, shape (queries, n). Row -1 has -inf. Each block of passages is read once.

    The pairs of all queries are sorted by passage, so the pairs of a block follow each other. For example, the rows
    [[7, 2], [2, 9]] of the queries 0 and 1 become the pairs (row 2, query 0), (2, 1), (7, 0), (9, 1).
    """
    flat_rows = rows.reshape(-1)
    order = np.argsort(flat_rows, kind="stable")
    sorted_rows = flat_rows[order]
    sorted_queries = order // rows.shape[1]
    flat_scores = np.full(len(flat_rows), -np.inf)
    with show_progress(total=int((flat_rows >= 0).sum()), unit="pair", label="score") as bar:
        for start, block in passage_vectors.blocks(BLOCK):
            # The rows -1 come first, and belong to no block.
            first_pair, end_pair = np.searchsorted(sorted_rows, [start, start + len(block)]).tolist()
            for step_start in range(first_pair, end_pair, _PAIRS_PER_STEP):
                step = slice(step_start, min(step_start + _PAIRS_PER_STEP, end_pair))
                step_queries = query_vectors[sorted_queries[step]]
                step_passages = block[sorted_rows[step] - start]
                flat_scores[order[step]] = pair_scores(step_queries, step_passages)
                bar.update(step.stop - step.start)
    return flat_scores.reshape(rows.shape)


def pair_scores(left: Vectors, right: Vectors) -> Scores:
    """Return the exact score of each pair of embeddings, shape (pairs,), in steps that fit into a CPU's cache."""
    sums = np.empty(len(left), np.float64)
    step_rows = max(1, _NUMBERS_IN_CACHE // left.shape[1])
    for start in range(0, len(left), step_rows):
        step = slice(start, start + step_rows)
        wide_left = widen_embeddings(left[step]).astype(np.float64)
        wide_right = widen_embeddings(right[step]).astype(np.float64)
        np.einsum("ij,ij->i", wide_left, wide_right, out=sums[step])
    return _round_sums(sums)


def _round_sums(sums: Scores) -> Scores:
    """Keep 24 binary digits, as 32-bit numbers have, but the range of 64 bits. Tiny sums would all be 0 in 32 bits."""
    mantissas, exponents = np.frexp(sums)
    return np.ldexp(mantissas.astype(np.float32).astype(np.float64), exponents)


def scores_on_devices(
    engines: Sequence[SearchEngine], rows: Rows, passage_vectors: StoredVectors, longest_query: float
) -> Scores | None:
    """Return the result of :func:`exact_scores`, computed by the engines, or None if an engine cannot, or must not.

    Devices add the products of a pair in different orders, which changes the last digits of a sum. So the engines
    compute only sums that are exact in every order. A product of two 16-bit numbers is a multiple of 2^-48, and the
    sums' absolute values are at most the product of both norms. Below 2^5, such a multiple fits into the 53 digits of a
    64-bit number.
    """
    if passage_vectors.exponent or longest_query * passage_vectors.longest >= _LARGEST_EXACT_SUM:
        return None
    products_by_engine = []
    for engine in engines:
        products = engine.exact_products(rows)
        if products is None:
            return None
        products_by_engine.append(products)
    # Each row is finite in the products of the engine that has searched the row.
    return _round_sums(np.maximum.reduce(products_by_engine))


def search_unsorted(
    passage_vectors: StoredVectors,
    query_vectors: Vectors,
    engines: Sequence[SearchEngine],
    top_k: int,
    candidate_count: int,
    get_ranks: Callable[[], Rows],
) -> Iterator[tuple[Rows, Scores]]:
    """Yield (rows, scores) of each query's ``top_k`` best passages, unsorted, or of all passages if there are fewer.

    Further passages with the lowest of these scores may be among them, because the caller breaks ties by id. The result
    is exact if the engines compute in 32 bits.

    Args:
        passage_vectors: embeddings of the passages. The yielded rows are rows of these embeddings.
        query_vectors: shape (queries, dimensions).
        engines: new engines for these queries and ``candidate_count``. An engine cannot be used for a second search.
        candidate_count: number of candidates per query, at least ``top_k``.
        get_ranks: returns each row's rank in the order of the corpus ids. Only the second pass calls this function.
    """
    engine_scores, rows = find_candidates(passage_vectors, engines, candidate_count)
    query_norms = np.sqrt(_squared_norms(widen_embeddings(query_vectors)))
    scores = scores_on_devices(engines, rows, passage_vectors, float(query_norms.max(initial=0)))
    if scores is None:
        scores = exact_scores(query_vectors, passage_vectors, rows)
    hit_count = min(top_k, scores.shape[1])
    # The lowest score of each query's top_k.
    lowest_scores = -np.partition(-scores, hit_count - 1, axis=1)[:, hit_count - 1]

    # Find the queries that may lack a passage, by the bound of the engines' errors. Engines divide the passages by a
    # power of two, so all scores that are compared with theirs are divided, too.
    longest_norm = float(np.ldexp(passage_vectors.longest, -passage_vectors.exponent))
    slack = passage_vectors.dim * ERROR_PER_PRODUCT * query_norms * longest_norm
    engine_lowest = np.ldexp(lowest_scores, -passage_vectors.exponent).astype(np.float32)
    has_all_passages = rows.shape[1] == passage_vectors.rows
    may_lack = (engine_scores[:, -1] + slack >= engine_lowest) & (not has_all_passages)
    open_queries = np.flatnonzero(may_lack)
    second_hits: list[tuple[Rows, Scores]] = []
    if len(open_queries):
        limits = (engine_lowest - slack)[open_queries]
        second_hits = _second_pass(passage_vectors, query_vectors[open_queries], limits, top_k, get_ranks)
    second_hits_by_query = dict(zip(open_queries.tolist(), second_hits, strict=True))

    for query_number in range(len(query_vectors)):
        if query_number in second_hits_by_query:
            yield second_hits_by_query[query_number]
        else:
            is_hit = scores[query_number] >= lowest_scores[query_number]
            yield rows[query_number][is_hit], scores[query_number][is_hit]


def _second_pass(
    passage_vectors: StoredVectors,
    query_vectors: Vectors,
    score_limits: npt.NDArray[Any],
    top_k: int,
    get_ranks: Callable[[], Rows],
) -> list[tuple[Rows, Scores]]:
    """Return each query's ``top_k`` best passages (by score, then id).

    Only passages with a 32-bit score of at least ``score_limits`` (one number per query) are scored exactly.
    """
    best_hits = [(np.array([], np.int64), np.array([], np.float64))] * len(query_vectors)
    wide_queries = widen_embeddings(query_vectors)
    row_ranks = get_ranks()
    with show_progress(total=passage_vectors.rows, unit="passage", label="second pass") as bar:
        for block_start, block in passage_vectors.blocks(BLOCK):
            wide_passages = widen_embeddings(_divide_by_power(block, passage_vectors.exponent))
            for first_query in range(0, len(query_vectors), _QUERIES_PER_PRODUCT):
                step = slice(first_query, first_query + _QUERIES_PER_PRODUCT)
                is_reached = wide_queries[step] @ wide_passages.T >= score_limits[step, None]
                for number_in_step in np.flatnonzero(is_reached.any(1)).tolist():
                    query_number = first_query + number_in_step
                    block_rows = np.flatnonzero(is_reached[number_in_step])
                    block_scores = _scores_of_query(query_vectors[query_number], block, block_rows)
                    # Merge the passages of this block into the best passages of earlier blocks.
                    best_rows, best_scores = best_hits[query_number]
                    rows = np.concatenate([best_rows, block_rows + block_start])
                    scores = np.concatenate([best_scores, block_scores])
                    best_first = np.lexsort((row_ranks[rows], -scores))[:top_k]
                    best_hits[query_number] = rows[best_first], scores[best_first]
            bar.update(len(block))
    return best_hits


def _scores_of_query(query_vector: Vectors, block: Vectors, block_rows: Rows) -> Scores:
    """Return the exact scores of a query and some rows of a block, in steps that need little memory."""
    scores = np.empty(len(block_rows), np.float64)
    for start in range(0, len(block_rows), _PAIRS_PER_STEP):
        step_rows = block_rows[start : start + _PAIRS_PER_STEP]
        copies_of_query = np.repeat(query_vector[None], len(step_rows), axis=0)
        scores[start : start + len(step_rows)] = pair_scores(copies_of_query, block[step_rows])
    return scores


def nearest_with_ties(
    passage_vectors: StoredVectors,
    query_vectors: Vectors,
    passages: CachedPassages,
    devices: Sequence[str],
    top_k: int,
    engine_name: str = "",
) -> Iterator[tuple[Rows, Scores]]:
    """Yield (rows, exact scores) of each query's ``top_k`` best passages and of passages that tie with the last.

    Args:
        passage_vectors: embeddings of all ``passages``, or of the rows ``passage_vectors.chosen``.
        query_vectors: shape (queries, dimensions).
        devices: names of devices, which share the blocks of passages.
        top_k: passages per query.
        engine_name: torch or faiss (default: faiss on a CPU with FAISS, else torch).
    """
    chosen_rows = passage_vectors.chosen
    # The engines reserve memory for every candidate: a --top-k of 20 million took 18 GB.
    top_k = min(top_k, passage_vectors.rows)
    candidate_count = min(_CANDIDATES_PER_HIT * top_k, passage_vectors.rows)
    has_faiss = devices[0] == "cpu" and importlib.util.find_spec("faiss") is not None
    default_engine = "faiss" if has_faiss else "torch"
    engines: list[SearchEngine]
    if (engine_name or default_engine) == "faiss":
        engines = [FaissEngine(query_vectors, candidate_count, device) for device in devices]
    else:
        from baselines.retrieve.torch_engine import TorchEngine

        engines = [TorchEngine(query_vectors, candidate_count, device) for device in devices]

    def ranks_of_rows() -> Rows:
        ranks = passages.ranks()
        return ranks if chosen_rows is None else ranks[chosen_rows]

    for rows, scores in search_unsorted(passage_vectors, query_vectors, engines, top_k, candidate_count, ranks_of_rows):
        yield rows if chosen_rows is None else chosen_rows[rows], scores
