"""The measures: the four official keys, and usual measures under the names of ir-measures.

The official ``recall@k`` is a hit rate: the share of queries with a positive passage in the top k. The paper prints
this measure as Recall@k (Section 3.2, Table 4), and ir-measures calls it ``Success@k``. Recall in the usual sense, the
share of all positives in the top k, is ``R@k`` here. All values are fractions.
"""

import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from baselines.measure.ir_measure_names import compute_measures, parse_measures
from baselines.measure.qrels import Qrels
from baselines.measure.ties import (
    EXPECTED,
    LISTED,
    count_tied_queries,
    expected_measure,
    expected_reciprocal_rank,
    expected_success,
    positive_blocks,
    without_repeats,
)
from builders.core.errors import InputError, UsageError, log
from builders.core.tables import format_percent
from builders.store.runs import Run

# The paper's names (Section 3.2) and the official script's keys.
PAPER = {"MRR@10": "MRR@10", "Recall@1": "recall@1", "Recall@50": "recall@50"}
OFFICIAL = (*PAPER.values(), "QueriesRanked")
IR_MEASURES = ("Success@1", "Success@5", "Success@10", "Success@50", "R@10", "R@50", "nDCG@10", "AP")

MRR_DEPTH = 10
LIST_DEPTH = 50  # the official script ignores lower ranks
# Share of queries with ties around a positive passage, from which a warning is logged.
_MANY_TIES = 0.1

Rankings = Mapping[str, Sequence[str]]
Values = npt.NDArray[np.float64]


def reciprocal_rank(rank: int | None) -> float:
    """Return 1 / rank for ranks 1 to 10, else 0."""
    return 0.0 if rank is None or rank > MRR_DEPTH else 1 / rank


def first_ranks(rankings: Rankings, qrels: Qrels) -> list[int | None]:
    """Return the rank (from 1) of the first positive passage of every reference query, in the reference's order.

    A repeated passage occupies a rank each time.
    """
    return [first_rank(rankings.get(query_id, ()), positives) for query_id, positives in qrels.positives.items()]


def first_rank(passage_ids: Sequence[str], positives: Container[str]) -> int | None:
    """Return the rank (from 1) of the first positive passage of one list, None if the list has no positive."""
    for rank, passage_id in enumerate(passage_ids, start=1):
        if passage_id in positives:
            return rank
    return None


def official_figures(rankings: Rankings, qrels: Qrels) -> dict[str, float]:
    """Return the official keys in the official order: fractions, and the count ``QueriesRanked``.

    Means are over all reference queries. A query that the run lacks counts as 0. ``QueriesRanked`` counts all queries
    of the run, including queries that the reference lacks.
    """
    values_by_query = paper_by_query(rankings, qrels)
    means: dict[str, float] = {}
    for column, key in enumerate(PAPER.values()):
        means[key] = exact_mean([query_values[column] for query_values in values_by_query])
    means["QueriesRanked"] = len(rankings)
    return means


def paper_by_query(rankings: Rankings, qrels: Qrels) -> list[tuple[float, float, float]]:
    """Return the measures of ``PAPER`` as fractions, for every reference query in the reference's order."""
    return [_paper_values(rank) for rank in first_ranks(rankings, qrels)]


def _paper_values(rank: int | None) -> tuple[float, float, float]:
    """Return the measures of ``PAPER`` for a query whose first positive passage has this rank."""
    is_in_list = rank is not None and rank <= LIST_DEPTH
    return reciprocal_rank(rank), float(rank == 1), float(is_in_list)


def per_query(
    rankings: Rankings,
    qrels: Qrels,
    names: Sequence[str] = IR_MEASURES,
    judged: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, list[float]]:
    """Return the values of each measure for every reference query, in the reference's order.

    A query that the run lacks has 0. A repeated passage counts only at its first rank, and later passages move up.
    ``names`` are in the notation of ir-measures. ``judged`` has the grades of positives and negatives by query and
    passage, for measures that use judged negatives (default: the positives).
    """
    measures_by_name = parse_measures(names)
    row_numbers = {query_id: row for row, query_id in enumerate(qrels.positives)}
    # Two names, for example RR@5 and MRR@5, can mean the same measure.
    values_by_measure = {measure: [0.0] * len(row_numbers) for measure in measures_by_name.values()}
    scores = _falling_scores(rankings, row_numbers)
    if scores:  # ir-measures fails on an empty run
        for metric in compute_measures(list(values_by_measure), judged or qrels.positives, scores):
            values_by_measure[metric.measure][row_numbers[metric.query_id]] = float(metric.value)
    return {name: list(values_by_measure[measure]) for name, measure in measures_by_name.items()}


def _falling_scores(rankings: Rankings, query_ids: Iterable[str]) -> dict[str, dict[str, float]]:
    """Convert rankings to strictly falling scores, because ir-measures sorts equal scores anew.

    Repeated passages, and queries without a ranking, are removed.
    """
    scores_by_query = {}
    for query_id in query_ids:
        unique_passages = dict.fromkeys(rankings.get(query_id, ()))
        if unique_passages:
            highest = len(unique_passages)
            scores = {passage_id: float(highest - position) for position, passage_id in enumerate(unique_passages)}
            scores_by_query[query_id] = scores
    return scores_by_query


