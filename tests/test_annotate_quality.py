"""The paper's quality control of packages (A.3), agreement, adjudication, and what a round comes to."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
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
from hypothesis import given
from hypothesis import strategies as st

from builders.annotate.relabel import settled_labels
from builders.annotate.review import cohen, cohen_of, fleiss, fleiss_of, percent
from builders.annotate.review import judge as verdict_of
from builders.annotate.rounds import Rule, open_round
from builders.core.errors import InputError

SIZE = 100  # pairs a package; two packages
SHEET = "packages/dev-001.csv"


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two packages of a hundred pairs; reviewers judge fifty of each."""
    return make_round(tmp_path, "--review-pairs", 50, passages=SIZE, size=SIZE)


def annotated(round_: Path, wrong: int, sheet: str = SHEET) -> None:
    """Anna judges a package, with so many errors."""
    judge(round_, ANNA, round_ / sheet, wrong_in(wrong, read_table(round_ / sheet), "dev-001"))


def reviewed(round_: Path, label: Label = truth, package: str = "dev-001") -> None:
    """Both reviewers judge what they are given of a package."""
    annotate("review", round_, "--reviewers", BEN, CARL)
    for reviewer in (BEN, CARL):
        judge(round_, reviewer, round_ / "reviews" / reviewer / f"{package}.csv", label)


def first(round_: Path) -> dict[str, Any]:
    """The verdict of check on the first package."""
    found: dict[str, Any] = check(round_)["packages"][0]
    return found


def settled(round_: Path) -> tuple[dict[tuple[str, str], int], list[tuple[str, str]]]:
    return settled_labels(round_, open_round(round_))


def test_a_package_without_errors_is_accepted_until_its_labels_change(round_: Path) -> None:
    annotated(round_, wrong=0)
    assert settled(round_) == ({}, [])
    reviewed(round_)
    lines = annotate("check", round_).stdout.splitlines()
    assert lines[:2] == [
        f"package dev-001, version 1: 100 of 100 judged; {BEN} 50/50, {CARL} 50/50; accuracy 100.00 %; accepted",
        "package dev-002, version 1: 0 of 100 judged; open; 100 pairs are not judged",
    ]
    assert any(line.startswith("Fleiss' kappa of 2 people a pair") for line in lines)
    assert len(settled(round_)[0]) == SIZE
    judge(round_, ANNA, round_ / SHEET, lambda row: 1)
    with pytest.raises(InputError, match="have changed since it was accepted"):
        settled(round_)
    assert first(round_)["state"] == "sent back as version 2"


def test_a_package_below_93_percent_is_sent_back_with_its_labels_and_accepted_when_it_is_revised(round_: Path) -> None:
    annotated(round_, wrong=30)
    reviewed(round_)
    assert first(round_)["state"] == "sent back as version 2"
    again = round_ / "packages" / "dev-001.v2.csv"
    assert {row["version"] for row in read_table(again)} == {"2"}
    assert sum(int(row["label"]) != truth(row) for row in read_table(again)) == 30
    tasks = json.loads((round_ / "label-studio" / "dev-001.v2.json").read_text())
    shown = [task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks]
    assert shown == [row["label"] for row in read_table(again)]
    # Given twice, a check decides once; a late sheet of the earlier version is kept, and does not count.
    before = (round_ / "round.json").read_bytes()
    late = annotate("import", round_, "--annotator", "eve", fill(round_ / SHEET, lambda row: 0, round_ / "late.csv"))
    assert late.stdout.startswith("100 new judgments of 100") and "are of versions that were sent back" in late.stderr
    assert first(round_)["why"] == "100 pairs are not judged" and (round_ / "round.json").read_bytes() == before
    judge(round_, ANNA, again, truth)
    reviewed(round_, package="dev-001.v2")
    assert first(round_)["state"] == "accepted"
    verdicts = [(each.version, each.accepted) for each in open_round(round_).packages[0].verdicts]
    assert verdicts == [(1, False), (2, True)] and {each["version"] for each in judgments(round_)} == {1, 2}


@pytest.mark.parametrize(("wrong", "expected"), [(7, "accepted"), (8, "sent back as version 2")])
def test_the_bound_is_93_percent_and_disputes_are_decided_by_an_adjudicator(
    tmp_path: Path, wrong: int, expected: str
) -> None:
    round_ = make_round(tmp_path, passages=SIZE, size=SIZE)  # both reviewers see all hundred
    annotated(round_, wrong)
    reviewed(round_)
    assert first(round_)["state"] == expected
    if expected == "accepted":
        sheet = round_ / "adjudication" / "dev-001.csv"
        assert annotate("adjudicate", round_).stdout.endswith(f"{wrong} pairs to decide\n")
        assert {row["said"] for row in read_table(sheet)} <= {"相关 1, 不相关 2", "相关 2, 不相关 1"}
        judge(round_, "dora", sheet, truth)
        labels, undecided = settled(round_)
        assert len(labels) == SIZE and not undecided
        assert all(label == truth({"query-id": q, "corpus-id": p}) for (q, p), label in labels.items())
        assert annotate("adjudicate", round_).stdout == "0 pairs to decide\n"


