"""Label Studio: the labelling interface, tasks in, its JSON export out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.marking import common_terms, marked
from builders.annotate.sheets import Place, Row, Task, write_lines, write_sheet
from builders.common.command import InputError
from builders.common.files import atomic_text, read_whole
from builders.common.typed import Count, json_of

# A key a choice: 1 or 0 judges a pair, Ctrl+Enter (of Label Studio) hands it in. The alias is what the export has.
CONFIG = """\
<View>
  <Style>
    mark {background: #ffe58f; color: inherit; padding: 0 2px; border-radius: 2px}
    .query {font-size: 1.25em; font-weight: 600}
    .passage {line-height: 1.8; max-width: 48em}
    .said {color: #888}
  </Style>
  <Header value="查询" size="5"/>
  <View className="query"><HyperText name="query" value="$query_html" inline="true"/></View>
  <Header value="段落" size="5"/>
  <View className="passage"><HyperText name="passage" value="$passage_html" inline="true"/></View>
  <View className="said"><Text name="said" value="$said"/></View>
  <Header value="这个段落能回答这个查询吗？" size="5"/>
  <Choices name="label" toName="passage" choice="single-radio" required="true" showInline="true"
           requiredMessage="请选择：相关（1）或不相关（0）">
    <Choice value="相关" alias="1" hotkey="1"/>
    <Choice value="不相关" alias="0" hotkey="0"/>
  </Choices>
  <TextArea name="note" toName="passage" placeholder="备注（可不填）" rows="1" maxSubmissions="1" editable="true"/>
</View>
"""
CONFIG_FILE = "config.xml"
_LABELS = {"1": 1, "0": 0, "相关": 1, "不相关": 0}  # with the alias, or as an interface without aliases says it


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as the JSON list that Label Studio imports; a label that is there already comes as a prediction."""
    with atomic_text(path) as file:
        for number, task in enumerate(tasks):
            file.write(("[\n" if not number else ",\n") + msgspec.json.encode(_task(task)).decode())
        file.write("\n]\n")


def write_package(folder: Path, stem: str, tasks: Sequence[Task], studio: Path | None = None) -> None:
    """Write tasks in every form: ``STEM.csv`` and ``.jsonl`` in ``folder``, ``.json`` there, too, or in ``studio``."""
    write_sheet(folder / f"{stem}.csv", tasks)
    write_lines(folder / f"{stem}.jsonl", tasks)
    write_tasks((studio or folder) / f"{stem}.json", tasks)


def tasks_in(content: bytes, path: Path | str) -> int:
    """The number of tasks in a file of them. :class:`InputError` where it is none."""
    return len(json_of(content, list[dict[str, Any]], path))


def _task(task: Task) -> dict[str, Any]:
    row, label = task.row, task.label
    terms = common_terms(task.item.query, task.item.passage)
    # The plain query is for the lists of tasks, which show no HTML.
    data = {key: row[key] for key in ("package", "version", "kind", "query-id", "corpus-id", "query", "said")}
    data |= {"query_html": marked(task.item.query, terms), "passage_html": marked(task.item.passage, terms)}
    if label is None:
        return {"data": data}
    choice = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(label)]}}
    return {
        "data": data,
        "predictions": [{"model_version": task.by or f"version {task.version - 1}", "result": [choice]}],
    }


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
    updated_at: Annotated[datetime, Meta(tz=True)]
    completed_by: Count | _Person
    was_cancelled: bool = False


class Exported(msgspec.Struct, frozen=True):
    """A task of Label Studio's JSON export."""

    data: Place
    annotations: list[_Annotation]


class Account(msgspec.Struct, frozen=True):
    """A user as the server lists them."""

    id: Count
    email: str


def read_export(path: Path) -> Iterator[tuple[int, Row]]:
    """(number of the task from 1, row) of every annotation in a file of Label Studio's JSON export (not JSON-MIN)."""
    return rows_of(read_whole(path), path)


def rows_of(content: bytes, path: Path | str, people: dict[int, str] | None = None) -> Iterator[tuple[int, Row]]:
    """As :func:`read_export`, of the export's bytes; ``people``: the e-mail addresses of the server's users, by id."""
    for number, task in enumerate(json_of(content, list[Exported], path), 1):
        for annotation in task.annotations:
            label, note = _said(annotation, f"{path}: task {number}")
            if annotation.was_cancelled or label is None:
                continue
            place, who = msgspec.structs.asdict(task.data), _name(annotation.completed_by, people or {})
            yield number, Row(**place, label=label, annotator=who, time=annotation.updated_at, note=note)


def _said(annotation: _Annotation, where: str) -> tuple[int | None, str | None]:
    """(label, note) of one annotation; None for what it lacks."""
    label = note = None
    for result in annotation.result:
        value = result.value
        if result.from_name == "label" and value.choices:
            if len(value.choices) > 1 or value.choices[0] not in _LABELS:
                raise InputError(f"expected one choice, 1 or 0, found {', '.join(value.choices)[:80]}", path=where)
            label = _LABELS[value.choices[0]]
        elif result.from_name == "note" and value.text:
            note = value.text if isinstance(value.text, str) else "\n".join(value.text)
    return label, note


def _name(person: int | _Person, people: dict[int, str]) -> str:
    number, email = (person, "") if isinstance(person, int) else (person.id, person.email)
    return email or people.get(number, "") or f"user-{number}"
