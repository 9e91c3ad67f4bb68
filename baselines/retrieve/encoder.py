"""Texts through a model in batches of like lengths, tokenised ahead by a thread or by processes.

The tokenizers of transformers cut the texts of a batch on all cores. What Python does with their result takes 0.1 ms a
passage, in one thread at a time, so one process reaches some 7,000 passages a second. Several processes reach more, but
each needs up to half a minute to load the libraries.

The embeddings are those of ``SentenceTransformer.encode_query`` and ``encode_document`` (their prompts, lengths and
Router), the scores the logits of ``CrossEncoder.predict``.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder
from sentence_transformers.cross_encoder.modules import LogitScore

from baselines.retrieve.devices import batch_tokens
from baselines.retrieve.models import prompt_of
from builders.core.errors import InputError
from builders.core.jobs import can_start_processes, in_order, in_threads, start_worker

Halves = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]
Compute = Callable[[dict[str, Any]], Any]  # of the tokens of a batch
Result = TypeVar("Result")
_AHEAD = 8  # batches that a thread tokenises before they are needed
_AHEAD_EACH = 2  # that a process does
MANY = 100_000  # texts at once for which processes are started
_BYTES_A_TOKEN = 3  # UTF-8: of a Chinese character, and about that of a piece of an English word
_MOST = 2_048  # texts in a batch, however short
_LONG = "的 " * 5_000
_ROWS = 1 << 14  # widened at a time: 50 MB in 32 bits at 768 dimensions


class Prefetcher:
    """Tokenises batches of texts (of a query and a passage each, for a cross-encoder) while earlier ones are computed.

    Args:
        model: the SentenceTransformer or CrossEncoder whose ``preprocess`` is called; processes get it without weights.
        given: what else ``preprocess`` is given: the prompt, the task.
        processes: how many, for :data:`MANY` texts at once or more; a thread for fewer, or where 0. They are started
            once and end with this object.
        pin: put the tensors into memory that a GPU reads while it computes.
    """

    def __init__(self, model: Any, given: dict[str, Any], processes: int = 0, *, pin: bool = False) -> None:
        self._model, self._given, self._processes, self._pin = model, given, processes, pin
        self._pool: ProcessPoolExecutor | None = None
        if processes and can_start_processes():
            # Not forked: this process has threads, and may hold a GPU.
            context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
            given_to_each = without_weights(model), given
            self._pool = ProcessPoolExecutor(processes, context, initializer=_start, initargs=given_to_each)

    def tokens(self, texts: list[Any]) -> dict[str, Any]:
        """The tokens of one batch, at once."""
        return preprocess(self._model, texts, **self._given)

    def __call__(self, batches: Iterable[list[Any]], texts: int = MANY) -> Iterator[dict[str, Any]]:
        """The tokens of every batch, ``texts`` in all. Raises :class:`.jobs.WorkerDied` where a process is killed."""
        if self._pool is None or texts < MANY:
            yield from in_threads(lambda texts: self._pinned(self.tokens(texts)), batches, threads=1, ahead=_AHEAD)
            return
        for found in in_order(self._pool, _arrays, batches, ahead=_AHEAD_EACH * self._processes):
            yield self._pinned(
                {name: torch.from_numpy(each) if isinstance(each, np.ndarray) else each for name, each in found.items()}
            )

    def _pinned(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._pin:
            found = {name: each.pin_memory() if torch.is_tensor(each) else each for name, each in found.items()}
        return found


def preprocess(model: Any, texts: Sequence[Any], **given: Any) -> dict[str, Any]:
    """Return what ``model.preprocess(texts, **given)`` returns, of a SentenceTransformer or a CrossEncoder.

    transformers walks through every number in Python before it makes a tensor, which takes a third of the time: it is
    asked for plain lists (``processing_kwargs`` is the library's option for that), and NumPy makes the tensors. But
    where the library itself looks at the tensors: of queries that are expanded, and of what is padded on the left.
    """
    if isinstance(model, MultiVectorEncoder) or any(isinstance(module, LogitScore) for module in model):
        found: dict[str, Any] = model.preprocess(list(texts), **given)
        return found
    found = model.preprocess(list(texts), processing_kwargs={"common": {"return_tensors": None}}, **given)
    return {name: torch.from_numpy(np.array(value)) if _is_rows(value) else value for name, value in found.items()}


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], list)


def without_weights(model: torch.nn.Module) -> Any:
    """A copy of a model whose weights have shapes but no numbers (device meta): its tokenizer and settings."""
    weights = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor.detach().to("meta") for tensor in weights})


_own: dict[str, Any] = {}  # what a process tokenises by


def _start(model: Any, given: dict[str, Any]) -> None:
    start_worker()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have processes of their own
    _own.update(model=model, **given)


def _arrays(texts: list[Any]) -> dict[str, Any]:
    """As ``preprocess``, with arrays: a tensor would lie in shared memory, which dies with its process."""
    found = preprocess(texts=texts, **_own)
    return {name: each.numpy() if torch.is_tensor(each) else each for name, each in found.items()}


class Side:
    """A model that is given texts in batches: an encoder for queries or for passages, or a cross-encoder.

    Args:
        model: of sentence-transformers, on its device.
        task: query or document; empty for a cross-encoder.
        tokens: of a batch, padding included; None: as the device takes it.
        tokenizers: processes that tokenise many texts, 0 for a thread.
    """

    problem = "the model's embeddings hold numbers that 16 bits cannot"

    def __init__(self, model: Any, task: str, tokens: int | None = None, tokenizers: int = 0) -> None:
        self.model, self.task, self.device = model, task, torch.device(model.device)
        self._tokens = tokens or batch_tokens(self.device.type)
        given = {"prompt": prompt_of(model, task), **({"task": task} if task else {})}
        self._prefetcher = Prefetcher(model, given, tokenizers, pin=self.device.type == "cuda")
        # Of a text that is longer than the model reads. It also sets the tokenizer up, which no thread may do later.
        self._longest = int(self._prefetcher.tokens([_LONG if task else ("的", _LONG)])["input_ids"].shape[-1])

    def batches(
        self, texts: Sequence[Any], compute: Callable[[dict[str, Any]], Result]
    ) -> Iterator[tuple[npt.NDArray[np.int64], Result]]:
        """(the numbers of the texts of a batch, ``compute`` of its tokens), for every batch."""
        places = list(batches(np.array([_size(text) for text in texts], np.int64), self._longest, self._tokens))
        tokenised = self._prefetcher(([texts[number] for number in batch] for batch in places), len(texts))
        with torch.inference_mode():
            for batch, found in zip(places, tokenised, strict=True):
                moved = {
                    name: each.to(self.device, non_blocking=True) if torch.is_tensor(each) else each
                    for name, each in found.items()
                }
                yield batch, compute(moved)

    def computed(self, texts: Sequence[Any], compute: Compute) -> npt.NDArray[Any]:
        """``compute`` of all texts in the texts' order; nothing waits for the device before the last batch is queued.

        Raises :class:`InputError` where a number is not finite.
        """
        every: torch.Tensor | None = None
        for batch, computed in self.batches(texts, compute):
            if every is None:
                # Once for all: small results kept between large passing ones would split the memory of those.
                every = torch.empty((len(texts), *computed.shape[1:]), dtype=computed.dtype, device=self.device)
            every[torch.from_numpy(batch).to(self.device, non_blocking=True)] = computed
        assert every is not None  # there is a text
        found: npt.NDArray[Any] = every.cpu().numpy()
        self.expect_finite(found)
        return found

    def expect_finite(self, *found: npt.NDArray[Any]) -> None:
        """Refuse numbers that are not finite: the model's precision, or 16 bits, cannot hold what it computes."""
        if not all(np.isfinite(each).all() for each in found):
            raise InputError(f"{self.problem} (try --dtype bf16 or fp32)")


class Encoder(Side):
    """A dual-encoder's side for queries or for passages."""

    def encode(self, texts: Sequence[str]) -> Halves:
        """Embeddings, shape (texts, dimensions), in the texts' order; unit length where the model compares by cosine.

        Raises :class:`InputError` where a number is too large for 16 bits.
        """
        return self.computed(texts, self._embed)

    def _embed(self, features: dict[str, Any]) -> torch.Tensor:
        embeddings = self.model(features, task=self.task)["sentence_embedding"]
        if self.model.truncate_dim is not None:
            embeddings = embeddings[..., : self.model.truncate_dim]
        if self.model.similarity_fn_name == "cosine":
            embeddings = torch.nn.functional.normalize(embeddings.float(), dim=1)
        halves: torch.Tensor = embeddings.half()  # they stay on the device until all texts are done
        return halves


class CrossScorer(Side):
    """A cross-encoder's scores of (query, passage) pairs: logits, which, unlike its sigmoid, never meet at 1.

    Of two outputs it is their difference, which ranks as the probability of the second does.
    """

    problem = "the cross-encoder gives scores that are not finite"

    def __init__(self, model: CrossEncoder, tokens: int | None = None, tokenizers: int = 0) -> None:
        super().__init__(model, "", tokens, tokenizers)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Floats:
        """The logit of every pair, shape (pairs,), in the pairs' order."""
        return self.computed(pairs, self._score)

    def _score(self, features: dict[str, Any]) -> torch.Tensor:
        scores: torch.Tensor = self.model(features)["scores"]
        scores = scores.float().reshape(len(scores), -1)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores[:, 0]


def batches(sizes: npt.NDArray[np.int64], longest: int, tokens: int) -> Iterator[npt.NDArray[np.int64]]:
    """The numbers of the texts of each batch: texts of like sizes (bytes of UTF-8), the longest first.

    A batch has at most ``tokens`` tokens, padding included, as far as bytes tell; the same sizes give the same
    batches.
    """
    order = np.argsort(-sizes, kind="stable")
    expected = np.minimum(sizes[order] // _BYTES_A_TOKEN + 2, longest)
    start = 0
    while start < len(order):
        count = max(1, min(int(tokens // expected[start]), _MOST))
        count -= count % 8 if count > 8 else 0  # matrix units work on multiples of 8
        yield order[start : start + count]
        start += count


def widened(block: Halves) -> Floats:
    """The numbers in 32 bits. By PyTorch, which converts ten times as fast as NumPy does."""
    wide: Floats = torch.from_numpy(np.ascontiguousarray(block)).float().numpy()
    return wide


def largest_norm(block: Halves) -> float:
    """The length (Euclidean norm) of the longest row."""
    blocks = (widened(block[start : start + _ROWS]) for start in range(0, len(block), _ROWS))
    squares = [np.einsum("ij,ij->i", wide, wide).max() for wide in blocks]
    return float(np.sqrt(np.max(squares, initial=0)))


def _size(text: str | tuple[str, str]) -> int:
    return len(text.encode()) if isinstance(text, str) else sum(len(each.encode()) for each in text)
