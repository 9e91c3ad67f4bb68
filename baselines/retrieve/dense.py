"""Dual-encoders with one vector per text (SentenceTransformer), and exact search by inner product.

Static embeddings (StaticEmbedding) are dual-encoders without a neural network: a text's vector is the mean of its
tokens' vectors.

The score of a pair is the inner product of its 16-bit embeddings, computed in 64 bits and rounded to 32 bits. A score
therefore depends only on the pair, not on the engine, the batch or the number of devices. A fast 32-bit engine (FAISS
or PyTorch) selects candidates, which are then scored exactly. Rounding errors of the engine may exclude a passage of
the top k, above all among ties. Queries that may lack a passage get a second pass over all passages.

Memory holds a few blocks of passages per device, at most ``SCORES`` scores, and about 6 kB per query (embedding and
candidates, at 768 dimensions and 100 candidates).
"""

import abc
import copy
import functools
import importlib.util
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import SentenceTransformer

from baselines.core.passages import Passages, Rows
from baselines.core.settings import ModelSettings
from baselines.retrieve.devices import dtype_of, moved
from baselines.retrieve.encoder import Encoder, Floats, Halves, widened
from baselines.retrieve.models import SENTENCE, fingerprint, open_encoder, set_prompts
from baselines.retrieve.vector_index import ROWS_ON_GPU, Arrays, Index, Retriever
from builders.core.errors import InputError, log
from builders.core.jobs import in_threads

BLOCK = 1 << 16  # passages: 200 MB in 32 bits at 768 dimensions
SCORES = 1 << 26  # scores in a device's memory: 268 MB in 32 bits
_PAIRS = 8_192  # pairs per step of exact scoring
_QUERIES = 1 << 12  # queries merged per step, so that their scores fit into a CPU's caches
_GROUP = 32  # columns per group in top()


class Engine(abc.ABC):
    """Find the best passages of every query, block by block.

    The best passages of each block are merged into the best passages so far. PyTorch merges on the GPU, so that the
    GPU does not wait for the CPU. The choice among equal scores is undefined.
    """

    def __init__(self, queries: int, count: int, device: str) -> None:
        self._scores = torch.full((queries, count), -torch.inf, device=device)
        self._rows = torch.full((queries, count), -1, device=device)

    @abc.abstractmethod
    def prepare(self, block: Halves) -> Any:
        """Convert a 16-bit block for :meth:`add`, in another thread, while the engine searches an earlier block."""

    @abc.abstractmethod
    def add(self, start: int, block: Any) -> None:
        """Search a prepared block, whose first passage is row ``start``."""

    def best(self) -> tuple[Floats, Rows]:
        """Return the best (scores, rows) so far, best first, shape (queries, count). Empty places have -inf and -1."""
        return self._scores.cpu().numpy(), self._rows.cpu().numpy()

    def _merge(self, place: slice, scores: torch.Tensor, rows: torch.Tensor) -> None:
        """Merge a block's best passages, shape (queries, k), into the best so far. ``place`` selects the queries."""
        scores, rows = torch.cat([self._scores[place], scores], 1), torch.cat([self._rows[place], rows], 1)
        self._scores[place], chosen = torch.topk(scores, self._scores.shape[1])
        self._rows[place] = rows.gather(1, chosen)


class FaissEngine(Engine):
    """FAISS's exhaustive search in 32 bits. A GPU needs FAISS's GPU build (extra ``gpu``)."""

    def __init__(self, queries: Halves, count: int, device: str = "cpu") -> None:
        import faiss

        super().__init__(len(queries), count, "cpu")
        self._queries = widened(queries)
        on_gpu = device != "cpu" and hasattr(faiss, "StandardGpuResources")
        self._resources: Any = faiss.StandardGpuResources() if on_gpu else None
        self._number = torch.device(device).index or 0

    def prepare(self, block: Halves) -> Floats:
        return widened(block)

    def add(self, start: int, block: Floats) -> None:
        import faiss

        k, metric = min(len(block), self._scores.shape[1]), faiss.METRIC_INNER_PRODUCT
        if self._resources is None:
            scores, rows = faiss.knn(self._queries, block, k, metric=metric)
        else:
            scores, rows = faiss.knn_gpu(self._resources, self._queries, block, k, metric=metric, device=self._number)
        for low in range(0, len(scores), _QUERIES):
            place = slice(low, low + _QUERIES)
            self._merge(place, torch.from_numpy(scores[place]), torch.from_numpy(rows[place]) + start)


