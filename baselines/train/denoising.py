"""Denoised negatives as in RocketQA: a cross-encoder rejects candidates, and labels hidden positives and questions.

RocketQA (2021) keeps a retrieved passage as a negative if a cross-encoder's probability is below 0.1, and labels a
passage as positive above 0.9. A query's candidates are tried in this order, until the query has enough negatives::

    ranks 1 to top_k, in random order   ->   ranks top_k + 1 to fill_to, best first

Labels of a machine are never mixed with people's judgments. They are in files of their own, and each line names the
model (``labelled-by``). :func:`builders.store.judgments.read_machine_labels` reads these files.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from baselines.measure.qrels import read_queries
from baselines.train.hard_negatives import (
    CandidateScorer,
    MinedNegatives,
    NegativeCandidates,
    windows_with_files,
)
from builders.core.errors import InputError, log
from builders.core.progress import show_progress
from builders.core.write_files import atomic_text, write_text
from builders.store.layout import REMOVED, SETS
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release
from builders.text.likeness import normalise_text

# Queries that a cross-encoder scores between two saved results. An interruption costs the time of one window.
_QUERIES_PER_WINDOW = 64
MAX_SCORE = 0.1  # highest probability of a negative in RocketQA
_SCORE_DIGITS = 9  # identify a 32-bit number


@dataclass(frozen=True)
class DenoisingLimits:
    """Probabilities of the cross-encoder that label a passage.

    Attributes:
        max_score: highest probability of a negative (RocketQA: 0.1).
        positive_score: a passage above this probability is a hidden positive (RocketQA: 0.9).
        score_all: True to score all of the top passages, so that all hidden positives are found. False to score only
            as many candidates as the negatives need.
    """

    max_score: float
    positive_score: float
    score_all: bool


class DenoisedQuery(msgspec.Struct, frozen=True):
    """The labels of a query.

    Attributes:
        query_id: the query.
        negative_ids: passages that the cross-encoder rejects.
        hidden_positives: (passage id, probability) above the limit, best first.
        excluded_count: number of scored candidates above the limit of negatives.
        lacking_count: number of negatives that the query lacks.
    """

    query_id: str
    negative_ids: list[str]
    hidden_positives: list[tuple[str, float]]
    excluded_count: int
    lacking_count: int


def question_splits(release: Release) -> list[tuple[str, str]]:
    """Return every (config, split) with questions: those of all sets, and the removed training questions."""
    question_configs = {dataset_set.queries for dataset_set in SETS.values()} | {REMOVED}
    return [(config, split) for config, split in release.splits() if config in question_configs]


def unlabelled_questions(queries: OwnQueries, release: Release) -> dict[str, str]:
    """Return the texts of a file's questions by id, without the questions that the release has in any set and split.

    A question of dev or test must not become a training question, nor one that was removed as similar to these
    (Section 2.3). A question of train has labels already. Questions are compared as `similar` compares them, without
    case, character width, spaces and punctuation. Raises :class:`InputError` if no question is left, or if a question
    has the id of another question of the release.
    """
    release_ids = set()
    release_texts = set()
    for config, split in question_splits(release):
        for query_id, text in read_queries(release, split, config):
            release_ids.add(query_id)
            release_texts.add(normalise_text(text))
    questions: dict[str, str] = {}
    for query_id, text in queries.rows:
        if normalise_text(text) in release_texts:
            continue
        if query_id in release_ids:
            raise InputError(f"the id {query_id!r} belongs to another question of {release.path}", path=queries.name)
        questions[query_id] = text
    skipped_count = len(queries.texts) - len(questions)
    if not questions:
        raise InputError(f"has only questions of {release.path}; expected questions without labels", path=queries.name)
    if skipped_count:
        log.warning("%s: skipped %d questions that the release has", queries.name, skipped_count)
    return questions


# The model, (text, candidates) of each query, the limits, and the file in which the result is saved.
_Task = tuple[CandidateScorer, list[tuple[str, NegativeCandidates]], DenoisingLimits, Path]


def denoise_candidates(
    candidates: Iterator[NegativeCandidates],
    query_texts: Mapping[str, str],
    scorer: CandidateScorer,
    limits: DenoisingLimits,
    work_folder: Path,
) -> Generator[list[DenoisedQuery], None, None]:
    """Label the candidates of every query with a cross-encoder. Yield the labels of one window of queries at a time.

    ``query_texts`` has the queries' texts by id. All devices share the windows. The labels of each finished window are
    saved in ``work_folder``, from which an interrupted call resumes. A folder serves one call.
    """
    from baselines.retrieve.devices import over_devices

    windows = windows_with_files(candidates, query_texts, work_folder, _QUERIES_PER_WINDOW)
    tasks = ((scorer, queries, limits, result_path) for queries, result_path in windows)
    yield from over_devices(_denoise_window, tasks, scorer.job.reranker.work, work_folder)


def _denoise_window(task: _Task, device: str) -> list[DenoisedQuery]:
    """Label the queries of a window, or return the saved result of an interrupted call."""
    from baselines.retrieve.vector_index import resume_or_run

    scorer, queries, limits, result_path = task
    query_ids = [query.query_id for _, query in queries]

    def is_of_window(saved: list[DenoisedQuery]) -> bool:
        return [query.query_id for query in saved] == query_ids

    def label() -> list[DenoisedQuery]:
        return label_queries(queries, lambda groups: scorer.score(groups, device), limits)

    return resume_or_run(result_path, list[DenoisedQuery], is_of_window, label)


def label_queries(
    queries: Sequence[tuple[str, NegativeCandidates]], score: Any, limits: DenoisingLimits
) -> list[DenoisedQuery]:
    """Return the labels of each of the (text, candidates) pairs ``queries``, in order.

    ``score`` gets (text, passage ids) pairs and returns a list of probabilities for each pair. Candidates are scored in
    rounds, as many as a query lacks, until the query has enough negatives or no candidate is left. With
    ``limits.score_all``, the first round scores all of a query's top passages.
    """
    # The lists below have an entry for each query, in the order of ``queries``.
    negative_ids: list[list[str]] = [[] for _ in queries]
    hidden_positives: list[list[tuple[str, float]]] = [[] for _ in queries]
    excluded_counts = [0] * len(queries)
    scored_counts = [0] * len(queries)
    while True:
        groups = []
        for number, (text, query) in enumerate(queries):
            start = scored_counts[number]
            next_count = query.negative_count - len(negative_ids[number])
            # A query without top passages goes on to its further candidates at once.
            if start == 0 and limits.score_all and query.passage_ids:
                next_count = len(query.passage_ids)
            candidate_ids = query.passage_ids + query.further_ids
            next_ids = candidate_ids[start : start + next_count]
            groups.append((text, next_ids))
            scored_counts[number] += len(next_ids)
        if not any(next_ids for _, next_ids in groups):
            break
        for number, scores in enumerate(score(groups)):
            _, next_ids = groups[number]
            for passage_id, probability in zip(next_ids, scores, strict=True):
                if probability > limits.max_score:
                    excluded_counts[number] += 1
                elif len(negative_ids[number]) < queries[number][1].negative_count:
                    negative_ids[number].append(passage_id)
                if probability > limits.positive_score:
                    # Without digits that a 32-bit number does not have, the file of labels is shorter.
                    rounded_probability = float(f"{probability:.{_SCORE_DIGITS}g}")
                    hidden_positives[number].append((passage_id, rounded_probability))
    labelled = []
    for number, (_, query) in enumerate(queries):
        # Best first, and by id among equal probabilities.
        hidden = sorted(hidden_positives[number], key=lambda positive: (-positive[1], positive[0]))
        lacking_count = query.negative_count - len(negative_ids[number])
        labelled.append(
            DenoisedQuery(query.query_id, negative_ids[number], hidden, excluded_counts[number], lacking_count)
        )
    return labelled


def write_denoised(
    out: Path,
    windows: Iterable[list[DenoisedQuery]],
    *,
    query_count: int,
    labels_out: Path | None,
    query_texts: Mapping[str, str] | None,
    model_name: str,
    manifest: Mapping[str, Any],
) -> MinedNegatives:
    """Write the negatives and the machine's labels, log the counts, and return them.

    Args:
        out: file of negatives, with a line for each query. With ``query_texts``, the file of labels instead.
        windows: the result of :func:`denoise_candidates`.
        query_count: number of queries, for the progress bar.
        labels_out: file of hidden positives, with a line for each query that has any. None: not written.
        query_texts: texts of questions without labels. A question without a hidden positive gets no line.
        model_name: the cross-encoder, which every line of labels names.
        manifest: the model and the limits, for the manifest beside a file of labels.
    """
    negative_lines: list[str] = []
    label_lines: list[str] = []
    counts = {"too_few": 0, "without": 0, "excluded": 0, "hidden": 0, "labelled": 0}
    with show_progress(total=query_count, unit="query", label="mine") as bar:
        for window in windows:
            for query in window:
                counts["too_few"] += query.lacking_count > 0
                counts["without"] += not query.negative_ids
                counts["excluded"] += query.excluded_count
                counts["hidden"] += len(query.hidden_positives)
                counts["labelled"] += bool(query.hidden_positives)
                negative_lines.append(_json_line({"query-id": query.query_id, "negative-ids": query.negative_ids}))
                if query.hidden_positives:
                    label_lines.append(_label_line(query, query_texts, model_name))
                bar.update(1)
    # The manifest comes first, so that a complete file of labels always has one.
    labels_path = out if query_texts is not None else labels_out
    if labels_path is not None:
        content = {**manifest, "questions": counts["labelled"], "positives": counts["hidden"]}
        write_text(label_manifest(labels_path), json.dumps(content, ensure_ascii=False, indent=1) + "\n")
        _write_lines(labels_path, label_lines)
    if query_texts is None:
        _write_lines(out, negative_lines)
    _log_counts(out, counts, query_count, labels_path)
    return MinedNegatives(out, query_count, counts["too_few"], counts["without"], counts["excluded"])


def label_manifest(labels_path: Path) -> Path:
    """Return the path of the manifest beside a file of a machine's labels."""
    return labels_path.with_name(f"{labels_path.name}.manifest.json")


