"""Hard negatives for training: draw candidates from a run, and exclude candidates that score like a positive."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from baselines.core.passages import Passages
from baselines.measure.qrels import Qrels, read_queries
from builders.core.errors import InputError, log
from builders.core.files import atomic_text
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run, probability

if TYPE_CHECKING:  # rerankers loads PyTorch
    from baselines.retrieve.rerankers import Group, PairJob

    Score = Callable[[Sequence[Group]], list[list[float]]]

_CACHED_TEXTS = 1 << 16  # normalised passages in the cache; many queries share passages
_WINDOW = 256  # queries whose candidates are scored in one task


@dataclass(frozen=True)
class Limits:
    """Limits of a candidate's score. None means no limit.

    Attributes:
        margin: least distance below the best positive's score.
        relative_margin: least distance, as a share of the best positive's score (NV-Retriever, 2024: TopK-PercPos).
        max_score: highest score, regardless of the positives. RocketQA (2021) keeps a negative below 0.1.
    """

    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None

    @property
    def is_limited(self) -> bool:
        """True if there is at least one limit."""
        return self != Limits()

    def limit(self, positive_scores: Sequence[float]) -> float:
        """Return the highest score that a candidate may have, given the scores of the known positives."""
        limits = [math.inf] if self.max_score is None else [self.max_score]
        if positive_scores:
            # sentence-transformers uses the weakest positive instead of the best. In this data, the weakest positive
            # may share few words with the query, so that nearly every candidate would be excluded.
            best = max(positive_scores)
            if self.margin is not None:
                limits.append(best - self.margin)
            if self.relative_margin is not None:
                limits.append(best - abs(best) * self.relative_margin)  # abs: scores may be negative
        return min(limits)


@dataclass(frozen=True)
class Candidates:
    """Passages that may become the negatives of a query.

    Attributes:
        query_id: the query.
        passage_ids: the candidates, in random order.
        negative_count: number of negatives to select.
        positive_ids: the query's positives that the collection has.
    """

    query_id: str
    passage_ids: list[str]
    negative_count: int
    positive_ids: list[str]


class Selection(NamedTuple):
    """The negatives of a query, and the number of candidates that were excluded by their scores."""

    candidates: Candidates
    negative_ids: list[str]
    excluded_count: int


@dataclass(frozen=True)
class MinedNegatives:
    """A file of hard negatives that `mine` has written. Functions that take a path accept this object, too.

    Attributes:
        path: the file.
        queries: number of judged queries, each with a line in the file.
        queries_with_too_few: number of queries with fewer negatives than requested.
        queries_without: number of queries without any negative.
        excluded: number of candidates that score above the limits.
    """

    path: Path
    queries: int
    queries_with_too_few: int
    queries_without: int
    excluded: int

    def counts(self) -> dict[str, int]:
        """Return all values but the path, by name."""
        values = dataclasses.asdict(self)
        del values["path"]
        return values

    def __fspath__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class CandidateScorer:
    """A model that scores candidates. Worker processes get a copy.

    ``is_dual``: True for similarities of a dual-encoder, False for probabilities of a cross-encoder.
    """

    job: PairJob
    is_dual: bool

    def score(self, groups: Sequence[Group], device: str) -> list[list[float]]:
        """Return the scores of each query's passages, in order."""
        from baselines.retrieve.rerankers import score_groups, similarities

        if self.is_dual:
            return similarities(self.job, device, groups)
        scores = []
        for logits in score_groups(self.job, device, groups):
            scores.append([probability(logit) for logit in logits])
        return scores


def for_english(ranking: Run, release: Release, split: str) -> Run:
    """Give each English query without hits the hits of its Chinese original, which has the same judgments."""
    hits = dict(ranking.lazy_hits)
    for batch in release.batches(SETS["crosslingual"].queries, split, ["_id", "zh_id"]):
        for english_id, chinese_id in zip(batch["_id"].to_pylist(), batch["zh_id"].to_pylist(), strict=True):
            if english_id not in hits and chinese_id in hits:
                hits[english_id] = hits[chinese_id]
    return Run(ranking.path, hits)


