"""CSV and TSV text as other projects publish it: UTF-8 or GB18030, with or without a mark, plain, gzipped or zipped.

Comma tables follow RFC 4180: a field that starts with a quote ends with one, quotes inside it are doubled, and it may
hold line ends. Tab tables hold every quote literally, one row a line, unless the caller says that a spreadsheet wrote
them. Rows end at ``\\n`` (or ``\\r\\n``) only: the texts hold U+2028 and U+0085.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.core.errors import InputError
from builders.sources.encoding import GB_MARK, encoding_of
from builders.sources.files import Source, find_files, open_bytes

_TABLE = re.compile(r"\.(csv|tsv|txt|jsonl?)(\.gz)?$", re.IGNORECASE)
LONGEST_LINE = 16 << 20  # characters


def find_tables(paths: Iterable[Path]) -> list[Source]:
    """Every CSV, TSV, text and JSON-lines file under ``paths``: in the order given, inside a folder or zip by name.

    Raises :class:`InputError` for a path that is missing or holds none.
    """
    expected = "no table (expected *.csv, *.tsv, *.txt or *.json, also in .gz and .zip)"
    return [source for path in paths for source in find_files(path, _TABLE, expected)]


def header_of(source: Source) -> list[str]:
    """The column names in a file's first line, as far as they are ASCII: enough to tell what the file is."""
    with open_bytes(source) as stream:
        line = stream.readline(1 << 12)
    text = line.removeprefix(GB_MARK).decode("ascii", "ignore").strip().lower()
    return [name.strip().strip('"') for name in text.split("\t" if "\t" in text else ",")]


@dataclass(frozen=True)
class Table:
    """A table that has been looked at: how it is read, and the fields of its first row."""

    source: Source
    encoding: str
    delimiter: str
    spreadsheet: bool
    first: list[str]

    @property
    def columns(self) -> list[str]:
        """The first row as column names: lower case, no space around them."""
        return [name.strip().lower() for name in self.first]

    def rows(
        self, columns: Sequence[str] | None = None, *, rest_in_last: bool = False
    ) -> Iterator[tuple[int, list[str]]]:
        """(line, fields) of every row after the header, or with ``columns=None`` of every row.

        Args:
            columns: fields are given in this order, by the names in the header.
            rest_in_last: a tab table's last column holds everything up to the end of the line, tabs as well.

        Raises:
            InputError: with the line, for a row of another number of columns, and for bad quotes.
        """
        records = _records(self.source, self.encoding, self.delimiter, self.spreadsheet)
        if columns and (missing := [name for name in columns if name not in self.columns]):
            raise InputError(f"expected a column {missing[0]}, found {self.columns}", path=self.source.shown, line=1)
        positions = list(range(len(self.first))) if columns is None else [self.columns.index(name) for name in columns]
        if columns is not None:
            next(records)  # the header
        width = len(self.first)
        for line, fields in records:
            if rest_in_last and len(fields) > width:
                fields = [*fields[: width - 1], self.delimiter.join(fields[width - 1 :])]
            if len(fields) != width:
                raise InputError(
                    f"expected {width} columns ({', '.join(self.columns)[:200]}), found {len(fields)}",
                    path=self.source.shown,
                    line=line,
                )
            yield line, [fields[position] for position in positions]


def open_table(source: Source, encoding: str = "auto", *, spreadsheet: bool = False) -> Table:
    """Look at a table: encoding (see :mod:`.encoding`), delimiter (a tab in the first line: tabs), first row.

    ``spreadsheet``: a tab table has quoted fields, as spreadsheets and :mod:`csv` write them.
    """
    found = encoding_of(lambda: open_bytes(source), source.shown, encoding)
    for _, text in _lines(source, found):
        if text.strip():
            delimiter = "\t" if "\t" in text else ","
            _, first = next(_records(source, found, delimiter, spreadsheet))
            return Table(source, found, delimiter, spreadsheet, first)
    raise InputError("is empty; expected a table", path=source.shown)


def _lines(source: Source, encoding: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line with its end) pairs."""
    with open_bytes(source) as stream:
        text = io.TextIOWrapper(stream, encoding, newline="\n")
        number = 1
        while line := text.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE:
                raise InputError(f"over {LONGEST_LINE:,} characters; expected a table", path=source.shown, line=number)
            yield number, line.removeprefix("\ufeff") if number == 1 else line
            number += 1


def _records(source: Source, encoding: str, delimiter: str, spreadsheet: bool) -> Iterator[tuple[int, list[str]]]:
    """(line that the row starts on, fields) pairs; rows of no character are passed over."""
    if delimiter == "\t" and not spreadsheet:
        for number, line in _lines(source, encoding):
            if line := line.removesuffix("\n").removesuffix("\r"):
                yield number, line.split("\t")
        return
    # strict: a quoted field that goes on after its quote, or never ends, is an error and no guess.
    reader = csv.reader((line for _, line in _lines(source, encoding)), delimiter=delimiter, strict=True)
    while True:
        start = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"not a row of CSV: {error}", path=source.shown, line=start) from None
        if fields:
            yield start, fields