def measure_rankings(rankings: Rankings, qrels: Qrels) -> tuple[dict[str, dict[str, float]], dict[str, list[float]]]:
    """Return (means under ``official`` and ``ir_measures``, values by query of RR@10 and ``IR_MEASURES``)."""
    by_query = per_query(rankings, qrels)
    means = {
        "official": official_figures(rankings, qrels),
        "ir_measures": {name: exact_mean(values) for name, values in by_query.items()},
    }
    return means, {"RR@10": reciprocal_ranks_by_query(rankings, qrels), **by_query}


def reciprocal_ranks_by_query(rankings: Rankings, qrels: Qrels) -> list[float]:
    """Return RR@10 for every reference query, in the reference's order."""
    return [reciprocal_rank(rank) for rank in first_ranks(rankings, qrels)]


def chosen_by_query(run: Run, qrels: Qrels, names: Iterable[str], ties: str) -> dict[str, list[float]]:
    """Return the values of further measures of :func:`.measure_names.resolve_measures` for every reference query.

    If ``ties`` is ``expected``, the values are means over all orders of ties. Grades are used where a measure has a use
    for them, as in ir-measures: gains of nDCG, and P(rel=2)@5. Otherwise, a passage is positive from grade 1 on.
    Passages of grade 0 or less are judged negatives.
    """
    chosen_names = list(names)
    if ties != EXPECTED:
        return per_query(run.rankings, qrels, chosen_names, qrels.judged())
    by_query: dict[str, list[float]] = {name: [] for name in chosen_names}
    for query_id, positives in qrels.positives.items():
        unique_ranking, scores = without_repeats(run.rankings.get(query_id, []), run.scores.get(query_id, np.empty(0)))
        blocks = positive_blocks(unique_ranking, scores, positives)
        for name, values in by_query.items():
            values.append(expected_measure(name, blocks, positives))
    return by_query


def measure_expected(run: Run, qrels: Qrels) -> tuple[dict[str, dict[str, float]], dict[str, list[float]]]:
    """Return the form of :func:`measure_rankings` for expectations over all orders of ties (:mod:`.ties`).

    The values by query also have the official keys, because ranks do not determine an expectation. A repeated passage
    counts each time for the official keys, and only in its first block for ir-measures.
    """
    official_values: dict[str, list[float]] = {name: [] for name in PAPER.values()}
    by_query: dict[str, list[float]] = {name: [] for name in IR_MEASURES}
    for query_id, positives in qrels.positives.items():
        ranking = run.rankings.get(query_id, [])
        scores = run.scores.get(query_id, np.empty(0))
        blocks = positive_blocks(ranking, scores, positives)
        official_values["MRR@10"].append(expected_reciprocal_rank(blocks, MRR_DEPTH))
        official_values["recall@1"].append(expected_success(blocks, 1))
        official_values["recall@50"].append(expected_success(blocks, LIST_DEPTH))
        unique_blocks = positive_blocks(*without_repeats(ranking, scores), positives)
        for name, values in by_query.items():
            values.append(expected_measure(name, unique_blocks, positives))
    official_means = {name: exact_mean(values) for name, values in official_values.items()}
    means = {
        "official": {**official_means, "QueriesRanked": len(run.rankings)},
        "ir_measures": {name: exact_mean(values) for name, values in by_query.items()},
    }
    return means, {"RR@10": official_values["MRR@10"]} | by_query | official_values


