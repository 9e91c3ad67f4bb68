"""Format the figures of `evaluate` as text and as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.measure import measures
from baselines.measure.answer_recall import answers_table, answers_text
from baselines.measure.duplicates import duplicates_tables, duplicates_text
from baselines.measure.groups import groups_table, groups_text, interval_columns, percent_with_interval
from baselines.measure.holes import holes_tables, holes_text
from baselines.measure.qrels import Qrels
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
    parts = [
        f"reference: {_describe_reference(results, qrels)}",
        "official keys, percent, with 95 % intervals over queries (recall@k here is a hit rate: Success@k)\n"
        + text_table(["run", *measures.OFFICIAL], official_rows),
        "ir-measures, percent (R@k is the share of the positives found)\n"
        + text_table(["run", *measures.IR_MEASURES], usual_rows),
    ]
    if "by" in results[0]:
        parts.append(groups_text(results))
    if "answers" in results[0]:
        parts.append(answers_text(results))
    if "holes" in results[0]:
        parts.append(holes_text(results, qrels))
    if "duplicates" in results[0]:
        parts.append(duplicates_text(results, qrels))
    return "\n\n".join(parts)


def evaluation_tables(results: Sequence[Mapping[str, Any]], qrels: Qrels) -> list[Table]:
    """Return the results as tables. The main table has all measures, with a row for each run."""
    share_columns = interval_columns(_SHARES)
    rows = []
    for result in results:
        row = [result["run"]]
        for key in _SHARES:
            row += [result["official"][key], *result["intervals"][key]]
        row.append(result["official"][_COUNT])
        row += [result["ir_measures"][name] for name in measures.IR_MEASURES]
        rows.append(row)
    reference = _describe_reference(results, qrels)
    main_table = Table(
        ["run", *share_columns, _COUNT, *measures.IR_MEASURES],
        rows,
        title=f"{reference}; percent, with the limits of 95 % intervals; recall@k is a hit rate, R@k the share of the"
        " positives found",
        percent_columns=(*share_columns, *measures.IR_MEASURES),
    )
    tables = [main_table]
    if "by" in results[0]:
        tables.append(groups_table(results))
    if "answers" in results[0]:
        tables.append(answers_table(results))
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
