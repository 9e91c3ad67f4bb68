"""Results that a verb returns and the command line prints: a JSON value, a text for people, and tables."""

import csv
import functools
import io
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builders.core.errors import UsageError
from builders.core.tables import as_text, format_percent, markdown_table

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """A table of a result.

    Attributes:
        columns: names of the columns.
        rows: a list of cells for each row: texts, numbers or None.
        title: heading above the table, or "".
        percent_columns: columns of fractions that people read as percent. CSV and pandas keep the fractions.
        text_columns: the number of columns at the left that hold names, and are left-aligned.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    percent_columns: Collection[str] = ()
    text_columns: int = 1

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a data frame. Fractions stay fractions."""
        import pandas as pd

        return pd.DataFrame([list(row) for row in self.rows], columns=list(self.columns))

    def to_markdown(self) -> str:
        """Return the table as Markdown, with its title in bold."""
        header_cells = [as_text(column) for column in self.columns]
        markdown_rows = []
        for row in self.rows:
            row_cells = []
            for column, value in zip(self.columns, row, strict=True):
                row_cells.append(self._format_cell(column, value))
            markdown_rows.append(row_cells)
        table_text = markdown_table(header_cells, markdown_rows, left=self.text_columns)
        return f"**{as_text(self.title)}**\n\n{table_text}" if self.title else table_text

    def to_csv(self) -> str:
        """Return the table as CSV with a header line. Fractions stay fractions."""
        csv_text = io.StringIO()
        csv_writer = csv.writer(csv_text, lineterminator="\n")
        csv_writer.writerow(self.columns)
        csv_writer.writerows(self.rows)
        return csv_text.getvalue()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _format_cell(self, column: str, value: Any) -> str:
        """Return a cell of ``column`` as Markdown."""
        if value is None:  # an empty cell
            return ""
        # Other numbers, such as counts, are written as they are.
        if isinstance(value, float):
            return format_percent(value) if column in self.percent_columns else f"{value:g}"
        return as_text(value)


@dataclass(frozen=True)
class Report:
    """The result of a verb that reports figures.

    Attributes:
        value: the result as a JSON value. Shares are fractions.
        text: the result for people, or a function that returns it.
        tables: the result's tables, or a function that returns them. The first table is the main table.
        extra_formats: further values of ``--format``, each with a function that returns the text.
        failed: True if the command's exit code is 1, because the verb found faults.
    """

    value: Any
    text: str | Callable[[], str]
    tables: Sequence[Table] | Callable[[], Sequence[Table]] = ()
    extra_formats: dict[str, Callable[[], str]] = field(default_factory=dict)
    failed: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the report with its rendered texts, because its functions cannot be pickled."""
        rendered_formats = {}
        for format_name, render_format in self.extra_formats.items():
            # str as a function that returns the text, because a lambda cannot be pickled either.
            rendered_formats[format_name] = functools.partial(str, render_format())
        return type(self), (self.value, str(self), tuple(self.all_tables()), rendered_formats, self.failed)

    def all_tables(self) -> Sequence[Table]:
        """Return the tables of the result, the main table first."""
        return self.tables() if callable(self.tables) else self.tables

    def to_pandas(self) -> "pd.DataFrame":
        """Return the main table as a data frame."""
        return self._tables_or_error()[0].to_pandas()

    def to_markdown(self) -> str:
        """Return all tables as Markdown."""
        return "\n\n".join(table.to_markdown() for table in self._tables_or_error())

    def to_csv(self) -> str:
        """Return all tables as CSV, with an empty line between two tables."""
        return "\n".join(table.to_csv() for table in self._tables_or_error()).rstrip("\n")

    def to_json(self) -> str:
        """Return the JSON value as text."""
        return json.dumps(self.value, ensure_ascii=False, indent=1)

    def to_latex(self) -> str:
        """Return the result as LaTeX, for results that have this form."""
        return self.render("latex")

    def render(self, format_name: str) -> str:
        """Return the result in a form of ``--format``: text, json, markdown, csv, or one of ``extra_formats``.

        Raises :class:`UsageError` for another form, and for markdown and csv if the result has no table.
        """
        if format_name in self.extra_formats:
            return self.extra_formats[format_name]()
        usual_formats = {"text": self.__str__, "json": self.to_json, "markdown": self.to_markdown, "csv": self.to_csv}
        if format_name not in usual_formats:
            expected_formats = ", ".join(usual_formats | self.extra_formats)
            raise UsageError(f"this result has no form {format_name!r}; expected {expected_formats}")
        return usual_formats[format_name]()

    def __str__(self) -> str:
        return self.text() if callable(self.text) else self.text

    def _repr_markdown_(self) -> str:
        return self.to_markdown() if self.all_tables() else f"```text\n{self}\n```"

    def _tables_or_error(self) -> Sequence[Table]:
        """Return the tables. Raises :class:`UsageError` if there is none."""
        tables = self.all_tables()
        if not tables:
            raise UsageError("this result has no table; expected the form text or json")
        return tables
