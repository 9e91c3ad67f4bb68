"""Training rows in seeded batches.

Passage texts are read batch by batch from memory-mapped files (:mod:`baselines.core.passages`).
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import Dataset, Sampler

from baselines.core.passages import CachedPassages
from baselines.train.training_pairs import PairRows
from builders.core.errors import InputError


class _Rows(Dataset[dict[str, Any]]):
    """Rows whose texts are read when a row is accessed. Among n rows, row r has the index e * n + r in epoch e."""

    def __init__(self, row_count: int, *column_names: str) -> None:
        self._row_count = row_count
        self.column_names = list(column_names)

    def __len__(self) -> int:
        return self._row_count


class DualRows(_Rows):
    """Rows of texts: ``query``, ``positive``, ``negative_1``, and so on, in one of the layouts of ``data.rows``.

    ``all-negatives``: one row for each pair, with its k negatives. ``one-negative``: k successive rows for each pair,
    with one negative each. Without negatives, both layouts have one row for each pair.
    """

    def __init__(self, pairs: PairRows, passages: CachedPassages, layout: str = "one-negative") -> None:
        self.pairs = pairs
        self.passages = passages
        negatives_per_pair = pairs.negatives.shape[1]
        self._rows_per_pair = max(1, negatives_per_pair) if layout == "one-negative" else 1
        self._negatives_per_row = negatives_per_pair // self._rows_per_pair
        negative_columns = [f"negative_{number + 1}" for number in range(self._negatives_per_row)]
        super().__init__(len(pairs.positive) * self._rows_per_pair, "query", "positive", *negative_columns)

    def __getitem__(self, index: int) -> dict[str, Any]:
        query_number, passage_rows = self._query_and_passages(index % len(self))
        texts = [self.pairs.texts[query_number], *self.passages.texts(passage_rows)]
        return dict(zip(self.column_names, texts, strict=True))

    def _query_and_passages(self, index: int) -> tuple[int, list[int]]:
        """Return the number of the query, and the collection's rows: the positive first, then the negatives."""
        pair, part = divmod(index, self._rows_per_pair)
        first_negative = part * self._negatives_per_row
        negatives = self.pairs.negatives[pair, first_negative : first_negative + self._negatives_per_row]
        return int(self.pairs.query[pair]), [int(self.pairs.positive[pair]), *negatives.tolist()]

    def distinct_values(self, index: int) -> list[int]:
        """Return the values that no two rows of a batch may share: the query and the passages.

        The passages of all other rows count as negatives of a query, so a shared passage could be both positive and
        negative. The library's NoDuplicatesBatchSampler has this rule, but it reads the texts of all rows.
        """
        query_number, passage_rows = self._query_and_passages(index)
        # Passages get negative numbers, so that no passage equals a query.
        return [query_number, *(-1 - row for row in passage_rows)]


class ScoredRows(DualRows):
    """Rows of texts as in :class:`DualRows`, and the teacher's scores ``label`` of the row's passages, in their order.

    ``teacher_scale``: factor of the scores.
    """

    def __init__(self, pairs: PairRows, passages: CachedPassages, layout: str, teacher_scale: float) -> None:
        super().__init__(pairs, passages, layout)
        assert pairs.scores is not None
        self._scores = pairs.scores * teacher_scale

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = super().__getitem__(index)
        pair, part = divmod(index % len(self), self._rows_per_pair)
        # The first column has the positive's score.
        first_negative = 1 + part * self._negatives_per_row
        negative_scores = self._scores[pair, first_negative : first_negative + self._negatives_per_row]
        return {**row, "label": [float(self._scores[pair, 0]), *negative_scores.tolist()]}


class CrossRows(_Rows):
    """One row for each ``query`` and ``passage``, with a ``label``: 1.0 for a positive, 0.0 for a negative."""

    def __init__(self, pairs: PairRows, passages: CachedPassages) -> None:
        self.pairs = pairs
        self.passages = passages
        # The first column has the positives.
        self._passage_rows = np.concatenate([pairs.positive[:, None], pairs.negatives], axis=1)
        super().__init__(int(self._passage_rows.size), "query", "passage", "label")

    def __getitem__(self, index: int) -> dict[str, Any]:
        pair, column = divmod(index % len(self), self._passage_rows.shape[1])
        (passage_text,) = self.passages.texts([int(self._passage_rows[pair, column])])
        query_text = self.pairs.texts[int(self.pairs.query[pair])]
        return {"query": query_text, "passage": passage_text, "label": float(column == 0)}