def describe_labels(model_name: str, model_hashes: Mapping[str, str], limits: DenoisingLimits) -> dict[str, Any]:
    """Return the manifest of a file of labels, without the counts.

    ``model_hashes``: the SHA-256 of the model's files by name, or the commit of a model on the hub.
    """
    return {
        "format": "dureader_retrieval machine labels",
        "labelled_by": model_name,
        "model_files": dict(model_hashes),
        "positive_score": limits.positive_score,
        "max_score": limits.max_score,
    }


def written_files(out: Path, labels_out: Path | None, *, has_labels: bool) -> list[Path]:
    """Return the files that :func:`write_denoised` writes.

    ``has_labels``: True if ``out`` itself is a file of labels, because the questions have no other labels.
    """
    files = [out]
    if labels_out is not None:
        files += [labels_out, label_manifest(labels_out)]
    if has_labels:
        files.append(label_manifest(out))
    return files


def _label_line(query: DenoisedQuery, query_texts: Mapping[str, str] | None, model_name: str) -> str:
    """Return a query's line in the file of labels.

    ``query_texts``: texts of questions without labels, whose lines also have the text and the negatives. None for
    training questions.
    """
    line: dict[str, Any] = {"query-id": query.query_id}
    if query_texts is not None:
        line["query"] = query_texts[query.query_id]
    line["labelled-by"] = model_name
    line["positive-ids"] = [passage_id for passage_id, _ in query.hidden_positives]
    line["positive-scores"] = [probability for _, probability in query.hidden_positives]
    # The negatives of a training question are in the file of negatives.
    line["negative-ids"] = query.negative_ids if query_texts is not None else []
    return _json_line(line)


def _json_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    with atomic_text(path) as file:
        for line in lines:
            file.write(line)


def _log_counts(out: Path, counts: Mapping[str, int], query_count: int, labels_path: Path | None) -> None:
    if counts["too_few"]:
        problem = "%d of %d queries have too few negatives; %d of them have none"
        log.warning(problem, counts["too_few"], query_count, counts["without"])
    log.info("%s: %d queries; the cross-encoder excluded %d candidates", out, query_count, counts["excluded"])
    if labels_path is not None:
        log.info("%s: %d positives of %d queries, by a machine", labels_path, counts["hidden"], counts["labelled"])
