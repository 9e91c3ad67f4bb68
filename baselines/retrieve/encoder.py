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
from builders.core.jobs import in_order, in_threads, prepare_processes, start_worker
from builders.core.progress import show_progress
from builders.core.shares import report_share
from builders.core.worker_processes import WorkerPool

Halves = npt.NDArray[np.float16]
Result = TypeVar("Result")
# Smallest number of texts that processes tokenise. For fewer texts a thread is faster, because processes need 25
# seconds to start.
MANY = 100_000
_BATCHES_AHEAD = 8  # batches that a thread tokenises ahead of the model
_LONG_TEXT = "的 " * 5_000  # 5,000 tokens or more
_SMALLEST_HALF = 2.0**-14  # smaller 16-bit numbers have fewer digits
# Estimate: a Chinese character has three bytes, an English WordPiece about as many.
_BYTES_PER_TOKEN = 3
_SPECIAL_TOKENS = 2  # estimate: tokens at the start and the end of a text
_MOST_TEXTS_PER_BATCH = 2_048
_BATCH_MULTIPLE = 8  # matrix units work on multiples of 8
# Vectors with a largest number outside of this range are scaled before their squares are summed.
_TINY_NUMBER = 1e-6
_HUGE_NUMBER = 1e12


class Prefetcher:
    """Tokenise batches of texts, or of (query, passage) pairs, while the model computes earlier batches.

    Args:
        model: the SentenceTransformer or CrossEncoder that tokenises. Processes get a copy without weights.
        preprocess_options: further arguments of ``preprocess``: the prompt and the task.
        processes: number of processes for calls with at least :data:`MANY` texts (default: 0). Other calls use a
            thread. The processes are started once and end with this object.
        pin: pin the tensors' memory, so that a GPU can compute while it copies tensors (default: False).
    """

    def __init__(
        self, model: Any, preprocess_options: dict[str, Any], processes: int = 0, *, pin: bool = False
    ) -> None:
        self._model = model
        self._preprocess_options = preprocess_options
        self._processes = processes
        self._pin = pin
        self._pool: WorkerPool | None = None
        if processes and prepare_processes():
            start_arguments = (without_weights(model), preprocess_options)
            self._pool = WorkerPool(processes, _start_tokenizing_process, start_arguments)

    def tokens(self, texts: list[Any]) -> dict[str, Any]:
        """Tokenise one batch without prefetching."""
        return preprocess(self._model, texts, **self._preprocess_options)

    def __call__(self, batches: Iterable[list[Any]], text_count: int = MANY) -> Iterator[dict[str, Any]]:
        """Yield the tokens of every batch. ``text_count`` is the number of texts in all batches.

        Raises :class:`.jobs.WorkerDied` if a process is killed.
        """
        if self._pool is None or text_count < MANY:
            yield from in_threads(self._pinned_tokens, batches, threads=1, ahead=_BATCHES_AHEAD)
            return
        for features in in_order(self._pool, _tokenize_to_arrays, batches, ahead=2 * self._processes):
            tensors = {}
            for name, value in features.items():
                tensors[name] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            yield self._pin_tensors(tensors)

    def _pinned_tokens(self, texts: list[Any]) -> dict[str, Any]:
        return self._pin_tensors(self.tokens(texts))

    def _pin_tensors(self, features: dict[str, Any]) -> dict[str, Any]:
        if not self._pin:
            return features
        pinned_features = {}
        for name, value in features.items():
            pinned_features[name] = value.pin_memory() if torch.is_tensor(value) else value
        return pinned_features


