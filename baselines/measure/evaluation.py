"""Measure runs with the further figures of `evaluate` (groups, answers) and `errors` (holes, near-duplicates)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from baselines.measure.answer_recall import Ranks, answer_recall, first_answers, order_agreement, rank_columns
from baselines.measure.duplicates import duplicate_pairs, find_duplicates, measure_duplicates
from baselines.measure.groups import Groups, measure_groups
from baselines.measure.holes import measure_holes
from baselines.measure.measures import measure_run, with_columns
from baselines.measure.qrels import Qrels, read_queries
from baselines.measure.reading_budget import BudgetReadings, read_runs
from baselines.measure.run_measures import intervals_of_means
from baselines.measure.ties import LISTED
from builders.core.write_files import atomic_text, new_file
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run
from builders.store.stored_answers import read_answers
from builders.text.span_options import SpanOptions


@dataclass(frozen=True)
class CopyRule:
    """The rule for near-duplicates.

    Attributes:
        way: removed or kept, as in :func:`baselines.measure.duplicates.replace_by_leaders`.
        ngram: number of characters of an n-gram.
        jaccard: smallest Jaccard similarity of near-duplicates.
        release: the release with the texts of the passages.
        corpus: the config with the texts of the passages.
    """

    way: str
    ngram: int
    jaccard: float
    release: Release
    corpus: str


@dataclass(frozen=True)
class Evaluation:
    """The figures of several runs.

    Attributes:
        results: for each run, the JSON value that the verb prints.
        tables: for each run, the table of the values by query.
        copies: the near-duplicates of all runs (:func:`baselines.measure.duplicates.duplicate_pairs`).
    """

    results: list[dict[str, Any]] = field(default_factory=list)
    tables: list[pa.Table] = field(default_factory=list)
    copies: list[dict[str, Any]] = field(default_factory=list)

    def write_values(self, path: Path) -> None:
        """Write the values of every query of all runs as Parquet."""
        with new_file(path) as temporary_path:
            pq.write_table(pa.concat_tables(self.tables), temporary_path, compression="zstd")

    def write_copies(self, path: Path) -> None:
        """Write the near-duplicates as JSON lines."""
        with atomic_text(path) as file:
            for pair in self.copies:
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")


def measure_runs(
    runs: Sequence[Run],
    qrels: Qrels,
    *,
    groups: Groups | None = None,
    answer_ranks: Sequence[Ranks] = (),
    readings: Sequence[BudgetReadings] = (),
    ties: str = LISTED,
    chosen: Sequence[str] = (),
    with_holes: bool = False,
    copy_rule: CopyRule | None = None,
) -> Evaluation:
    """Measure runs on the queries of one reference.

    Args:
        groups: groups of the reference's queries, to measure each group, too.
        answer_ranks: for each run, the ranks of :func:`rank_answers`. Empty: answers are not measured.
        readings: for each run, the result of :func:`read_budgets`. Empty: no budget is measured.
        ties: the rule of :func:`baselines.measure.measures.measure_run` for equal scores.
        chosen: names of :func:`baselines.measure.measure_names.resolve_measures`, which are also measured.
        with_holes: True to measure the effect of unjudged passages.
        copy_rule: the rule for near-duplicates (default: near-duplicates are not searched).
    """
    evaluation = Evaluation()
    for run_number, run in enumerate(runs):
        # Every step adds figures to the result, and the values of the queries as columns to the table.
        result, table = measure_run(run, qrels, ties, chosen)
        intervals = intervals_of_means(table, chosen)
        result["intervals"] = {name: list(interval) for name, interval in intervals.items()}
        if groups is not None:
            result["by"] = measure_groups(table, groups, chosen)
        if answer_ranks:
            result["answers"] = answer_recall(answer_ranks[run_number])
            for name, ranks in rank_columns(answer_ranks[run_number], list(qrels.positives)).items():
                table = table.append_column(name, ranks)
        if readings:
            result["budgets"] = readings[run_number].as_json()
            for name, labels in readings[run_number].columns(list(qrels.positives)).items():
                table = table.append_column(name, labels)
        if with_holes:
            result["holes"], hole_values = measure_holes(run.rankings, qrels, result)
            table = with_columns(table, hole_values)
        if copy_rule:
            copies = find_duplicates(
                run, qrels, copy_rule.release, copy_rule.corpus, length=copy_rule.ngram, share=copy_rule.jaccard
            )
            evaluation.copies.extend(duplicate_pairs(run, qrels, copies))
            result["duplicates"], fair_values = measure_duplicates(run, qrels, copies, copy_rule.way)
            table = with_columns(table, fair_values)
        evaluation.results.append(result)
        evaluation.tables.append(table)

    # The agreement of qrels and answers needs the values of all runs. Every result has it, too.
    if answer_ranks:
        rank_correlation = order_agreement(evaluation.tables, answer_ranks)
        if rank_correlation:
            for result in evaluation.results:
                result["answers"]["agreement"] = rank_correlation
    return evaluation


def rank_answers(
    runs: Sequence[Run],
    release: Release,
    *,
    split: str,
    set_name: str,
    query_config: str | None,
    rule: SpanOptions,
) -> list[Ranks]:
    """Return, for each run, the ranks of each query's first passages with an answer and with an entity.

    The queries are those of a split, or only those of the config ``query_config``. ``rule`` has the unit, threshold and
    segmenter of span-F1.
    """
    answers = _read_answer_rows(release, split=split, set_name=set_name, query_config=query_config)
    return first_answers(runs, answers, release, SETS[set_name].corpus, rule)


def _read_answer_rows(
    release: Release, *, split: str, set_name: str, query_config: str | None
) -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of the config ``answers`` of a split, or only of the queries of a config, by query id."""
    answers: Mapping[str, Mapping[str, Any]] = read_answers(release, set_name, split)
    if query_config:
        query_ids = [query_id for query_id, _ in read_queries(release, split, query_config)]
        answers = {query_id: answers[query_id] for query_id in query_ids if query_id in answers}
    return answers


def read_budgets(
    runs: Sequence[Run],
    release: Release,
    *,
    split: str,
    set_name: str,
    query_config: str | None,
    rule: SpanOptions,
    budgets: Sequence[int],
) -> list[BudgetReadings]:
    """Return, for each run, the queries with an answer in the first characters of their lists.

    ``budgets`` has the numbers of characters. The queries are those of a split, or only those of the config
    ``query_config``. ``rule`` has the unit, threshold and segmenter of span-F1.
    """
    rows = _read_answer_rows(release, split=split, set_name=set_name, query_config=query_config)
    answers = {query_id: row["answers"] for query_id, row in rows.items()}
    return read_runs(runs, answers, release, SETS[set_name].corpus, rule, budgets)


def answer_results(
    runs: Sequence[Run], answer_ranks: Sequence[Ranks], readings: Sequence[BudgetReadings] = ()
) -> list[dict[str, Any]]:
    """Return the JSON value that `evaluate` prints for a split without judgments.

    For each run, ``answer_ranks`` has the ranks of :func:`rank_answers`, and ``readings`` the result of
    :func:`read_budgets` (empty: no budget).
    """
    results: list[dict[str, Any]] = []
    for run, ranks in zip(runs, answer_ranks, strict=True):
        results.append({"run": str(run.path), "answers": answer_recall(ranks)})
    for result, run_readings in zip(results, readings, strict=False):  # no readings without budgets
        result["budgets"] = run_readings.as_json()
    return results