def expect_judged_queries(ranking: Run, qrels: Qrels) -> None:
    """Log the number of judged queries that the run lacks. Raises :class:`InputError` if the run lacks all of them."""
    missing = sum(query_id not in ranking.lazy_hits for query_id in qrels.positives)
    if missing == len(qrels.positives):
        raise InputError(f"no matching query: has none of the {missing} queries of {qrels.name}", path=ranking.path)
    if missing:
        log.warning("%s lacks %d of %d queries", ranking.path, missing, len(qrels.positives))


def expect_top_passages(ranking: Run, passages: Passages, top_k: int) -> None:
    """Raise :class:`InputError` if the collection lacks one of the first ``top_k`` passages of a query."""
    # Ids are not collected, because millions of ids take more memory than the time to look up repeated ids is worth.
    top_hits = (hits[:top_k] for hits in ranking.lazy_hits.values())
    passages.expect((passage_id for hits in top_hits for passage_id, _ in hits), ranking.path)


def read_query_texts(release: Release, split: str, query_config: str, qrels: Qrels) -> dict[str, str]:
    """Return the queries' texts by id. Raises :class:`InputError` if a judged query has no text."""
    texts = dict(read_queries(release, split, query_config))
    for query_id in qrels.positives:
        if query_id not in texts:
            problem = f"judges the query {query_id!r}, which {query_config}/{split} lacks; build the release again"
            raise InputError(problem, path=qrels.name)
    return texts


def draw_candidates(
    ranking: Run,
    qrels: Qrels,
    passages: Passages,
    *,
    top_k: int,
    negatives_per_positive: int,
    seed: int,
    draw_all: bool,
) -> Iterator[Candidates]:
    """Yield the candidates of every judged query: its first ``top_k`` passages without positives, shuffled.

    A query gets ``negatives_per_positive`` candidates for each positive (Sections 3.1, A.2), or all candidates if
    ``draw_all`` is true. A candidate's text is compared with the positives only when the candidate is drawn.

    sentence-transformers' mine_hard_negatives is not used, because it searches with a dual-encoder and needs all texts
    and vectors in memory. Here, the run may come from BM25, and the collection may have 8 million passages.
    """

    @functools.lru_cache(_CACHED_TEXTS)
    def normalised_text(passage_id: str) -> str:
        """Return the passage's text without spaces, in one case and character width, to recognise copies."""
        (text,) = passages.texts(passages.rows([passage_id]).tolist())
        return "".join(unicodedata.normalize("NFKC", text).casefold().split())

    for query_id, grades in qrels.positives.items():
        rows = passages.rows(list(grades)).tolist()
        positive_ids = [passage_id for passage_id, row in zip(grades, rows, strict=True) if row >= 0]
        positive_texts = {normalised_text(passage_id) for passage_id in positive_ids}
        top_ids = dict.fromkeys(passage_id for passage_id, _ in ranking.lazy_hits.get(query_id, ())[:top_k])
        # A hash as sort key makes the order random, and independent of the passages' order in the run.
        shuffled_ids = sorted(
            top_ids, key=lambda passage_id: hashlib.sha256(f"{seed}\0{query_id}\0{passage_id}".encode()).digest()
        )
        negative_ids = (
            passage_id
            for passage_id in shuffled_ids
            if passage_id not in grades and normalised_text(passage_id) not in positive_texts
        )
        negative_count = negatives_per_positive * len(grades)
        drawn_ids = list(negative_ids if draw_all else itertools.islice(negative_ids, negative_count))
        yield Candidates(query_id, drawn_ids, negative_count, positive_ids)


def select_by_run(candidates: Iterable[Candidates], ranking: Run, limits: Limits) -> Iterator[Selection]:
    """Select the negatives of every query by the scores of the run."""
    for query in candidates:
        yield from select_within([(query.query_id, query)], functools.partial(_scores_of_run, ranking), limits)


