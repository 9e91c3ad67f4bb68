"""The best passages of many queries by inner product, a block of passages at a time, exactly.

The score of a pair is the inner product of its 16-bit embeddings, computed in 64 bits and rounded to 32: it depends on
the pair alone, not on the engine, the block or the batch. A fast engine (FAISS or PyTorch, in 32 bits) only chooses
candidates. They are scored again; queries whose next best candidate might still belong to the best, given how far sums
of 32-bit floats can be off (ties, above all), get a second pass that leaves nothing out.

Memory: a few blocks of passages, and of every query its embedding and its candidates (about 6 kB at 768 dimensions and
100 candidates); never the scores of all passages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from baselines.vectors.embeddings import Vectors, widened
from builders.common.jobs import in_threads

Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

BLOCK = 1 << 16  # passages: 200 MB in 32 bits at 768 dimensions
_GROUP = 32
_PAIRS = 8_192  # scored again at a time


@dataclass(frozen=True)
class Engine:
    """Finds the best passages of a block for every query.

    Attributes:
        prepare: a block in 16 bits into what ``best`` takes; called by another thread while a block is searched.
        best: (prepared block, k) to (scores, rows of the block), both of shape (queries, k).
    """

    prepare: Callable[[Halves], Any]
    best: Callable[[Any, int], tuple[Floats, Rows]]


def faiss_engine(queries: Halves, device: str = "cpu") -> Engine:
    """FAISS's exhaustive search in 32 bits: on a CPU, or a GPU where FAISS is built for it (extra ``gpu``)."""
    import faiss

    wide = widened(queries)
    resources: Any = (
        faiss.StandardGpuResources() if device != "cpu" and hasattr(faiss, "StandardGpuResources") else None
    )

    def best(block: Floats, k: int) -> tuple[Floats, Rows]:
        if resources is not None:
            number = torch.device(device).index or 0
            scores, rows = faiss.knn_gpu(resources, wide, block, k, metric=faiss.METRIC_INNER_PRODUCT, device=number)
        else:
            scores, rows = faiss.knn(wide, block, k, metric=faiss.METRIC_INNER_PRODUCT)
        return scores, rows

    return Engine(widened, best)


def torch_engine(queries: Halves, device: str = "cpu", precision: str = "fp32") -> Engine:
    """Matrix products and top-k by PyTorch, in ``fp32`` or ``bf16``; never more than 2**26 scores at once."""
    torch.set_float32_matmul_precision("highest")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    held = torch.from_numpy(queries).to(device).to(dtype)

    def prepare(block: Halves) -> torch.Tensor:
        passages = torch.from_numpy(block)
        return passages.to(dtype) if device == "cpu" else passages.pin_memory()

    def best(block: torch.Tensor, k: int) -> tuple[Floats, Rows]:
        passages = block.to(device, non_blocking=True).to(dtype)
        with torch.inference_mode():
            found = [top(some @ passages.T, k) for some in torch.split(held, max(1, (1 << 26) // len(block)))]
            scores, rows = (torch.cat(each).cpu() for each in zip(*found, strict=True))
        return scores.float().numpy(), rows.numpy()

    return Engine(prepare, best)


def top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``torch.topk`` over the last of two dimensions, which need not look at every column closely.

    The best k lie in the k groups of columns with the highest maxima. Which of several equal ones come is undefined.
    """
    groups = scores.shape[1] // _GROUP
    if scores.shape[1] % _GROUP or groups < 2 * k:
        return torch.topk(scores, k)
    grouped = scores.view(len(scores), groups, _GROUP)
    chosen = torch.topk(grouped.amax(2), k, sorted=False).indices
    inside = grouped.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    values, columns = torch.topk(inside, k)
    return values, chosen.gather(1, columns // _GROUP) * _GROUP + columns % _GROUP


def candidates(vectors: Vectors, engine: Engine, queries: int, count: int) -> tuple[Floats, Rows]:
    """The ``count`` best rows of each query by the engine's scores, best first, shape (queries, count).

    Fewer columns where there are fewer passages. A block is read by another thread while one is searched.
    """
    count = min(count, vectors.rows)
    scores = np.full((queries, count), -np.inf, np.float32)
    rows = np.full((queries, count), -1, np.int64)
    for start, block in _read_ahead(vectors, engine.prepare):
        found, inside = engine.best(block, min(count, len(block)))
        scores = np.concatenate([scores, found], axis=1)
        rows = np.concatenate([rows, inside + start], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return scores, rows


def _read_ahead(vectors: Vectors, prepare: Callable[[Halves], Any]) -> Iterator[tuple[int, Any]]:
    return in_threads(lambda item: (item[0], prepare(item[1])), vectors.blocks(BLOCK), threads=1, ahead=1)


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
    wide = [torch.from_numpy(np.ascontiguousarray(side)).double().numpy() for side in (left, right)]
    sums: npt.NDArray[np.float64] = np.einsum("ij,ij->i", *wide)
    return sums.astype(np.float32)


def search(
    vectors: Vectors, queries: Halves, engine: Engine, top_k: int, count: int, ranks: Callable[[], Rows]
) -> Iterator[tuple[Rows, Floats]]:
    """(rows, scores) of the best of each query, in the queries' order, not ordered; exact for an engine of 32 bits.

    At least ``top_k`` where there are so many passages; more where the last ones tie and their ids have to decide.

    Args:
        count: candidates of each query, at least ``top_k``.
        ranks: gives each row's rank in the order of the corpus ids; called only where very many passages tie.
    """
    loose, rows = candidates(vectors, engine, len(queries), count)
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
    """:func:`search` for candidates that an index or 16-bit arithmetic chose: scored exactly, nothing added."""
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
