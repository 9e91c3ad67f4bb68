"""Test annotation rounds: export, import, and quality control with annotators whose errors are known."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import annotating
import pytest
from annotating import ANNA, BEN, CARL, annotate, export_of, fill, judge, judgments, make_round, read_table, truth
from commands import ROOT, command
from hypothesis import given
from hypothesis import strategies as st
from releases import TEXTS, json_lines, md5, write_rows

from builders.annotate.kappa import cohen_of, fleiss_of, kappa_of_many, kappa_of_two
from builders.annotate.merge_judgments import settled_labels
from builders.annotate.round_steps import check_round, draw_reviews, import_judgments
from builders.annotate.rounds import QualityRule, open_round
from builders.annotate.tasks import Task, read_sheet, write_sheet
from builders.annotate.verdicts import judge_package
from builders.core.errors import InputError
from builders.core.highlight import common_terms, mark_terms
from builders.core.locks import hold_lock


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """A round with a package of 12 pairs for each dev question."""
    return make_round(tmp_path)


def test_export_refuses_and_leaves_out(tmp_path: Path) -> None:
    pool = annotating.make_pool(tmp_path, passages=6)
    pool_text = pool.read_text()
    words = ["--pool", pool, "--release", tmp_path / "release"]
    # Only the first pair is judged.
    rows = json_lines(pool)
    for row in rows:
        row["judged"] = None
    rows[0]["judged"] = 0
    write_rows(pool, rows)
    assert annotate("export", tmp_path / "round", *words, "--unjudged").stdout.startswith("11 pairs of 2 queries")
    assert "is already a round" in annotate("export", tmp_path / "round", *words, code=1).error
    pool.write_text(pool_text.replace(md5(TEXTS[0]), "f" * 32))
    assert "or the corpus lacks" in annotate("export", tmp_path / "r", *words, code=1).error


def test_terms_in_common_are_marked_and_texts_are_no_markup() -> None:
    query, passage = "高铁票怎么提前几天买？", "<b>高铁票</b>可以提前买 & 退，怎么都行"
    terms = common_terms(query, passage)
    assert (
        mark_terms(passage, terms) == "&lt;b&gt;<mark>高铁</mark>票&lt;/b&gt;可以<mark>提前</mark>买 &amp; 退，怎么都行"
    )
    assert mark_terms(query, terms) == "<mark>高铁</mark>票怎么<mark>提前</mark>几天买？"
    # Terms match in upper and lower case, but never inside an HTML entity.
    assert common_terms("amp 是什么 GT500", "AMP & gt500") == ["gt500", "amp"]
    assert mark_terms("AMP & gt500 <", ["gt500", "amp"]) == "<mark>AMP</mark> &amp; <mark>gt500</mark> &lt;"


def test_a_cell_that_a_spreadsheet_would_compute_is_shown_as_text(tmp_path: Path) -> None:
    write_sheet(tmp_path / "sheet.csv", [Task("-q", "=p", "=cmd()", "+1", "dev-001", 1, label=1)])
    (row,) = read_table(tmp_path / "sheet.csv")
    assert (row["query"], row["passage"]) == ("'=cmd()", "'+1")
    ((_, task),) = read_sheet(tmp_path / "sheet.csv")
    assert (task.query_id, task.corpus_id, task.label) == ("-q", "=p", 1)


def relevant_ids(rows: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the passages that are labelled as relevant."""
    return [row["corpus-id"] for row in rows if row["label"]]


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file of a folder."""
    return {path: path.read_bytes() for path in folder.iterdir()}


def test_judgments_are_added_once_and_none_is_taken_back(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    # The first sheet has only the relevant pair.
    assert judge(round_, ANNA, sheet, lambda row: 1 if truth(row) else "").stdout.startswith("1 new judgments of 1:")
    assert judge(round_, ANNA, sheet, truth).stdout.startswith("11 new judgments of 12")
    rows = judgments(round_)
    assert len(rows) == 12
    assert relevant_ids(rows) == [md5(TEXTS[4])]
    origins = {(row["annotator"], row["package"], row["version"], row["kind"]) for row in rows}
    assert origins == {(ANNA, "dev-001", 1, "annotation")}
    assert all(row["time"].endswith("Z") for row in rows)
    files_before = read_files(round_ / "judgments")
    for path, content in files_before.items():
        assert path.stem == hashlib.sha256(content).hexdigest()
    assert judge(round_, ANNA, sheet, truth).stdout.startswith("0 new judgments of 12")
    assert read_files(round_ / "judgments") == files_before
    assert judge(round_, ANNA, sheet, lambda row: 0).stdout.startswith("1 new judgments of 12")
    assert read_files(round_ / "judgments").items() >= files_before.items()


def test_files_of_judgments_can_be_imported_unchanged_and_must_not_be_edited(round_: Path, tmp_path: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    for label in (truth, lambda row: 0):
        judge(round_, ANNA, sheet, label)
    judgment_files = list((round_ / "judgments").iterdir())
    round_copy = make_round(tmp_path / "other")
    annotate("import", round_copy, *judgment_files)
    assert sorted(map(str, judgments(round_copy))) == sorted(map(str, judgments(round_)))
    edited_file = judgment_files[0]
    edited_file.write_bytes(edited_file.read_bytes() + b"\n")
    assert "was changed" in annotate("check", round_, code=1).error


@pytest.mark.parametrize("form", ["utf-8-sig", "gb18030", "jsonl"])
def test_a_sheet_comes_back_in_every_form(round_: Path, tmp_path: Path, form: str) -> None:
    if form == "jsonl":
        rows = [row | {"label": truth(row)} for row in json_lines(round_ / "packages" / "dev-001.jsonl")]
        returned_sheet = write_rows(tmp_path / "back", rows)
    else:
        sheet = fill(round_ / "packages" / "dev-001.csv", lambda row: "是" if truth(row) else "否")
        returned_sheet = tmp_path / "back.csv"
        returned_sheet.write_text(sheet.read_text(encoding="utf-8"), encoding=form)
    annotate("import", round_, "--annotator", ANNA, returned_sheet)
    assert relevant_ids(judgments(round_)) == [md5(TEXTS[4])]


def label_studio_annotation(annotator: object, choice: str, was_cancelled: bool = False) -> dict[str, object]:
    """Return an annotation of a task, with a note, as Label Studio exports it."""
    note = {"from_name": "note", "type": "textarea", "value": {"text": ["看第二句"]}}
    label = {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [choice]}}
    annotation = {
        "id": 7,
        "result": [label, note],
        "completed_by": annotator,
        "updated_at": "2024-05-01T12:00:00.5Z",
        "lead_time": 1.5,
    }
    if was_cancelled:
        annotation["was_cancelled"] = True
    return annotation


def test_label_studios_export_is_taken_as_it_comes(round_: Path, tmp_path: Path) -> None:
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_bytes())
    for number, task in enumerate(tasks):
        task |= {"id": number, "annotations": [], "predictions": []}
    first_annotation = label_studio_annotation(1, "1")
    tasks[0]["annotations"] = [first_annotation, label_studio_annotation({"id": 2, "email": BEN}, "不相关")]
    tasks[1]["annotations"] = [label_studio_annotation(1, "1", was_cancelled=True)]
    export = tmp_path / "export.json"
    export.write_text(json.dumps(tasks))
    assert annotate("import", round_, export).stdout.startswith("2 new judgments of 2")
    labels = {(row["annotator"], row["label"], row["note"]) for row in judgments(round_)}
    assert labels == {("user-1", 1, "看第二句"), (BEN, 0, "看第二句")}
    assert annotate("import", round_, export).stdout.startswith("0 new judgments of 2")
    tasks[0]["annotations"][0] = label_studio_annotation(1, "2")
    export.write_text(json.dumps(tasks))
    error = annotate("import", round_, export, code=1).error
    assert "task 1: expected one choice, 1 or 0, found 2" in error


@pytest.mark.parametrize(("people", "new"), [((ANNA, BEN), [b"12", b"12"]), ((ANNA, ANNA), [b"0", b"12"])])
def test_two_imports_at_once_lose_nothing(round_: Path, people: tuple[str, str], new: list[bytes]) -> None:
    processes = []
    with hold_lock(round_ / "judgments", round_):  # both processes wait for the lock
        for annotator in people:
            export = export_of(round_ / "label-studio" / "dev-001.json", annotator, truth, round_ / f"{annotator}.json")
            words = command("builders", "annotate", "import", "--round", round_, export)
            processes.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        for process in processes:
            assert process.stderr is not None and b"waiting for another process" in process.stderr.readline()
    new_counts = []
    for process in processes:
        stdout, _ = process.communicate(timeout=300)
        new_counts.append(stdout.split(b" new")[0])
    assert sorted(new_counts) == new
    rows = judgments(round_)
    judged_pairs = {(row["annotator"], row["query-id"], row["corpus-id"]) for row in rows}
    assert len(judged_pairs) == len(rows) == 12 * len(set(people))


SIZE = 100  # pairs of a package
SHEET = "packages/dev-001.csv"


@pytest.fixture
def hundred(tmp_path: Path) -> Path:
    """A round with two packages of 100 pairs. Reviewers judge 50 pairs of each package."""
    return make_round(tmp_path, "--review-pairs", 50, passages=SIZE, size=SIZE)


def annotate_package(hundred: Path, wrong: int) -> None:
    """Import Anna's labels of the first package, of which a number are wrong."""
    label = annotating.wrong_in(wrong, read_table(hundred / SHEET), "dev-001")
    judge(hundred, ANNA, hundred / SHEET, label)


