"""Hard negatives for training: draw candidates from a run, and exclude candidates that score like a positive."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from baselines.core.passages import CachedPassages
from baselines.measure.qrels import Qrels, read_queries
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.finished_outputs import VerbCall
from builders.core.folders import key_of, work_beside
from builders.core.locks import temporary_folder
from builders.core.progress import show_progress
from builders.core.shares import report_share, share_receiver
from builders.core.write_files import atomic_text
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run, sigmoid

if TYPE_CHECKING:  # rerankers loads PyTorch
    from baselines.retrieve.rerankers import Group, PairJob

    Score = Callable[[Sequence[Group]], list[list[float]]]

_CACHED_TEXTS = 1 << 16  # normalised passages in the cache; many queries share passages
_QUERIES_PER_WINDOW = 256  # queries whose candidates are scored together


@dataclass(frozen=True)
class ScoreLimits:
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
        return self != ScoreLimits()

    def limit(self, positive_scores: Sequence[float]) -> float:
        """Return the highest score that a candidate may have, given the scores of the known positives."""
        highest_score = math.inf
        if self.max_score is not None:
            highest_score = self.max_score
        if positive_scores:
            # sentence-transformers uses the weakest positive instead of the best. In this data, the weakest positive
            # may share few words with the query, so that nearly every candidate would be excluded.
            best_positive = max(positive_scores)
            if self.margin is not None:
                highest_score = min(highest_score, best_positive - self.margin)
            if self.relative_margin is not None:
                # The absolute value, because scores may be negative.
                distance = abs(best_positive) * self.relative_margin
                highest_score = min(highest_score, best_positive - distance)
        return highest_score


@dataclass(frozen=True)
class NegativeCandidates:
    """Passages that may become the negatives of a query.

    Attributes:
        query_id: the query.
        passage_ids: the candidates, in random order.
        negative_count: number of negatives to select.
        positive_ids: the query's positives that the collection has.
        further_ids: candidates below the top passages, best first, for a query whose ``passage_ids`` are too few.
    """

    query_id: str
    passage_ids: list[str]
    negative_count: int
    positive_ids: list[str]
    further_ids: list[str] = dataclasses.field(default_factory=list)


class NegativeSelection(NamedTuple):
    """The negatives of a query, and the number of candidates that were excluded by their scores."""

    candidates: NegativeCandidates
    negative_ids: list[str]
    excluded_count: int


@dataclass(frozen=True)
class MinedNegatives:
    """The file that `mine` has written, with counts. Functions that take a path accept this object, too.

    Attributes:
        path: the file of hard negatives, or with --queries-file the file of a machine's labels.
        queries: number of judged queries, or of questions of --queries-file.
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
        """Return the scores of each query's passages, in order. ``groups``: (query text, passage ids) pairs."""
        from baselines.retrieve.rerankers import query_similarities, score_groups

        if self.is_dual:
            return query_similarities(self.job, device, groups)
        probabilities = []
        for logits in score_groups(self.job, device, groups):
            probabilities.append([sigmoid(logit) for logit in logits])
        return probabilities


def for_english(ranking: Run, release: Release, split: str) -> Run:
    """Give each English query without hits the hits of its Chinese original, which has the same judgments."""
    hits = dict(ranking.lazy_hits)
    # ``zh_id`` is the Chinese original of the English query ``_id``.
    for batch in release.batches(SETS["crosslingual"].queries, split, ["_id", "zh_id"]):
        for english_id, chinese_id in zip(batch["_id"].to_pylist(), batch["zh_id"].to_pylist(), strict=True):
            if english_id not in hits and chinese_id in hits:
                hits[english_id] = hits[chinese_id]
    return Run(ranking.path, hits)


def expect_judged_queries(ranking: Run, qrels: Qrels) -> None:
    """Log the number of judged queries that the run lacks. Raises :class:`InputError` if the run lacks all of them."""
    missing_count = sum(query_id not in ranking.lazy_hits for query_id in qrels.positives)
    if missing_count == len(qrels.positives):
        problem = f"no matching query: has none of the {missing_count} queries of {qrels.name}"
        raise InputError(problem, path=ranking.path)
    if missing_count:
        log.warning("%s lacks %d of %d queries", ranking.path, missing_count, len(qrels.positives))


