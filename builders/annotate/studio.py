"""Files of Label Studio: the labelling interface and the tasks that it imports, the JSON that it exports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from builders.annotate.marking import common_terms, marked
from builders.annotate.questions import RELEVANCE, Question
from builders.annotate.sheets import Place, Row, Task, write_lines, write_sheet
from builders.core.errors import InputError
from builders.core.files import atomic_text, read_whole
from builders.core.typed import Count, json_of

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
CONFIG_FILE = "config.xml"


def config_of(question: Question) -> str:
    """The labelling interface of a round that asks this question; pointed at, a choice says what it means."""
    choices = (
        f'    <Choice value="{choice.name}" alias="{choice.label}" hotkey="{choice.label}"'
        + f' hint="{choice.means}"' * bool(choice.means)
        + "/>"
        for choice in question.choices
    )
    return _CONFIG.format(text=question.text, hint=question.hint, choices="\n".join(choices))


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks as the JSON list that Label Studio imports; a label that is there already comes as a prediction."""
    with atomic_text(path) as file:
        for number, task in enumerate(tasks):
            file.write(("[\n" if not number else ",\n") + msgspec.json.encode(_task(task)).decode())
        file.write("\n]\n")


def write_package(folder: Path, stem: str, tasks: Sequence[Task], studio: Path | None = None) -> None:
    """Write tasks in every form: ``STEM.csv`` and ``.jsonl`` in ``folder``, ``.json`` there, too, or in ``studio``.

    Labels by a program are predictions in Label Studio; in a sheet they would count as whose it is.
    """
    rows = [task.unlabelled if task.by else task for task in tasks]
    write_sheet(folder / f"{stem}.csv", rows)
    write_lines(folder / f"{stem}.jsonl", rows)
    write_tasks((studio or folder) / f"{stem}.json", tasks)


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


def read_export(path: Path, question: Question = RELEVANCE) -> Iterator[tuple[int, Row]]:
    """(number of the task from 1, row) of every annotation in a file of Label Studio's JSON export (not JSON-MIN)."""
    for number, task in enumerate(json_of(read_whole(path), list[Exported], path), 1):
        for annotation in task.annotations:
            label, note = _said(annotation, question, f"{path}: task {number}")
            if annotation.was_cancelled or label is None:
                continue
            place, person = msgspec.structs.asdict(task.data), annotation.completed_by
            who = f"user-{person}" if isinstance(person, int) else person.email or f"user-{person.id}"
            yield number, Row(**place, label=label, annotator=who, time=annotation.updated_at, note=note)


def _said(annotation: _Annotation, question: Question, where: str) -> tuple[int | None, str | None]:
    """(label, note) of one annotation; None for what it lacks."""
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