class TorchEngine(Engine):
    """Matrix products and top-k by PyTorch, in 32 bits.

    A GPU multiplies 16-bit numbers and adds the products in 32 bits, because multiplying 32-bit numbers takes fifteen
    times as long. The product of two 16-bit numbers fits into 32 bits, so only the sums are rounded.
    """

    def __init__(self, queries: Halves, count: int, device: str = "cpu") -> None:
        super().__init__(len(queries), count, device)
        torch.set_float32_matmul_precision("highest")
        self._device, on_gpu = device, device.startswith("cuda")
        self._dtype = torch.float16 if on_gpu else torch.float32
        self._sums: dict[str, Any] = {"out_dtype": torch.float32} if on_gpu else {}
        self._queries = torch.from_numpy(queries).to(device).to(self._dtype)

    def prepare(self, block: Halves) -> torch.Tensor:
        passages = torch.from_numpy(block)
        return passages.pin_memory() if self._device.startswith("cuda") else passages.to(self._dtype)

    def add(self, start: int, block: torch.Tensor) -> None:
        with torch.inference_mode():
            passages = block.to(self._device, non_blocking=True).to(self._dtype)
            k, step = min(len(block), self._scores.shape[1]), max(1, SCORES // len(block))
            for low in range(0, len(self._queries), step):
                place = slice(low, low + step)
                scores, rows = top(torch.mm(self._queries[place], passages.T, **self._sums), k)
                self._merge(place, scores, rows + start)


def top(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as ``torch.topk(scores, k)`` of a matrix, but faster.

    The k best scores of a row lie in the k groups of columns with the highest maxima, so only these groups are
    searched. The choice among equal scores is undefined.
    """
    groups = scores.shape[1] // _GROUP
    if scores.shape[1] % _GROUP or groups < 2 * k:
        return torch.topk(scores, k)
    grouped = scores.view(len(scores), groups, _GROUP)
    chosen = torch.topk(grouped.amax(2), k, sorted=False).indices
    inside = grouped.gather(1, chosen[:, :, None].expand(-1, -1, _GROUP)).flatten(1)
    values, columns = torch.topk(inside, k)
    return values, chosen.gather(1, columns // _GROUP) * _GROUP + columns % _GROUP


def candidates(vectors: Index, engines: Sequence[Engine], count: int) -> tuple[Floats, Rows]:
    """Return (scores, rows) of each query's ``count`` best passages by the engines' scores, best first.

    The shape is (queries, count), with fewer columns if the index has fewer passages. Each of the n engines has a
    thread and searches every n-th block. Threads suffice, because devices and libraries work outside Python.
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
            stopped.set()  # after an error, the other engines stop early
        scores, rows = (np.concatenate(each, axis=1) for each in zip(*(each.result() for each in fed), strict=True))
    order = np.argsort(-scores, axis=1, kind="stable")[:, : min(count, vectors.rows)]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def exact_scores(queries: Halves, vectors: Index, rows: Rows) -> Floats:
    """Return the exact scores of ``rows``, shape (queries, n). Row -1 has -inf. Each block of passages is read once."""
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
    """Return the exact score of each pair of embeddings, shape (pairs,), in steps that fit into a CPU's cache."""
    sums, step = np.empty(len(left), np.float64), max(1, (1 << 17) // left.shape[1])
    for low in range(0, len(left), step):
        some = slice(low, low + step)
        wide = (torch.from_numpy(np.ascontiguousarray(side[some])).float().double().numpy() for side in (left, right))
        np.einsum("ij,ij->i", *wide, out=sums[some])
    return sums.astype(np.float32)


def search(
    vectors: Index, queries: Halves, engines: Sequence[Engine], top_k: int, count: int, ranks: Callable[[], Rows]
) -> Iterator[tuple[Rows, Floats]]:
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
    slack = vectors.dim * 2.0**-22 * np.sqrt(np.einsum("ij,ij->i", wide, wide)) * vectors.longest
    open_ = np.flatnonzero((loose[:, -1] + slack >= last) & (rows.shape[1] != vectors.rows))
    settled = _second_pass(vectors, queries[open_], (last - slack)[open_], top_k, ranks) if len(open_) else []
    closed = dict(zip(open_.tolist(), settled, strict=True))
    for number in range(len(queries)):
        if number in closed:
            yield closed[number]
        else:
            keep = scores[number] >= last[number]
            yield rows[number][keep], scores[number][keep]


def _second_pass(
    vectors: Index, queries: Halves, limits: npt.NDArray[Any], top_k: int, ranks: Callable[[], Rows]
) -> list[tuple[Rows, Floats]]:
    """Return each query's ``top_k`` best passages (by score, then id) with a 32-bit score of at least ``limits``."""
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


def nearest(
    vectors: Index, queries: Halves, passages: Passages, devices: Sequence[str], top_k: int, engine: str = ""
) -> Iterator[tuple[Rows, Floats]]:
    """Yield (rows, exact scores) of each query's ``top_k`` best passages and of passages that tie with the last.

    ``vectors`` has the embeddings of all ``passages`` or of the rows ``vectors.chosen``. ``queries`` has the shape
    (queries, dimensions). The devices share the blocks of passages. ``engine`` is ``torch`` or ``faiss`` (default:
    ``faiss`` on a CPU with FAISS, else ``torch``).
    """
    count, chosen = 2 * top_k, vectors.chosen
    faiss = devices[0] == "cpu" and importlib.util.find_spec("faiss") is not None
    kind = FaissEngine if (engine or ("faiss" if faiss else "torch")) == "faiss" else TorchEngine
    engines = [kind(queries, count, device) for device in devices]

    def ranks() -> Rows:
        return passages.ranks() if chosen is None else passages.ranks()[chosen]

    for rows, scores in search(vectors, queries, engines, top_k, count, ranks):
        yield rows if chosen is None else chosen[rows], scores


def encoding_model(name: str, vectors: Index, device: str, dtype: str, revision: str = "") -> SentenceTransformer:
    """Open a dual-encoder on a device to encode queries, in the precision that ``--dtype`` selects.

    Raises :class:`InputError` if another model encoded the passages in ``vectors``.
    """
    wanted, precision = vectors.manifest["model"], dtype_of(dtype, device)
    # The queries get the settings of the passages.
    given = {"max_length": wanted.get("max_length"), **(wanted.get("settings") or {})}
    model = open_encoder(ModelSettings(name, revision=revision, **given))
    expect_model(vectors, name, fingerprint(model), precision)
    return moved(model, device, precision)


def expect_model(vectors: Index, path: Path | str, queries_by: str, precision: str) -> None:
    """Raise :class:`InputError` if the passages' model has another fingerprint. Warn if the precisions differ."""
    wanted = vectors.manifest["model"]
    if queries_by != wanted["fingerprint"]:
        raise InputError(
            f"is not the model that encoded {vectors.path} ({wanted['name']!r}): weights or settings differ", path=path
        )
    if vectors.precision != precision:
        log.warning("%s: passages are encoded in %s, queries in %s", vectors.path, vectors.precision, precision)


class Dense(Retriever):
    """A dual-encoder. The index is a directory of embeddings, the format that `encode` writes and `search` reads."""

    kind, side = "dense", Encoder

    def open_model(self) -> SentenceTransformer:
        return open_encoder(self.settings)

    def size(self, model: SentenceTransformer) -> dict[str, Any]:
        return {"dim": model.get_embedding_dimension()}

    def arrays(self, found: Halves) -> Arrays:
        return {"": found}

    def pair_scores(self, index: Index, queries: Halves, rows: Rows) -> Floats:
        return exact_scores(queries, index, rows)

    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, Floats]]:
        asked = self.encoder(self.work.devices[0], "query").encode(queries)
        return nearest(index, asked, passages, self.work.devices, top_k)


class Static(Dense):
    """Static embeddings. They need no padding and few computations, so batches and chunks are large even on a CPU."""

    kind = "static"

    @property
    def batch_tokens(self) -> int:
        return max(self.work.batch_tokens, 1 << 20)

    @property
    def chunk_rows(self) -> int:
        return ROWS_ON_GPU


def called(model: Any, names: Sequence[str], inputs: Sequence[Any], size: int, dims: int) -> torch.Tensor:
    """Call a user's model on ``size`` inputs at a time, and return all rows in fp32.

    The first method among ``names`` that the model has is called, else the model itself. A call must return an array
    with ``dims`` axes, and a row of finite numbers for each input. Raises TypeError if nothing can be called, and
    :class:`InputError` for a wrong array.
    """
    name = getattr(model, "__name__", type(model).__name__)
    call = next(filter(callable, [*(getattr(model, each, None) for each in names), model]), None)
    if call is None:
        raise TypeError(f"{name}: expected a function, or an object with {names[-1]}(list)")
    found: list[torch.Tensor] = []
    for start in range(0, len(inputs), size):
        some = list(inputs[start : start + size])
        given = call(some)
        rows = torch.as_tensor(given if torch.is_tensor(given) else np.asarray(given)).detach().float().cpu()
        if rows.ndim != dims or len(rows) != len(some) or (found and rows.shape[1:] != found[0].shape[1:]):
            raise InputError(
                f"{name}: expected {len(some)} rows of one width, found an array of shape {tuple(rows.shape)}"
            )
        if not rows.isfinite().all():
            raise InputError(f"{name}: expected finite numbers, found NaN or infinity")
        found.append(rows)
    return torch.cat(found) if found else torch.empty(0, *[0] * (dims - 1))


@dataclass(frozen=True, eq=False)
class Own(Dense):
    """An encoder that is a Python object.

    A SentenceTransformer runs in this project's batches, so the scores equal those of the same model in a folder.
    """

    model: Any
    texts_a_call: int
    __eq__, __hash__ = object.__eq__, object.__hash__  # two objects may have equal settings

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        if isinstance(self.model, SentenceTransformer):
            return super().about
        # Vectors of an API vary slightly between calls. The dimension in which two texts differ most does not vary.
        query, passage = (self._vectors(task, [SENTENCE, "水"]).astype(np.float32) for task in ("query", "document"))
        if query.shape != passage.shape:
            raise InputError(f"queries have {query.shape[1]} dimensions, but passages have {passage.shape[1]}")
        return {
            "name": self.settings.name,
            "fingerprint": f"{abs(query[0] - query[1]).argmax()} {abs(passage[0] - passage[1]).argmax()}",
            "settings": self.settings.overrides(),
            "similarity": self.settings.similarity,
            "dim": query.shape[1],
        }

    def open_model(self) -> SentenceTransformer:
        model = copy.copy(self.model)  # the user's object keeps its prompts
        set_prompts(model, self.settings)
        model.similarity_fn_name = self.settings.similarity or model.similarity_fn_name
        return model.eval()

    def encoder(self, device: str, task: str) -> Any:
        if isinstance(self.model, SentenceTransformer):
            return Encoder(self.open_model(), task, self.batch_tokens)
        return SimpleNamespace(encode=functools.partial(self._vectors, task))

    def _vectors(self, task: str, texts: Sequence[str]) -> Halves:
        prompt = (self.settings.query_prompt if task == "query" else self.settings.passage_prompt) or ""
        rows = called(self.model, (f"encode_{task}", "encode"), [prompt + each for each in texts], self.texts_a_call, 2)
        rows = rows if self.settings.similarity == "dot" else torch.nn.functional.normalize(rows, dim=1)
        halves = rows.half().numpy()
        if not np.isfinite(halves).all():
            raise InputError(f"{self.settings.name}: the vectors have numbers that are too large for 16 bits")
        return halves