def expect_top_passages(ranking: Run, passages: CachedPassages, top_k: int) -> None:
    """Raise :class:`InputError` if the collection lacks one of the first ``top_k`` passages of a query."""
    # Ids are not collected, because millions of ids take more memory than the time to look up repeated ids is worth.
    passages.expect(_top_passage_ids(ranking, top_k), ranking.path)


def _top_passage_ids(ranking: Run, top_k: int) -> Iterator[str]:
    for hits in ranking.lazy_hits.values():
        for passage_id, _ in hits[:top_k]:
            yield passage_id


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
    passages: CachedPassages,
    *,
    top_k: int,
    negatives_per_positive: int,
    seed: int,
    draw_all: bool,
    fill_to: int = 0,
) -> Iterator[NegativeCandidates]:
    """Yield the candidates of every query: its first ``top_k`` passages without positives and their copies, shuffled.

    A query gets ``negatives_per_positive`` candidates for each positive (Sections 3.1, A.2), or all candidates if
    ``draw_all`` is true. A candidate's text is compared with the positives only when the candidate is drawn. Passages
    down to the rank ``fill_to`` become further candidates. A query without positives has no labels, and gets
    ``negatives_per_positive`` candidates.

    sentence-transformers' mine_hard_negatives is not used, because it searches with a dual-encoder and needs all texts
    and vectors in memory. Here, the run may come from BM25, and the collection may have 8 million passages.
    """

    @functools.lru_cache(_CACHED_TEXTS)
    def normalised_text(passage_id: str) -> str:
        """Return the passage's text without spaces, in one case and character width, to recognise copies."""
        (text,) = passages.texts(passages.rows([passage_id]).tolist())
        return comparable_text(text)

    for query_id, grades in qrels.positives.items():
        # A sample of the collection may lack positives, which then have the row -1.
        rows = passages.rows(list(grades)).tolist()
        positive_ids = [passage_id for passage_id, row in zip(grades, rows, strict=True) if row >= 0]
        positive_texts = {normalised_text(passage_id) for passage_id in positive_ids}
        negative_count = negatives_per_positive * max(1, len(grades))

        # The default values are those of this query, not of the last query of the loop.
        def is_candidate(passage_id: str, grades: Any = grades, positive_texts: Any = positive_texts) -> bool:
            return passage_id not in grades and normalised_text(passage_id) not in positive_texts

        # Shuffle the top passages, then draw from the beginning.
        top_hits = ranking.lazy_hits.get(query_id, ())[:top_k]
        top_ids = {passage_id for passage_id, _ in top_hits}
        drawn_ids: list[str] = []
        for passage_id in _shuffle(top_ids, f"{seed}\0{query_id}\0"):
            if not draw_all and len(drawn_ids) == negative_count:
                break
            if is_candidate(passage_id):
                drawn_ids.append(passage_id)
        further_ids = []
        for passage_id, _ in ranking.lazy_hits.get(query_id, ())[top_k:fill_to]:
            if passage_id not in top_ids and is_candidate(passage_id):
                further_ids.append(passage_id)
        distinct_ids = list(dict.fromkeys(further_ids))  # a passage may occur twice in a run
        yield NegativeCandidates(query_id, drawn_ids, negative_count, positive_ids, distinct_ids)


def comparable_text(text: str) -> str:
    """Return a text without spaces, in one case and character width."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def _shuffle(passage_ids: Iterable[str], hash_prefix: str) -> list[str]:
    """Return ids in an order that is random for each ``hash_prefix``, and independent of the given order.

    Each id is sorted by a hash of the prefix and the id.
    """

    def sort_key(passage_id: str) -> bytes:
        return hashlib.sha256(f"{hash_prefix}{passage_id}".encode()).digest()

    return sorted(passage_ids, key=sort_key)


def select_by_run(
    candidates: Iterator[NegativeCandidates], ranking: Run, limits: ScoreLimits
) -> Iterator[list[NegativeSelection]]:
    """Select the negatives of every query by the scores of the run. Yield the selections of a window of queries."""
    score = functools.partial(_scores_of_run, ranking)
    for window in _split_windows(candidates, _QUERIES_PER_WINDOW):
        yield select_within([(query.query_id, query) for query in window], score, limits)


def _split_windows(candidates: Iterator[NegativeCandidates], query_count: int) -> Iterator[list[NegativeCandidates]]:
    """Yield the candidates of ``query_count`` queries at a time."""
    while True:
        window = list(itertools.islice(candidates, query_count))
        if not window:
            return
        yield window


def windows_with_files(
    candidates: Iterator[NegativeCandidates], query_texts: Mapping[str, str], work_folder: Path, query_count: int
) -> Iterator[tuple[list[tuple[str, NegativeCandidates]], Path]]:
    """Yield (text, candidates) of the queries of each window, and the file in which the window's result is saved."""
    for number, window in enumerate(_split_windows(candidates, query_count)):
        named_queries = [(query_texts[query.query_id], query) for query in window]
        yield named_queries, work_folder / f"window-{number:06d}.json"


