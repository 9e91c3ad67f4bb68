"""Failed queries of a two-stage search: did the first stage not find a positive, or did the second stage lose it?

A query fails if none of the first 10 passages of the second stage is positive. Each failed query has one reason:

==============  ====================================================================================================
reason          meaning
==============  ====================================================================================================
never found     the first stage has no positive, at any rank
ranked too low  the second stage has a positive that the first stage found, but behind rank 10
thrown out      the first stage found positives, but the second stage has none of them
==============  ====================================================================================================

A deeper or better first stage mends the first reason, a better second stage the second reason, and a larger number of
re-ranked passages the third reason.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from baselines.measure.groups import percent_with_interval
from baselines.measure.measures import count_missing_queries
from baselines.measure.qrels import Qrels
from baselines.measure.run_origin import read_record
from baselines.measure.significance import wilson
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.core.write_files import atomic_text
from builders.store.runs import Run

NEVER_FOUND = "never found"
TOO_LOW = "ranked too low"
THROWN_OUT = "thrown out"
REASONS = (NEVER_FOUND, TOO_LOW, THROWN_OUT)


@dataclass(frozen=True)
class FailedQuery:
    """A query without a positive in the top of the second stage.

    Attributes:
        reason: one of :data:`REASONS`.
        first_rank: rank of the best positive in the first stage, None if the first stage has no positive.
        second_rank: rank of the best positive in the second stage that the first stage found, None if there is none.
    """

    query_id: str
    reason: str
    first_rank: int | None
    second_rank: int | None


@dataclass(frozen=True)
class StageErrors:
    """The failed queries of two stages.

    Attributes:
        queries: number of queries with judged positives.
        depths: length of the longest list of each stage.
        failed: the failed queries, in the order of the judgments.
        first_hits: number of queries with a positive in the top of the first stage.
        gained: number of queries with a positive in the top of the second stage, but not of the first stage.
        lost: number of failed queries with a positive in the top of the first stage.
    """

    queries: int
    depths: tuple[int, int]
    failed: list[FailedQuery]
    first_hits: int
    gained: int
    lost: int


def find_stage_errors(first: Run, second: Run, qrels: Qrels, top_k: int) -> StageErrors:
    """Return the failed queries of the second stage. Warn if the second stage has passages that the first stage lacks.

    A query of the judgments that a run lacks has no passages in this run, with a warning. Raises :class:`InputError` if
    a run lacks all queries of the judgments.
    """
    for run in (first, second):
        missing_count = count_missing_queries(run, qrels)
        if missing_count:
            log.warning(
                "%s: lacks %d of %d queries; they have no passages", run.path, missing_count, len(qrels.positives)
            )
    failed: list[FailedQuery] = []
    first_hits = 0
    gained = 0
    lost = 0
    foreign_count = 0
    for query_id, positives in qrels.positives.items():
        first_list = list(dict.fromkeys(first.rankings.get(query_id, ())))
        second_list = list(dict.fromkeys(second.rankings.get(query_id, ())))
        # A re-ranking has only passages of the first stage.
        foreign_count += not set(second_list) <= set(first_list)
        is_first_hit = not positives.keys().isdisjoint(first_list[:top_k])
        is_second_hit = not positives.keys().isdisjoint(second_list[:top_k])
        first_hits += is_first_hit
        if is_second_hit:
            gained += not is_first_hit
            continue
        lost += is_first_hit
        first_positives = [passage_id for passage_id in first_list if passage_id in positives]
        failed.append(_explain_failure(query_id, first_list, second_list, first_positives))
    if foreign_count:
        log.warning(
            "%s: %d of %d queries have passages that %s lacks; expected a re-ranking of this run",
            second.path,
            foreign_count,
            len(qrels.positives),
            first.path,
        )
    depths = (_longest_list(first), _longest_list(second))
    return StageErrors(len(qrels.positives), depths, failed, first_hits, gained, lost)


def _explain_failure(
    query_id: str, first_list: Sequence[str], second_list: Sequence[str], first_positives: Sequence[str]
) -> FailedQuery:
    """Return a failed query with its reason. ``first_positives`` are the positives in ``first_list``, best first."""
    if not first_positives:
        return FailedQuery(query_id, NEVER_FOUND, None, None)
    first_rank = first_list.index(first_positives[0]) + 1
    second_ranks = [second_list.index(passage_id) + 1 for passage_id in first_positives if passage_id in second_list]
    if second_ranks:
        return FailedQuery(query_id, TOO_LOW, first_rank, min(second_ranks))
    return FailedQuery(query_id, THROWN_OUT, first_rank, None)


def _longest_list(run: Run) -> int:
    return max((len(set(passage_ids)) for passage_ids in run.rankings.values()), default=0)


def write_failed(path: Path, failed: Sequence[FailedQuery]) -> None:
    """Write the failed queries as JSON lines."""
    with atomic_text(path) as file:
        for query in failed:
            file.write(json.dumps(vars(query), ensure_ascii=False) + "\n")


def stage_report(errors: StageErrors, runs: tuple[Run, Run], top_k: int) -> Report:
    """Return the numbers of failed queries by reason, with Wilson intervals, and the latency of both stages.

    ``runs`` are the runs of the first and the second stage.
    """
    failed_count = len(errors.failed)
    reasons = [_count_reason(reason, errors) for reason in REASONS]
    names = [str(run.path) for run in runs]
    latencies = [_latency_of(run) for run in runs]
    value = {
        "first": names[0],
        "second": names[1],
        "top_k": top_k,
        "queries": errors.queries,
        "depths": list(errors.depths),
        "first_failed": errors.queries - errors.first_hits,
        "failed": failed_count,
        "gained": errors.gained,
        "lost": errors.lost,
        "reasons": reasons,
        "latency": latencies,
    }
    lines = [
        f"first stage:  {names[0]} (at most {errors.depths[0]} passages){_latency_text(latencies[0])}",
        f"second stage: {names[1]} (at most {errors.depths[1]} passages){_latency_text(latencies[1])}",
        "",
        f"without a positive in the top {top_k}, of {errors.queries:,} queries: first stage"
        f" {value['first_failed']:,}, second stage {failed_count:,} ({errors.gained:,} gained, {errors.lost:,} lost)",
        "",
    ]
    rows = []
    for counts in reasons:
        row = [counts["reason"], f"{counts['queries']:,}"]
        for share_name in ("of_failed", "of_queries"):
            share = counts[share_name]
            row.append("-" if share is None else percent_with_interval(share, counts["intervals"][share_name]))
        rows.append(row)
    header = ["reason", "queries", "% of failed", "% of queries"]
    lines.append("failed queries of the second stage, with 95 % intervals")
    lines.append(text_table(header, rows))
    return Report(value, "\n".join(lines), tables=[_reason_table(reasons)])


def _count_reason(reason: str, errors: StageErrors) -> dict[str, Any]:
    """Return the number of failed queries with a reason, and its shares of the failed and of all queries.

    Without failed queries, ``of_failed`` and its interval are None.
    """
    count = sum(query.reason == reason for query in errors.failed)
    counts: dict[str, Any] = {"reason": reason, "queries": count, "intervals": {}}
    for share_name, total in (("of_failed", len(errors.failed)), ("of_queries", errors.queries)):
        counts[share_name] = count / total if total else None
        counts["intervals"][share_name] = list(wilson(count, total)) if total else None
    return counts


def _reason_table(reasons: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each result of :func:`_count_reason`."""
    columns = ["reason", "queries"]
    share_columns = []
    for share_name in ("of_failed", "of_queries"):
        share_columns += [share_name, f"{share_name} low", f"{share_name} high"]
    rows = []
    for counts in reasons:
        row = [counts["reason"], counts["queries"]]
        for share_name in ("of_failed", "of_queries"):
            low, high = counts["intervals"][share_name] or (None, None)
            row += [counts[share_name], low, high]
        rows.append(row)
    title = "failed queries of the second stage, percent, with the limits of 95 % intervals"
    return Table([*columns, *share_columns], rows, title=title, percent_columns=share_columns)


def _latency_of(run: Run) -> dict[str, Any] | None:
    """Return the latency in a run's manifest, or None."""
    try:
        record = read_record(run)
    except InputError:  # reported by the check of the run's origin
        return None
    if record is None or record.query_latency is None:
        return None
    return structs.asdict(record.query_latency)


def _latency_text(latency: Mapping[str, Any] | None) -> str:
    """Return the latency as the end of a stage's line, "" if it is unknown."""
    if latency is None:
        return ""
    percentiles = ", ".join(f"{name} {latency[f'{name}_ms']:.1f} ms" for name in ("p50", "p95", "p99"))
    return f", {percentiles} a query"
