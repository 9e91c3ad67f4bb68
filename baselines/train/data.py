"""Training rows in seeded batches, and the dev sample on which the model is evaluated during training.

The test split is never read. Scores on the dev sample show whether the training makes progress. Do not compare these
scores with scores on the whole collection, which has millions more passages.

Memory holds the training queries' texts and the passages' row numbers in the collection: about 40 MB for the paper's
86,395 queries and 222,395 positives with 4 negatives each. Passage texts are read batch by batch from memory-mapped
files (:mod:`baselines.core.passages`).
"""

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, Sampler

from baselines.core.passages import Passages
from baselines.measure.measures import PAPER, official
from baselines.measure.qrels import Qrels, read_judgments, read_queries
from baselines.train.recipe import FROM_RELEASE, Recipe
from builders.core.errors import InputError, log
from builders.store.judgments import read_negative_ids
from builders.store.layout import REMOVED, SETS, base_set, is_for_tuning, set_of
from builders.store.reader import Release
from builders.store.runs import read_run

Rows = npt.NDArray[np.int64]
_ROWS_AT_ONCE = 4_096
_TOP = 20  # passages of a run that a cross-encoder re-ranks for each dev query


@dataclass
class Pairs:
    """Every (query, positive passage) pair of a split, with its sampled negatives.

    Attributes:
        texts: the texts of the queries.
        query: indexes into ``texts``, shape (pairs,).
        positive: rows of the collection, shape (pairs,).
        negatives: rows of the collection, shape (pairs, k).
        counts: the numbers of queries, positives and negatives, for ``training.json``.
    """

    texts: list[str]
    query: Rows
    positive: Rows
    negatives: Rows
    counts: dict[str, int] = field(default_factory=dict)


