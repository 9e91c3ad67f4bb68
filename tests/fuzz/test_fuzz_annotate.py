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
from builders.core.files import read_whole

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ITEMS = [
    rounds.Item("q1", "p1", "高铁票提前几天买", "高铁票可以提前十五天购买。"),
    rounds.Item("q1", "p2", "=1+1", 'a,"b"'),
]
JUDGED = [rounds.Judgment(*item.pair, n, "anna", NOON, "dev-001", 1, "annotation") for n, item in enumerate(ITEMS)]


def make_round(folder: Path) -> None:
    (folder / "packages").mkdir(parents=True)
    (folder / "packages" / "dev-001.jsonl").write_bytes(b"".join(msgspec.json.encode(item) + b"\n" for item in ITEMS))
    rule, packages = rounds.Rule(reviewers=2, review_pairs=1), [rounds.Package("dev-001", len(ITEMS))]
    rounds.write_round(folder, rounds.Round(1, "release", "0" * 64, "dev", "1" * 64, rule, packages))


def _items(folder: Path) -> Any:
    (package,) = rounds.open_round(folder).packages
    return rounds.items_of(folder, package)


def _as_items(found: list[rounds.Item], good: list[rounds.Item], folder: Path) -> bool:
    lines = (folder / "packages" / "dev-001.jsonl").read_bytes().split(b"\n")
    said = [json.loads(line.removeprefix(b"\xef\xbb\xbf"), parse_int=str) for line in lines if line]
    return equal([msgspec.to_builtins(item) for item in found], said)


def _judgments(folder: Path) -> None:
    make_round(folder)
    rounds.add_judgments(folder, JUDGED)


TASKS = [Task(*msgspec.structs.astuple(item), "dev-001", 1, label=label) for label, item in enumerate(ITEMS)]
DATA = {"package": "dev-001", "version": 1, "kind": "annotation", "query-id": "q1", "corpus-id": "p1"}
CHOICE = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": ["1"]}}
NOTE = {"from_name": "note", "to_name": "passage", "type": "textarea", "value": {"text": ["看第二句"]}}
DONE = {"result": [CHOICE, NOTE], "updated_at": "2024-05-01T12:00:00.5Z", "completed_by": 3, "was_cancelled": False}
EXPORT = [{"id": 1, "data": DATA, "annotations": [DONE]}, {"id": 2, "data": DATA, "annotations": []}]


def _as_lines(found: list[Any], _: Any, folder: Path) -> bool:
    lines = (folder / "lines.jsonl").read_bytes().split(b"\n")
    return equal(found, [loads(line.removeprefix(b"\xef\xbb\xbf")) for line in lines if line.strip()])


def _as_choices(found: list[int], _: Any, folder: Path) -> bool:
    text = (folder / "export.json").read_text(encoding="utf-8-sig")
    return len(found) <= text.count("choices") and all(f'"{label}"' in text for label in found)


COMPLETION = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "最终得分：2"}}]}


def _as_completion(found: str, _: str, folder: Path) -> bool:
    said = json.loads((folder / "answer.json").read_text(encoding="utf-8-sig"), parse_int=str)
    return bool(found == (said["choices"][0]["message"].get("content") or ""))


_ROUNDS, _TASKS = "builders.annotate.rounds:", "builders.annotate.tasks:"
READERS = [
    Reader(
        f"{_ROUNDS}open_round", make_round, {"round.json": JSON},
        lambda folder: msgspec.to_builtins(rounds.open_round(folder)), as_json("round.json"),
    ),
    Reader(f"{_ROUNDS}items_of", make_round, {"packages/dev-001.jsonl": JSON_LINES}, _items, _as_items),
    Reader(
        f"{_ROUNDS}read_judgments", _judgments, {"judgments/*.jsonl": JSON_LINES},
        lambda folder: [rounds.encode_judgment(each) for each in rounds.read_judgments(folder)], same,
    ),
    Reader(
        f"{_TASKS}read_sheet", lambda folder: write_sheet(folder / "sheet.csv", TASKS), {"sheet.csv": TEXT},
        lambda folder: [row.label for _, row in read_sheet(folder / "sheet.csv")],
    ),
    Reader(
        f"{_TASKS}read_lines", lambda folder: write_lines(folder / "lines.jsonl", TASKS), {"lines.jsonl": JSON_LINES},
        lambda folder: [msgspec.to_builtins(row) for _, row in read_lines(folder / "lines.jsonl")], _as_lines,
    ),
    Reader(
        f"{_TASKS}read_export", writing("export.json", json.dumps(EXPORT)), {"export.json": JSON},
        lambda folder: [row.label for _, row in read_export(folder / "export.json")], _as_choices,
    ),
    Reader(
        "builders.annotate.translate:read_earlier",
        lambda f: write_rows(f / "machine.tsv", COLUMNS, [("a", "几点", 'at "what"', "m"), ("b", "谁", "", "m")]),
        {"machine.tsv": TEXT}, lambda f: read_earlier(f / "machine.tsv", "m", {"a": "几点", "b": "谁"}, f),
    ),
    Reader(
        "builders.core.endpoint:text_in", writing("answer.json", json.dumps(COMPLETION)), {"answer.json": JSON},
        lambda folder: text_in(read_whole(folder / "answer.json"), str(folder / "answer.json")), _as_completion,
    ),
]  # fmt: skip
test_a_damaged_round_gives_its_content_or_one_error = fuzz_of(READERS)