def test_each_reviewer_is_given_a_draw_of_their_own_and_judges_that(round_: Path) -> None:
    judge(round_, ANNA, round_ / SHEET, lambda row: truth(row) if row["corpus-id"] > "8" else "")
    assert annotate("review", round_, "--reviewers", BEN, CARL).stdout == ""  # all of it is not judged yet
    annotated(round_, wrong=0)
    annotate("review", round_, "--reviewers", ANNA, BEN, CARL)
    sheets = {name: round_ / "reviews" / name / "dev-001.csv" for name in (ANNA, BEN, CARL)}
    drawn = {name: {row["corpus-id"] for row in read_table(path)} for name, path in sheets.items()}
    assert len(drawn[BEN]) == len(drawn[CARL]) == 50 and drawn[BEN] != drawn[CARL]
    assert {row["label"] for path in sheets.values() for row in read_table(path)} == {""}
    judge(round_, ANNA, sheets[ANNA], truth)  # her own work
    judge(round_, CARL, sheets[BEN], truth)  # not his draw
    assert first(round_)["reviews"] == {CARL: [len(drawn[BEN] & drawn[CARL])] * 2}
    judge(round_, BEN, sheets[BEN], truth)
    judge(round_, CARL, sheets[CARL], truth)
    assert first(round_)["state"] == "accepted"


def test_a_sheet_that_somebody_fills_in_is_never_written_over(round_: Path) -> None:
    annotated(round_, wrong=0)
    annotate("review", round_, "--reviewers", BEN)
    (sheet,) = (round_ / "reviews" / BEN).glob("*.csv")
    empty = sheet.read_bytes()
    for number in (1, 2):
        filled = fill(sheet, truth, sheet).read_bytes()
        done = annotate("review", round_, "--reviewers", BEN)
        said = f"{sheet}: there already, with other text (filled in?): kept as {sheet.name}.{number}"
        assert said in done.stderr and sheet.read_bytes() == empty
        assert sheet.with_name(f"{sheet.name}.{number}").read_bytes() == filled
    annotate("review", round_, "--reviewers", BEN)  # the same again is no other text
    assert len([*sheet.parent.iterdir()]) == 5


def test_a_tie_between_annotators_is_nobodys_error_and_an_adjudicator_may_decide_it(tmp_path: Path) -> None:
    """A second annotator, who is right where the first errs, makes no package worse."""
    round_ = make_round(tmp_path, "--review-pairs", 80, passages=80, size=80)
    errors = [f"{row['query-id']} {row['corpus-id']}" for row in read_table(round_ / SHEET)][:7]

    def but(wrong: list[str]) -> Label:
        return lambda row: truth(row) ^ (f"{row['query-id']} {row['corpus-id']}" in wrong)

    def outcome(name: str) -> tuple[object, ...]:
        copy = Path(shutil.copytree(round_, tmp_path / name))  # a package that is accepted once stays so
        found = first(copy)
        labels, undecided = settled(copy)
        return found["accuracy"], found["state"], found["ties"], found["reviews"][BEN], len(labels), len(undecided)

    judge(round_, ANNA, round_ / SHEET, but(errors[:4]))
    reviewed(round_)
    assert outcome("one") == ("95.00 %", "accepted", 0, [76, 80], 80, 0)
    judge(round_, "eve", round_ / SHEET, but(errors[4:]))
    assert outcome("two") == ("100.00 %", "accepted", 7, [73, 73], 73, 7)
    assert annotate("adjudicate", round_).stdout.endswith("7 pairs to decide\n")
    judge(round_, "dora", round_ / "adjudication" / "dev-001.csv", but(errors[:6]))
    assert outcome("decided") == ("92.50 %", "sent back as version 2", 0, [74, 80], 0, 0)
    # Ties alone wait for an adjudicator.
    assert verdict_of(80, {BEN: [None] * 80, CARL: [None] * 80}, Rule()).refusal == (
        f"has nothing but ties among the items judged by {BEN}; decide the ties first"
    )


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=4), st.integers(0, 12))
def test_a_package_is_accepted_by_the_rule_in_other_words(reviews: list[list[bool]], size: int) -> None:
    verdict = verdict_of(size, {str(number): found for number, found in enumerate(reviews)}, Rule(2, 10))
    full = [found for found in reviews if found]
    enough = len(full) >= 2 and all(len(found) >= min(10, size) for found in full)
    good = enough and sum(100 * sum(found) / len(found) for found in full) / len(full) >= 93 - 1e-9
    assert (verdict.refusal == "") == good


def test_an_accuracy_below_the_bound_is_not_shown_as_reaching_it() -> None:
    assert percent(Fraction(929_999, 1_000_000)) == "92.99 %" and percent(Fraction(1)) == "100.00 %"


def test_kappa_is_that_of_the_textbooks() -> None:
    # Cohen: 20 + 15 of 50 agree, 25 and 30 say yes: (0.7 - 0.5) / (1 - 0.5).
    assert cohen([1] * 25 + [0] * 25, [1] * 20 + [0] * 5 + [1] * 10 + [0] * 15) == pytest.approx(0.4)
    # Where everybody gives one label, kappa says nothing.
    assert cohen([1, 1], [1, 1]) is None and fleiss([[1, 1], [1, 1]]) is None
    votes = {"p1": {"a": 1, "b": 1}, "p2": {"a": 0, "b": 0}, "p3": {"a": 1, "c": 0}, "p4": {"c": 1}}
    assert cohen_of(votes) == {"a, b": {"kappa": 1.0, "pairs": 2}, "a, c": {"kappa": 0.0, "pairs": 1}}
    assert fleiss_of(votes)["people"] == 2 and fleiss_of(votes)["pairs"] == 3