def positives(
    release: Release, set_name: str, split: str, passages: Passages, similar: bool = False
) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the query texts of a split and the rows of the positive passages, by query id.

    Queries without a positive are skipped. ``similar``: also return the training questions that were removed as similar
    to dev or test questions (Section 2.3).

    Raises :class:`InputError` if the release lacks the split, or the collection lacks a judged passage.
    """
    configs = set_of(set_name)
    for config in (configs.queries, configs.qrels):
        release.shards(config, split)  # raises InputError if the split is missing
    scores = read_judgments(release, configs, split)
    texts = dict(read_queries(release, split, configs.queries))
    if similar:
        scores |= read_judgments(release, configs, split, REMOVED)
        texts |= read_queries(release, split, REMOVED)
    judged = {query: [corpus for corpus, score in own.items() if score > 0] for query, own in scores.items()}
    found = {query: own for query, own in _rows_of(judged, passages, release.path).items() if own and query in texts}
    if not found:
        raise InputError(f"has no query with a positive passage in {configs.qrels}/{split}", path=release.path)
    return {query: texts[query] for query in found}, found


def _rows_of(
    ids: Mapping[str, list[str]], passages: Passages, path: Path, lines: Mapping[str, int] | None = None
) -> dict[str, list[int]]:
    """Look up the rows of all passages at once, and return them by the keys of ``ids``: query ids, or lines.

    ``lines``: the line number of each key in ``path``. Raises :class:`InputError` if the collection lacks a passage.
    """
    rows = passages.rows([corpus for own in ids.values() for corpus in own])
    if (rows < 0).any():
        for query, own in ids.items():
            passages.expect(own, path, (lines or {}).get(query))
    each = iter(rows.tolist())
    return {query: list(itertools.islice(each, len(own))) for query, own in ids.items()}


def read_pairs(release: Release, recipe: Recipe, passages: Passages, negatives: Sequence[Path]) -> Pairs:
    """Return the (query, positive) pairs of the recipe's split, each with ``data.negatives_per_positive`` negatives.

    ``negatives``: files that `mine` wrote. A file may cover only some queries. Without files, the negatives come from
    the release or are random (``data.negatives``). A query's negatives of several files or lines are joined, and the
    recipe's seed shuffles them. The query's positives take negatives from this list in turn, and from its start again
    when the list ends. If a query has too few negatives for one positive, random passages are added.
    """
    data, each = recipe.data, recipe.data.negatives_per_positive
    texts, judged = positives(release, data.set, data.split, passages, data.similar)
    left_out = {query for query in judged if data.leave_out and is_for_tuning(query)}
    judged = {query: rows for query, rows in judged.items() if query not in left_out}
    hard: dict[str, list[int]] = {}
    for path in negatives if each else ():
        for name, rows in read_negatives(path, passages, judged).items():
            hard.setdefault(name, []).extend(rows)
    if each and not negatives and data.negatives == FROM_RELEASE:
        hard = release_negatives(release, data.set, data.split, passages, judged)
    query, positive, sampled, filled = [], [], [], 0
    for number, (name, good) in enumerate(judged.items()):
        generator = np.random.default_rng([recipe.train.seed, number])
        pool = list(dict.fromkeys(hard.get(name, [])))
        dealt = itertools.cycle(generator.permutation(pool).tolist())
        for row in good:
            query.append(number)
            positive.append(row)
            drawn: list[int] = list(itertools.islice(dealt, min(each, len(pool))))
            while len(drawn) < each and len({*good, *drawn}) < len(passages):
                other = int(generator.integers(len(passages)))
                if other not in good and other not in drawn:
                    drawn.append(other)
                    filled += 1
            if len(drawn) < each:
                raise InputError(f"has too few passages for {each} negatives of the query {name!r}", path=release.path)
            sampled.append(drawn)
    total = len(positive) * each
    if filled and hard:
        source = " and ".join(map(str, negatives)) or release.path
        log.warning("%s has too few negatives: %d of %d are random passages", source, filled, total)
    counts = {"queries": len(judged), "positives": len(positive)}
    counts |= {"negatives": total - filled, "random_negatives": filled}
    counts |= {"left_out": len(left_out)} if data.leave_out else {}
    sampled_rows = np.array(sampled).reshape(len(positive), each)
    return Pairs([texts[name] for name in judged], np.array(query), np.array(positive), sampled_rows, counts)


def read_negatives(path: Path, passages: Passages, queries: dict[str, list[int]]) -> dict[str, list[int]]:
    """Read a file that `mine` wrote, and return the rows of the negatives by query id.

    ``queries``: rows of the positives by query id. Other queries and these positives are skipped. Raises
    :class:`InputError` for a malformed line, or a passage that is not in the collection.
    """
    negatives = read_negative_ids(path)
    # A query may have several lines, so the rows are looked up by line.
    ids_by_line = {str(line): ids for _, ids, line in negatives}
    rows_by_line = _rows_of(ids_by_line, passages, path, {str(line): line for _, _, line in negatives})
    rows: dict[str, list[int]] = {}
    for query, _, line in negatives:
        rows.setdefault(query, []).extend(rows_by_line[str(line)])
    if not rows.keys() & queries.keys():
        raise InputError("has no negatives for the training queries; check the release and the split", path=path)
    return _without_positives(rows, queries)


def release_negatives(
    release: Release, set_name: str, split: str, passages: Passages, queries: dict[str, list[int]]
) -> dict[str, list[int]]:
    """Return the rows of the negatives by query id, from the column ``negative_passages`` of the joined config.

    These negatives come from the official dual.train.tsv and cross.train.tsv, without repetitions for a query. Raises
    :class:`InputError` if the release has no negatives, or if a negative is not in the collection.
    """
    config = SETS[base_set(set_name)].joined[split]
    columns = ["query_id", "negative_passages.list.element.docid"]
    rows: dict[str, list[int]] = {}
    for batch in release.batches(config, split, columns, rows=_ROWS_AT_ONCE):
        ids = {row["query_id"]: [each["docid"] for each in row["negative_passages"]] for row in batch.to_pylist()}
        rows |= _without_positives(_rows_of(ids, passages, release.path), queries)
    if not any(rows.values()):
        raise InputError(
            f"has no hard negatives in {config}/{split}, which data.negatives = release needs; build a release with "
            "`python -m builders official`, or give --negatives a file from `python -m baselines mine`",
            path=release.path,
        )
    return rows


def _without_positives(rows: dict[str, list[int]], queries: dict[str, list[int]]) -> dict[str, list[int]]:
    return {q: [row for row in own if row not in queries[q]] for q, own in rows.items() if q in queries}


class _Rows(Dataset[dict[str, Any]]):
    """Rows whose texts are read when a row is accessed. Among n rows, row r has the index e * n + r in epoch e."""

    def __init__(self, count: int, *column_names: str) -> None:
        self._count, self.column_names = count, list(column_names)

    def __len__(self) -> int:
        return self._count


class DualRows(_Rows):
    """Rows of texts: ``query``, ``positive``, ``negative_1``, and so on, in one of the layouts of ``data.rows``.

    ``all-negatives``: one row for each pair, with its k negatives. ``one-negative``: k successive rows for each pair,
    with one negative each. Without negatives, both layouts have one row for each pair.
    """

    def __init__(self, pairs: Pairs, passages: Passages, layout: str = "one-negative") -> None:
        self.pairs, self.passages = pairs, passages
        count = pairs.negatives.shape[1]
        self._rows_a_pair = max(1, count) if layout == "one-negative" else 1
        self._negatives = count // self._rows_a_pair  # per row
        names = (f"negative_{n + 1}" for n in range(self._negatives))
        super().__init__(len(pairs.positive) * self._rows_a_pair, "query", "positive", *names)

    def __getitem__(self, index: int) -> dict[str, Any]:
        query, rows = self._of(index % len(self))
        texts = [self.pairs.texts[query], *self.passages.texts(rows)]
        return dict(zip(self.column_names, texts, strict=True))

    def _of(self, index: int) -> tuple[int, list[int]]:
        """Return the number of the query, and the collection's rows: the positive first, then the negatives."""
        pair, part = divmod(index, self._rows_a_pair)
        own = self.pairs.negatives[pair, part * self._negatives : (part + 1) * self._negatives]
        return int(self.pairs.query[pair]), [int(self.pairs.positive[pair]), *own.tolist()]

    def apart(self, index: int) -> list[int]:
        """Return the values that no two rows of a batch may share: the query and the passages.

        The passages of all other rows count as negatives of a query, so a shared passage could be both positive and
        negative. The library's NoDuplicatesBatchSampler has this rule, but it reads the texts of all rows.
        """
        query, rows = self._of(index)
        return [query, *(-1 - row for row in rows)]  # negative numbers, so that no passage equals a query


