"""Judgments into a round: from Label Studio, from sheets, from JSON lines.

FILE is Label Studio's JSON export, a sheet that was filled in (CSV or TSV), JSON lines of the same, or a file of
judgments of another copy of the round; what it is, its content says. Label Studio's export has no addresses: people are
called user-1 and so on. Rows without a label are not judged yet and are passed over. Nothing is taken where one row is
wrong. The same import again changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from builders.annotate.export import COLUMNS
from builders.annotate.judgments import (
    RELEVANCE,
    Asked,
    Ids,
    Judgment,
    Kind,
    Label,
    Pair,
    Question,
    Time,
    Version,
    add_judgments,
)
from builders.annotate.rounds import Package, items_of, open_round
from builders.core.errors import InputError, log
from builders.core.files import read_whole
from builders.core.typed import Count, json_of, typed
from builders.sources.tables import find_tables, open_table

_NEEDED = ("package", "version", "kind", "query-id", "corpus-id", "label")
_START = 1 << 16  # bytes that tell what a file is


class Place(Ids, frozen=True, rename="kebab"):
    """The subject of a judgment, as a file says it: a pair in a version of a package, judged as what."""

    package: str
    version: Version
    kind: Kind


class Row(Place, frozen=True, rename="kebab"):
    """One judgment as a file brings it: what it is of, and what it says."""

    label: Label | None
    annotator: str | None = None
    time: Time | None = None
    model: str | None = None
    note: str | None = None


class _Person(msgspec.Struct, frozen=True):
    id: Count
    email: str = ""


class _Value(msgspec.Struct, frozen=True):
    choices: list[str] = []
    text: list[str] | str = []


class _Result(msgspec.Struct, frozen=True):
    value: _Value
    from_name: str = ""


class _Annotation(msgspec.Struct, frozen=True):
    """One person's work on a task; ``was_cancelled``: they skipped it."""

    result: list[_Result]
    updated_at: Time
    completed_by: Count | _Person
    was_cancelled: bool = False


class _Exported(msgspec.Struct, frozen=True):
    """A task of Label Studio's JSON export."""

    data: Place
    annotations: list[_Annotation]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what people have judged")
    parser.add_argument("--annotator", metavar="NAME", help="who judged, where a file does not say it")


def run(args: argparse.Namespace) -> None:
    found, now = open_round(args.round), datetime.now(timezone.utc)
    packages = {
        package.name: (package, {item.pair for item in items_of(args.round, package)}) for package in found.packages
    }
    timed: list[Judgment] = []
    untimed: list[Judgment] = []
    for path in args.files:
        for place, row in _read(path, found.asked):
            if row.label is not None:
                made = _judgment(row, f"{path}:{place}", found.question, packages, row.annotator or args.annotator, now)
                (timed if row.time else untimed).append(made)
    # All of one call is added by one file where all have their times, as Label Studio's have; sheets have none.
    new = add_judgments(args.round, timed) if timed else 0
    new += add_judgments(args.round, untimed, timed=False) if untimed else 0
    if old := sum(each.version < packages[each.package][0].version for each in (*timed, *untimed)):
        log.warning("%d judgments are of versions that were sent back: they are kept, and count no more", old)
    print(f"{new:,} new judgments of {len(timed) + len(untimed):,}: {args.round}")


def _read(path: Path, question: Question) -> Iterator[tuple[int, Row]]:
    try:
        with open(path, "rb") as file:
            start = file.read(_START).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    if start == b"{":
        return read_lines(path)
    return read_export(path, question) if start == b"[" else read_sheet(path, question)


def _judgment(
    row: Row,
    where: str,
    question: Asked,
    packages: Mapping[str, tuple[Package, set[Pair]]],
    who: str | None,
    now: datetime,
) -> Judgment:
    """Return the row as a judgment. :class:`InputError` where it is of no pair of the round, or nobody's."""
    package, pairs = packages.get(row.package, (Package("none", 0), set()))
    right = (row.package in packages, row.pair in pairs, row.version <= package.version, who is not None)
    if not all(right):
        problems = (
            f"the round has no package {row.package!r}",
            f"the package {row.package} has no pair of query {row.query_id!r} and passage {row.corpus_id!r}",
            f"version {row.version} of the package {row.package}, which is at version {package.version}",
            "does not say who judged; expected --annotator NAME",
        )
        raise InputError(problems[right.index(False)], path=where)
    content = msgspec.to_builtins(row, builtin_types=[datetime])
    content |= {"annotator": who, "time": row.time or now, "question": question}
    try:
        # An empty name or note of a file is none.
        return msgspec.convert({name: each for name, each in content.items() if each not in ("", None)}, Judgment)
    except msgspec.ValidationError as error:
        raise InputError(str(error), path=where) from None


def read_sheet(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of a filled-in table. :class:`InputError` for one of other columns, and for a bad row."""
    for source in find_tables([path]):
        table = open_table(source, spreadsheet=True)
        if missing := [name for name in _NEEDED if name not in table.columns]:
            raise InputError(f"no column {missing[0]}; expected a sheet of `annotate`", path=source.shown, line=1)
        names = [name for name in (*COLUMNS, "annotator", "time") if name in table.columns]
        for line, fields in table.rows(names):
            cells = {name: cell.strip() for name, cell in zip(names, fields, strict=True)}
            where, label = f"{source.shown}:{line}", question.label_of(cells["label"])
            if cells["label"] and label is None:
                expected = f"expected {question.expected} in the column label, found {cells['label']!r}"
                raise InputError(expected, path=where)
            given = {name: cell for name, cell in cells.items() if cell and name not in ("query", "passage", "said")}
            ids = {name: cells[name].removeprefix("'") for name in ("query-id", "corpus-id")}
            yield line, typed(given | ids | {"label": label}, Row, where, from_text=True)


def read_lines(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line, row) of JSON lines; errors as of :func:`read_sheet`."""
    for number, line in enumerate(read_whole(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield number, json_of(line, Row, path, number)


def read_export(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """Yield (number of the task from 1, row) of every annotation in Label Studio's JSON export (not JSON-MIN)."""
    for number, task in enumerate(json_of(read_whole(path), list[_Exported], path), 1):
        for annotation in task.annotations:
            label, note = _said(annotation, question, f"{path}: task {number}")
            if annotation.was_cancelled or label is None:
                continue
            place, person = msgspec.structs.asdict(task.data), annotation.completed_by
            who = f"user-{person}" if isinstance(person, int) else person.email or f"user-{person.id}"
            yield number, Row(**place, label=label, annotator=who, time=annotation.updated_at, note=note)


def _said(annotation: _Annotation, question: Question, where: str) -> tuple[int | None, str | None]:
    """Return (label, note) of one annotation; None for a part that it lacks."""
    label = note = None
    for result in annotation.result:
        value = result.value
        if result.from_name == "label" and value.choices:
            # The alias of a choice, or its name, as an interface without aliases says it.
            label = question.label_of(value.choices[0])
            if len(value.choices) > 1 or label is None:
                found = ", ".join(value.choices)[:80]
                raise InputError(f"expected one choice, {question.expected}, found {found}", path=where)
        elif result.from_name == "note" and value.text:
            note = value.text if isinstance(value.text, str) else "\n".join(value.text)
    return label, note
