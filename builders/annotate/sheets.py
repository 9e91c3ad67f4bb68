"""Pairs to judge as files that need no server: a table for a spreadsheet, and the same as JSON lines.

Columns: package, version, kind (annotation, review, adjudication), query-id, corpus-id, query, passage, said (what
others have said, in an adjudication), label, note. The annotator fills in ``label`` with 1 or 0 (1 to 8 in an analysis
of errors); what is left empty is not judged yet. In JSON lines a row is an object of these, and may have ``annotator``
and ``time``; a file of judgments is one, too.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.judgments import Kind, Version
from builders.annotate.questions import RELEVANCE, Question
from builders.annotate.rounds import Item
from builders.core.errors import InputError, log
from builders.core.files import read_whole, write_text
from builders.core.typed import json_of, typed
from builders.sources.tables import find_tables, open_table

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
_NEEDED = ("package", "version", "kind", "query-id", "corpus-id", "label")
_FORMULA = tuple("=+-@\t\r")  # a spreadsheet would compute, not show, a cell that begins so


class Place(msgspec.Struct, frozen=True, rename="kebab"):
    """What a judgment is of, as a file says it: a pair in a version of a package, judged as what."""

    package: str
    version: Version
    kind: Kind
    query_id: str
    corpus_id: str


class Row(Place, frozen=True, rename="kebab"):
    """One judgment as a file brings it: what it is of, and what it says."""

    label: Annotated[int, Meta(ge=0, le=8)] | None
    annotator: str | None = None
    time: Annotated[datetime, Meta(tz=True)] | None = None
    model: str | None = None
    note: str | None = None


class Task(msgspec.Struct, frozen=True):
    """A pair to judge: in which package and version, as what; the label that it has so far, and what others said.

    ``by``: the model that gave the label, where none of the last version's annotators did.
    """

    item: Item
    package: str
    version: int
    kind: Kind = "annotation"
    label: int | None = None
    said: str = ""
    by: str = ""

    @property
    def unlabelled(self) -> Task:
        """Itself without the label: in a sheet that comes back, a label is the annotator's."""
        return msgspec.structs.replace(self, label=None)

    @property
    def row(self) -> dict[str, Any]:
        """Its columns by name, without a note."""
        place: dict[str, Any] = {"package": self.package, "version": self.version, "kind": self.kind}
        texts: dict[str, Any] = msgspec.to_builtins(self.item)
        return place | texts | {"said": self.said, "label": self.label}


def write_sheet(path: Path, tasks: Iterable[Task]) -> None:
    """Write a CSV that spreadsheets open as what it is: UTF-8 with a mark, and no cell that is a formula."""
    text = io.StringIO("\ufeff", newline="")
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for task in tasks:
        cells = {"note": "", **task.row}
        writer.writerow([_cell(cells[name]) for name in COLUMNS])
    _write(path, text.getvalue())


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


def write_lines(path: Path, tasks: Iterable[Task]) -> None:
    """Write the same as JSON lines."""
    _write(path, "".join(msgspec.json.encode(task.row).decode() + "\n" for task in tasks))


def _write(path: Path, text: str) -> None:
    """Write a file that somebody fills in. Another text that stands there, perhaps filled in, stays as ``NAME.1``."""
    if path.exists() and path.read_bytes() != text.encode():
        names = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        kept = next(name for name in names if not name.exists())
        path.rename(kept)
        log.warning("%s: there already, with other text (filled in?): kept as %s", path, kept.name)
    write_text(path, text)


def read_sheet(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """(line, row) of a filled-in table. Raises :class:`InputError` for one of other columns, and for a bad row."""
    for source in find_tables([path]):
        table = open_table(source, spreadsheet=True)
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise InputError(f"no column {missing[0]}; expected a sheet of `annotate`", path=source.shown, line=1)
        names = [name for name in (*COLUMNS, "annotator", "time") if name in table.columns]
        for line, fields in table.rows(names):
            cells = {name: cell.strip() for name, cell in zip(names, fields, strict=True)}
            where = f"{source.shown}:{line}"
            label = question.label_of(cells["label"])
            if cells["label"] and label is None:
                raise InputError(
                    f"expected {question.expected} in the column label, found {cells['label']!r}", path=where
                )
            given = {name: cell for name, cell in cells.items() if cell and name not in ("query", "passage", "said")}
            ids = {name: cells[name].removeprefix("'") for name in ("query-id", "corpus-id")}
            found = given | ids | {"label": label}
            yield line, typed(found, Row, where, from_text=True)


def read_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """(line, row) of JSON lines; errors as of :func:`read_sheet`."""
    for number, line in enumerate(read_whole(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, json_of(line, Row, path, number)