class CrossRows(_Rows):
    """One row for each ``query`` and ``passage``, with a ``label``: 1.0 for a positive, 0.0 for a negative."""

    def __init__(self, pairs: Pairs, passages: Passages) -> None:
        self.pairs, self.passages = pairs, passages
        self._rows = np.concatenate([pairs.positive[:, None], pairs.negatives], axis=1)
        super().__init__(int(self._rows.size), "query", "passage", "label")

    def __getitem__(self, index: int) -> dict[str, Any]:
        pair, column = divmod(index % len(self), self._rows.shape[1])
        (text,) = self.passages.texts([int(self._rows[pair, column])])
        return {"query": self.pairs.texts[int(self.pairs.query[pair])], "passage": text, "label": float(column == 0)}


class QuestionRows(_Rows):
    """One row for each pair of questions, in the columns of :class:`CrossRows`. ``passage`` is the second question."""

    def __init__(self, pairs: Sequence[tuple[str, str, int]]) -> None:
        super().__init__(len(pairs), "query", "passage", "label")
        self._pairs = pairs

    def __getitem__(self, index: int) -> dict[str, Any]:
        first, second, label = self._pairs[index % len(self)]
        return {"query": first, "passage": second, "label": float(label)}


class PassageRows(_Rows):
    """One row for each passage: its ``text``, and ``visit``, a number that is unique for each passage and epoch."""

    def __init__(self, passages: Passages) -> None:
        super().__init__(len(passages), "text", "visit")
        self.passages = passages

    def __getitem__(self, index: int) -> dict[str, Any]:
        (text,) = self.passages.texts([index % len(self)])
        return {"text": text, "visit": index}