def _scores_of_run(ranking: Run, groups: Sequence[Group]) -> list[list[float]]:
    """Return the scores of a run for (query id, passage ids) pairs. A query without hits has no scores.

    A passage that the run lacks gets the score of the query's last hit.
    """
    scores_by_group: list[list[float]] = []
    for query_id, passage_ids in groups:
        hits = ranking.lazy_hits.get(query_id, [])
        group_scores: list[float] = []
        if hits:
            _, last_score = hits[-1]
            score_of = dict(reversed(hits))  # if a passage occurs twice, the higher score wins
            group_scores = [score_of.get(passage_id, last_score) for passage_id in passage_ids]
        scores_by_group.append(group_scores)
    return scores_by_group


def select_by_model(
    candidates: Iterator[NegativeCandidates],
    query_texts: dict[str, str],
    scorer: CandidateScorer,
    limits: ScoreLimits,
    work_folder: Path,
) -> Generator[list[NegativeSelection], None, None]:
    """Select the negatives of every query by the scores of a model. Yield the selections of a window of queries.

    ``query_texts`` has the queries by id. All devices share the windows. The selections of each window are saved in
    ``work_folder``, which serves only one combination of the other arguments.
    """
    from baselines.retrieve.devices import over_devices

    windows = windows_with_files(candidates, query_texts, work_folder, _QUERIES_PER_WINDOW)
    tasks = ((scorer, queries, limits, selections_path) for queries, selections_path in windows)
    yield from over_devices(_select_for_task, tasks, scorer.job.reranker.work, work_folder)


# The model, (text, candidates) of each query, the limits, and the file of the selections.
_Task = tuple[CandidateScorer, list[tuple[str, NegativeCandidates]], ScoreLimits, Path]


class _SavedSelection(NamedTuple):
    """The entry of a query in the file of a window: the fields of :class:`NegativeSelection` without candidates."""

    negative_ids: list[str]
    excluded_count: int


def _select_for_task(task: _Task, device: str) -> list[NegativeSelection]:
    """Select the negatives of a window of queries. Selections in the window's file are reused."""
    from baselines.retrieve.vector_index import resume_or_run

    scorer, queries, limits, selections_path = task

    def is_complete(saved_selections: list[_SavedSelection]) -> bool:
        return len(saved_selections) == len(queries)

    def select() -> list[_SavedSelection]:
        selections = select_within(queries, functools.partial(scorer.score, device=device), limits)
        return [_SavedSelection(selection.negative_ids, selection.excluded_count) for selection in selections]

    saved_selections = resume_or_run(selections_path, list[_SavedSelection], is_complete, select)
    window_selections = []
    for (_, query), (negative_ids, excluded_count) in zip(queries, saved_selections, strict=True):
        window_selections.append(NegativeSelection(query, negative_ids, excluded_count))
    return window_selections


