"""Rounds of annotation: packages out, judgments in, nothing lost and nothing overwritten."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from annotating import ANNA, BEN, annotate, fill, judge, judgments, make_pool, make_round, read_table, truth
from commands import run
from releases import QUESTIONS, TEXTS, md5

from builders.annotate.marking import common_terms, marked
from builders.annotate.rounds import Item
from builders.annotate.sheets import Task, read_sheet, write_sheet
from builders.core.files import sha256_of


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two packages of twelve pairs."""
    return make_round(tmp_path)


def test_a_round_holds_every_pair_of_the_pool_once_in_packages(round_: Path, tmp_path: Path) -> None:
    pool = [json.loads(line) for line in (tmp_path / "pool.jsonl").read_text().splitlines()]
    packages = [read_table(round_ / "packages" / f"dev-00{number}.csv") for number in (1, 2)]
    assert [len(rows) for rows in packages] == [12, 12]
    found = sorted((row["query-id"], row["corpus-id"]) for rows in packages for row in rows)
    assert found == sorted((pair["query-id"], pair["corpus-id"]) for pair in pool)
    about = json.loads((round_ / "round.json").read_text())
    assert (about["release"], about["split"], about["pool"]) == ("release", "dev", sha256_of(tmp_path / "pool.jsonl"))
    assert [(each["name"], each["pairs"], each["version"], each["state"]) for each in about["packages"]] == [
        ("dev-001", 12, 1, "open"),
        ("dev-002", 12, 1, "open"),
    ]


def test_a_sheet_shows_the_texts_and_no_rank(round_: Path) -> None:
    rows = read_table(round_ / "packages" / "dev-001.csv")
    assert {row["query"] for row in rows} == {QUESTIONS["dev"][0]}
    assert {row["passage"] for row in rows} >= set(TEXTS)
    assert [row["corpus-id"] for row in rows] == sorted(md5(row["passage"]) for row in rows)
    assert {row["label"] for row in rows} == {""}


def test_the_three_forms_of_a_package_have_the_same_pairs(round_: Path) -> None:
    table = [(row["query-id"], row["corpus-id"]) for row in read_table(round_ / "packages" / "dev-001.csv")]
    lines = [json.loads(line) for line in (round_ / "packages" / "dev-001.jsonl").read_text().splitlines()]
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_text())
    assert [(row["query-id"], row["corpus-id"]) for row in lines] == table
    assert [(task["data"]["query-id"], task["data"]["corpus-id"]) for task in tasks] == table


def test_a_round_is_never_replaced(round_: Path, tmp_path: Path) -> None:
    words = ("--pool", tmp_path / "pool.jsonl", "--release", tmp_path / "release")
    assert "is a round already" in annotate("export", round_, *words, code=1).error


def test_pairs_that_are_judged_can_be_left_out(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, passages=6)
    lines = [json.loads(line) for line in pool.read_text().splitlines()]
    lines[0]["judged"] = 0
    pool.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--pool", pool, "--release", tmp_path / "release", "--unjudged")
    assert annotate("export", tmp_path / "round", *words).stdout.startswith("11 pairs in 1 packages")


def test_terms_in_common_are_marked_and_texts_are_no_markup() -> None:
    query, passage = "高铁票怎么提前几天买？", "<b>高铁票</b>可以提前买 & 退，怎么都行"
    terms = common_terms(query, passage)
    assert marked(passage, terms) == "&lt;b&gt;<mark>高铁</mark>票&lt;/b&gt;可以<mark>提前</mark>买 &amp; 退，怎么都行"
    assert marked(query, terms) == "<mark>高铁</mark>票怎么<mark>提前</mark>几天买？"


def test_a_term_is_marked_in_any_case_and_never_within_an_escape() -> None:
    assert common_terms("amp 是什么 GT500", "AMP & gt500") == ["gt500", "amp"]
    assert marked("AMP & gt500 <", ["gt500", "amp"]) == "<mark>AMP</mark> &amp; <mark>gt500</mark> &lt;"