def preprocess(model: Any, texts: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Tokenise texts as ``model.preprocess(texts, **options)`` of sentence-transformers does, but faster.

    The result has tensors by name, for example input_ids and attention_mask, and sometimes other values.

    transformers visits every number in Python to make a tensor, which takes a third of the time. This function lets
    transformers return lists (``processing_kwargs``), and makes the tensors with NumPy. Late-interaction models, and
    language models used as cross-encoders, get the library's tensors, because their ``preprocess`` modifies tensors.
    """
    if isinstance(model, MultiVectorEncoder) or any(isinstance(module, LogitScore) for module in model):
        library_features: dict[str, Any] = model.preprocess(list(texts), **options)
        return library_features
    without_tensors = {"common": {"return_tensors": None}}
    features = model.preprocess(list(texts), processing_kwargs=without_tensors, **options)
    return {name: _rows_to_tensor(value) for name, value in features.items()}


def _rows_to_tensor(value: Any) -> Any:
    """Convert a list of lists of numbers to a tensor. Return other values unchanged."""
    is_rows = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    return torch.from_numpy(np.array(value)) if is_rows else value


def without_weights(model: torch.nn.Module) -> Any:
    """Copy a model with its tokenizer and settings. Meta tensors replace the weights."""
    weights = chain(model.parameters(), model.buffers())
    # deepcopy takes the copies of these objects from its memo, so it never copies the weights themselves.
    copies_by_id = {id(tensor): tensor.detach().to("meta") for tensor in weights}
    return copy.deepcopy(model, copies_by_id)


# Arguments of ``preprocess`` in a tokenising process. The start of a process sends the model once, not with each batch.
_process_arguments: dict[str, Any] = {}


def _start_tokenizing_process(model: Any, preprocess_options: dict[str, Any]) -> None:
    start_worker()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores are for other processes
    _process_arguments.update(model=model, **preprocess_options)


def _tokenize_to_arrays(texts: list[Any]) -> dict[str, Any]:
    """Call ``preprocess``. Return arrays, because the shared memory of tensors would end with this process."""
    features = preprocess(texts=texts, **_process_arguments)
    arrays = {}
    for name, value in features.items():
        arrays[name] = value.numpy() if torch.is_tensor(value) else value
    return arrays


class EncoderSide:
    """A model that runs on batches of texts: an encoder of queries or passages, or a cross-encoder.

    Attributes:
        problem: the error for numbers that are not finite.

    Args:
        model: a model of sentence-transformers on its device.
        task: query or document (default: "", for a cross-encoder).
        tokens: tokens per batch, padding included (default: the device's, :func:`.devices.default_batch_tokens`).
        tokenizers: number of processes that tokenise many texts (default: 0, a thread tokenises all texts).
    """

    problem = "the model's embeddings have numbers that are too large for 16 bits"

    def __init__(self, model: Any, task: str = "", tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model = model
        self.task = task
        self.device = torch.device(model.device)
        self._batch_tokens = tokens or default_batch_tokens(self.device.type)
        self._has_tiny_vectors = torch.zeros((), dtype=torch.bool, device=self.device)
        preprocess_options: dict[str, Any] = {"prompt": prompt_of(model, task)}
        if task:
            preprocess_options["task"] = task
        self._prefetcher = Prefetcher(model, preprocess_options, tokenizers, pin=self.device.type == "cuda")
        # Tokenise a long text to learn the model's limit in tokens (at most the length of _LONG_TEXT). The first call
        # also sets up the tokenizer, so that later calls from threads are safe.
        long_input = _LONG_TEXT if task else ("的", _LONG_TEXT)
        self._token_limit = int(self._prefetcher.tokens([long_input])["input_ids"].shape[-1])

    def batches(
        self, texts: Sequence[Any], compute_batch: Callable[[dict[str, Any]], Result]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Result]]:
        """For every batch of texts, yield (indices of the texts, result of ``compute_batch`` for the texts' tokens).

        ``compute_batch`` gets the result of ``model.preprocess``, with tensors on the device. The bar of the running
        task (:func:`.shares.report_share`) moves with every batch. A GPU may still compute the last of these batches.
        """
        self._has_tiny_vectors.zero_()
        byte_counts = np.array([_count_bytes(text) for text in texts], np.int64)
        index_batches = list(batches_by_length(byte_counts, self._token_limit, self._batch_tokens))
        # The bar counts tokens: the longest texts come first, so half of the texts take more than half of the time.
        token_counts = expected_tokens(byte_counts, self._token_limit)
        finished_tokens = 0
        all_tokens = int(token_counts.sum())

        def text_batches() -> Iterator[list[Any]]:
            for indices in index_batches:
                yield [texts[index] for index in indices]

        features_of_batches = self._prefetcher(text_batches(), len(texts))
        with torch.inference_mode():
            for indices, features in zip(index_batches, features_of_batches, strict=True):
                yield indices, compute_batch(self._move_to_device(features))
                finished_tokens += int(token_counts[indices].sum())
                report_share(finished_tokens / all_tokens)

    def _move_to_device(self, features: dict[str, Any]) -> dict[str, Any]:
        moved_features = {}
        for name, value in features.items():
            moved_features[name] = value
            if torch.is_tensor(value):
                # A GPU copies pinned memory while it computes.
                moved_features[name] = value.to(self.device, non_blocking=True)
        return moved_features

    def computed(self, texts: Sequence[Any], compute_batch: Callable[[dict[str, Any]], Any]) -> npt.NDArray[Any]:
        """Return the results of ``compute_batch``, which returns a row for each text, in the texts' order.

        ``texts`` must not be empty. A GPU gets all batches before this process waits for results. Raises
        :class:`InputError` if a number is not finite.
        """
        all_results: torch.Tensor | None = None
        for indices, batch_results in self.batches(texts, compute_batch):
            if all_results is None:
                # One allocation, because small results between large temporary tensors would fragment the memory.
                shape = (len(texts), *batch_results.shape[1:])
                all_results = torch.empty(shape, dtype=batch_results.dtype, device=self.device)
            device_indices = torch.from_numpy(indices).to(self.device, non_blocking=True)
            all_results[device_indices] = batch_results
        assert all_results is not None  # ``texts`` is not empty
        result_array: npt.NDArray[Any] = all_results.cpu().numpy()
        self.expect_finite(result_array)
        return result_array

    def halves(self, vectors: torch.Tensor) -> torch.Tensor:
        """Convert numbers to 16 bits. A vector lies along the last axis.

        :meth:`expect_no_tiny_vectors` reports vectors whose numbers are all too small.
        """
        largest = vectors.abs().amax(dim=-1)
        is_tiny = (largest > 0) & (largest < _SMALLEST_HALF)
        # The flag is read after the last batch, so that this process does not wait for a GPU.
        self._has_tiny_vectors |= is_tiny.any()
        return vectors.half()

    def expect_no_tiny_vectors(self) -> None:
        """Raise :class:`InputError` if all numbers of a vector were too small for 16 bits."""
        if self._has_tiny_vectors.item():
            raise InputError(
                "the model's embeddings have numbers that are too small for 16 bits (try --similarity cosine)"
            )

    def expect_finite(self, *arrays: npt.NDArray[Any]) -> None:
        """Raise :class:`InputError` if a number is not finite. Such a number was too large for its precision."""
        for array in arrays:
            if not np.isfinite(array).all():
                raise InputError(f"{self.problem} (try --dtype bf16 or fp32)")


class TextEncoder(EncoderSide):
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


class CrossScorer(EncoderSide):
    """Score (query, passage) pairs by a cross-encoder's logits. Sigmoids of high logits would tie at 1.

    The score of a model with two outputs (no, yes) is the second minus the first, which ranks pairs like the
    probability of the second.
    """

    problem = "the cross-encoder returns scores that are not finite"

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """Return the score of every pair, shape (pairs,), in the pairs' order."""
        return self.computed(pairs, self._score)

    def _score(self, features: dict[str, Any]) -> torch.Tensor:
        # The library's outputs are logits: the sigmoid is applied by its predict() alone.
        scores: torch.Tensor = self.model(features)["scores"]
        scores = scores.float().reshape(len(scores), -1)
        if scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        return scores[:, 0]


def unit_length(vectors: torch.Tensor) -> torch.Tensor:
    """Scale vectors of shape (vectors, dimensions) to unit length, whatever their magnitude."""
    largest = vectors.abs().amax(dim=1, keepdim=True)
    # The squares of extreme numbers would overflow or vanish. Other vectors are divided by 1, which changes no bit.
    is_extreme = (largest > 0) & ((largest < _TINY_NUMBER) | (largest > _HUGE_NUMBER))
    return torch.nn.functional.normalize(vectors / torch.where(is_extreme, largest, 1.0), dim=1)


def batches_by_length(
    byte_counts: npt.NDArray[np.int64], token_limit: int, batch_tokens: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of each batch's texts. The texts of a batch have similar lengths. The longest texts come first.

    Args:
        byte_counts: the texts' lengths in bytes.
        token_limit: the largest number of tokens of a text that the model reads.
        batch_tokens: the largest number of tokens of a batch, padding included, by an estimate.
    """
    order = np.argsort(-byte_counts, kind="stable")
    token_counts = expected_tokens(byte_counts[order], token_limit)
    start = 0
    while start < len(order):
        # The first text is the longest of the batch, and all others are padded to its length.
        text_count = min(int(batch_tokens // token_counts[start]), _MOST_TEXTS_PER_BATCH)
        text_count = max(1, text_count)
        if text_count > _BATCH_MULTIPLE:
            text_count -= text_count % _BATCH_MULTIPLE
        yield order[start : start + text_count]
        start += text_count


def expected_tokens(byte_counts: npt.NDArray[np.int64], token_limit: int) -> npt.NDArray[np.int64]:
    """Estimate the numbers of tokens of texts from their lengths in bytes. ``token_limit`` is the limit of the model.

    The estimate is three bytes per token: the size of a Chinese character, and about that of an English WordPiece.
    """
    estimates = byte_counts // _BYTES_PER_TOKEN + _SPECIAL_TOKENS
    token_counts: npt.NDArray[np.int64] = np.minimum(estimates, token_limit)
    return token_counts


def encode_queries(encoder: Any, query_texts: Sequence[str]) -> Any:
    """Return ``encoder.encode(query_texts)`` of an encoder (:class:`EncoderSide`), with a bar."""
    with show_progress(total=len(query_texts), unit="query", label="encode queries") as bar, bar.task(len(query_texts)):
        return encoder.encode(query_texts)


def _count_bytes(text: str | tuple[str, str]) -> int:
    """Return the length of a text, or of both texts of a pair, in bytes of UTF-8."""
    if isinstance(text, str):
        return len(text.encode())
    query_text, passage_text = text
    return len(query_text.encode()) + len(passage_text.encode())
