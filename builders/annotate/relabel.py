"""Move false negatives of the training data, which re-rankers find, to the positives of a new release."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.annotate.annotate_options import Written
from builders.annotate.pool import open_runs, scores_of, write_candidates
from builders.annotate.rounds import Pair
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.results import Report, Table
from builders.core.tables import round_stat
from builders.release.answer_records import renew_answers
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import Judged, read_judged, read_negative_ids
from builders.store.reader import Release
from builders.store.rejudge import rejudge
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
    judged: Judged
    source: Path | None

    @property
    def pairs(self) -> list[Pair]:
        return [(query_id, passage_id) for query_id, ids in self.by_query.items() for passage_id in ids]


@dataclass(frozen=True)
class MoveRule:
    """The rule for a negative to become a positive, by the options of the step."""

    scale: str
    threshold: float
    agree: str

    def accepts(self, scores: Sequence[float]) -> bool:
        """True if the re-rankers' scores of a negative make the negative a positive."""
        decisive = min(scores) if self.agree == "all" else mean_of(scores)
        return decisive >= self.threshold


def mean_of(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def find_negatives(release: Release, path: Path | None) -> HardNegatives:
    """Return each training query's unjudged negatives, from the file ``path`` or, if None, from the training rows.

    Raises :class:`InputError` if there are no such negatives, or if the corpus lacks a negative.
    """
    judged = read_judged(release, "qrels", SPLIT)
    known_queries = set(release.table("queries", SPLIT, ["_id"])["_id"].to_pylist())
    by_query: dict[str, list[str]] = {}
    for query_id, passage_ids in _rows_of_release(release) if path is None else _rows_of_file(path):
        # Judged passages are skipped. A positive is no negative, and no model overrides a person's judgment of 0.
        unjudged = [passage_id for passage_id in passage_ids if passage_id not in judged.get(query_id, {})]
        if unjudged and query_id in known_queries:
            by_query[query_id] = list(dict.fromkeys([*by_query.get(query_id, []), *unjudged]))
    negatives = HardNegatives(by_query, judged, path)
    error_path = path or release.path
    if not by_query:
        raise InputError(f"has no hard negatives of {SPLIT} queries; make some with `baselines mine`", path=error_path)
    if missing := release.missing("corpus", "corpus", {passage_id for _, passage_id in negatives.pairs}):
        raise InputError(f"has a passage {missing[0]!r} that the corpus lacks", path=error_path)
    return negatives


def _rows_of_release(release: Release) -> Iterator[tuple[str, list[str]]]:
    """Yield (query id, passage ids) for the negatives of every training row."""
    for batch in release.batches(SPLIT, SPLIT, ["query_id", "negative_passages.list.element.docid"]):
        query_ids, negatives = (column.to_pylist() for column in batch.columns)
        for query_id, passages in zip(query_ids, negatives, strict=True):
            yield query_id, [passage["docid"] for passage in passages]


def _rows_of_file(path: Path) -> Iterator[tuple[str, list[str]]]:
    for query_id, passage_ids, _ in read_negative_ids(path):
        yield query_id, passage_ids


def write_negatives(path: Path, negatives: HardNegatives) -> Written:
    """Write the negatives as a run for re-rankers. The score of a passage is 1 / its place in the query's list.

    Return the path, and the numbers of negatives and queries.
    """
    scored: dict[str, list[tuple[str, float]]] = {}
    for query_id, passage_ids in negatives.by_query.items():
        scored[query_id] = [(passage_id, 1 / place) for place, passage_id in enumerate(passage_ids, 1)]
    write_candidates(path, scored, "negatives", SPLIT)
    candidate_count = sum(map(len, scored.values()))
    text = f"{candidate_count:,} candidates of {len(scored):,} queries: {path}"
    return Written((path,), text, {"candidates": candidate_count, "queries": len(scored)})


def move_negatives(
    release: Release, out: Path, *, negatives: HardNegatives, runs: Sequence[Run | Path], rule: MoveRule
) -> Report:
    """Write a release whose training positives include the negatives that the re-rankers score as positive.

    Return the numbers of moved pairs. Raises :class:`InputError` if a run lacks a negative.
    """
    opened_runs, run_names = open_runs(runs)
    pairs = negatives.pairs
    scores_by_run = scores_of(pairs, opened_runs, rule.scale, "relabel candidates")
    new_judged = {query_id: dict(relevance) for query_id, relevance in negatives.judged.items()}
    moved: list[dict[str, Any]] = []
    for (query_id, passage_id), *scores in zip(pairs, *scores_by_run, strict=True):
        if rule.accepts(scores):
            new_judged.setdefault(query_id, {})[passage_id] = 1
            by_name = dict(zip(run_names, scores, strict=True))
            moved.append({"query-id": query_id, "corpus-id": passage_id, "score": mean_of(scores), "scores": by_name})
    source_paths = [expect_run_file(run) for run in opened_runs]
    if negatives.source is not None:
        source_paths.insert(0, negatives.source)
    options = {"threshold": rule.threshold, "agree": rule.agree, "scale": rule.scale, "moved": len(moved)}
    sources = describe_files((path.name, path) for path in source_paths)
    # The new list begins with the list of an earlier relabelling.
    lines = [release.named(MOVED_LIST).read_text("utf-8") for file in release.manifest.files if file.path == MOVED_LIST]
    lines += [f"{json.dumps(row, ensure_ascii=False)}\n" for row in moved]
    with draft_release(out, {"verb": "relabel", "options": options, "sources": sources}, release) as draft:
        rejudge(draft, release, SPLIT, new_judged)
        renew_answers(draft, release, SPLIT, new_judged)
        write_text(draft.folder / MOVED_LIST, "".join(lines))
        draft.add_file(MOVED_LIST)
    log.info("%s: wrote the release; its %s lists the moved pairs", out, MOVED_LIST)
    held_positive: dict[str, int] = {}
    for run_name, scores in zip(run_names, scores_by_run, strict=True):
        held_positive[run_name] = sum(score >= rule.threshold for score in scores)
    return _report(negatives, held_positive, moved)


def _report(negatives: HardNegatives, held_positive: dict[str, int], moved: Sequence[dict[str, Any]]) -> Report:
    """Return the numbers of moved pairs. ``held_positive`` has the number of positive scores of each re-ranker."""
    positives_before = 0
    for relevance in negatives.judged.values():
        positives_before += sum(grade > 0 for grade in relevance.values())
    query_count = len({*negatives.judged, *negatives.by_query})
    counts: dict[str, Any] = {"queries": query_count, "negatives": len(negatives.pairs)}
    results: dict[str, Any] = {
        "moved": len(moved),
        "queries_with_moved": len({row["query-id"] for row in moved}),
        "per_query_before": round_stat(positives_before / query_count),
        "per_query_after": round_stat((positives_before + len(moved)) / query_count),
    }
    figures = {**counts, "held_positive": held_positive, **results}
    summary = counts | results
    return Report(
        figures,
        _text_of(figures),
        tables=[
            Table(list(summary), [list(summary.values())], text_columns=0),
            Table(("re-ranker", "scored as positive"), list(held_positive.items())),
        ],
    )


def _text_of(figures: dict[str, Any]) -> str:
    held = "; ".join(f"{name} scores {count:,} as positive" for name, count in figures["held_positive"].items())
    return (
        f"moved {figures['moved']:,} of {figures['negatives']:,} negatives"
        f" ({figures['moved'] / figures['negatives']:.1%}), of"
        f" {figures['queries_with_moved']:,} of {figures['queries']:,} queries\n{held}\n"
        f"positives a query: {figures['per_query_before']:.2f} before, {figures['per_query_after']:.2f} after"
    )