def measure_run(
    run: Run, qrels: Qrels, ties: str = LISTED, chosen: Sequence[str] = ()
) -> tuple[dict[str, Any], pa.Table]:
    """Measure one run. Returns (means, table of the values by query).

    ``chosen`` are names of :func:`.measure_names.resolve_measures`. The means have them under ``measures``, unless
    ``chosen`` is empty, and the table as columns.

    The means have ``run`` (path), ``queries`` (number of reference queries, the denominator of every mean), ``ties``
    (the rule, and the number of queries with ties around a positive passage), ``official`` and ``ir_measures``. The
    table has one row per reference query, in the reference's order. Its columns are ``run``, ``query_id``, RR@10,
    ``IR_MEASURES``, ``chosen``, ``positives`` (the number of the query's positives) and ``first_positive_rank`` (from
    1, null without a positive). Official keys have columns only if ``ties`` is ``expected`` (:func:`values_of`). Raises
    :class:`InputError` if run and reference share no query.

    If ``ties`` is ``expected``, the measures are means over all orders of ties. ``first_positive_rank`` is still the
    rank in the order of the run. :func:`.ties.order_ties` orders the ties of a run by id.
    """
    query_count = len(qrels.positives)
    # Warn about lists that differ from what the reference expects.
    missing_count = count_missing_queries(run, qrels)
    if missing_count:
        log.warning("%s: lacks %d of %d queries; they count as 0", run.path, missing_count, query_count)
    repeat_count = sum(len(set(passage_ids)) < len(passage_ids) for passage_ids in run.rankings.values())
    if repeat_count:
        log.warning("%s: %d queries list a passage more than once", run.path, repeat_count)
    tied_count = count_tied_queries(run, qrels, LIST_DEPTH)
    _report_ties(run, tied_count, query_count, ties)

    if ties == EXPECTED:
        means, by_query = measure_expected(run, qrels)
    else:
        means, by_query = measure_rankings(run.rankings, qrels)
    further_names = [name for name in chosen if name not in by_query and name not in PAPER.values()]
    if further_names:
        by_query = by_query | chosen_by_query(run, qrels, further_names, ties)

    columns = {
        "run": pa.array([str(run.path)] * query_count, pa.string()),
        "query_id": pa.array(list(qrels.positives), pa.string()),
    }
    for name, values in by_query.items():
        columns[name] = pa.array(values, pa.float64())
    columns["positives"] = pa.array([len(positives) for positives in qrels.positives.values()], pa.int64())
    columns["first_positive_rank"] = pa.array(first_ranks(run.rankings, qrels), pa.int64())
    result: dict[str, Any] = {
        "run": str(run.path),
        "queries": query_count,
        "ties": {"rule": ties, "queries": tied_count},
    }
    table = pa.table(columns)
    if chosen:
        means["measures"] = {name: exact_mean(values_of(table, name).tolist()) for name in chosen}
    return result | means, table


def count_missing_queries(run: Run, qrels: Qrels) -> int:
    """Return the number of reference queries that the run lacks. Raise :class:`InputError` if it lacks all of them."""
    missing_count = sum(query_id not in run.rankings for query_id in qrels.positives)
    if missing_count == len(qrels.positives):
        problem = f"no matching query: the run has none of the {missing_count} queries of {qrels.name}"
        raise InputError(problem, path=run.path)
    return missing_count


def _report_ties(run: Run, tied_count: int, query_count: int, ties: str) -> None:
    """Log the number of queries with ties around a positive passage, as a warning if there are many."""
    if not tied_count:
        return
    counts = (run.path, tied_count, query_count, LIST_DEPTH)
    if ties == EXPECTED:
        log.info(
            "%s: %d of %d queries have ties around a positive passage in the top %d; the measures are means over all "
            "orders of the ties",
            *counts,
        )
        return
    has_many_ties = tied_count >= _MANY_TIES * query_count
    log.log(
        logging.WARNING if has_many_ties else logging.INFO,
        "%s: %d of %d queries have ties around a positive passage in the top %d, so the measures depend on the order "
        "of equal scores; --ties expected measures the mean over all orders",
        *counts,
    )


def with_columns(table: pa.Table, by_query: Mapping[str, Sequence[float]]) -> pa.Table:
    """Return the table of :func:`measure_run` with further columns, one value per query."""
    for name, values in by_query.items():
        table = table.append_column(name, pa.array(values, pa.float64()))
    return table


def format_cells(means: Mapping[str, Any]) -> list[str]:
    """Format the means of :func:`measure_rankings` in percent: the paper's measures, then ``IR_MEASURES``."""
    return [format_percent(fraction) for fraction in mean_fractions(means)]


def mean_fractions(means: Mapping[str, Any]) -> list[float]:
    """Return the means of :func:`measure_rankings`: the paper's measures, then ``IR_MEASURES``."""
    paper_means = [means["official"][key] for key in PAPER.values()]
    return paper_means + [means["ir_measures"][name] for name in IR_MEASURES]


def exact_mean(values: Sequence[float]) -> float:
    """Return the mean. The sum is exact, so the order of the queries cannot change the mean."""
    return math.fsum(values) / len(values)


def values_of(by_query: pa.Table, measure: str) -> Values:
    """Return one value per query, as fractions, from a table of :func:`measure_run`.

    ``measure`` is an official key (MRR@10, recall@1, recall@50) or a column of the table. The mean of an official key's
    values is the official value. Raises :class:`UsageError` for another name.
    """
    if measure not in measure_names(by_query):
        raise UsageError(f"unknown measure {measure!r}; expected one of {', '.join(measure_names(by_query))}")
    # Official keys have columns only for expected ties. Otherwise the first ranks determine the values.
    if measure in OFFICIAL and measure not in by_query.column_names:
        value_number = OFFICIAL.index(measure)
        first_rank_column = by_query["first_positive_rank"].to_pylist()
        return np.array([_paper_values(rank)[value_number] for rank in first_rank_column])
    return np.asarray(by_query[measure].to_numpy(), np.float64)


def measure_names(by_query: pa.Table) -> list[str]:
    """Return the names of the table's measures: the official keys, then its columns of floating-point numbers."""
    float_columns = [field.name for field in by_query.schema if types.is_floating(field.type)]
    return list(dict.fromkeys([*PAPER.values(), *float_columns]))
