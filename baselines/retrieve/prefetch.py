"""Batches of texts tokenised before they are needed, in their order: by a thread, or by processes a device.

The tokenizers of transformers cut the texts of a batch on all cores. What Python does with their result takes 0.1 ms a
passage, in one thread at a time, so one process reaches some 7,000 passages a second. Several processes reach more, but
each needs up to half a minute to load the libraries.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from torch.utils.data import DataLoader, Dataset, Sampler

from builders.core.jobs import can_start_processes, in_threads, loading

_AHEAD = 8  # batches that a thread tokenises before they are needed
_AHEAD_EACH = 2  # that a process does
MANY = 100_000  # texts at once for which processes are started


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
        self._model, self._with, self._pin = model, given, pin
        self._batches: _Batches | None = None
        if processes and can_start_processes():
            self._batches = _Batches()
            self._loader = DataLoader(
                _Identity(),
                batch_sampler=self._batches,
                collate_fn=functools.partial(_arrays, without_weights(model), given),
                num_workers=processes,
                prefetch_factor=_AHEAD_EACH,
                persistent_workers=True,
                worker_init_fn=_one_thread,
                # Not forked: this process has threads, and may hold a GPU.
                multiprocessing_context="forkserver" if sys.platform == "linux" else "spawn",
            )

    def tokens(self, texts: list[Any]) -> dict[str, Any]:
        """The tokens of one batch, at once."""
        return preprocess(self._model, texts, **self._with)

    def __call__(self, batches: Iterable[list[Any]], texts: int = MANY) -> Iterator[dict[str, Any]]:
        """The tokens of every batch, ``texts`` in all. Raises :class:`.jobs.WorkerDied` where a process is killed."""
        if self._batches is None or texts < MANY:
            yield from in_threads(lambda texts: self._pinned(self.tokens(texts)), batches, threads=1, ahead=_AHEAD)
            return
        self._batches.texts = batches
        with loading():
            for found in self._loader:
                arrays = found.items()
                yield self._pinned({k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in arrays})

    def _pinned(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._pin:
            found = {name: each.pin_memory() if torch.is_tensor(each) else each for name, each in found.items()}
        return found


class _Batches(Sampler[list[Any]]):
    """Each batch's texts, in the place of a sampler's numbers of rows. The texts change, the processes stay."""

    texts: Iterable[list[Any]] = ()

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.texts)


class _Identity(Dataset[Any]):
    def __getitem__(self, text: Any) -> Any:
        return text


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


def _arrays(model: Any, given: dict[str, Any], texts: list[Any]) -> dict[str, Any]:
    """As ``preprocess``, with arrays: a tensor would lie in shared memory, which dies with its process."""
    found = preprocess(model, texts, **given)
    return {name: each.numpy() if torch.is_tensor(each) else each for name, each in found.items()}


def _one_thread(_: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have processes of their own
