"""The paper's quality control of packages (A.3), agreement, adjudication, and what a round comes to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from annotating import (
    ANNA,
    BEN,
    CARL,
    Label,
    annotate,
    check,
    fill,
    judge,
    judgments,
    make_round,
    read_table,
    truth,
    wrong_in,
)

from builders.annotate.agreement import cohen, cohen_of, fleiss, fleiss_of
from builders.annotate.labels import settled_labels
from builders.annotate.rounds import open_round
from builders.core.errors import InputError

SIZE = 100  # pairs a package; two packages
REVIEWERS = ("--reviewers", BEN, CARL)


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two packages of a hundred pairs; reviewers judge fifty of each."""
    return make_round(tmp_path, "--review-pairs", 50, passages=SIZE, size=SIZE)


def annotated(round_: Path, wrong: int, package: str = "dev-001") -> None:
    """Anna judges a package, with so many errors."""
    sheet = round_ / "packages" / f"{package}.csv"
    judge(round_, ANNA, sheet, wrong_in(wrong, read_table(sheet), package))


def reviewed(round_: Path, label: Label = truth, package: str = "dev-001") -> None:
    """Both reviewers judge what they are given of a package."""
    annotate("review", round_, *REVIEWERS)
    for reviewer in (BEN, CARL):
        judge(round_, reviewer, round_ / "reviews" / reviewer / f"{package}.csv", label)


def state(found: dict[str, Any], package: str = "dev-001") -> str:
    return next(row["state"] for row in found["packages"] if row["package"] == package)


def test_a_package_without_errors_is_accepted(round_: Path) -> None:
    annotated(round_, wrong=0)
    reviewed(round_)
    found = check(round_)
    assert (state(found), state(found, "dev-002")) == ("accepted", "open")
    assert found["packages"][0]["reviews"] == {BEN: [50, 50], CARL: [50, 50]}
    assert found["packages"][0]["accuracy"] == "100.00 %"


def test_a_package_below_93_percent_is_sent_back_with_its_labels_and_accepted_when_it_is_revised(round_: Path) -> None:
    annotated(round_, wrong=30)
    reviewed(round_)
    assert state(check(round_)) == "sent back as version 2"
    again = round_ / "packages" / "dev-001.v2.csv"
    assert {row["version"] for row in read_table(again)} == {"2"}
    assert sum(int(row["label"]) != truth(row) for row in read_table(again)) == 30
    tasks = json.loads((round_ / "label-studio" / "dev-001.v2.json").read_text())
    shown = [task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks]
    assert shown == [row["label"] for row in read_table(again)]
    assert check(round_)["packages"][0]["why"] == "100 pairs are not judged"
    judge(round_, ANNA, again, truth)
    annotate("review", round_, *REVIEWERS)
    for reviewer in (BEN, CARL):
        judge(round_, reviewer, round_ / "reviews" / reviewer / "dev-001.v2.csv", truth)
    assert state(check(round_)) == "accepted"
    assert [(each.version, each.accepted) for each in open_round(round_).packages[0].verdicts] == [
        (1, False),
        (2, True),
    ]
    assert {each["version"] for each in judgments(round_)} == {1, 2}


@pytest.mark.parametrize(("wrong", "expected"), [(7, "accepted"), (8, "sent back as version 2")])
def test_the_bound_is_93_percent_of_all_that_was_reviewed(tmp_path: Path, wrong: int, expected: str) -> None:
    round_ = make_round(tmp_path, passages=SIZE, size=SIZE)  # both reviewers see all hundred
    annotated(round_, wrong)
    reviewed(round_)
    assert state(check(round_)) == expected