def review_package(hundred: Path, package: str = "dev-001") -> None:
    """Import the right labels of two reviewers."""
    annotate("review", hundred, "--reviewers", BEN, CARL)
    for reviewer in (BEN, CARL):
        judge(hundred, reviewer, hundred / "reviews" / reviewer / f"{package}.csv", truth)


def first_package(hundred: Path) -> dict[str, Any]:
    """Return the state of the first package."""
    return annotating.check(hundred)["packages"][0]


def read_settled(hundred: Path) -> tuple[dict[tuple[str, str], int], list[tuple[str, str]]]:
    """Return the labels of accepted packages, and the pairs without a decision."""
    return settled_labels(hundred, open_round(hundred))


def test_a_package_without_errors_is_accepted_until_its_labels_change(hundred: Path) -> None:
    annotate_package(hundred, wrong=0)
    assert read_settled(hundred) == ({}, [])
    review_package(hundred)
    lines = annotate("check", hundred).stdout.splitlines()
    assert lines[:2] == [
        f"package dev-001, version 1: 100 of 100 judged; {BEN} 50/50, {CARL} 50/50; accuracy 100.00 %; accepted",
        "package dev-002, version 1: 0 of 100 judged; open; 100 pairs are not judged",
    ]
    assert any(line.startswith("Fleiss' kappa of 2 people a pair") for line in lines)
    labels, _ = read_settled(hundred)
    assert len(labels) == SIZE
    judge(hundred, ANNA, hundred / SHEET, lambda row: 1)
    with pytest.raises(InputError, match="changed after it was accepted"):
        read_settled(hundred)
    assert first_package(hundred)["state"] == "sent back as version 2"


