"""Rounds of annotation: packages out, judgments in, nothing lost and nothing overwritten."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, annotate, export_of, fill, judge, judgments, make_pool, make_round, read_table, truth
from commands import ROOT, command
from releases import TEXTS, md5

from builders.annotate.tasks import Task, common_terms, marked, read_sheet, write_sheet
from builders.core.files import alone


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two packages of twelve pairs."""
    return make_round(tmp_path)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_export_refuses_and_leaves_out(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, passages=6)
    text, words = pool.read_text(), ("--pool", pool, "--release", tmp_path / "release")
    lines = rows_of(pool)
    pool.write_text("".join(json.dumps(line | {"judged": None if n else 0}) + "\n" for n, line in enumerate(lines)))
    assert annotate("export", tmp_path / "round", *words, "--unjudged").stdout.startswith(
        "11 pairs of 2 queries in 1 packages"
    )
    assert "is a round already" in annotate("export", tmp_path / "round", *words, code=1).error
    pool.write_text(text.replace(md5(TEXTS[0]), "f" * 32))
    error = annotate("export", tmp_path / "r", *words, code=1).error
    assert f" {'f' * 32} that queries/dev or the corpus lacks" in error and not (tmp_path / "r").exists()


def test_terms_in_common_are_marked_and_texts_are_no_markup() -> None:
    query, passage = "高铁票怎么提前几天买？", "<b>高铁票</b>可以提前买 & 退，怎么都行"
    terms = common_terms(query, passage)
    assert marked(passage, terms) == "&lt;b&gt;<mark>高铁</mark>票&lt;/b&gt;可以<mark>提前</mark>买 &amp; 退，怎么都行"
    assert marked(query, terms) == "<mark>高铁</mark>票怎么<mark>提前</mark>几天买？"
    # In any case, and never within an escape.
    assert common_terms("amp 是什么 GT500", "AMP & gt500") == ["gt500", "amp"]
    assert marked("AMP & gt500 <", ["gt500", "amp"]) == "<mark>AMP</mark> &amp; <mark>gt500</mark> &lt;"


def test_a_cell_that_a_spreadsheet_would_compute_is_shown_as_text(tmp_path: Path) -> None:
    write_sheet(tmp_path / "sheet.csv", [Task("-q", "=p", "=cmd()", "+1", "dev-001", 1, label=1)])
    (row,) = read_table(tmp_path / "sheet.csv")
    assert (row["query"], row["passage"]) == ("'=cmd()", "'+1")
    ((_, read),) = read_sheet(tmp_path / "sheet.csv")
    assert (read.query_id, read.corpus_id, read.label) == ("-q", "=p", 1)


def test_judgments_are_added_once_and_none_is_taken_back(round_: Path, tmp_path: Path) -> None:
    sheet, folder = round_ / "packages" / "dev-001.csv", round_ / "judgments"
    # What is not judged yet is passed over.
    assert judge(round_, ANNA, sheet, lambda row: 1 if truth(row) else "").stdout.startswith("1 new judgments of 1:")
    assert judge(round_, ANNA, sheet, truth).stdout.startswith("11 new judgments of 12")
    found = judgments(round_)
    assert len(found) == 12 and [each["corpus-id"] for each in found if each["label"]] == [md5(TEXTS[4])]
    about = {(each["annotator"], each["package"], each["version"], each["kind"]) for each in found}
    assert about == {(ANNA, "dev-001", 1, "annotation")} and all(each["time"].endswith("Z") for each in found)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert all(path.stem == hashlib.sha256(content).hexdigest() for path, content in before.items())
    assert judge(round_, ANNA, sheet, truth).stdout.startswith("0 new judgments of 12")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    # Whoever changes their mind adds a judgment.
    assert judge(round_, ANNA, sheet, lambda row: 0).stdout.startswith("1 new judgments of 12")
    assert all(path.read_bytes() == content for path, content in before.items())
    # Another copy of the round takes the files as they are.
    other = make_round(tmp_path / "other")
    annotate("import", other, *folder.iterdir())
    assert sorted(map(str, judgments(other))) == sorted(map(str, judgments(round_)))
    changed = next(iter(before))
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert "was changed" in annotate("check", round_, code=1).error