def test_a_package_is_reviewed_when_all_of_it_is_judged(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    judge(round_, ANNA, sheet, lambda row: truth(row) if row["corpus-id"] > "8" else "")
    assert annotate("review", round_, *REVIEWERS).stdout == ""


def test_one_reviewer_is_not_enough(round_: Path) -> None:
    annotated(round_, wrong=0)
    annotate("review", round_, *REVIEWERS)
    judge(round_, BEN, round_ / "reviews" / BEN / "dev-001.csv", truth)
    assert check(round_)["packages"][0]["why"] == "has 1 reviews, expected at least 2"


def test_each_reviewer_is_given_a_draw_of_their_own_without_the_annotators_labels(round_: Path) -> None:
    annotated(round_, wrong=0)
    annotate("review", round_, *REVIEWERS)
    given = {name: read_table(round_ / "reviews" / name / "dev-001.csv") for name in (BEN, CARL)}
    drawn = {name: {row["corpus-id"] for row in rows} for name, rows in given.items()}
    assert len(drawn[BEN]) == len(drawn[CARL]) == 50 and drawn[BEN] != drawn[CARL]
    assert {row["label"] for rows in given.values() for row in rows} == {""}


def test_nobody_reviews_their_own_work(round_: Path) -> None:
    annotated(round_, wrong=30)
    annotate("review", round_, "--reviewers", ANNA, BEN)
    for reviewer in (ANNA, BEN):
        judge(round_, reviewer, round_ / "reviews" / reviewer / "dev-001.csv", truth)
    assert check(round_)["packages"][0]["reviews"].keys() == {BEN}


def test_pairs_that_were_not_drawn_do_not_count(round_: Path, tmp_path: Path) -> None:
    annotated(round_, wrong=0)
    annotate("review", round_, *REVIEWERS)
    judge(round_, CARL, round_ / "reviews" / BEN / "dev-001.csv", truth)
    ben = {row["corpus-id"] for row in read_table(round_ / "reviews" / BEN / "dev-001.csv")}
    carl = {row["corpus-id"] for row in read_table(round_ / "reviews" / CARL / "dev-001.csv")}
    assert check(round_)["packages"][0]["reviews"] == {CARL: [len(ben & carl)] * 2}


def test_labels_that_change_after_a_package_was_accepted_are_looked_at_again(round_: Path) -> None:
    annotated(round_, wrong=0)
    reviewed(round_)
    check(round_)
    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", lambda row: 1)
    with pytest.raises(InputError, match="have changed since it was accepted"):
        settled_labels(round_, open_round(round_))
    assert state(check(round_)) == "sent back as version 2"


def test_a_check_given_twice_decides_once(round_: Path) -> None:
    annotated(round_, wrong=30)
    reviewed(round_)
    check(round_)
    before = (round_ / "round.json").read_bytes()
    check(round_)
    assert (round_ / "round.json").read_bytes() == before


def test_what_people_disagree_on_is_decided_by_an_adjudicator(tmp_path: Path) -> None:
    round_ = make_round(tmp_path, passages=SIZE, size=SIZE)
    annotated(round_, wrong=4)
    reviewed(round_)
    check(round_)
    assert settled_labels(round_, open_round(round_)).labels != {}
    done = annotate("adjudicate", round_)
    rows = read_table(round_ / "adjudication" / "dev-001.csv")
    assert done.stdout.endswith("4 pairs to decide\n") and len(rows) == 4
    assert {row["said"] for row in rows} <= {"相关 1, 不相关 2", "相关 2, 不相关 1"}
    judge(round_, "dora", round_ / "adjudication" / "dev-001.csv", truth)
    settled = settled_labels(round_, open_round(round_))
    assert not settled.undecided
    assert all(label == truth({"query-id": q, "corpus-id": p}) for (q, p), label in settled.labels.items())
    assert annotate("adjudicate", round_).stdout == "0 pairs to decide\n"


def test_a_sheet_that_somebody_fills_in_is_never_written_over(round_: Path) -> None:
    annotated(round_, wrong=0)
    annotate("review", round_, "--reviewers", BEN, CARL)
    folder = round_ / "reviews" / BEN
    (sheet,) = folder.glob("*.csv")
    empty = sheet.read_bytes()
    filled = fill(sheet, truth, sheet).read_bytes()
    done = annotate("review", round_, "--reviewers", BEN, CARL)
    assert f"{sheet}: there already, with other text (filled in?): kept as {sheet.name}.1" in done.stderr
    assert (sheet.read_bytes(), (folder / f"{sheet.name}.1").read_bytes()) == (empty, filled)
    annotate("review", round_, "--reviewers", BEN, CARL)  # the same again is no other text
    assert len([*folder.iterdir()]) == 4
    sheet.write_bytes(filled)
    annotate("review", round_, "--reviewers", BEN)
    assert len([*folder.iterdir()]) == 5


def test_a_package_that_is_not_accepted_changes_no_qrels(round_: Path) -> None:
    annotated(round_, wrong=0)
    assert settled_labels(round_, open_round(round_)).labels == {}


def test_a_tie_between_annotators_is_nobodys_error_and_an_adjudicator_may_decide_it(tmp_path: Path) -> None:
    """A second annotator, who is right where the first errs, makes no package worse."""
    round_ = make_round(tmp_path, "--review-pairs", 80, passages=80, size=80)
    sheet = round_ / "packages" / "dev-001.csv"
    errors = [f"{row['query-id']} {row['corpus-id']}" for row in read_table(sheet)][:7]

    def but(wrong: list[str]) -> Label:
        return lambda row: truth(row) ^ (f"{row['query-id']} {row['corpus-id']}" in wrong)

    def package(place: Path) -> dict[str, Any]:
        # In a copy: a package that is accepted once stays so.
        found: dict[str, Any] = check(Path(shutil.copytree(round_, place)))["packages"][0]
        return found

    judge(round_, ANNA, sheet, but(errors[:4]))
    reviewed(round_)
    one = package(tmp_path / "one")
    assert (one["accuracy"], one["state"], one["ties"]) == ("95.00 %", "accepted", 0)
    judge(round_, "eve", sheet, but(errors[4:]))
    two = package(tmp_path / "two")
    assert (two["accuracy"], two["state"], two["ties"]) == ("100.00 %", "accepted", 7)
    assert two["reviews"] == {BEN: [73, 73], CARL: [73, 73]}
    assert annotate("adjudicate", round_).stdout.endswith("7 pairs to decide\n")
    judge(round_, "dora", round_ / "adjudication" / "dev-001.csv", but(errors[:6]))
    decided = package(tmp_path / "decided")
    assert (decided["accuracy"], decided["state"], decided["ties"]) == ("92.50 %", "sent back as version 2", 0)


def test_a_package_of_ties_alone_waits_for_an_adjudicator(round_: Path) -> None:
    sheet = round_ / "packages" / "dev-001.csv"
    judge(round_, ANNA, sheet, truth)
    judge(round_, "eve", sheet, lambda row: 1 - truth(row))
    reviewed(round_)
    found = check(round_)["packages"][0]
    assert (found["state"], found["ties"]) == ("open", 100)
    assert found["why"] == f"has nothing but ties among the items judged by {BEN}; decide the ties first"


def test_annotators_who_contradict_each_other_leave_a_pair_undecided(tmp_path: Path) -> None:
    round_ = make_round(tmp_path, passages=SIZE, size=SIZE)
    sheet = round_ / "packages" / "dev-001.csv"
    judge(round_, ANNA, sheet, truth)
    judge(round_, "eve", sheet, wrong_in(3, read_table(sheet), "eve"))
    reviewed(round_)
    assert state(check(round_)) == "accepted"
    settled = settled_labels(round_, open_round(round_))
    assert (len(settled.labels), len(settled.undecided)) == (97, 3)


def test_a_models_judgment_never_counts_as_a_persons(round_: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (round_ / "packages" / "dev-001.jsonl").read_text().splitlines()]
    more = {"label": 3, "kind": "model", "model": "m", "annotator": "m", "time": "2024-01-01T00:00:00Z"}
    (tmp_path / "model.jsonl").write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    assert annotate("import", round_, tmp_path / "model.jsonl").stdout.startswith("100 new judgments")
    found = check(round_)
    assert (found["packages"][0]["judged"], found["cohen"]) == (0, {})


def test_kappa_is_that_of_the_textbooks() -> None:
    # Cohen: 20 + 15 of 50 agree, 25 and 30 say yes: (0.7 - 0.5) / (1 - 0.5).
    first = [1] * 25 + [0] * 25
    second = [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15
    assert cohen(first, second) == pytest.approx(0.4)
    # Fleiss (1971) in the form of Wikipedia's table: 10 subjects, 14 raters, 5 categories.
    table = [
        *([0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1]),
        *([7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]),
    ]
    assert fleiss(table) == pytest.approx(0.210, abs=5e-4)


def test_kappa_says_nothing_where_everybody_gives_one_label() -> None:
    assert cohen([1, 1], [1, 1]) is None
    assert fleiss([[0, 2], [0, 2]]) is None


def test_kappa_is_counted_on_pairs_that_were_judged_together() -> None:
    votes = {"p1": {"a": 1, "b": 1}, "p2": {"a": 0, "b": 0}, "p3": {"a": 1, "c": 0}, "p4": {"c": 1}}
    assert cohen_of(votes) == {"a, b": {"kappa": 1.0, "pairs": 2}, "a, c": {"kappa": 0.0, "pairs": 1}}
    assert fleiss_of(votes)["people"] == 2 and fleiss_of(votes)["pairs"] == 3


def test_check_prints_states_accuracies_and_agreement(round_: Path) -> None:
    annotated(round_, wrong=0)
    reviewed(round_)
    lines = annotate("check", round_).stdout.splitlines()
    assert lines[0] == (
        f"package dev-001, version 1: 100 of 100 judged; {BEN} 50/50, {CARL} 50/50; accuracy 100.00 %; accepted"
    )
    assert lines[1] == "package dev-002, version 1: 0 of 100 judged; open; 100 pairs are not judged"
    assert any(line.startswith("Fleiss' kappa of 2 people a pair") for line in lines)


def test_a_sheet_of_an_earlier_version_is_kept_and_does_not_count(round_: Path) -> None:
    annotated(round_, wrong=30)
    reviewed(round_)
    check(round_)
    late = fill(round_ / "packages" / "dev-001.csv", lambda row: 0, round_ / "late.csv")
    done = annotate("import", round_, "--annotator", "eve", late)
    assert done.stdout.startswith("100 new judgments of 100") and "are of versions that were sent back" in done.stderr
    assert check(round_)["packages"][0]["judged"] == 0
