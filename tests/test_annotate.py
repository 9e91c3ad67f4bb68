"""Test annotation rounds: export, import, and quality control with annotators whose errors are known."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import annotating
import pytest
from annotating import ANNA, BEN, CARL, annotate, export_of, fill, judge, judgments, make_round, read_table, truth
from commands import ROOT, command
from hypothesis import given
from hypothesis import strategies as st
from releases import TEXTS, json_lines, md5

from builders.annotate.kappa import cohen, cohen_of, fleiss, fleiss_of
from builders.annotate.merge_judgments import settled_labels
from builders.annotate.round_steps import check_round, draw_reviews, import_judgments
from builders.annotate.rounds import Rule, open_round
from builders.annotate.tasks import Task, read_sheet, write_sheet
from builders.annotate.verdicts import judge_package
from builders.core.errors import InputError
from builders.core.files import alone
from builders.core.highlight import common_terms, marked


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return make_round(tmp_path)


def test_export_refuses_and_leaves_out(tmp_path: Path) -> None:
    pool = annotating.make_pool(tmp_path, passages=6)
    text, words = pool.read_text(), ("--pool", pool, "--release", tmp_path / "release")
    lines = json_lines(pool)
    pool.write_text("".join(json.dumps(line | {"judged": None if n else 0}) + "\n" for n, line in enumerate(lines)))
    assert annotate("export", tmp_path / "round", *words, "--unjudged").stdout.startswith("11 pairs of 2 queries")
    assert "is already a round" in annotate("export", tmp_path / "round", *words, code=1).error
    pool.write_text(text.replace(md5(TEXTS[0]), "f" * 32))
    assert "or the corpus lacks" in annotate("export", tmp_path / "r", *words, code=1).error


def test_terms_in_common_are_marked_and_texts_are_no_markup() -> None:
    query, passage = "高铁票怎么提前几天买？", "<b>高铁票</b>可以提前买 & 退，怎么都行"
    terms = common_terms(query, passage)
    assert marked(passage, terms) == "&lt;b&gt;<mark>高铁</mark>票&lt;/b&gt;可以<mark>提前</mark>买 &amp; 退，怎么都行"
    assert marked(query, terms) == "<mark>高铁</mark>票怎么<mark>提前</mark>几天买？"
    # Terms match in upper and lower case, but never inside an HTML entity.
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
    assert judge(round_, ANNA, sheet, lambda row: 0).stdout.startswith("1 new judgments of 12")
    assert all(path.read_bytes() == content for path, content in before.items())
    # Another copy of the round can import the files of judgments unchanged.
    other = make_round(tmp_path / "other")
    annotate("import", other, *folder.iterdir())
    assert sorted(map(str, judgments(other))) == sorted(map(str, judgments(round_)))
    changed = next(iter(before))
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert "was changed" in annotate("check", round_, code=1).error


@pytest.mark.parametrize("form", ["utf-8-sig", "gb18030", "jsonl"])
def test_a_sheet_comes_back_in_every_form(round_: Path, tmp_path: Path, form: str) -> None:
    if form == "jsonl":
        rows = (row | {"label": truth(row)} for row in json_lines(round_ / "packages" / "dev-001.jsonl"))
        (tmp_path / "back").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sheet = fill(round_ / "packages" / "dev-001.csv", lambda row: "是" if truth(row) else "否")
        (tmp_path / "back.csv").write_text(sheet.read_text(encoding="utf-8"), encoding=form)
    annotate("import", round_, "--annotator", ANNA, next(tmp_path.glob("back*")))
    assert [each["corpus-id"] for each in judgments(round_) if each["label"]] == [md5(TEXTS[4])]


def test_label_studios_export_is_taken_as_it_comes(round_: Path, tmp_path: Path) -> None:
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
def test_two_imports_at_once_lose_nothing(round_: Path, people: tuple[str, str], new: list[bytes]) -> None:
    running = []
    with alone(round_ / "judgments", round_):  # both processes wait for the lock
        for who in people:
            file = export_of(round_ / "label-studio" / "dev-001.json", who, truth, round_ / f"{who}.json")
            words = command("builders", "annotate", "import", "--round", round_, file)
            running.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in running:
            assert process.stderr is not None and b"waiting for another process" in process.stderr.readline()
    assert sorted(process.communicate(timeout=300)[0].split(b" new")[0] for process in running) == new
    found = {(each["annotator"], each["query-id"], each["corpus-id"]) for each in judgments(round_)}
    assert len(found) == len(judgments(round_)) == 12 * len(set(people))


SIZE = 100  # pairs of a package
SHEET = "packages/dev-001.csv"


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A round with two packages of 100 pairs. Reviewers judge 50 pairs of each package."""
    return make_round(tmp_path, "--review-pairs", 50, passages=SIZE, size=SIZE)


