"""Read third-party CSV and TSV files: UTF-8 or GB18030, with or without a byte order mark, plain, gzipped or zipped.

CSV files follow RFC 4180. A quoted field may contain line ends and doubled quotes. In TSV files, quotes are ordinary
characters and a row is a line, unless the caller passes ``spreadsheet``. Rows end only at ``\\n`` or
``\\r\\n``, because the texts contain U+2028 and U+0085.
"""

import csv
import io
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, dropwhile
from pathlib import Path
from typing import IO

from builders.core.errors import InputError
from builders.core.file_formats import HEAD_BYTES, expect_utf8
from builders.sources.encoding import MARKS, encoding_of
from builders.sources.source_files import Source, find_files, open_bytes

_TABLE = re.compile(r"\.(csv|tsv|txt|jsonl?)(\.gz)?$", re.IGNORECASE)
LONGEST_LINE = 16 << 20  # characters
_SHOWN_COLUMNS = 200  # characters of the columns' names in an error
_HEADER_BYTES = 1 << 12  # a header and the blank lines before it are shorter


def find_tables(paths: Iterable[Path]) -> list[Source]:
    """Return all CSV, TSV, text and JSON files under ``paths``, in order. Folders and zip archives are sorted by name.

    Raises :class:`InputError` for a path that is missing or has no such file.
    """
    sources: list[Source] = []
    for path in paths:
        sources += find_files(path, _TABLE, "no table (expected *.csv, *.tsv, *.txt or *.json, also in .gz and .zip)")
    return sources


def header_of(source: Source) -> list[str]:
    """Return the column names in a file's first line with text, in lower case.

    Characters outside ASCII are dropped, because the encoding is not detected. Raises :class:`InputError` for UTF-16.
    """
    with open_bytes(source) as stream:
        expect_utf8(stream.peek(HEAD_BYTES)[:HEAD_BYTES], source.shown, "UTF-8 or GB18030")  # type: ignore[attr-defined]
        first_line = _first_line(stream)
    header = first_line.decode("ascii", "ignore").strip().lower()
    return [column.strip().strip('"') for column in header.split(_delimiter_of(header))]


def _delimiter_of(first_line: str) -> str:
    return "\t" if "\t" in first_line else ","


def _first_line(stream: IO[bytes]) -> bytes:
    """Return the first line that is not blank, or b"" without such a line in the first bytes."""
    head = stream.read(_HEADER_BYTES)
    for mark in MARKS:
        head = head.removeprefix(mark)
    return next((line for line in io.BytesIO(head) if line.strip()), b"")


@dataclass(frozen=True)
class Table:
    """A table whose format has been detected, and the fields of its first row."""

    source: Source
    encoding: str  # utf-8 or gb18030
    delimiter: str  # a tab or a comma
    spreadsheet: bool  # True if fields of a TSV file may be quoted
    first: list[str]  # the header, or the first row of a table without a header
    first_line: int  # the line of ``first`` in the file, from 1

    @property
    def columns(self) -> list[str]:
        """The first row as column names, in lower case and stripped."""
        return [name.strip().lower() for name in self.first]

    def rows(
        self, columns: Sequence[str] | None = None, *, rest_in_last: bool = False
    ) -> Iterator[tuple[int, list[str]]]:
        """Yield (line, fields) of every row after the header. The fields are in the order of ``columns``.

        ``line`` is the number of the row's first line in the file, from 1. Without ``columns``, the first row is
        yielded, too, as if it were no header, and every row has all its fields. With ``rest_in_last``, the last column
        of a TSV file extends to the end of the line and may contain tabs. Raises :class:`InputError` for a missing
        column, invalid quotes, and a wrong number of columns.
        """
        records = _records(self.source, self.encoding, self.delimiter, self.spreadsheet)
        column_count = len(self.first)
        if columns is None:
            positions = list(range(column_count))
        else:
            positions = self._positions_of(columns)
            next(records)  # the header
        for line, fields in records:
            # The text of the last column may have tabs.
            if rest_in_last and len(fields) > column_count:
                last_field = self.delimiter.join(fields[column_count - 1 :])
                fields = [*fields[: column_count - 1], last_field]
            if len(fields) != column_count:
                shown_columns = ", ".join(self.columns)[:_SHOWN_COLUMNS]
                problem = f"expected {column_count} columns ({shown_columns}), found {len(fields)}"
                raise InputError(problem, path=self.source.shown, line=line)
            yield line, [fields[position] for position in positions]

    def _positions_of(self, columns: Sequence[str]) -> list[int]:
        """Return the positions of columns in a row. Raise :class:`InputError` for a column that the table lacks."""
        table_columns = self.columns
        for column in columns:
            if column not in table_columns:
                problem = f"expected a column {column}, found {table_columns}"
                raise InputError(problem, path=self.source.shown, line=self.first_line)
        return [table_columns.index(column) for column in columns]


def open_table(source: Source, encoding: str = "auto", *, spreadsheet: bool = False) -> Table:
    """Detect a table's encoding (:mod:`.encoding`) and delimiter: tab if the first line has a tab, else comma.

    With ``spreadsheet``, TSV files may have quoted fields, as spreadsheets and :mod:`csv` write them.
    """
    encoding = encoding_of(lambda: open_bytes(source), source.shown, encoding)
    header_line = next(_lines_from_header(source, encoding), None)
    if header_line is None:
        raise InputError("is empty; expected a table", path=source.shown)
    _, header = header_line
    delimiter = _delimiter_of(header)
    first_line, first_row = next(_records(source, encoding, delimiter, spreadsheet))
    return Table(source, encoding, delimiter, spreadsheet, first_row, first_line)


def _lines_from_header(source: Source, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line with its end) from the first line with text on, as :func:`header_of` reads it."""
    # Only ASCII blanks count, because header_of sees bytes.
    return dropwhile(lambda numbered_line: not numbered_line[1].strip(string.whitespace), _lines(source, encoding))


def _lines(source: Source, encoding: str) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line with its end), without a byte order mark."""
    with open_bytes(source) as stream:
        text = io.TextIOWrapper(stream, encoding, newline="\n")
        lines = iter(lambda: text.readline(LONGEST_LINE), "")
        for number, line in enumerate(lines, 1):
            if len(line) == LONGEST_LINE:
                problem = f"has over {LONGEST_LINE:,} characters; expected a table"
                raise InputError(problem, path=source.shown, line=number)
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield number, line


def _records(source: Source, encoding: str, delimiter: str, spreadsheet: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, fields) of every row that is not empty, including the header."""
    lines = _lines_from_header(source, encoding)
    if delimiter == "\t" and not spreadsheet:
        for number, line in lines:
            row_text = line.removesuffix("\n").removesuffix("\r")
            if row_text:
                yield number, row_text.split("\t")
        return
    # With strict, a missing closing quote is an error, and so is text after a closing quote.
    header_number, header = next(lines, (1, ""))
    reader = csv.reader(chain([header], (line for _, line in lines)), delimiter=delimiter, strict=True)
    first_line = header_number
    try:
        for fields in reader:
            if fields:
                yield first_line, fields
            first_line = header_number + reader.line_num
    except csv.Error as error:
        raise InputError(f"not a row of CSV: {error}", path=source.shown, line=first_line) from None
