"""The tables of a checked release, for Markdown, CSV and pandas."""

from collections.abc import Mapping
from typing import Any

from builders.check.release_report import CheckedRelease
from builders.core.results import Table
from builders.store.published import published
from builders.store.table3 import TABLE3_ROWS

_LENGTHS = ("passages", "mean_chars", "median_chars", "min_chars", "max_chars")
_SHARE = "overlapping_share"


def tables_of(outcome: CheckedRelease) -> list[Table]:
    """Return the tests, the findings, and the counts beside the paper's. A part without rows has no table."""
    stats, paper = outcome.figures.stats, published()
    label_overlap = [{"split": split, **counts} for split, counts in stats.get("label_overlap", {}).items()]
    tables = [
        _tests(outcome),
        _findings(outcome),
        _table3(stats["table3"], paper["table3"]),
        _beside_paper("collections", stats["collections"], paper["collections"], _LENGTHS),
        _beside_paper("English queries", stats.get("english", {}), paper["english"], ("queries", "words_per_query")),
        _rows_as_table("label overlap with the training split", label_overlap, text_columns=1),
        _rows_as_table("label overlap of the drawn sets", outcome.drawn, text_columns=2),
    ]
    return [table for table in tables if table.rows]


def _tests(outcome: CheckedRelease) -> Table:
    rows = []
    for test, result, faults, counted in outcome.results():
        rows.append([test, result, counted, faults])
    return Table(("test", "result", "counted faults", "count"), rows, title="tests", text_columns=3)


def _findings(outcome: CheckedRelease) -> Table:
    rows = []
    for finding in outcome.findings:
        examples = ", ".join(finding.examples)
        rows.append([finding.test, finding.level, finding.where, finding.what, examples, finding.count])
    columns = ("test", "level", "where", "finding", "examples", "count")
    return Table(columns, rows, title="findings", text_columns=5)


def _table3(counted: Mapping[str, Any], paper: Mapping[str, Any]) -> Table:
    """Return Table 3 with its rows as in the paper, and the paper's column right of each column of the release."""
    columns = ["figure"]
    for column in counted:
        columns += [column, f"{column} (paper)"]
    rows = []
    for key, title in TABLE3_ROWS:
        row: list[Any] = [title]
        for column in counted:
            row += [counted[column][key], paper.get(column, {}).get(key)]
        rows.append(row)
    return Table(columns, rows if counted else [], title="Table 3")


def _beside_paper(title: str, counted: Mapping[str, Any], paper: Mapping[str, Any], keys: tuple[str, ...]) -> Table:
    """Return a row for each part, with the paper's figure right of the release's figure if the paper has one."""
    columns = ["part"]
    for key in keys:
        columns.append(key)
        if _in_paper(key, paper):
            columns.append(f"{key} (paper)")
    rows = []
    for part, figures in counted.items():
        row: list[Any] = [part]
        for key in keys:
            row.append(figures.get(key))
            if _in_paper(key, paper):
                row.append(paper.get(part, {}).get(key))
        rows.append(row)
    return Table(columns, rows, title=title)


def _in_paper(key: str, paper: Mapping[str, Any]) -> bool:
    return any(key in figures for figures in paper.values())


def _rows_as_table(title: str, records: list[dict[str, Any]], text_columns: int) -> Table:
    columns = list(dict.fromkeys(name for record in records for name in record))
    rows = [[record.get(name) for name in columns] for record in records]
    return Table(columns, rows, title=title, percent_columns=(_SHARE,), text_columns=text_columns)
