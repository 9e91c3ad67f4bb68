"""Run a model on texts in batches of similar lengths. A thread or several processes tokenise the next batches.

The tokenizers of transformers use all cores, but Python then needs about 0.1 ms per passage in one thread. One process
therefore tokenises fewer than 10,000 passages a second. Several processes are faster, but a process needs up to half a
minute to load the libraries.

Embeddings equal those of ``SentenceTransformer.encode_query`` and ``encode_document``, also with a Router.
Scores equal the logits of ``CrossEncoder.predict``.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.cross_encoder.modules import LogitScore

from baselines.retrieve.devices import default_batch_tokens
from baselines.retrieve.model_prompts import prompt_of
from baselines.retrieve.search_engines import Floats
from builders.core.errors import InputError
from builders.core.jobs import can_start_processes, in_order, in_threads, start_worker
from builders.core.progress import progress
from builders.core.shares import report_share
from builders.core.worker_processes import WorkerPool

Halves = npt.NDArray[np.float16]
Result = TypeVar("Result")
MANY = 100_000  # smallest number of texts that processes tokenise
_LONG = "的 " * 5_000  # 5,000 tokens or more
_SMALLEST_HALF = 2.0**-14  # smaller 16-bit numbers have fewer digits


class Prefetcher:
    """Tokenise batches of texts, or of (query, passage) pairs, while the model computes earlier batches.

    Args:
        model: the SentenceTransformer or CrossEncoder that tokenises. Processes get a copy without weights.
        given: further arguments of ``preprocess``: the prompt and the task.
        processes: number of processes for calls with at least :data:`MANY` texts. Other calls use a thread. The
            processes are started once and end with this object.
        pin: pin the tensors' memory, so that a GPU can compute while it copies tensors.
    """

    def __init__(self, model: Any, given: dict[str, Any], processes: int = 0, *, pin: bool = False) -> None:
        self._model, self._given, self._processes, self._pin = model, given, processes, pin
        self._pool: WorkerPool | None = None
        if processes and can_start_processes():
            initial = (without_weights(model), given)
            self._pool = WorkerPool(processes, _start, initial)

    def tokens(self, texts: list[Any]) -> dict[str, Any]:
        """Tokenise one batch without prefetching."""
        return preprocess(self._model, texts, **self._given)

    def __call__(self, batches: Iterable[list[Any]], texts: int = MANY) -> Iterator[dict[str, Any]]:
        """Yield the tokens of every batch. ``texts`` is the number of texts in all batches.

        Raises :class:`.jobs.WorkerDied` if a process is killed.
        """
        if self._pool is None or texts < MANY:
            yield from in_threads(lambda texts: self._pinned(self.tokens(texts)), batches, threads=1, ahead=8)
            return
        for found in in_order(self._pool, _arrays, batches, ahead=2 * self._processes):
            yield self._pinned(
                {name: torch.from_numpy(each) if isinstance(each, np.ndarray) else each for name, each in found.items()}
            )

    def _pinned(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._pin:
            found = {name: each.pin_memory() if torch.is_tensor(each) else each for name, each in found.items()}
        return found


def preprocess(model: Any, texts: Sequence[Any], **given: Any) -> dict[str, Any]:
    """Tokenise texts as ``model.preprocess(texts, **given)`` of sentence-transformers does, but faster.

    transformers visits every number in Python to make a tensor, which takes a third of the time. This function lets
    transformers return lists (``processing_kwargs``), and makes the tensors with NumPy. Late-interaction models, and
    language models used as cross-encoders, get the library's tensors, because their ``preprocess`` modifies tensors.
    """
    if isinstance(model, MultiVectorEncoder) or any(isinstance(module, LogitScore) for module in model):
        found: dict[str, Any] = model.preprocess(list(texts), **given)
        return found
    found = model.preprocess(list(texts), processing_kwargs={"common": {"return_tensors": None}}, **given)
    return {name: torch.from_numpy(np.array(value)) if _is_rows(value) else value for name, value in found.items()}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def without_weights(model: torch.nn.Module) -> Any:
    """Copy a model with its tokenizer and settings. Meta tensors replace the weights."""
    weights = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor.detach().to("meta") for tensor in weights})


_own: dict[str, Any] = {}  # arguments of ``preprocess`` in a tokenising process


def _start(model: Any, given: dict[str, Any]) -> None:
    start_worker()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores are for other processes
    _own.update(model=model, **given)


def _arrays(texts: list[Any]) -> dict[str, Any]:
    """Call ``preprocess``. Return arrays, because the shared memory of tensors would end with this process."""
    found = preprocess(texts=texts, **_own)
    return {name: each.numpy() if torch.is_tensor(each) else each for name, each in found.items()}


class Side:
    """A model that runs on batches of texts: an encoder of queries or passages, or a cross-encoder.

    Args:
        model: a model of sentence-transformers on its device.
        task: query or document. Empty for a cross-encoder.
        tokens: tokens per batch, padding included. None: the device's default.
        tokenizers: number of processes that tokenise many texts. 0: a thread tokenises all texts.
    """

    problem = "the model's embeddings have numbers that are too large for 16 bits"

    def __init__(self, model: Any, task: str = "", tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model, self.task, self.device = model, task, torch.device(model.device)
        self._tokens = tokens or default_batch_tokens(self.device.type)
        self._has_tiny_vectors = torch.zeros((), dtype=torch.bool, device=self.device)
        given = {"prompt": prompt_of(model, task), **({"task": task} if task else {})}
        self._prefetcher = Prefetcher(model, given, tokenizers, pin=self.device.type == "cuda")
        # The model's limit in tokens, but at most the length of _LONG. The call also sets up the tokenizer for threads.
        self._longest = int(self._prefetcher.tokens([_LONG if task else ("的", _LONG)])["input_ids"].shape[-1])

    def batches(
        self, texts: Sequence[Any], compute: Callable[[dict[str, Any]], Result]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Result]]:
        """For every batch of texts, yield (indices of the texts, result of ``compute`` for the texts' tokens).

        The bar of the running task (:func:`.shares.report_share`) moves with every batch. A GPU may still compute the
        last of these batches.
        """
        self._has_tiny_vectors.zero_()
        sizes = np.array([_size(text) for text in texts], np.int64)
        places = list(batches(sizes, self._longest, self._tokens))
        # The bar counts tokens: the longest texts come first, so half of the texts take more than half of the time.
        token_counts = expected_tokens(sizes, self._longest)
        finished_tokens, all_tokens = 0, int(token_counts.sum())
        tokenised = self._prefetcher(([texts[number] for number in batch] for batch in places), len(texts))
        with torch.inference_mode():
            for batch, found in zip(places, tokenised, strict=True):
                moved = {
                    name: each.to(self.device, non_blocking=True) if torch.is_tensor(each) else each
                    for name, each in found.items()
                }
                yield batch, compute(moved)
                finished_tokens += int(token_counts[batch].sum())
                report_share(finished_tokens / all_tokens)

    def computed(self, texts: Sequence[Any], compute: Callable[[dict[str, Any]], Any]) -> npt.NDArray[Any]:
        """Return the results of ``compute``, in the texts' order. Raises :class:`InputError` if a number is not finite.

        A GPU gets all batches before this process waits for results.
        """
        every: torch.Tensor | None = None
        for batch, computed in self.batches(texts, compute):
            if every is None:
                # One allocation, because small results between large temporary tensors would fragment the memory.
                every = torch.empty((len(texts), *computed.shape[1:]), dtype=computed.dtype, device=self.device)
            every[torch.from_numpy(batch).to(self.device, non_blocking=True)] = computed
        assert every is not None  # ``texts`` is not empty
        found: npt.NDArray[Any] = every.cpu().numpy()
        self.expect_finite(found)
        return found

    def halves(self, vectors: torch.Tensor) -> torch.Tensor:
        """Convert vectors (last axis) to 16 bits. :meth:`expect_no_tiny_vectors` reports vectors that vanish."""
        largest = vectors.abs().amax(dim=-1)
        is_tiny = (largest > 0) & (largest < _SMALLEST_HALF)
        self._has_tiny_vectors |= is_tiny.any()  # read after the last batch, so that a GPU is not waited for
        return vectors.half()

    def expect_no_tiny_vectors(self) -> None:
        """Raise :class:`InputError` if all numbers of a vector were too small for 16 bits."""
        if self._has_tiny_vectors.item():
            raise InputError(
                "the model's embeddings have numbers that are too small for 16 bits (try --similarity cosine)"
            )

    def expect_finite(self, *found: npt.NDArray[Any]) -> None:
        """Raise :class:`InputError` if a number is not finite. Such a number was too large for its precision."""
        if not all(np.isfinite(array).all() for array in found):
            raise InputError(f"{self.problem} (try --dtype bf16 or fp32)")


class TextEncoder(Side):
    """The query or passage encoder of a dual-encoder."""

    def encode(self, texts: Sequence[str]) -> Halves:
        """Return embeddings of shape (texts, dimensions), in the texts' order.

        The embeddings have unit length if the model's similarity is cosine. Raises :class:`InputError` if a number is
        too large for 16 bits.
        """
        embeddings = self.computed(texts, self._embed)
        self.expect_no_tiny_vectors()
        return embeddings

    def _embed(self, features: dict[str, Any]) -> torch.Tensor:
        embeddings = self.model(features, task=self.task)["sentence_embedding"]
        if self.model.truncate_dim is not None:
            embeddings = embeddings[..., : self.model.truncate_dim]
        if self.model.similarity_fn_name == "cosine":
            embeddings = unit_length(embeddings.float())
        return self.halves(embeddings)  # stays on the device until all texts are encoded


class CrossScorer(Side):
    """Score (query, passage) pairs by a cross-encoder's logits. Sigmoids of high logits would tie at 1.

    The score of two outputs is the second minus the first, which ranks pairs like the probability of the second.
    """

    problem = "the cross-encoder returns scores that are not finite"

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """Return the score of every pair, shape (pairs,), in the pairs' order."""
        return self.computed(pairs, self._score)

    def _score(self, features: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = self.model(features)["scores"]
        scores = scores.float().reshape(len(scores), -1)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]


def unit_length(vectors: torch.Tensor) -> torch.Tensor:
    """Scale vectors of shape (vectors, dimensions) to unit length, whatever their magnitude."""
    largest = vectors.abs().amax(dim=1, keepdim=True)
    # The squares of extreme numbers would overflow or vanish. Other vectors are divided by 1, which changes no bit.
    is_extreme = (largest > 0) & ((largest < 1e-6) | (largest > 1e12))
    return torch.nn.functional.normalize(vectors / torch.where(is_extreme, largest, 1.0), dim=1)


def batches(sizes: npt.NDArray[np.int64], longest: int, tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of each batch's texts. The texts of a batch have similar lengths. The longest texts come first.

    ``sizes`` has the texts' lengths in bytes. A batch has at most ``tokens`` tokens, padding included, by an estimate.
    """
    order = np.argsort(-sizes, kind="stable")
    expected = expected_tokens(sizes[order], longest)
    start = 0
    while start < len(order):
        count = max(1, min(int(tokens // expected[start]), 2_048))
        count -= count % 8 if count > 8 else 0  # matrix units work on multiples of 8
        yield order[start : start + count]
        start += count


def expected_tokens(sizes: npt.NDArray[np.int64], longest: int) -> npt.NDArray[np.int64]:
    """Estimate the numbers of tokens of texts from their lengths in bytes. ``longest`` is the limit of the model.

    The estimate is three bytes per token: the size of a Chinese character, and about that of an English WordPiece.
    """
    tokens: npt.NDArray[np.int64] = np.minimum(sizes // 3 + 2, longest)
    return tokens


def encode_queries(encoder: Any, queries: Sequence[str]) -> Any:
    """Return ``encoder.encode(queries)`` of a :class:`Side`, with a bar."""
    with progress(total=len(queries), unit="query", label="encode queries") as bar, bar.task(len(queries)):
        return encoder.encode(queries)


def _size(text: str | tuple[str, str]) -> int:
    return len(text.encode()) if isinstance(text, str) else sum(len(part.encode()) for part in text)
