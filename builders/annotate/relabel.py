"""Move false negatives of the training data, which re-rankers find, to the positives of a new release."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.annotate.annotate_options import WrittenFiles
from builders.annotate.pool import open_runs, scores_of, write_candidates
from builders.annotate.rounds import Pair
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import round_stat
from builders.core.write_files import write_text
from builders.release.answer_records import renew_answers
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import Judgments, read_judged, read_negative_ids
from builders.store.reader import Release
from builders.store.rejudge import replace_judgments
from builders.store.runs import Run, expect_run_file

SPLIT = "train"
MOVED_LIST = f"relabelled.{SPLIT}.jsonl"


@dataclass(frozen=True)
class HardNegatives:
    """The unjudged negatives of training queries.

    Attributes:
        by_query: passage ids by query id.
        judged: the judgments of the training queries.
        source: the file with the negatives, or None for the negatives of the training rows.
    """

    by_query: dict[str, list[str]]
    judged: Judgments
    source: Path | None

    @property
    def pairs(self) -> list[Pair]:
        """The (query id, passage id) pairs of ``by_query``, in its order."""
        pairs: list[Pair] = []
        for query_id, passage_ids in self.by_query.items():
            pairs += [(query_id, passage_id) for passage_id in passage_ids]
        return pairs


@dataclass(frozen=True)
class MoveRule:
    """The rule for a negative to become a positive: the options of the step `relabel`.

    Attributes:
        scale: conversion of each score (:func:`.pool.scores_of`).
        threshold: lowest score of a positive.
        agree: ``mean`` (the mean of the scores must reach the threshold) or ``all`` (each score must).
    """

    scale: str
    threshold: float
    agree: str

    def accepts(self, scores: Sequence[float]) -> bool:
        """True if the re-rankers' scores of a negative, after the conversion, make the negative a positive."""
        decisive = min(scores) if self.agree == "all" else mean_of(scores)
        return decisive >= self.threshold