def annotated(hundred: Path, wrong: int, sheet: str = SHEET) -> None:
    judge(hundred, ANNA, hundred / sheet, annotating.wrong_in(wrong, read_table(hundred / sheet), "dev-001"))


def reviewed(hundred: Path, label: annotating.Label = truth, package: str = "dev-001") -> None:
    annotate("review", hundred, "--reviewers", BEN, CARL)
    for reviewer in (BEN, CARL):
        judge(hundred, reviewer, hundred / "reviews" / reviewer / f"{package}.csv", label)


def first(hundred: Path) -> dict[str, Any]:
    return annotating.check(hundred)["packages"][0]


def settled(hundred: Path) -> tuple[dict[tuple[str, str], int], list[tuple[str, str]]]:
    return settled_labels(hundred, open_round(hundred))


def test_a_package_without_errors_is_accepted_until_its_labels_change(hundred: Path) -> None:
    annotated(hundred, wrong=0)
    assert settled(hundred) == ({}, [])
    reviewed(hundred)
    lines = annotate("check", hundred).stdout.splitlines()
    assert lines[:2] == [
        f"package dev-001, version 1: 100 of 100 judged; {BEN} 50/50, {CARL} 50/50; accuracy 100.00 %; accepted",
        "package dev-002, version 1: 0 of 100 judged; open; 100 pairs are not judged",
    ]
    assert any(line.startswith("Fleiss' kappa of 2 people a pair") for line in lines)
    assert len(settled(hundred)[0]) == SIZE
    judge(hundred, ANNA, hundred / SHEET, lambda row: 1)
    with pytest.raises(InputError, match="changed after it was accepted"):
        settled(hundred)
    assert first(hundred)["state"] == "sent back as version 2"


def test_a_package_below_93_percent_is_sent_back_with_its_labels_and_accepted_when_it_is_revised(hundred: Path) -> None:
    annotated(hundred, wrong=30)
    reviewed(hundred)
    assert first(hundred)["state"] == "sent back as version 2"
    again = hundred / "packages" / "dev-001.v2.csv"
    assert {row["version"] for row in read_table(again)} == {"2"}
    assert sum(int(row["label"]) != truth(row) for row in read_table(again)) == 30
    tasks = json.loads((hundred / "label-studio" / "dev-001.v2.json").read_text())
    shown = [task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks]
    assert shown == [row["label"] for row in read_table(again)]
    # A second check decides nothing new. A late sheet of the earlier version is stored, but does not count.
    before = (hundred / "round.json").read_bytes()
    late = annotate("import", hundred, "--annotator", "eve", fill(hundred / SHEET, lambda row: 0, hundred / "late.csv"))
    assert late.stdout.startswith("100 new judgments of 100") and "are of versions that were sent back" in late.stderr
    assert first(hundred)["why"] == "100 pairs are not judged" and (hundred / "round.json").read_bytes() == before
    judge(hundred, ANNA, again, truth)
    reviewed(hundred, package="dev-001.v2")
    assert first(hundred)["state"] == "accepted"
    verdicts = [(each.version, each.accepted) for each in open_round(hundred).packages[0].verdicts]
    assert verdicts == [(1, False), (2, True)] and {each["version"] for each in judgments(hundred)} == {1, 2}


def test_steps_return_paths_and_tables_to_python(hundred: Path) -> None:
    sheet = fill(hundred / SHEET, truth)
    imported = import_judgments(hundred, [sheet], annotator=ANNA)
    assert (imported.paths, imported.counts) == ((hundred,), {"judgments": SIZE, "new": SIZE})
    sheets = draw_reviews(hundred, reviewers=[BEN]).paths
    assert sheets == (hundred / "reviews" / BEN / "dev-001.csv",)
    import_judgments(hundred, [fill(sheets[0], truth)], annotator=BEN)
    packages, kappas = check_round(hundred).all_tables()
    row = dict(zip(packages.columns, packages.rows[0], strict=True))
    assert (row["reviews"], row["accuracy"], row["why"]) == (f"{BEN} 50/50", 1.0, "has 1 reviews, expected at least 2")
    names = [(kappa, people, pairs) for kappa, people, _, pairs in kappas.rows]
    assert names == [("Cohen", f"{ANNA}, {BEN}", 50), ("Fleiss", "2 people a pair", 50)]
    assert draw_reviews(make_round(hundred / "other"), reviewers=[BEN]).report is None  # nothing is judged


