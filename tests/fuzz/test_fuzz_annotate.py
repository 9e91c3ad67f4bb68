"""Damaged rounds of annotation: packages, judgments, sheets, and exports of Label Studio."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from fuzzing import Reader, as_json, equal, fuzz_of, loads, same, writing
from spoil import JSON, JSON_LINES, TEXT

from builders.annotate import rounds
from builders.annotate.tasks import Task, read_export, read_lines, read_sheet, write_lines, write_sheet
from builders.annotate.translate import COLUMNS, read_earlier
from builders.annotate.translations import write_rows
from builders.core.endpoint import text_in
from builders.core.read_files import read_whole

BOM = b"\xef\xbb\xbf"
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ITEMS = [
    rounds.PackageItem("q1", "p1", "高铁票提前几天买", "高铁票可以提前十五天购买。"),
    rounds.PackageItem("q1", "p2", "=1+1", 'a,"b"'),
]
JUDGMENTS = []
for item_label, annotated_item in enumerate(ITEMS):
    item_query_id, item_passage_id = annotated_item.pair
    item_judgment = rounds.Judgment(
        item_query_id, item_passage_id, item_label, "anna", NOON, "dev-001", 1, "annotation"
    )
    JUDGMENTS.append(item_judgment)


def write_round(folder: Path) -> None:
    """Write a round of one package."""
    (folder / "packages").mkdir(parents=True)
    item_lines = [msgspec.json.encode(item) + b"\n" for item in ITEMS]
    (folder / "packages" / "dev-001.jsonl").write_bytes(b"".join(item_lines))
    rule = rounds.QualityRule(reviewers=2, review_pairs=1)
    packages = [rounds.Package("dev-001", len(ITEMS))]
    rounds.write_round(folder, rounds.AnnotationRound(1, "release", "0" * 64, "dev", "1" * 64, rule, packages))


def write_judged_round(folder: Path) -> None:
    """Write a round with a judgment of each item."""
    write_round(folder)
    rounds.add_judgments(folder, JUDGMENTS)


def read_items(folder: Path) -> Any:
    """Read the items of the only package."""
    (package,) = rounds.open_round(folder).packages
    return rounds.items_of(folder, package)


def are_items_of_file(items: list[rounds.PackageItem], _: Any, folder: Path) -> bool:
    """Accept the items that are in the lines of the package."""
    json_items = []
    for line in (folder / "packages" / "dev-001.jsonl").read_bytes().split(b"\n"):
        if line:
            json_items.append(json.loads(line.removeprefix(BOM), parse_int=str))
    return equal([msgspec.to_builtins(item) for item in items], json_items)


TASKS = []
for item_label, annotated_item in enumerate(ITEMS):
    item_fields = msgspec.structs.astuple(annotated_item)
    TASKS.append(Task(*item_fields, "dev-001", 1, label=item_label))
DATA = {"package": "dev-001", "version": 1, "kind": "annotation", "query-id": "q1", "corpus-id": "p1"}
CHOICE = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": ["1"]}}
NOTE = {"from_name": "note", "to_name": "passage", "type": "textarea", "value": {"text": ["看第二句"]}}
ANNOTATION = {
    "result": [CHOICE, NOTE],
    "updated_at": "2024-05-01T12:00:00.5Z",
    "completed_by": 3,
    "was_cancelled": False,
}
EXPORT = [{"id": 1, "data": DATA, "annotations": [ANNOTATION]}, {"id": 2, "data": DATA, "annotations": []}]


def are_lines_of_file(rows: list[Any], _: Any, folder: Path) -> bool:
    """Accept the values that are in the lines."""
    json_rows = []
    for line in (folder / "lines.jsonl").read_bytes().split(b"\n"):
        if line.strip():
            json_rows.append(loads(line.removeprefix(BOM)))
    return equal(rows, json_rows)


def are_choices_of_file(labels: list[int], _: Any, folder: Path) -> bool:
    """Accept labels that are in the export."""
    text = (folder / "export.json").read_text(encoding="utf-8-sig")
    return len(labels) <= text.count("choices") and all(f'"{label}"' in text for label in labels)


COMPLETION = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "最终得分：2"}}]}


def is_content_of_file(text: str, _: str, folder: Path) -> bool:
    """Accept the content of the first choice."""
    completion = json.loads((folder / "answer.json").read_text(encoding="utf-8-sig"), parse_int=str)
    content = completion["choices"][0]["message"].get("content")
    return bool(text == (content or ""))


def read_judgments(folder: Path) -> Any:
    """Read the judgments of a round."""
    return [rounds.encode_judgment(judgment) for judgment in rounds.read_judgments(folder)]


def read_task_lines(folder: Path) -> Any:
    """Read the rows of tasks as JSON lines."""
    return [msgspec.to_builtins(row) for _, row in read_lines(folder / "lines.jsonl")]


def write_translations(folder: Path) -> None:
    """Write two earlier translations by the model ``m``."""
    rows = [("a", "几点", 'at "what"', "m"), ("b", "谁", "", "m")]
    write_rows(folder / "machine.tsv", COLUMNS, rows)


def read_translations(folder: Path) -> Any:
    """Read the earlier translations of two questions."""
    return read_earlier(folder / "machine.tsv", "m", {"a": "几点", "b": "谁"}, folder)


READERS = [
    Reader(
        "builders.annotate.rounds:open_round",
        make=write_round,
        spoils={"round.json": JSON},
        read=lambda folder: msgspec.to_builtins(rounds.open_round(folder)),
        right=as_json("round.json"),
    ),
    Reader(
        "builders.annotate.rounds:items_of",
        make=write_round,
        spoils={"packages/dev-001.jsonl": JSON_LINES},
        read=read_items,
        right=are_items_of_file,
    ),
    Reader(
        "builders.annotate.rounds:read_judgments",
        make=write_judged_round,
        spoils={"judgments/*.jsonl": JSON_LINES},
        read=read_judgments,
        right=same,
    ),
    Reader(
        "builders.annotate.tasks:read_sheet",
        make=lambda folder: write_sheet(folder / "sheet.csv", TASKS),
        spoils={"sheet.csv": TEXT},
        read=lambda folder: [row.label for _, row in read_sheet(folder / "sheet.csv")],
    ),
    Reader(
        "builders.annotate.tasks:read_lines",
        make=lambda folder: write_lines(folder / "lines.jsonl", TASKS),
        spoils={"lines.jsonl": JSON_LINES},
        read=read_task_lines,
        right=are_lines_of_file,
    ),
    Reader(
        "builders.annotate.tasks:read_export",
        make=writing("export.json", json.dumps(EXPORT)),
        spoils={"export.json": JSON},
        read=lambda folder: [row.label for _, row in read_export(folder / "export.json")],
        right=are_choices_of_file,
    ),
    Reader(
        "builders.annotate.translate:read_earlier",
        make=write_translations,
        spoils={"machine.tsv": TEXT},
        read=read_translations,
    ),
    Reader(
        "builders.core.endpoint:text_in",
        make=writing("answer.json", json.dumps(COMPLETION)),
        spoils={"answer.json": JSON},
        read=lambda folder: text_in(read_whole(folder / "answer.json"), str(folder / "answer.json")),
        right=is_content_of_file,
    ),
]
test_a_damaged_round_gives_its_content_or_one_error = fuzz_of(READERS)