def test_a_cell_that_a_spreadsheet_would_compute_is_shown_as_text(tmp_path: Path) -> None:
    write_sheet(tmp_path / "sheet.csv", [Task(Item("-q", "=p", "=cmd()", "+1"), "dev-001", 1, label=1)])
    (row,) = read_table(tmp_path / "sheet.csv")
    assert (row["query"], row["passage"]) == ("'=cmd()", "'+1")
    ((_, read),) = read_sheet(tmp_path / "sheet.csv")
    assert (read.query_id, read.corpus_id, read.label) == ("-q", "=p", 1)


def test_a_filled_sheet_becomes_judgments_that_say_who_when_and_of_what(round_: Path) -> None:
    done = judge(round_, ANNA, round_ / "packages" / "dev-001.csv", truth)
    assert done.stdout.startswith("12 new judgments of 12")
    found = judgments(round_)
    assert len(found) == 12 and sum(each["label"] for each in found) == 1
    assert {(j["annotator"], j["package"], j["version"], j["kind"]) for j in found} == {
        (ANNA, "dev-001", 1, "annotation")
    }
    assert all(each["time"].endswith("Z") for each in found)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030"])
def test_a_sheet_may_come_back_in_the_encodings_of_spreadsheets(round_: Path, tmp_path: Path, encoding: str) -> None:
    sheet = fill(round_ / "packages" / "dev-001.csv", lambda row: "是" if truth(row) else "否")
    (tmp_path / "back.csv").write_text(sheet.read_text(encoding="utf-8"), encoding=encoding)
    annotate("import", round_, "--annotator", ANNA, tmp_path / "back.csv")
    assert {each["corpus-id"] for each in judgments(round_) if each["label"]} == {md5(TEXTS[4])}


