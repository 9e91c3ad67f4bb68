"""Pairs to judge as files, written and read back: tasks of Label Studio, sheets for a spreadsheet, JSON lines.

Columns of a sheet: package, version, kind (annotation, review, adjudication), query-id, corpus-id, query, passage, said
(what others have said, in an adjudication), label, note. The annotator fills in ``label`` with 1 or 0 (1 to 8 in an
analysis of errors); what is left empty is not judged yet. In JSON lines a row is an object of these, and may have
``annotator`` and ``time``; a file of judgments is one, too.
"""

from __future__ import annotations

import csv
import html
import io
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from builders.annotate.judgments import RELEVANCE, Kind, Label, Question, Time, Version
from builders.annotate.rounds import Item
from builders.common.command import InputError, log
from builders.common.files import read_whole, write_text
from builders.common.typed import Count, json_of, typed
from builders.common.words import words
from builders.sources.tables import find_tables, open_table

COLUMNS = ("package", "version", "kind", "query-id", "corpus-id", "query", "passage", "said", "label", "note")
_NEEDED = ("package", "version", "kind", "query-id", "corpus-id", "label")
_FORMULA = tuple("=+-@\t\r")  # a spreadsheet would compute, not show, a cell that begins so
# A word of one character marks too much: 的, 了, 吗. Numbers and Latin words count at any length.
_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Nor does what makes a question of a query say anything of a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}
# A key a choice: 1 or 0 judges a pair, Ctrl+Enter (of Label Studio) hands it in. The alias is what the export has.
_CONFIG = """\
<View>
  <Style>
    mark {{background: #ffe58f; color: inherit; padding: 0 2px; border-radius: 2px}}
    .query {{font-size: 1.25em; font-weight: 600}}
    .passage {{line-height: 1.8; max-width: 48em}}
    .said {{color: #888}}
  </Style>
  <Header value="查询" size="5"/>
  <View className="query"><HyperText name="query" value="$query_html" inline="true"/></View>
  <Header value="段落" size="5"/>
  <View className="passage"><HyperText name="passage" value="$passage_html" inline="true"/></View>
  <View className="said"><Text name="said" value="$said"/></View>
  <Header value="{text}" size="5"/>
  <Choices name="label" toName="passage" choice="single-radio" required="true" showInline="true"
           requiredMessage="{hint}">
{choices}
  </Choices>
  <TextArea name="note" toName="passage" placeholder="备注（可不填）" rows="1" maxSubmissions="1" editable="true"/>
</View>
"""


class Place(msgspec.Struct, frozen=True, rename="kebab"):
    """The subject of a judgment, as a file says it: a pair in a version of a package, judged as what."""

    package: str
    version: Version
    kind: Kind
    query_id: str
    corpus_id: str


class Row(Place, frozen=True, rename="kebab"):
    """One judgment as a file brings it: what it is of, and what it says."""

    label: Label | None
    annotator: str | None = None
    time: Time | None = None
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
    def row(self) -> dict[str, Any]:
        """Its columns by name, without a note."""
        place: dict[str, Any] = {"package": self.package, "version": self.version, "kind": self.kind}
        texts: dict[str, Any] = msgspec.to_builtins(self.item)
        return place | texts | {"said": self.said, "label": self.label}


def common_terms(query: str, passage: str) -> list[str]:
    """Return the words of a query that stand in a passage, whatever their case; the longest first."""
    text = passage.lower()
    found = {word.lower() for word in words(query) if _TERM.fullmatch(word)} - ASKING
    return sorted((word for word in found if word in text), key=lambda word: (-len(word), word))


def marked(text: str, terms: list[str]) -> str:
    """Return the text as HTML: nothing in it is markup but ``<mark>`` around each of the ``terms``."""
    if not terms:
        return html.escape(text)
    # Split where a term stands, before anything is escaped: no term is found in what escaping adds.
    parts = re.split(f"({'|'.join(map(re.escape, terms))})", text, flags=re.IGNORECASE)
    return "".join(f"<mark>{html.escape(part)}</mark>" if n % 2 else html.escape(part) for n, part in enumerate(parts))


def config_of(question: Question) -> str:
    """Return the labelling interface of a round that asks this question; pointed at, a choice says what it means."""
    choices = (
        f'    <Choice value="{choice.name}" alias="{choice.label}" hotkey="{choice.label}"'
        + f' hint="{choice.means}"' * bool(choice.means)
        + "/>"
        for choice in question.choices
    )
    return _CONFIG.format(text=question.text, hint=question.hint, choices="\n".join(choices))


def write_package(folder: Path, stem: str, tasks: Sequence[Task], studio: Path | None = None) -> None:
    """Write tasks in every form: ``STEM.csv`` and ``.jsonl`` in ``folder``, ``.json`` there, too, or in ``studio``."""
    write_sheet(folder / f"{stem}.csv", tasks)
    write_lines(folder / f"{stem}.jsonl", tasks)
    write_tasks((studio or folder) / f"{stem}.json", tasks)


def write_sheet(path: Path, tasks: Sequence[Task]) -> None:
    """Write a CSV that spreadsheets open as what it is: UTF-8 with a mark, and no cell that is a formula."""
    text = io.StringIO("\ufeff", newline="")
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for task in tasks:
        row = task.row
        cells = ["" if row.get(name) is None else str(row[name]) for name in COLUMNS]
        writer.writerow([f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in cells])
    _write(path, text.getvalue())


def write_lines(path: Path, tasks: Sequence[Task]) -> None:
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


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write tasks as the JSON list that Label Studio imports; a label that is there already comes as a prediction."""
    write_text(path, "[\n" + ",\n".join(msgspec.json.encode(_task(task)).decode() for task in tasks) + "\n]\n")


def _task(task: Task) -> dict[str, Any]:
    row, terms = task.row, common_terms(task.item.query, task.item.passage)
    # The plain query is for the lists of tasks, which show no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data |= {"query_html": marked(task.item.query, terms), "passage_html": marked(task.item.passage, terms)}
    if task.label is None:
        return {"data": data}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(task.label)]}}
    by = task.by or f"version {task.version - 1}"
    return {"data": data, "predictions": [{"model_version": by, "result": [choice]}]}


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
