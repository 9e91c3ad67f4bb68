"""Format the drops of a system on perturbed questions as text and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from baselines.measure.measure_options import TESTS
from baselines.measure.measures import PAPER
from baselines.measure.ties import TIE_RULES
from builders.core.errors import make_visible
from builders.core.results import Report, Table
from builders.core.tables import align_rows, format_percent

_PAPER_NAMES = {key: name for name, key in PAPER.items()}
_LEGEND = """\
change: perturbed - as asked, in percentage points, over the questions of the kind, with an interval of {level:g} %.
fell, same, rose: numbers of questions. p: p-value of {test}. Holm: p-value after Holm's
correction over the kinds of a measure. *: significant. detectable: smallest difference that the t-test detects with
--power at the corrected level."""
_TEST_NAMES = {"t": "Student's paired t-test", "randomisation": "Fisher's randomisation test"}
_SMALLEST_P = 0.00005  # smaller p-values would print as 0.0000
_DROP_COLUMNS = ("kind", "questions", "as asked", "perturbed", "change", "interval", "fell", "same", "rose")
_FALLEN_COLUMNS = ("kind", "change", "rank", "question")
_FALLEN_KEYS = ("query_id", "original_id", "difference", "original_rank", "rank", "original_text", "text")


def stress_report(result: dict[str, Any]) -> Report:
    """Return the report of the result of :func:`baselines.measure.stress_drops.compare_with_asked`.

    The verb adds ``reference``, the name of the judgments, and ``ties``, the rule for equal scores.
    """
    return Report(result, text=lambda: _format_text(result), tables=lambda: _make_tables(result))


def _make_tables(result: Mapping[str, Any]) -> list[Table]:
    """Return the tables of drops and of fallen questions. Figures are fractions."""
    drop_columns = ["measure", "kind", "questions", "asked", "perturbed", "difference", "low", "high"]
    drop_columns += ["fell", "same", "rose"]
    for test in TESTS:
        drop_columns += [f"{test}: p", f"{test}: Holm"]
    drop_rows = []
    for measure, rows in result["measures"].items():
        for row in rows:
            cells = [measure, row["kind"], row["queries"], row["asked"], row["perturbed"], row["difference"]]
            cells += [*row["interval"], row["losses"], row["ties"], row["wins"]]
            for test in TESTS:
                cells += [row[test]["p"], row[test]["corrected"]]
            drop_rows.append([*cells, row["detectable"]])
    drop_columns.append("detectable")
    shares = ("asked", "perturbed", "difference", "low", "high", "detectable")
    tables = [Table(drop_columns, drop_rows, title="perturbed - as asked", percent_columns=shares, text_columns=2)]
    fallen_rows = []
    for kind in result["fallen"]:
        for query in kind["queries"]:
            fallen_rows.append([kind["kind"], *(query[key] for key in _FALLEN_KEYS)])
    if fallen_rows:
        fallen_table = Table(
            ("kind", *_FALLEN_KEYS), fallen_rows, title="questions that fell deepest", percent_columns=("difference",)
        )
        tables.append(fallen_table)
    return tables


def _format_text(result: Mapping[str, Any]) -> str:
    """Format the drops in percent and percentage points."""
    reference = f"{make_visible(result['reference'])}, {result['queries']} questions as asked"
    if result["ties"] in TIE_RULES:
        reference += f"; ties: {TIE_RULES[result['ties']]}"
    parts = [f"reference: {reference}"]
    test = result["test"]
    columns = [*_DROP_COLUMNS, f"{'t' if test == 't' else 'random.'}: p", "Holm", "detectable"]
    for measure, rows in result["measures"].items():
        parts.append(f"{_PAPER_NAMES.get(measure, measure)}: {format_percent(result['means'][measure])} as asked")
        parts.append(_align([columns, *(_drop_cells(row, test) for row in rows)]))
    parts.append(_LEGEND.format(level=100 * (1 - result["alpha"]), test=_TEST_NAMES[test]))
    fallen_rows = []
    for kind in result["fallen"]:
        for query in kind["queries"]:
            ranks = f"{query['original_rank'] or '-'} → {query['rank'] or '-'}"
            question = f"{make_visible(query['original_text'])} → {make_visible(query['text'])}"
            fallen_rows.append([kind["kind"], _points(query["difference"]), ranks, question])
    if fallen_rows:
        first_measure = next(iter(result["measures"]))
        parts.append(f"questions whose {_PAPER_NAMES.get(first_measure, first_measure)} fell deepest")
        parts.append(_align([list(_FALLEN_COLUMNS), *fallen_rows], left=len(_FALLEN_COLUMNS)))
    return "\n\n".join(parts)


def _align(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    return "\n".join(align_rows(rows, left=left, gap="  "))


def _drop_cells(row: Mapping[str, Any], test: str) -> list[str]:
    """Return the cells of a kind: ``_DROP_COLUMNS``, then the p-values of ``test`` and the detectable difference."""
    low, high = row["interval"]
    cells = [row["kind"], str(row["queries"]), format_percent(row["asked"]), format_percent(row["perturbed"])]
    mark = "*" if row["told_apart"] else " "
    cells += [_points(row["difference"]) + mark, f"{_points(low)} to {_points(high)}"]
    # The questions that fell, stayed the same and rose. The perturbed questions are the first of the two systems.
    cells += [str(row[name]) for name in ("losses", "ties", "wins")]
    for p_value in (row[test]["p"], row[test]["corrected"]):
        cells.append("<0.0001" if p_value < _SMALLEST_P else f"{p_value:.4f}")
    detectable = "-"
    if row["detectable"] is not None:
        detectable = format_percent(min(row["detectable"], 1.0))  # no measure exceeds 100 percent
    cells.append(detectable)
    return cells


def _points(fraction: float) -> str:
    """Format a difference in percentage points, with its sign."""
    return f"{100 * fraction:+.2f}"