def test_a_package_below_93_percent_is_sent_back_with_its_labels_and_accepted_when_it_is_revised(hundred: Path) -> None:
    annotate_package(hundred, wrong=30)
    review_package(hundred)
    assert first_package(hundred)["state"] == "sent back as version 2"
    second_sheet = hundred / "packages" / "dev-001.v2.csv"
    rows = read_table(second_sheet)
    assert {row["version"] for row in rows} == {"2"}
    wrong_rows = [row for row in rows if int(row["label"]) != truth(row)]
    assert len(wrong_rows) == 30
    # Label Studio shows the labels of the first version.
    predicted_labels = []
    for task in json.loads((hundred / "label-studio" / "dev-001.v2.json").read_text()):
        (result,) = task["predictions"][0]["result"]
        predicted_labels.append(result["value"]["choices"][0])
    assert predicted_labels == [row["label"] for row in rows]
    # A second check decides nothing new. A late sheet of the earlier version is stored, but does not count.
    round_before = (hundred / "round.json").read_bytes()
    late_sheet = fill(hundred / SHEET, lambda row: 0, hundred / "late.csv")
    late_import = annotate("import", hundred, "--annotator", "eve", late_sheet)
    assert late_import.stdout.startswith("100 new judgments of 100")
    assert "are of versions that were sent back" in late_import.stderr
    assert first_package(hundred)["why"] == "100 pairs are not judged"
    assert (hundred / "round.json").read_bytes() == round_before
    judge(hundred, ANNA, second_sheet, truth)
    review_package(hundred, package="dev-001.v2")
    assert first_package(hundred)["state"] == "accepted"
    verdicts = [(verdict.version, verdict.accepted) for verdict in open_round(hundred).packages[0].verdicts]
    assert verdicts == [(1, False), (2, True)]
    assert {row["version"] for row in judgments(hundred)} == {1, 2}


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
    annotate_package(hundred, wrong)
    review_package(hundred)
    assert first_package(hundred)["state"] == expected
    if expected == "accepted":
        sheet = hundred / "adjudication" / "dev-001.csv"
        assert annotate("adjudicate", hundred).stdout.endswith(f"{wrong} pairs to decide\n")
        assert {row["said"] for row in read_table(sheet)} <= {"相关 1, 不相关 2", "相关 2, 不相关 1"}
        judge(hundred, "dora", sheet, truth)
        labels, undecided = read_settled(hundred)
        assert len(labels) == SIZE and not undecided
        for (query_id, corpus_id), label in labels.items():
            assert label == truth({"query-id": query_id, "corpus-id": corpus_id})
        assert annotate("adjudicate", hundred).stdout == "0 pairs to decide\n"