@pytest.mark.parametrize("form", ["utf-8-sig", "gb18030", "jsonl"])
def test_a_sheet_comes_back_in_the_encodings_of_spreadsheets_or_as_json_lines(
    round_: Path, tmp_path: Path, form: str
) -> None:
    if form == "jsonl":
        rows = (row | {"label": truth(row)} for row in rows_of(round_ / "packages" / "dev-001.jsonl"))
        (tmp_path / "back").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sheet = fill(round_ / "packages" / "dev-001.csv", lambda row: "是" if truth(row) else "否")
        (tmp_path / "back.csv").write_text(sheet.read_text(encoding="utf-8"), encoding=form)
    annotate("import", round_, "--annotator", ANNA, next(tmp_path.glob("back*")))
    assert [each["corpus-id"] for each in judgments(round_) if each["label"]] == [md5(TEXTS[4])]


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("label", "2", "back.csv:3: expected 1 or 0 in the column label, found '2'"),
        ("corpus-id", "x", "has no pair"),
        ("package", "dev-009", "the round has no package 'dev-009'"),
        ("version", "2", "version 2 of dev-001, which is at 1"),
        ("version", "one", "version: expected `int`"),
        ("kind", "guess", "kind: expected one of adjudication"),
        ("", "", "expected --annotator NAME"),
    ],
)
def test_one_wrong_row_and_nothing_is_taken(round_: Path, tmp_path: Path, column: str, cell: str, message: str) -> None:
    sheet = fill(round_ / "packages" / "dev-001.csv", truth, tmp_path / "back.csv")
    if column:
        lines = sheet.read_text(encoding="utf-8").splitlines()
        cells = lines[2].split(",")
        cells[lines[0].split(",").index(column)] = cell
        sheet.write_text("\n".join([*lines[:2], ",".join(cells), *lines[3:]]), encoding="utf-8")
    words = ("--annotator", ANNA) if column else ()
    assert message in annotate("import", round_, *words, sheet, code=1).error
    assert judgments(round_) == []


def test_every_step_tells_a_round_from_another_directory(tmp_path: Path) -> None:
    for action, words in (("check", ()), ("adjudicate", ()), ("review", ("--reviewers", ANNA)), ("import", ("x.csv",))):
        assert "not a round (no round.json)" in annotate(action, tmp_path, *words, code=1).error
    annotate("import", tmp_path, code=2)  # without files


def test_label_studios_export_is_taken_as_it_comes(round_: Path, tmp_path: Path) -> None:
    """People are numbers there; a choice is its alias or its name; who skips a pair judges nothing."""
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_bytes())

    def done(who: object, choice: str, **more: object) -> dict[str, object]:
        note = {"from_name": "note", "type": "textarea", "value": {"text": ["看第二句"]}}
        label = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [choice]}}
        about = {"completed_by": who, "updated_at": "2024-05-01T12:00:00.5Z", "lead_time": 1.5}
        return {"id": 7, "result": [label, note], **about, **more}

    answers = [[done(1, "1"), done({"id": 2, "email": BEN}, "不相关")], [done(1, "1", was_cancelled=True)]]
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": answers[number] if number < 2 else [], "predictions": []}

    def take(change: Callable[[], object] = lambda: None, code: int = 0) -> Any:
        change()
        (tmp_path / "export.json").write_text(json.dumps(tasks))
        return annotate("import", round_, tmp_path / "export.json", code=code)

    assert take().stdout.startswith("2 new judgments of 2")
    found = {(each["annotator"], each["label"], each["note"]) for each in judgments(round_)}
    assert found == {("user-1", 1, "看第二句"), (BEN, 0, "看第二句")}
    assert take().stdout.startswith("0 new judgments of 2")
    value = tasks[0]["annotations"][0]["result"][0]["value"]
    assert "task 1: expected one choice, 1 or 0, found 2" in take(lambda: value.update(choices=["2"]), code=1).error


@pytest.mark.parametrize(("people", "new"), [((ANNA, BEN), [b"12", b"12"]), ((ANNA, ANNA), [b"0", b"12"])])
def test_two_imports_at_once_lose_nothing_and_take_nothing_twice(
    round_: Path, people: tuple[str, str], new: list[bytes]
) -> None:
    running = []
    with alone(round_ / "judgments", round_):  # both are about to write before either may
        for who in people:
            file = export_of(round_ / "label-studio" / "dev-001.json", who, truth, round_ / f"{who}.json")
            words = command("builders", "annotate", "import", "--round", round_, file)
            running.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in running:
            assert process.stderr is not None and b"waiting for another process" in process.stderr.readline()
    assert sorted(process.communicate(timeout=300)[0].split(b" new")[0] for process in running) == new
    found = [(each["annotator"], each["query-id"], each["corpus-id"]) for each in judgments(round_)]
    assert len(found) == len(set(found)) == 12 * len(set(people))