def _scores_of_run(ranking: Run, groups: Sequence[Group]) -> list[list[float]]:
    """Return the scores of a run. A passage that the run lacks gets the score of the query's last hit."""
    scores: list[list[float]] = []
    for query_id, passage_ids in groups:
        hits = ranking.lazy_hits.get(query_id, [])
        score_of = dict(reversed(hits))  # if a passage occurs twice, the higher score wins
        scores.append([score_of.get(passage_id, hits[-1][1]) for passage_id in passage_ids] if hits else [])
    return scores


def select_by_model(
    candidates: Iterator[Candidates], texts: dict[str, str], scorer: CandidateScorer, limits: Limits
) -> Iterator[Selection]:
    """Select the negatives of every query by the scores of a model, on all devices. ``texts``: queries by id."""
    from baselines.retrieve.devices import over_devices

    tasks = _windows(candidates, texts, scorer, limits)
    for selections in over_devices(_select_window, tasks, scorer.job.reranker.work.devices):
        yield from selections


_Task = tuple[CandidateScorer, list[tuple[str, Candidates]], Limits]


def _windows(
    candidates: Iterator[Candidates], texts: dict[str, str], scorer: CandidateScorer, limits: Limits
) -> Iterator[_Task]:
    """Yield a task for each window of queries, with the queries' texts."""
    while window := list(itertools.islice(candidates, _WINDOW)):
        yield scorer, [(texts[query.query_id], query) for query in window], limits


def _select_window(task: _Task, device: str) -> list[Selection]:
    scorer, window, limits = task
    return select_within(window, functools.partial(scorer.score, device=device), limits)


def select_within(window: Sequence[tuple[str, Candidates]], score: Score, limits: Limits) -> list[Selection]:
    """Return each query's first ``negative_count`` candidates within the limits.

    ``window`` has pairs of a query's name for ``score`` and its candidates. Candidates are scored only when needed: as
    many as the query lacks, again and again, until it has enough or no candidate is left.
    """
    positives = [(name, query.positive_ids) for name, query in window]
    highest_scores = [limits.limit(positive_scores) for positive_scores in score(positives)]
    selected_ids: list[list[str]] = [[] for _ in window]
    scored_counts = [0] * len(window)
    while True:
        groups = []
        for number, (name, query) in enumerate(window):
            start = scored_counts[number]
            lacking_count = query.negative_count - len(selected_ids[number])
            next_ids = query.passage_ids[start : start + lacking_count]
            groups.append((name, next_ids))
            scored_counts[number] += len(next_ids)
        if not any(next_ids for _, next_ids in groups):
            break
        for number, scores in enumerate(score(groups)):
            for passage_id, value in zip(groups[number][1], scores, strict=True):
                if value <= highest_scores[number]:
                    selected_ids[number].append(passage_id)
    selections = []
    for number, (_, query) in enumerate(window):
        excluded_count = scored_counts[number] - len(selected_ids[number])
        selections.append(Selection(query, selected_ids[number], excluded_count))
    return selections


def write_negatives(
    out: Path, selections: Iterable[Selection], *, query_count: int, is_limited: bool
) -> MinedNegatives:
    """Write a line for each query, log the counts, and return them."""
    too_few = without = excluded = 0
    with atomic_text(out) as file:
        for query, negative_ids, excluded_count in progress(selections, total=query_count, unit="query", label="mine"):
            too_few += len(negative_ids) < query.negative_count
            without += not negative_ids
            excluded += excluded_count
            line = {"query-id": query.query_id, "negative-ids": negative_ids}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    if too_few:
        log.warning("%d of %d queries have too few negatives; %d of them have none", too_few, query_count, without)
    log.info("%s: negatives of %d queries", out, query_count)
    if is_limited:
        log.info("%d candidates were excluded because they score above the limits", excluded)
    return MinedNegatives(out, query_count, too_few, without, excluded)
