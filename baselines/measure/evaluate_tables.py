"""Format the figures of `evaluate` as text and as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.measure import measures
from baselines.measure.answer_recall import answers_table, answers_text
from baselines.measure.duplicates import duplicates_tables, duplicates_text
from baselines.measure.groups import groups_table, groups_text, interval_columns, percent_with_interval
from baselines.measure.holes import holes_tables, holes_text
from baselines.measure.qrels import Qrels
from baselines.measure.reading_budget import budgets_table, budgets_text
from baselines.measure.ties import TIE_RULES
from builders.core.results import Report, Table
from builders.core.tables import format_percent, text_table

_COUNT = "QueriesRanked"  # the official key that is no share
_SHARES = tuple(measures.PAPER.values())


def evaluation_report(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> Report:
    """Return the results of :func:`baselines.measure.evaluation.measure_runs` as a verb's result."""
    return Report(
        results, text=lambda: evaluation_text(results, qrels), tables=lambda: evaluation_tables(results, qrels)
    )


def answers_report(results: Sequence[Mapping[str, Any]]) -> Report:
    """Return the results of :func:`baselines.measure.evaluation.answer_results` as a verb's result."""
    texts = [answers_text(results)]
    tables = [answers_table(results)]
    if "budgets" in results[0]:
        texts.append(budgets_text(results))
        tables.append(budgets_table(results))
    return Report(results, text="\n\n".join(texts), tables=tables)


def evaluation_text(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Format the results of :func:`baselines.measure.evaluation.measure_runs` in percent."""
    official_rows = []
    usual_rows = []
    for result in results:
        official_row = [result["run"]]
        for key in _SHARES:
            official_row.append(percent_with_interval(result["official"][key], result["intervals"][key]))
        official_row.append(str(result["official"][_COUNT]))
        official_rows.append(official_row)
        usual_cells = [format_percent(result["ir_measures"][name]) for name in measures.IR_MEASURES]
        usual_rows.append([result["run"], *usual_cells])
    second_table = "ir-measures, percent (R@k is the share of the positives found)\n" + text_table(
        ["run", *measures.IR_MEASURES], usual_rows
    )
    if "measures" in results[0]:
        second_table = _chosen_text(results)
    parts = [
        f"reference: {_describe_reference(results, qrels)}",
        "official keys, percent, with 95 % intervals over queries (recall@k here is a hit rate: Success@k)\n"
        + text_table(["run", *measures.OFFICIAL], official_rows),
        second_table,
    ]
    if "by" in results[0]:
        parts.append(groups_text(results))
    if "answers" in results[0]:
        parts.append(answers_text(results))
    if "budgets" in results[0]:
        parts.append(budgets_text(results))
    if "holes" in results[0]:
        parts.append(holes_text(results, qrels))
    if "duplicates" in results[0]:
        parts.append(duplicates_text(results, qrels))
    return "\n\n".join(parts)


def _chosen_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the means and intervals of the chosen measures in percent."""
    names = list(results[0]["measures"])
    rows = []
    for result in results:
        cells = [percent_with_interval(result["measures"][name], result["intervals"][name]) for name in names]
        rows.append([result["run"], *cells])
    return "chosen measures, percent, with 95 % intervals over queries\n" + text_table(["run", *names], rows)


def evaluation_tables(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> list[Table]:
    """Return the results of :func:`baselines.measure.evaluation.measure_runs` as tables.

    The main table has all measures, with a row for each run. The chosen measures, with the limits of their
    intervals, replace the usual measures.
    """
    share_columns = interval_columns(_SHARES)
    # An official key has its column already.
    chosen = [name for name in results[0].get("measures", ()) if name not in _SHARES]
    further_columns = interval_columns(chosen) if "measures" in results[0] else list(measures.IR_MEASURES)
    rows = []
    for result in results:
        row = [result["run"]]
        for key in _SHARES:
            row += [result["official"][key], *result["intervals"][key]]
        row.append(result["official"][_COUNT])
        if "measures" in result:
            for name in chosen:
                row += [result["measures"][name], *result["intervals"][name]]
        else:
            row += [result["ir_measures"][name] for name in measures.IR_MEASURES]
        rows.append(row)
    reference = _describe_reference(results, qrels)
    main_table = Table(
        ["run", *share_columns, _COUNT, *further_columns],
        rows,
        title=f"{reference}; percent, with the limits of 95 % intervals; recall@k is a hit rate, R@k the share of the"
        " positives found",
        percent_columns=(*share_columns, *further_columns),
    )
    tables = [main_table]
    if "by" in results[0]:
        tables.append(groups_table(results))
    if "answers" in results[0]:
        tables.append(answers_table(results))
    if "budgets" in results[0]:
        tables.append(budgets_table(results))
    if "holes" in results[0]:
        tables += holes_tables(results)
    if "duplicates" in results[0]:
        tables += duplicates_tables(results)
    return tables


def _describe_reference(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> str:
    """Name the judgments, their numbers, and the rule for ties unless ties are as listed."""
    description = f"{qrels.name}, {len(qrels.positives)} queries with {qrels.pairs} positive passages"
    rule = results[0]["ties"]["rule"]
    if rule in TIE_RULES:
        description += f"; ties: {TIE_RULES[rule]}"
    return description