@pytest.mark.parametrize(("wrong", "expected"), [(7, "accepted"), (8, "sent back as version 2")])
def test_the_bound_is_93_percent_and_disputes_are_decided(tmp_path: Path, wrong: int, expected: str) -> None:
    hundred = make_round(tmp_path, passages=SIZE, size=SIZE)  # both reviewers see all 100 pairs
    annotated(hundred, wrong)
    reviewed(hundred)
    assert first(hundred)["state"] == expected
    if expected == "accepted":
        sheet = hundred / "adjudication" / "dev-001.csv"
        assert annotate("adjudicate", hundred).stdout.endswith(f"{wrong} pairs to decide\n")
        assert {row["said"] for row in read_table(sheet)} <= {"相关 1, 不相关 2", "相关 2, 不相关 1"}
        judge(hundred, "dora", sheet, truth)
        labels, undecided = settled(hundred)
        assert len(labels) == SIZE and not undecided
        assert all(label == truth({"query-id": q, "corpus-id": p}) for (q, p), label in labels.items())
        assert annotate("adjudicate", hundred).stdout == "0 pairs to decide\n"


def test_each_reviewer_is_given_a_draw_of_their_own_and_judges_that(hundred: Path) -> None:
    judge(hundred, ANNA, hundred / SHEET, lambda row: truth(row) if row["corpus-id"] > "8" else "")
    assert annotate("review", hundred, "--reviewers", BEN, CARL).stdout == ""  # the package is not fully judged
    annotated(hundred, wrong=0)
    annotate("review", hundred, "--reviewers", ANNA, BEN, CARL)
    sheets = {name: hundred / "reviews" / name / "dev-001.csv" for name in (ANNA, BEN, CARL)}
    drawn = {name: {row["corpus-id"] for row in read_table(path)} for name, path in sheets.items()}
    assert len(drawn[BEN]) == len(drawn[CARL]) == 50 and drawn[BEN] != drawn[CARL]
    assert {row["label"] for path in sheets.values() for row in read_table(path)} == {""}


def test_a_sheet_that_somebody_fills_in_is_never_written_over(hundred: Path) -> None:
    annotated(hundred, wrong=0)
    annotate("review", hundred, "--reviewers", BEN)
    (sheet,) = (hundred / "reviews" / BEN).glob("*.csv")
    empty = sheet.read_bytes()
    for number in (1, 2):
        filled = fill(sheet, truth, sheet).read_bytes()
        done = annotate("review", hundred, "--reviewers", BEN)
        said = f"{sheet}: the existing file has another text, so it was renamed to {sheet.name}.{number}"
        assert said in done.stderr and sheet.read_bytes() == empty
        assert sheet.with_name(f"{sheet.name}.{number}").read_bytes() == filled
    annotate("review", hundred, "--reviewers", BEN)  # the same text causes no renaming
    assert len([*sheet.parent.iterdir()]) == 5


def test_a_tie_between_annotators_is_nobodys_error(tmp_path: Path) -> None:
    hundred = make_round(tmp_path, "--review-pairs", 80, passages=80, size=80)
    errors = [f"{row['query-id']} {row['corpus-id']}" for row in read_table(hundred / SHEET)][:7]

    def but(wrong: list[str]) -> annotating.Label:
        return lambda row: truth(row) ^ (f"{row['query-id']} {row['corpus-id']}" in wrong)

    def outcome(name: str) -> tuple[object, ...]:
        found = first(Path(shutil.copytree(hundred, tmp_path / name)))  # accepted packages would stay accepted
        return found["accuracy"], found["state"], found["ties"], found["reviews"][BEN]

    judge(hundred, ANNA, hundred / SHEET, but(errors[:4]))
    reviewed(hundred)
    assert outcome("one") == ("95.00 %", "accepted", 0, [76, 80])
    judge(hundred, "eve", hundred / SHEET, but(errors[4:]))
    assert outcome("two") == ("100.00 %", "accepted", 7, [73, 73])


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=4), st.integers(0, 12))
def test_a_package_is_accepted_by_the_rule_in_other_words(reviews: list[list[bool]], size: int) -> None:
    verdict = judge_package(size, {str(number): found for number, found in enumerate(reviews)}, Rule(2, 10))
    full = [found for found in reviews if found]
    enough = len(full) >= 2 and all(len(found) >= min(10, size) for found in full)
    good = enough and sum(100 * sum(found) / len(found) for found in full) / len(full) >= 93 - 1e-9
    assert (verdict.refusal == "") == good


def test_kappa_is_that_of_the_textbooks() -> None:
    # Cohen: 20 + 15 of 50 agree, 25 and 30 say yes: (0.7 - 0.5) / (1 - 0.5).
    assert cohen([1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15) == pytest.approx(0.4)
    # Kappa is undefined if all labels are equal.
    assert cohen([1, 1], [1, 1]) is None and fleiss([[1, 1], [1, 1]]) is None
    votes = {"p1": {"a": 1, "b": 1}, "p2": {"a": 0, "b": 0}, "p3": {"a": 1, "c": 0}, "p4": {"c": 1}}
    assert cohen_of(votes) == {"a, b": {"kappa": 1.0, "pairs": 2}, "a, c": {"kappa": 0.0, "pairs": 1}}
    assert fleiss_of(votes)["people"] == 2 and fleiss_of(votes)["pairs"] == 3