def test_each_reviewer_is_given_a_draw_of_their_own_and_judges_that(hundred: Path) -> None:
    judge(hundred, ANNA, hundred / SHEET, lambda row: truth(row) if row["corpus-id"] > "8" else "")
    assert annotate("review", hundred, "--reviewers", BEN, CARL).stdout == ""  # the package is not fully judged
    annotate_package(hundred, wrong=0)
    annotate("review", hundred, "--reviewers", ANNA, BEN, CARL)
    pairs_of_reviewer = {}
    for reviewer in (ANNA, BEN, CARL):
        rows = read_table(hundred / "reviews" / reviewer / "dev-001.csv")
        assert {row["label"] for row in rows} == {""}
        pairs_of_reviewer[reviewer] = {row["corpus-id"] for row in rows}
    assert len(pairs_of_reviewer[BEN]) == len(pairs_of_reviewer[CARL]) == 50
    assert pairs_of_reviewer[BEN] != pairs_of_reviewer[CARL]


def test_a_sheet_that_somebody_fills_in_is_never_written_over(hundred: Path) -> None:
    annotate_package(hundred, wrong=0)
    annotate("review", hundred, "--reviewers", BEN)
    (sheet,) = (hundred / "reviews" / BEN).glob("*.csv")
    empty_sheet = sheet.read_bytes()
    for number in (1, 2):
        filled_sheet = fill(sheet, truth, sheet).read_bytes()
        done = annotate("review", hundred, "--reviewers", BEN)
        warning = f"{sheet}: the existing file has another text, so it was renamed to {sheet.name}.{number}"
        assert warning in done.stderr
        assert sheet.read_bytes() == empty_sheet
        assert sheet.with_name(f"{sheet.name}.{number}").read_bytes() == filled_sheet
    annotate("review", hundred, "--reviewers", BEN)  # the same text causes no renaming
    assert len(list(sheet.parent.iterdir())) == 5


def test_a_tie_between_annotators_is_nobodys_error(tmp_path: Path) -> None:
    hundred = make_round(tmp_path, "--review-pairs", 80, passages=80, size=80)
    first_pairs = [(row["query-id"], row["corpus-id"]) for row in read_table(hundred / SHEET)][:7]

    def wrong_for(wrong_pairs: list[tuple[str, str]]) -> annotating.Label:
        return lambda row: truth(row) ^ ((row["query-id"], row["corpus-id"]) in wrong_pairs)

    def check_copy(name: str) -> tuple[object, ...]:
        # Check a copy, because an accepted package would stay accepted.
        package = first_package(Path(shutil.copytree(hundred, tmp_path / name)))
        return package["accuracy"], package["state"], package["ties"], package["reviews"][BEN]

    judge(hundred, ANNA, hundred / SHEET, wrong_for(first_pairs[:4]))
    review_package(hundred)
    assert check_copy("one") == ("95.00 %", "accepted", 0, [76, 80])
    judge(hundred, "eve", hundred / SHEET, wrong_for(first_pairs[4:]))
    assert check_copy("two") == ("100.00 %", "accepted", 7, [73, 73])


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=4), st.integers(0, 12))
def test_a_package_is_accepted_by_the_rule_in_other_words(reviews: list[list[bool]], size: int) -> None:
    agreements = {str(number): review for number, review in enumerate(reviews)}
    verdict = judge_package(size, agreements, QualityRule(2, 10))
    counted_reviews = [review for review in reviews if review]
    is_accepted = len(counted_reviews) >= 2 and all(len(review) >= min(10, size) for review in counted_reviews)
    if is_accepted:
        percentages = [100 * sum(review) / len(review) for review in counted_reviews]
        is_accepted = sum(percentages) / len(percentages) >= 93 - 1e-9
    assert (verdict.refusal == "") == is_accepted


def test_kappa_is_that_of_the_textbooks() -> None:
    # Cohen: 20 + 15 of 50 agree, 25 and 30 say yes: (0.7 - 0.5) / (1 - 0.5).
    first_labels = [1] * 25 + [0] * 25
    second_labels = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert kappa_of_two(first_labels, second_labels) == pytest.approx(0.4)
    # Kappa is undefined if all labels are equal.
    assert kappa_of_two([1, 1], [1, 1]) is None and kappa_of_many([[1, 1], [1, 1]]) is None
    votes = {"p1": {"a": 1, "b": 1}, "p2": {"a": 0, "b": 0}, "p3": {"a": 1, "c": 0}, "p4": {"c": 1}}
    assert cohen_of(votes) == {"a, b": {"kappa": 1.0, "pairs": 2}, "a, c": {"kappa": 0.0, "pairs": 1}}
    assert fleiss_of(votes)["people"] == 2 and fleiss_of(votes)["pairs"] == 3