class Batches(Sampler[list[int]]):
    """The batches of one process for the whole training. The order of the batches depends only on the seed.

    An epoch is a random order of the rows, cut into batches of ``batch`` rows. An incomplete last batch is skipped.
    In a dual-encoder's batch, no two rows may share a query or a passage (:meth:`DualRows.apart`). A row that would
    break this rule waits for the next batch. If no other rows remain, the rule is broken. The official code lacks this
    rule. Most of the official batches contain a query twice (512 of 889,580 rows, for 86,395 queries).

    Process ``rank`` of ``world`` gets an equal, contiguous share of every batch. Resumed and distributed trainings
    therefore see the same batches as a training in one process. The library's batch samplers cannot ensure this,
    because they carry state from epoch to epoch and serve one process only.
    """

    def __init__(
        self, rows: Any, batch: int, epochs: float, seed: int, *, max_steps: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self.rows, self._seed, self._rank, self.world = rows, seed, rank, world
        self.batch = min(batch, len(rows)) // world * world
        if not self.batch:
            raise InputError(f"{len(rows)} training rows, in batches of {batch}, are too few for {world} processes")
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
            base = step // self.steps_per_epoch * len(self.rows)
            yield [base + row for row in batch[start : start + self.batch_size]]

    def _all(self) -> Iterator[list[int]]:
        for epoch in itertools.count():
            order = np.random.default_rng([self._seed, epoch]).permutation(len(self.rows))
            if apart := getattr(self.rows, "apart", None):
                yield from _cut(order.tolist(), self.batch, apart)
            else:
                whole = order[: self.steps_per_epoch * self.batch].reshape(-1, self.batch)
                yield from (batch.tolist() for batch in whole)


def _cut(order: list[int], size: int, apart: Callable[[int], Collection[int]]) -> Iterator[list[int]]:
    """Cut the order into batches of ``size`` rows. Rows whose ``apart`` values overlap go to different batches."""
    rest, waiting = iter(order), deque[int]()
    for _ in range(len(order) // size):
        batch, kept, seen = list[int](), list[int](), set[int]()
        while len(batch) < size:
            row = waiting.popleft() if waiting else next(rest, None)
            if row is None:  # only conflicting rows remain, so the batch must accept one
                batch.append(kept.pop(0))
            elif seen.isdisjoint(own := apart(row)):
                seen.update(own)
                batch.append(row)
            else:
                kept.append(row)
        waiting.extendleft(reversed(kept))
        yield batch


@dataclass
class Sampled:
    """Dev sample for a dual-encoder: some dev queries, all their positives, and random passages of the collection.

    Attributes:
        queries, passages: texts by id.
        positive: the ids of the positive passages, by query id.
    """

    queries: dict[str, str]
    passages: dict[str, str]
    positive: dict[str, set[str]]

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Rank all passages of the sample for every query, and return the paper's measures."""
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

        depths: dict[str, Any] = {"mrr_at_k": [10], "accuracy_at_k": [1, 50]}
        depths |= {"precision_recall_at_k": [1], "ndcg_at_k": [1], "map_at_k": [1]}  # unused, but must not be empty
        found = InformationRetrievalEvaluator(
            self.queries, self.passages, self.positive, batch_size=batch, write_csv=False, **depths
        )(model)
        prefix = model.similarity_fn_name  # accuracy@k is the paper's Recall@k, a hit rate
        keys = (f"{prefix}_mrr@10", f"{prefix}_accuracy@1", f"{prefix}_accuracy@50")
        return {ours: float(found[key]) for ours, key in zip(PAPER.values(), keys, strict=True)}


@dataclass
class Reranked:
    """Dev sample for a cross-encoder: some dev queries, each with the top passages of a run.

    A positive outside the top passages counts as not found. The library's CrossEncoderRerankingEvaluator is not used,
    because it lacks Recall@1 and Recall@50, and rejects models with two outputs.

    Attributes:
        queries: texts by id.
        ranked: the top passages of each query in the run's order, as {query id: {passage id: text}}.
        positive: the ids of the positive passages, by query id.
        length: tokens of a (query, passage) pair, to size the batches.
    """

    queries: dict[str, str]
    ranked: dict[str, dict[str, str]]
    positive: dict[str, set[str]]
    length: int

    def measures(self, model: Any, batch: int) -> dict[str, float]:
        """Re-rank the top passages of the run with the model, and return the paper's measures."""
        from baselines.retrieve.encoder import CrossScorer

        pairs = [(self.queries[query], text) for query, own in self.ranked.items() for text in own.values()]
        scores = iter(CrossScorer(model, tokens=batch * self.length).scores(pairs).tolist())
        # Passages with equal scores are sorted by passage id, as in every run file.
        order = {query: sorted((-next(scores), corpus) for corpus in own) for query, own in self.ranked.items()}
        qrels = Qrels("dev sample", {query: dict.fromkeys(good, 1) for query, good in self.positive.items()})
        found = official({query: [corpus for _, corpus in own] for query, own in order.items()}, qrels)
        return {name: found[name] for name in PAPER.values()}


def dev_sample(release: Release, recipe: Recipe, passages: Passages, run: Path | None) -> Sampled | Reranked | None:
    """Return the dev sample for a recipe, or None if the training is not evaluated. Missing data is logged.

    ``run``: a run of the dev queries, which a cross-encoder re-ranks. Raises :class:`InputError` if the collection
    lacks a passage of the run.
    """
    data, name = recipe.data, base_set(recipe.data.set)
    configs = SETS[name]
    if not data.dev_queries or not recipe.train.evaluations or recipe.model.kind == "mlm":
        return None
    if not {(configs.queries, data.dev_split), (configs.qrels, data.dev_split)} <= set(release.splits()):
        log.info("no evaluation during training: %s has no split %r of %s", release.path, data.dev_split, name)
        return None
    if recipe.model.kind == "cross" and run is None:
        log.info("no evaluation during training: give a run of %s with --dev-run RUN", data.dev_split)
        return None
    texts, judged = positives(release, name, data.dev_split, passages)
    generator = np.random.default_rng([recipe.train.seed, 1])
    names = list(judged)
    chosen = [names[n] for n in sorted(generator.permutation(len(names))[: data.dev_queries].tolist())]
    queries = {name: texts[name] for name in chosen}
    if run is not None:
        good = {name: set(passages.ids(judged[name])) for name in chosen}
        return _reranked(run, queries, good, passages, data.passage_length)
    others = generator.integers(len(passages), size=data.dev_passages).tolist()
    order = sorted({*others, *(row for name in chosen for row in judged[name])})
    found = dict(zip(map(str, order), passages.texts(order), strict=True))
    return Sampled(queries, found, {name: set(map(str, judged[name])) for name in chosen})


def _reranked(
    run: Path, queries: dict[str, str], positive: dict[str, set[str]], passages: Passages, length: int
) -> Reranked | None:
    hits = read_run(run).hits
    ranked = {name: [corpus for corpus, _ in hits[name][:_TOP]] for name in queries if name in hits}
    if not ranked:
        log.warning("no evaluation during training: %s has none of the sampled dev queries", run)
        return None
    passages.expect((corpus for own in ranked.values() for corpus in own), run)
    found = {
        name: dict(zip(own, passages.texts(passages.rows(own).tolist()), strict=True)) for name, own in ranked.items()
    }
    return Reranked(queries, found, positive, length)
