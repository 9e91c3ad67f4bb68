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
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from baselines.models.tokens import preprocess
from builders.core.jobs import can_start_processes, in_threads, loading

_AHEAD = 8  # batches that a thread tokenises before they are needed
_AHEAD_EACH = 2  # that a process does
MANY = 100_000  # texts at once for which processes are started


class Ahead:
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
        self._given: _Given | None = None
        if processes and can_start_processes():
            self._given = _Given()
            self._loader = DataLoader(
                _Itself(),
                batch_sampler=self._given,
                collate_fn=functools.partial(_arrays, without_weights(model), given),
                num_workers=processes,
                prefetch_factor=_AHEAD_EACH,
                persistent_workers=True,
                worker_init_fn=_one_thread,
                # Not forked: this process has threads, and may hold a GPU.
                multiprocessing_context="forkserver" if sys.platform == "linux" else "spawn",
            )

    def tokens(self, texts: list[Any]) -> dict[str, Any]:
        """One batch, here and now."""
        return preprocess(self._model, texts, **self._with)

    def __call__(self, batches: Iterable[list[Any]], texts: int = MANY) -> Iterator[dict[str, Any]]:
        """The tokens of every batch, ``texts`` in all. Raises :class:`.jobs.WorkerDied` where a process is killed."""
        if self._given is None or texts < MANY:
            yield from in_threads(lambda texts: self._pinned(self.tokens(texts)), batches, threads=1, ahead=_AHEAD)
            return
        self._given.batches = batches
        with loading():
            for found in self._loader:
                yield self._pinned({name: _tensor(each) for name, each in found.items()})

    def _pinned(self, found: dict[str, Any]) -> dict[str, Any]:
        if self._pin:
            found = {name: each.pin_memory() if torch.is_tensor(each) else each for name, each in found.items()}
        return found


class _Given(Sampler[list[Any]]):
    """What the loader takes for numbers of rows: each batch's texts. They change, the processes stay."""

    batches: Iterable[list[Any]] = ()

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.batches)


class _Itself(Dataset[Any]):
    def __getitem__(self, text: Any) -> Any:
        return text


def without_weights(model: torch.nn.Module) -> Any:
    """A copy of a model whose weights have shapes but no numbers (device meta): its tokenizer and settings."""
    weights = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor.detach().to("meta") for tensor in weights})


def _arrays(model: Any, given: dict[str, Any], texts: list[Any]) -> dict[str, Any]:
    """As ``preprocess``, with arrays: a tensor would lie in shared memory, which dies with its process."""
    found = preprocess(model, texts, **given)
    return {name: each.numpy() if torch.is_tensor(each) else each for name, each in found.items()}


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _one_thread(_: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the other cores have processes of their own
