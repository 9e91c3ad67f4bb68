"""The tables of a checked release, for Markdown, CSV and pandas."""

from collections.abc import Mapping
from typing import Any

from builders.check.release_report import CheckedRelease
from builders.core.results import Table
from builders.store.judgments import overlap_columns
from builders.store.published import published_figures
from builders.store.table3 import LENGTH_KEYS, TABLE3_ROWS

_SHARE_COLUMN = "overlapping_share"


def tables_of(outcome: CheckedRelease) -> list[Table]:
    """Return the tests, the findings, and the counts beside the paper's. A part without rows has no table."""
    stats = outcome.figures.stats
    paper = published_figures()
    label_overlap = []
    for qrels_split, counts in stats.get("label_overlap", {}).items():  # for example qrels/dev
        label_overlap.append({"split": qrels_split, **counts})
    english = stats.get("english", {})
    tables = [
        _test_table(outcome),
        _finding_table(outcome),
        _table3(stats["table3"], paper["table3"]),
        _beside_paper("collections", stats["collections"], paper["collections"], LENGTH_KEYS),
        _beside_paper("English queries", english, paper["english"], ("queries", "words_per_query")),
        _rows_as_table("label overlap with the training split", label_overlap, text_columns=1),
        _rows_as_table("label overlap of the drawn sets", outcome.drawn_overlaps, text_columns=2),
    ]
    return [table for table in tables if table.rows]


def _test_table(outcome: CheckedRelease) -> Table:
    rows = []
    for test, result, fault_count, counted_faults in outcome.results():
        rows.append([test, result, counted_faults, fault_count])
    return Table(("test", "result", "counted faults", "count"), rows, title="tests", text_columns=3)


def _finding_table(outcome: CheckedRelease) -> Table:
    rows = []
    for finding in outcome.findings:
        examples = ", ".join(finding.examples)
        rows.append([finding.test, finding.level, finding.where, finding.what, examples, finding.count])
    columns = ("test", "level", "where", "finding", "examples", "count")
    return Table(columns, rows, title="findings", text_columns=5)


def _table3(release_table3: Mapping[str, Any], paper_table3: Mapping[str, Any]) -> Table:
    """Return Table 3 with its rows as in the paper, and the paper's column right of each column of the release."""
    columns = ["figure"]
    for column in release_table3:
        columns += [column, f"{column} (paper)"]
    rows = []
    for key, title in TABLE3_ROWS:
        row: list[Any] = [title]
        for column, figures in release_table3.items():
            row += [figures[key], paper_table3.get(column, {}).get(key)]
        rows.append(row)
    if not release_table3:
        rows = []
    return Table(columns, rows, title="Table 3")


def _beside_paper(
    title: str, release_figures: Mapping[str, Any], paper_figures: Mapping[str, Any], keys: tuple[str, ...]
) -> Table:
    """Return a row for each part, with the paper's figure right of the release's figure if the paper has one.

    A part is a config or a split. Both mappings have the figures of a part by key, for example ``mean_chars``.
    """
    columns = ["part"]
    for key in keys:
        columns.append(key)
        # A column of empty cells for figures that the paper lacks would only make the table wider.
        if _in_paper(key, paper_figures):
            columns.append(f"{key} (paper)")
    rows = []
    for part, figures in release_figures.items():
        row: list[Any] = [part]
        for key in keys:
            row.append(figures.get(key))
            if _in_paper(key, paper_figures):
                row.append(paper_figures.get(part, {}).get(key))
        rows.append(row)
    return Table(columns, rows, title=title)


def _in_paper(key: str, paper_figures: Mapping[str, Any]) -> bool:
    return any(key in figures for figures in paper_figures.values())


def _rows_as_table(title: str, records: list[dict[str, Any]], text_columns: int) -> Table:
    """Return a table with a row for each record of the label overlap, and a column for each key of the records."""
    columns = overlap_columns(records)
    rows = []
    for record in records:
        rows.append([record.get(column) for column in columns])
    return Table(columns, rows, title=title, percent_columns=(_SHARE_COLUMN,), text_columns=text_columns)
