"""What a model is trained on: rows of row numbers; texts are looked up batch by batch.

Nothing here grows with the texts. The judgments, the sampled negatives and the training queries' texts are held (some
40 MB for the paper's 86,395 queries and 222,395 positives with 4 negatives each), passages are read from
memory-mapped files (:mod:`baselines.passages`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, Sampler

from baselines.passages import Passages
from baselines.runs.lines import raw_lines
from baselines.runs.sets import read_judgments, read_queries
from baselines.train.recipe import Recipe
from builders.common.command import InputError, log
from builders.store.layout import SETS
from builders.store.reader import Release

Rows = npt.NDArray[np.int64]


@dataclass
class Pairs:
    """Every (query, positive passage) of a split, with the negatives sampled for it.

    Attributes:
        texts: the queries' texts.
        query: shape (pairs,), indexes into ``texts``.
        positive: shape (pairs,), rows of the collection.
        negatives: shape (pairs, k), rows of the collection.
        counts: what ``training.json`` says of them.
    """

    texts: list[str]
    query: Rows
    positive: Rows
    negatives: Rows
    counts: dict[str, int] = field(default_factory=dict)


def positives(
    release: Release, set_name: str, split: str, passages: Passages
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """(texts of the queries, rows of their positives) of a split, by query id; queries without a positive left out.

    Raises :class:`InputError` where the release lacks the split, or a judgment names a passage that is not there.
    """
    configs = SETS[set_name]
    for config in (configs.queries, configs.qrels):
        release.shards(config, split)  # raises
    judged = {q: [c for c, score in s.items() if score > 0] for q, s in read_judgments(release, configs, split).items()}
    texts = dict(read_queries(release, split, configs.queries))
    ids = [corpus for query in judged.values() for corpus in query]
    rows = passages.rows(ids)
    if (rows < 0).any():
        missing = ids[int(np.argmin(rows))]
        raise InputError(
            f"{int((rows < 0).sum())} judgments of {configs.qrels}/{split} name passages that {configs.corpus} lacks "
            f"({missing!r}); build the release again",
            path=release.path,
        )
    found, start = {}, 0
    for query, wanted in judged.items():
        if wanted and query in texts:
            found[query] = rows[start : start + len(wanted)].tolist()
        start += len(wanted)
    if not found:
        raise InputError(f"has no query with a positive passage in {configs.qrels}/{split}", path=release.path)
    return {query: texts[query] for query in found}, found


def read_negatives(path: Path, passages: Passages, queries: dict[str, list[int]]) -> dict[str, list[int]]:
    """Rows of the negatives of every query, from the JSON lines that ``mine`` writes; queries of other splits left out.

    Raises :class:`InputError` naming the line where it is no such line, or names a passage that is not there.
    """
    ids: list[str] = []
    at: list[tuple[str, int, int]] = []  # query, its number of negatives, its line
    for number, line in raw_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            query, negatives = row["query-id"], row["negative-ids"]
            if not isinstance(query, str) or not all(isinstance(each, str) for each in negatives):
                raise TypeError
        except (ValueError, TypeError, KeyError):
            expected = 'expected {"query-id": ID, "negative-ids": [ID, ...]}'
            raise InputError(expected, path=path, line=number) from None
        at.append((query, len(negatives), number))
        ids += negatives
    rows = passages.rows(ids)
    found, start = {}, 0
    for query, count, number in at:
        own = rows[start : start + count]
        if (own < 0).any():
            missing = ids[start + int(np.argmin(own))]
            raise InputError(f"the collection has no passage {missing!r}", path=path, line=number)
        if query in queries:
            good = set(queries[query])
            found[query] = [row for row in own.tolist() if row not in good]
        start += count
    if not found:
        raise InputError("has none of the queries that are trained on", path=path)
    return found


def read_pairs(release: Release, recipe: Recipe, passages: Passages, negatives: Path | None) -> Pairs:
    """The pairs of the recipe's split; each has ``data.negatives_per_positive`` of its query's negatives.

    They are drawn with the recipe's seed, for every pair anew, without repeats. Where the file has too few for a query,
    passages of the whole collection take the empty places (counted, and said).
    """
    data, seed = recipe.data, recipe.train.seed
    texts, judged = positives(release, data.set, data.split, passages)
    mined = read_negatives(negatives, passages, judged) if negatives else {}
    each = data.negatives_per_positive
    query, positive, sampled, filled = [], [], [], 0
    for number, (name, good) in enumerate(judged.items()):
        pool = mined.get(name, [])
        for row in good:
            query.append(number)
            positive.append(row)
            generator = np.random.default_rng([seed, len(positive)])
            drawn = [pool[n] for n in generator.choice(len(pool), min(each, len(pool)), replace=False)] if pool else []
            taken = {*good, *drawn}
            while len(drawn) < each and len(taken) < len(passages):
                other = int(generator.integers(len(passages)))
                if other not in taken:
                    drawn.append(other)
                    taken.add(other)
                    filled += 1
            if len(drawn) < each:
                raise InputError(f"has too few passages for {each} negatives of the query {name!r}", path=release.path)
            sampled.append(drawn)
    if filled and negatives:
        log.warning("%s has too few negatives: %d of %d are random passages", negatives, filled, len(positive) * each)
    counts = {"queries": len(texts), "positives": len(positive), "negatives": len(positive) * each - filled}
    counts["random_negatives"] = filled
    shape = (len(positive), each)
    return Pairs(list(texts.values()), np.array(query), np.array(positive), np.array(sampled).reshape(shape), counts)


class DualRows(Dataset[dict[str, Any]]):
    """A row a pair: ``query``, ``positive``, ``negative_1`` ... ``negative_k``, as texts."""

    def __init__(self, pairs: Pairs, passages: Passages) -> None:
        self.pairs, self.passages = pairs, passages
        self.column_names = ["query", "positive", *(f"negative_{n + 1}" for n in range(pairs.negatives.shape[1]))]

    def __len__(self) -> int:
        return len(self.pairs.positive)

    def __getitem__(self, index: int) -> dict[str, Any]:
        index %= len(self)
        rows = [int(self.pairs.positive[index]), *self.pairs.negatives[index].tolist()]
        texts = [self.pairs.texts[int(self.pairs.query[index])], *self.passages.texts(rows)]
        return dict(zip(self.column_names, texts, strict=True))

    def apart(self, index: int) -> tuple[int, int]:
        """What no two rows of a batch may share: the query, the positive (it would be another row's negative)."""
        return int(self.pairs.query[index]), -1 - int(self.pairs.positive[index])


class CrossRows(Dataset[dict[str, Any]]):
    """A row a (``query``, ``passage``) with its ``label``: 1.0 for a positive, 0.0 for each of its negatives."""

    def __init__(self, pairs: Pairs, passages: Passages) -> None:
        self.pairs, self.passages = pairs, passages
        self.column_names = ["query", "passage", "label"]
        self._rows = np.concatenate([pairs.positive[:, None], pairs.negatives], axis=1)

    def __len__(self) -> int:
        return int(self._rows.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        pair, place = divmod(index % len(self), self._rows.shape[1])
        (text,) = self.passages.texts([int(self._rows[pair, place])])
        return {"query": self.pairs.texts[int(self.pairs.query[pair])], "passage": text, "label": float(place == 0)}


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
    next batch, except where nothing else is left. Of every batch, process ``rank`` of ``world`` gets an equal,
    contiguous part: all processes together see what one alone would see.

    In epoch e, row r comes as e * rows + r.
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


def _cut(order: list[int], size: int, apart: Callable[[int], Iterable[int]]) -> Iterator[list[int]]:
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
            elif seen.isdisjoint(apart(row)):
                seen.update(apart(row))
                batch.append(row)
            else:
                kept.append(row)
        waiting.extendleft(reversed(kept))
        yield batch