def select_within(
    queries: Sequence[tuple[str, NegativeCandidates]], score: Score, limits: ScoreLimits
) -> list[NegativeSelection]:
    """Return each query's first ``negative_count`` candidates within the limits.

    ``queries`` has pairs of a query's name for ``score`` and its candidates. Candidates are scored only when needed: as
    many as the query lacks, again and again, until it has enough or no candidate is left.
    """
    # Score the positives, from which the limits follow. The share of this part is an estimate: the first round scores
    # ``negative_count`` candidates of a query, and later rounds together about as many.
    positives = [(name, query.positive_ids) for name, query in queries]
    positive_count = sum(len(query.positive_ids) for _, query in queries)
    candidate_count = sum(min(query.negative_count, len(query.passage_ids)) for _, query in queries)
    finished_share = positive_count / max(1, positive_count + 2 * candidate_count)
    with _report_part(0, finished_share):
        highest_scores = [limits.limit(positive_scores) for positive_scores in score(positives)]

    selected_ids: list[list[str]] = [[] for _ in queries]
    scored_counts = [0] * len(queries)
    while True:
        # Collect as many further candidates as each query lacks.
        groups = []
        for number, (name, query) in enumerate(queries):
            start = scored_counts[number]
            lacking_count = query.negative_count - len(selected_ids[number])
            next_ids = query.passage_ids[start : start + lacking_count]
            groups.append((name, next_ids))
            scored_counts[number] += len(next_ids)
        if not any(next_ids for _, next_ids in groups):
            break
        # Nobody knows the number of rounds, so each round moves the bar by half of the rest.
        round_end = (finished_share + 1) / 2
        with _report_part(finished_share, round_end):
            scores_by_group = score(groups)
        finished_share = round_end
        for number, scores in enumerate(scores_by_group):
            _, next_ids = groups[number]
            for passage_id, candidate_score in zip(next_ids, scores, strict=True):
                if candidate_score <= highest_scores[number]:
                    selected_ids[number].append(passage_id)
    # Every scored candidate is either selected or excluded.
    selections = []
    for number, (_, query) in enumerate(queries):
        excluded_count = scored_counts[number] - len(selected_ids[number])
        selections.append(NegativeSelection(query, selected_ids[number], excluded_count))
    return selections


@contextlib.contextmanager
def _report_part(begin: float, end: float) -> Iterator[None]:
    """Let the shares that a part of a task reports move the task's bar from the share ``begin`` to ``end``."""
    receive_share = share_receiver.get()
    if receive_share is None:  # the bar belongs to another process
        yield
        return
    token = share_receiver.set(lambda part_share: receive_share(begin + part_share * (end - begin)))
    try:
        yield
    finally:
        share_receiver.reset(token)
    report_share(end)


@contextlib.contextmanager
def open_work_folder(out: Path, call: VerbCall | None) -> Iterator[Path]:
    """Yield a folder for the selections of a call of `mine`. The folder beside ``out`` survives an interruption.

    ``call`` is None if ``out`` is a stream, which has no folder.
    """
    if call is None:
        with temporary_folder(writable_cache()) as folder:
            yield folder
        return
    input_hashes = {name: dict(verb_input.hashes) for name, verb_input in call.inputs.items()}
    with work_beside(out, key_of([call.version, dict(call.options), input_hashes])) as folder:
        yield folder


def write_negatives(
    out: Path, windows: Iterable[list[NegativeSelection]], *, query_count: int, is_limited: bool
) -> MinedNegatives:
    """Write a line for each query, log the counts, and return them.

    ``windows`` is the result of :func:`select_by_run` or :func:`select_by_model`. ``query_count`` is the number of
    queries in all windows. ``is_limited``: True to log the number of candidates that score above the limits.
    """
    too_few_count = 0
    without_count = 0
    excluded_count = 0
    window_sizes = []  # numbers of queries, by which the bar moves
    for start in range(0, query_count, _QUERIES_PER_WINDOW):
        window_sizes.append(min(_QUERIES_PER_WINDOW, query_count - start))
    with atomic_text(out) as file, show_progress(total=query_count, unit="query", label="mine") as bar:
        for selections in bar.follow(windows, window_sizes):
            for selection in selections:
                query = selection.candidates
                too_few_count += len(selection.negative_ids) < query.negative_count
                without_count += not selection.negative_ids
                excluded_count += selection.excluded_count
                line = {"query-id": query.query_id, "negative-ids": selection.negative_ids}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
    if too_few_count:
        log.warning(
            "%d of %d queries have too few negatives; %d of them have none", too_few_count, query_count, without_count
        )
    log.info("%s: negatives of %d queries", out, query_count)
    if is_limited:
        log.info("%d candidates were excluded because they score above the limits", excluded_count)
    return MinedNegatives(out, query_count, too_few_count, without_count, excluded_count)