def test_json_lines_come_back_as_the_sheet_does(round_: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (round_ / "packages" / "dev-002.jsonl").read_text().splitlines()]
    rows = [row | {"label": truth(row)} for row in rows]
    (tmp_path / "back.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    annotate("import", round_, "--annotator", ANNA, tmp_path / "back.jsonl")
    assert [each["corpus-id"] for each in judgments(round_) if each["label"]] == [md5(TEXTS[5])]


def test_the_same_import_again_changes_nothing(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    judge(round_, ANNA, sheet, truth)
    before = {path.name: path.read_bytes() for path in (round_ / "judgments").iterdir()}
    assert judge(round_, ANNA, sheet, truth).stdout.startswith("0 new judgments of 12")
    assert {path.name: path.read_bytes() for path in (round_ / "judgments").iterdir()} == before


def test_whoever_changes_their_mind_adds_a_judgment_and_the_first_is_kept(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    judge(round_, ANNA, sheet, truth)
    first = {path: path.read_bytes() for path in (round_ / "judgments").glob("*.jsonl")}
    assert judge(round_, ANNA, sheet, lambda row: 0).stdout.startswith("1 new judgments of 12")
    assert all(path.read_bytes() == content for path, content in first.items())
    assert sorted(each["label"] for each in judgments(round_) if each["corpus-id"] == md5(TEXTS[4])) == [0, 1]


def test_rows_that_are_not_judged_yet_are_passed_over(round_: Path) -> None:
    done = judge(round_, ANNA, round_ / "packages" / "dev-001.csv", lambda row: 1 if truth(row) else "")
    assert done.stdout.startswith("1 new judgments of 1:")


def test_a_file_of_judgments_of_another_copy_of_the_round_is_taken_as_it_is(round_: Path, tmp_path: Path) -> None:
    other = make_round(tmp_path / "other")
    judge(other, BEN, other / "packages" / "dev-001.csv", truth)
    (file,) = (other / "judgments").glob("*.jsonl")
    annotate("import", round_, file)
    assert [path.name for path in (round_ / "judgments").glob("*.jsonl")] == [file.name]


def test_the_name_of_a_file_of_judgments_is_its_sha256_and_a_changed_one_is_refused(round_: Path) -> None:
    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", truth)
    (file,) = (round_ / "judgments").glob("*.jsonl")
    assert file.stem == hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(file.read_bytes().replace(b'"label":0', b'"label":1', 1))
    assert "was changed" in annotate("check", round_, code=1).error


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("label", "2", "back.csv:3: expected 1 or 0 in the column label, found '2'"),
        ("corpus-id", "x", "has no pair of query"),
        ("package", "dev-009", "the round has no package 'dev-009'"),
        ("version", "2", "version 2 of the package dev-001, which is at version 1"),
        ("version", "one", "version: expected `int`"),
        ("kind", "guess", "kind: expected one of adjudication"),
    ],
)
def test_one_wrong_row_and_nothing_is_taken(round_: Path, tmp_path: Path, column: str, cell: str, message: str) -> None:
    fill(round_ / "packages" / "dev-001.csv", truth, tmp_path / "back.csv")
    lines = (tmp_path / "back.csv").read_text(encoding="utf-8").splitlines()
    place = lines[0].split(",").index(column)
    cells = lines[2].split(",")
    cells[place] = cell
    lines[2] = ",".join(cells)
    (tmp_path / "back.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert message in annotate("import", round_, "--annotator", ANNA, tmp_path / "back.csv", code=1).error
    assert judgments(round_) == []


def test_a_sheet_must_say_who_judged(round_: Path) -> None:
    sheet = fill(round_ / "packages" / "dev-001.csv", truth)
    assert "expected --annotator NAME" in annotate("import", round_, sheet, code=1).error


def test_a_pool_of_another_release_is_named(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    pool.write_text(pool.read_text().replace(md5(TEXTS[0]), "f" * 32))
    words = ("--pool", pool, "--release", tmp_path / "release")
    assert (
        f"has a passage '{'f' * 32}' that the corpus lacks" in annotate("export", tmp_path / "r", *words, code=1).error
    )
    assert not (tmp_path / "r").exists()


def test_every_action_tells_a_round_from_another_directory(tmp_path: Path) -> None:
    for action, words in (("check", ()), ("adjudicate", ()), ("review", ("--reviewers", ANNA)), ("import", ("x.csv",))):
        assert "not a round (no round.json)" in annotate(action, tmp_path, *words, code=1).error


def test_import_needs_files(round_: Path) -> None:
    assert run("builders", "annotate", "import", "--round", round_, code=2)


def test_label_studios_export_is_taken_as_it_comes(round_: Path, tmp_path: Path) -> None:
    """People are numbers there; a choice is its alias or its name; who skips a pair judges nothing."""
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_bytes())

    def done(who: int, choice: str, **more: object) -> dict[str, object]:
        note = {"from_name": "note", "type": "textarea", "value": {"text": ["看第二句"]}}
        label = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [choice]}}
        about = {"completed_by": who, "updated_at": "2024-05-01T12:00:00.5Z", "lead_time": 1.5}
        return {"id": 7, "result": [label, note], **about, **more}

    answers = [[done(1, "1"), done(2, "不相关")], [done(1, "1", was_cancelled=True)]]
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": answers[number] if number < 2 else [], "predictions": []}
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    assert annotate("import", round_, tmp_path / "export.json").stdout.startswith("2 new judgments of 2")
    found = {(each["annotator"], each["label"], each["note"]) for each in judgments(round_)}
    assert found == {("user-1", 1, "看第二句"), ("user-2", 0, "看第二句")}
    assert annotate("import", round_, tmp_path / "export.json").stdout.startswith("0 new judgments of 2")
    tasks[0]["annotations"][0]["result"][0]["value"]["choices"] = ["2"]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    assert (
        "task 1: expected one choice, 1 or 0, found 2"
        in annotate("import", round_, tmp_path / "export.json", code=1).error
    )
