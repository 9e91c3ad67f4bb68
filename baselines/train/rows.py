"""The rows that a model is trained on, joined with their texts one by one, and the batches in which they come.

Nothing here grows with the texts: passages are read from memory-mapped files (:mod:`baselines.retrieve.passages`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from baselines.retrieve.passages import Passages
from baselines.train.pairs import Pairs
from baselines.train.question_pairs import QuestionPair
from builders.core.errors import InputError


class DualRows(Dataset[dict[str, Any]]):
    """``query``, ``positive``, ``negative_1`` ... as texts, laid out as ``data.rows`` says.

    ``all-negatives``: a row a pair, with its k negatives. ``one-negative``: k rows a pair, one negative each, the rows
    of a pair one after the other; a row a pair where there are no negatives.
    """

    def __init__(self, pairs: Pairs, passages: Passages, layout: str = "one-negative") -> None:
        self.pairs, self.passages = pairs, passages
        count = pairs.negatives.shape[1]
        self._rows_a_pair = max(1, count) if layout == "one-negative" else 1
        self._negatives = count // self._rows_a_pair  # in a row
        self.column_names = ["query", "positive", *(f"negative_{n + 1}" for n in range(self._negatives))]

    def __len__(self) -> int:
        return len(self.pairs.positive) * self._rows_a_pair

    def __getitem__(self, index: int) -> dict[str, Any]:
        query, rows = self._of(index % len(self))
        texts = [self.pairs.texts[query], *self.passages.texts(rows)]
        return dict(zip(self.column_names, texts, strict=True))

    def _of(self, index: int) -> tuple[int, list[int]]:
        """(number of the query, rows of the collection: its positive, its negatives)."""
        pair, part = divmod(index, self._rows_a_pair)
        own = self.pairs.negatives[pair, part * self._negatives : (part + 1) * self._negatives]
        return int(self.pairs.query[pair]), [int(self.pairs.positive[pair]), *own.tolist()]

    def apart(self, index: int) -> list[int]:
        """What no two rows of a batch may share: the query, and any passage.

        A passage that is one row's positive and another's negative would be held against its own query. It is the rule
        of the library's NoDuplicatesBatchSampler, which reads the texts of all rows for it.
        """
        query, rows = self._of(index)
        return [query, *(-1 - row for row in rows)]


class CrossRows(Dataset[dict[str, Any]]):
    """A row a (``query``, ``passage``) with its ``label``: 1.0 for a positive, 0.0 for each of its negatives."""

    def __init__(self, pairs: Pairs, passages: Passages) -> None:
        self.pairs, self.passages = pairs, passages
        self.column_names = ["query", "passage", "label"]
        self._rows = np.concatenate([pairs.positive[:, None], pairs.negatives], axis=1)

    def __len__(self) -> int:
        return int(self._rows.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        pair, column = divmod(index % len(self), self._rows.shape[1])
        (text,) = self.passages.texts([int(self._rows[pair, column])])
        return {"query": self.pairs.texts[int(self.pairs.query[pair])], "passage": text, "label": float(column == 0)}


class QuestionRows(Dataset[dict[str, Any]]):
    """A row a pair of questions with its label: columns as of :class:`CrossRows`, the second in the passage's place."""

    def __init__(self, pairs: Sequence[QuestionPair]) -> None:
        self._pairs = pairs
        self.column_names = ["query", "passage", "label"]

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        pair = self._pairs[index % len(self)]
        return {"query": pair.first, "passage": pair.second, "label": float(pair.label)}


class PassageRows(Dataset[dict[str, Any]]):
    """A row a passage: ``text``, and ``visit``, a number that differs for every visit of every passage."""

    def __init__(self, passages: Passages) -> None:
        self.passages = passages
        self.column_names = ["text", "visit"]

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, index: int) -> dict[str, Any]:
        (text,) = self.passages.texts([index % len(self)])
        return {"text": text, "visit": index}


class Batches(Sampler[list[int]]):
    """The batches of one process for a whole training, in their order, as a function of the seed alone.

    An epoch is a random order of the rows, cut into batches of ``batch`` rows; what is left over (less than a batch) is
    skipped. Rows that must stay apart (the same query twice: its other positive would count as a negative) wait for the
    next batch, except where nothing else is left. The official code lets them meet: with 889,580 rows of 86,395
    queries, on average at least one pair of rows in each of its batches of 512. Of every batch, process ``rank`` of
    ``world`` gets an equal, contiguous share: all processes together see what one alone would see.

    In epoch e, row r comes as e * rows + r. The library's batch samplers keep a state from epoch to epoch and know of
    one process; a training that is taken up again, or spread over others, must see the same batches.
    """

    def __init__(
        self, rows: Any, batch: int, epochs: float, seed: int, *, max_steps: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self._rows, self._seed, self._rank, self.world = rows, seed, rank, world
        self.batch = min(batch, len(rows)) // world * world
        if not self.batch:
            raise InputError(f"{len(rows)} rows to train on, in batches of {batch}, are too few for {world} processes")
        self.batch_size = self.batch // world
        self.drop_last = True
        self.steps_per_epoch = len(rows) // self.batch
        steps = max(1, round(epochs * self.steps_per_epoch))
        self.steps = min(steps, max_steps) if max_steps else steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        start = self._rank * self.batch_size
        for step, batch in zip(range(self.steps), self._all(), strict=False):
            base = step // self.steps_per_epoch * len(self._rows)
            yield [base + row for row in batch[start : start + self.batch_size]]

    def _all(self) -> Iterator[list[int]]:
        epoch, apart = 0, getattr(self._rows, "apart", None)
        while True:
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))
            if apart is None:
                for start in range(0, self.steps_per_epoch * self.batch, self.batch):
                    yield order[start : start + self.batch].tolist()
            else:
                yield from _cut(order.tolist(), self.batch, apart)
            epoch += 1


def _cut(order: list[int], size: int, apart: Callable[[int], Collection[int]]) -> Iterator[list[int]]:
    """Batches of ``size`` rows in about the given order; rows whose ``apart`` overlap are in different ones."""
    rest, waiting = iter(order), deque[int]()
    for _ in range(len(order) // size):
        batch: list[int] = []
        seen: set[int] = set()
        kept: list[int] = []
        while len(batch) < size:
            row = waiting.popleft() if waiting else next(rest, None)
            if row is None:  # nothing that may stay in this batch is left
                batch.append(kept.pop(0))
            elif seen.isdisjoint(own := apart(row)):
                seen.update(own)
                batch.append(row)
            else:
                kept.append(row)
        waiting.extendleft(reversed(kept))
        yield batch