def mean_of(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def find_negatives(release: Release, negatives_path: Path | None) -> HardNegatives:
    """Return each training query's unjudged negatives.

    They are read from the file ``negatives_path`` or, if it is None, from the training rows of the release. Raises
    :class:`InputError` if there are no such negatives, or if the corpus lacks a negative.
    """
    judged = read_judged(release, "qrels", SPLIT)
    train_ids = set(release.table("queries", SPLIT, ["_id"])["_id"].to_pylist())
    rows = _rows_of_release(release) if negatives_path is None else _rows_of_file(negatives_path)
    negatives_by_query: dict[str, list[str]] = {}
    for query_id, passage_ids in rows:
        # Judged passages are skipped. A positive is no negative, and no model overrides a person's judgment of 0.
        unjudged_ids = [passage_id for passage_id in passage_ids if passage_id not in judged.get(query_id, {})]
        if unjudged_ids and query_id in train_ids:
            earlier_ids = negatives_by_query.get(query_id, [])
            negatives_by_query[query_id] = list(dict.fromkeys(earlier_ids + unjudged_ids))
    negatives = HardNegatives(negatives_by_query, judged, negatives_path)
    error_path = negatives_path or release.path
    if not negatives_by_query:
        raise InputError(f"has no hard negatives of {SPLIT} queries; make some with `baselines mine`", path=error_path)
    candidate_ids = {passage_id for _, passage_id in negatives.pairs}
    unknown_ids = release.missing_ids("corpus", "corpus", candidate_ids)
    if unknown_ids:
        raise InputError(f"has a passage {unknown_ids[0]!r} that the corpus lacks", path=error_path)
    return negatives


def _rows_of_release(release: Release) -> Iterator[tuple[str, list[str]]]:
    """Yield (query id, passage ids) for the negatives of every training row."""
    for batch in release.batches(SPLIT, SPLIT, ["query_id", "negative_passages.list.element.docid"]):
        query_ids, negative_lists = (column.to_pylist() for column in batch.columns)
        for query_id, negatives in zip(query_ids, negative_lists, strict=True):
            yield query_id, [passage["docid"] for passage in negatives]


def _rows_of_file(negatives_path: Path) -> Iterator[tuple[str, list[str]]]:
    for query_id, passage_ids, _ in read_negative_ids(negatives_path):
        yield query_id, passage_ids


def write_negatives(run_path: Path, negatives: HardNegatives) -> WrittenFiles:
    """Write the negatives as a run for re-rankers. The score of a passage is 1 / its rank in the query's list.

    Return the path, and the numbers of negatives and queries.
    """
    scored: dict[str, list[tuple[str, float]]] = {}
    for query_id, passage_ids in negatives.by_query.items():
        scored[query_id] = [(passage_id, 1 / rank) for rank, passage_id in enumerate(passage_ids, 1)]
    write_candidates(run_path, scored, "negatives", SPLIT)
    candidate_count = sum(map(len, scored.values()))
    text = f"{candidate_count:,} candidates of {len(scored):,} queries: {run_path}"
    return WrittenFiles((run_path,), text, {"candidates": candidate_count, "queries": len(scored)})


def move_negatives(
    release: Release,
    out_path: Path,
    *,
    negatives: HardNegatives,
    runs: Sequence[Run | Path],
    rule: MoveRule,
) -> Report:
    """Write a release whose training positives include the negatives that the re-rankers score as positive.

    ``runs`` has the scores of each re-ranker. Return the numbers of moved pairs. Raises :class:`InputError` if a run
    lacks a negative, or is not in a file.
    """
    opened_runs, run_names = open_runs(runs)
    pairs = negatives.pairs
    scores_by_run = scores_of(pairs, opened_runs, rule.scale, "relabel candidates")

    moved_rows = _moved_rows(pairs, run_names, scores_by_run, rule)
    new_judged = {query_id: dict(relevance) for query_id, relevance in negatives.judged.items()}
    for row in moved_rows:
        new_judged.setdefault(row["query-id"], {})[row["corpus-id"]] = 1

    # The manifest records the rule, and the files that decided.
    source_paths = [expect_run_file(run) for run in opened_runs]
    if negatives.source is not None:
        source_paths.insert(0, negatives.source)
    build = {
        "verb": "relabel",
        "options": {
            "threshold": rule.threshold,
            "agree": rule.agree,
            "scale": rule.scale,
            "moved": len(moved_rows),
        },
        "sources": describe_files((path.name, path) for path in source_paths),
    }
    # A release that was relabelled before lists the moves of every relabelling.
    moved_lines = [f"{json.dumps(row, ensure_ascii=False)}\n" for row in moved_rows]
    moved_text = _earlier_list(release) + "".join(moved_lines)
    with draft_release(out_path, build, release) as draft:
        replace_judgments(draft, release, SPLIT, new_judged)
        renew_answers(draft, release, SPLIT, new_judged)
        write_text(draft.folder / MOVED_LIST, moved_text)
        draft.add_file(MOVED_LIST)
    log.info("%s: wrote the release; its %s lists the moved pairs", out_path, MOVED_LIST)

    # Each re-ranker alone, to see whether the ensemble differs.
    positive_counts: dict[str, int] = {}
    for run_name, run_scores in zip(run_names, scores_by_run, strict=True):
        positive_counts[run_name] = sum(score >= rule.threshold for score in run_scores)
    return _report(negatives, positive_counts, moved_rows)


def _moved_rows(
    pairs: Sequence[Pair],
    run_names: Sequence[str],
    scores_by_run: Sequence[Sequence[float]],
    rule: MoveRule,
) -> list[dict[str, Any]]:
    """Return the pairs that become positive, as rows of the list of moved pairs.

    ``scores_by_run`` has the scores of each run, in the order of ``pairs``. A row's ``score`` is the mean of the pair's
    scores.
    """
    moved_rows: list[dict[str, Any]] = []
    scores_by_pair = zip(*scores_by_run, strict=True)
    for (query_id, passage_id), pair_scores in zip(pairs, scores_by_pair, strict=True):
        if rule.accepts(pair_scores):
            row = {
                "query-id": query_id,
                "corpus-id": passage_id,
                "score": mean_of(pair_scores),
                "scores": dict(zip(run_names, pair_scores, strict=True)),
            }
            moved_rows.append(row)
    return moved_rows


def _earlier_list(release: Release) -> str:
    """Return the list of an earlier relabelling, with which the new list begins."""
    if any(entry.path == MOVED_LIST for entry in release.manifest.files):
        return release.verified_path(MOVED_LIST).read_text("utf-8")
    return ""


def _report(
    negatives: HardNegatives,
    positive_counts: dict[str, int],
    moved_rows: Sequence[dict[str, Any]],
) -> Report:
    """Return the numbers of moved pairs. ``positive_counts`` has the number of positive scores of each re-ranker."""
    positives_before = 0
    for relevance in negatives.judged.values():
        positives_before += sum(grade > 0 for grade in relevance.values())
    positives_after = positives_before + len(moved_rows)
    query_ids = set(negatives.judged)
    query_ids.update(negatives.by_query)
    query_count = len(query_ids)
    moved_queries = {row["query-id"] for row in moved_rows}
    inputs: dict[str, Any] = {"queries": query_count, "negatives": len(negatives.pairs)}
    results: dict[str, Any] = {
        "moved": len(moved_rows),
        "queries_with_moved": len(moved_queries),
        "per_query_before": round_stat(positives_before / query_count),
        "per_query_after": round_stat(positives_after / query_count),
    }
    figures = inputs | {"held_positive": positive_counts} | results
    summary = inputs | results
    return Report(
        figures,
        _text_of(figures),
        tables=[
            Table(list(summary), [list(summary.values())], text_columns=0),
            Table(("re-ranker", "scored as positive"), list(positive_counts.items())),
        ],
    )


def _text_of(figures: dict[str, Any]) -> str:
    """Format the figures of :func:`_report` for people."""
    run_texts = []
    for run_name, positive_count in figures["held_positive"].items():
        run_texts.append(f"{run_name} scores {positive_count:,} as positive")
    moved_share = figures["moved"] / figures["negatives"]
    lines = [
        f"moved {figures['moved']:,} of {figures['negatives']:,} negatives ({moved_share:.1%}), of"
        f" {figures['queries_with_moved']:,} of {figures['queries']:,} queries",
        "; ".join(run_texts),
        f"positives a query: {figures['per_query_before']:.2f} before, {figures['per_query_after']:.2f} after",
    ]
    return "\n".join(lines)