class QuestionRows(_Rows):
    """One row for each pair of questions, in the columns of :class:`CrossRows`. ``passage`` is the second question."""

    def __init__(self, question_pairs: Sequence[tuple[str, str, int]]) -> None:
        super().__init__(len(question_pairs), "query", "passage", "label")
        self._question_pairs = question_pairs

    def __getitem__(self, index: int) -> dict[str, Any]:
        first, second, label = self._question_pairs[index % len(self)]
        return {"query": first, "passage": second, "label": float(label)}


class PassageTextRows(_Rows):
    """One row for each passage: its ``text``, and ``visit``, a number that is unique for each passage and epoch."""

    def __init__(self, passages: CachedPassages) -> None:
        super().__init__(len(passages), "text", "visit")
        self.passages = passages

    def __getitem__(self, index: int) -> dict[str, Any]:
        (text,) = self.passages.texts([index % len(self)])
        return {"text": text, "visit": index}


@runtime_checkable
class RowsOfDistinctValues(Protocol):
    """Rows of which some must not be in the same batch: rows with a common value, for example :class:`DualRows`."""

    def distinct_values(self, index: int) -> Sequence[int]: ...


class TrainingBatches(Sampler[list[int]]):
    """The batches of one process for the whole training. The order of the batches depends only on the seed.

    An epoch is a random order of the rows, cut into batches of ``batch`` rows. An incomplete last batch is skipped.
    ``max_steps`` limits the number of batches (0: no limit).
    In a dual-encoder's batch, no two rows may share a query or a passage (:meth:`DualRows.distinct_values`). A row that
    would break this rule waits for the next batch. If no other rows remain, the rule is broken. The official code lacks
    this rule. Most of the official batches contain a query twice (512 of 889,580 rows, for 86,395 queries).

    Process ``rank`` of ``world`` gets an equal, contiguous share of every batch. Resumed and distributed trainings
    therefore see the same batches as a training in one process. The library's batch samplers cannot ensure this,
    because they carry state from epoch to epoch and serve one process only.
    """

    def __init__(
        self, rows: Any, batch: int, epochs: float, seed: int, *, max_steps: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self.rows = rows
        self.world = world
        self._seed = seed
        self._rank = rank
        # Rows per step over all processes: a multiple of ``world``, so that all processes get equal shares.
        self.batch = min(batch, len(rows)) // world * world
        if not self.batch:
            raise InputError(f"{len(rows)} training rows, in batches of {batch}, are too few for {world} processes")
        # Rows per step of this process. batch_size and drop_last are attributes of torch's BatchSampler, in whose place
        # the trainers use this object.
        self.batch_size = self.batch // world
        self.drop_last = True
        self.steps_per_epoch = len(rows) // self.batch
        self.steps = max(1, round(epochs * self.steps_per_epoch))
        if max_steps:
            self.steps = min(self.steps, max_steps)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        share_start = self._rank * self.batch_size
        for step, batch in zip(range(self.steps), self._batches_of_all_processes(), strict=False):
            epoch_start = step // self.steps_per_epoch * len(self.rows)
            yield [epoch_start + row for row in batch[share_start : share_start + self.batch_size]]

    def _batches_of_all_processes(self) -> Iterator[list[int]]:
        """Yield whole batches, as lists of rows, of one epoch after the other without an end."""
        for epoch in itertools.count():
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self.rows))
            if isinstance(self.rows, RowsOfDistinctValues):
                yield from _cut_apart(order.tolist(), self.batch, self.rows.distinct_values)
            else:
                used_rows = order[: self.steps_per_epoch * self.batch]
                for batch in used_rows.reshape(-1, self.batch):
                    yield batch.tolist()


def _cut_apart(
    order: list[int], batch_size: int, shared_values: Callable[[int], Collection[int]]
) -> Iterator[list[int]]:
    """Cut a list of rows into batches. Rows whose ``shared_values`` overlap go to different batches, if possible.

    A row that does not fit into a batch waits at the head of the line for the next batch::

        order a b c d ..., where a and b share a query, batches of 2:   [a, c]  [b, d]  ...
    """
    remaining = iter(order)
    waiting = deque[int]()
    for _ in range(len(order) // batch_size):
        batch: list[int] = []
        postponed: list[int] = []
        values_in_batch: set[int] = set()
        while len(batch) < batch_size:
            row = waiting.popleft() if waiting else next(remaining, None)
            if row is None:  # only conflicting rows remain, so the batch must accept one
                batch.append(postponed.pop(0))
                continue
            values = shared_values(row)
            if values_in_batch.isdisjoint(values):
                values_in_batch.update(values)
                batch.append(row)
            else:
                postponed.append(row)
        waiting.extendleft(reversed(postponed))
        yield batch
