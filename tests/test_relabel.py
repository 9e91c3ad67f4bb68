"""Test relabelled releases: negatives that re-rankers score as positive, and people's judgments of a round."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from judged_rounds import Labels, judgment, make_round
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from whole_release import ENGLISH

from builders.annotate.relabel import merged as merge
from builders.annotate.rounds import State, add_judgments
from builders.core.errors import InputError
from builders.store.reader import open_release
from builders.store.runs import write_run

P = [md5(text) for text in TEXTS]
Q = [md5(question) for question in QUESTIONS["train"]]  # question n is answered by text n
NINE = math.log(9)  # its sigmoid is 9/10


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Negatives of two queries. Both re-rankers score (Q0, P5) high, one scores (Q0, P2) high, none (Q1, P3)."""
    make_release(tmp_path / "release")
    lines = [{"query-id": Q[0], "negative-ids": [P[2], P[5], P[0]]}, {"query-id": Q[1], "negative-ids": [P[3]]}]
    (tmp_path / "negatives.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, logits in (("one", (NINE, NINE, -NINE)), ("two", (0.0, NINE, -NINE))):
        hits = [(Q[0], [(P[2], logits[0]), (P[5], logits[1])]), (Q[1], [(P[3], logits[2])])]
        write_run(tmp_path / f"{name}.run", hits)
    return tmp_path


def relabel(world: Path, action: str, *words: object, code: int | None = 0) -> Done:
    given = ("--release", world / "release", "--negatives", world / "negatives.jsonl")
    return run("builders", "annotate", "relabel", action, *given, *words, code=code)


def move(world: Path, *words: object, code: int | None = 0) -> Done:
    scores = ("--scores", world / "one.run", world / "two.run")
    return relabel(world, "move", *scores, "--out", world / "new", *words, code=code)


def moved(release: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (release / "relabelled.train.jsonl").read_text("utf-8").splitlines()]


def pairs(release: Path) -> list[tuple[str, str]]:
    return [(row["query-id"], row["corpus-id"]) for row in moved(release)]


def test_negatives_that_the_ensemble_holds_positive_are_positives_of_the_new_release(world: Path) -> None:
    found = json.loads(move(world, "--threshold", 0.65, "--format", "json").stdout)
    assert found == {
        **{"queries": 4, "negatives": 3, "held_positive": {"one": 2, "two": 1}, "moved": 2, "queries_with_moved": 1},
        **{"per_query_before": 1.0, "per_query_after": 1.5},
    }
    new = [*qrels(world / "release", split="train"), (Q[0], P[2], 1), (Q[0], P[5], 1)]
    assert sorted(qrels(world / "new", split="train")) == sorted(new)
    release = open_release(world / "new")
    rows = {row["query_id"]: row for row in release.table("train", "train").to_pylist()}
    assert [each["docid"] for each in rows[Q[0]]["positive_passages"]] == [P[0], P[2], P[5]]
    assert rows[Q[0]]["positive_passages"][1]["text"] == TEXTS[2]
    assert rows[Q[1]]["positive_passages"] == [{"docid": P[1], "title": "", "text": TEXTS[1]}]
    text = move(world, "--threshold", 0.65).stdout
    assert "moved 2 of 3 negatives (66.7%), of 1 of 4 queries\none holds 2 positive; two holds 1 positive" in text


def test_the_list_says_who_moved_it_and_a_second_relabelling_goes_on_from_it(world: Path) -> None:
    move(world, "--threshold", 0.8)
    (row,) = moved(world / "new")
    assert row["scores"] == {"one": pytest.approx(0.9), "two": pytest.approx(0.9)}
    move(world, "--threshold", 0.65, "--release", world / "new", "--out", world / "newer")
    assert pairs(world / "newer") == [(Q[0], P[5]), (Q[0], P[2])] and len(moved(world / "new")) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--threshold", "0.69"], [P[2], P[5]]),  # 0.9 and 0.5: 0.7 on average
        (["--threshold", "0.71"], [P[5]]),
        (["--threshold", "0.69", "--agree", "all"], [P[5]]),
        (["--threshold", "0.95"], []),
        (["--threshold", "1", "--scale", "none"], [P[2], P[5]]),  # ln 9 and 0: 1.1 on average
    ],
)
def test_the_threshold_is_of_the_mean_or_each_score(world: Path, words: list[str], expected: list[str]) -> None:
    move(world, *words)
    assert pairs(world / "new") == [(Q[0], each) for each in expected]


def test_what_people_refuted_no_model_takes_back(world: Path) -> None:
    rows = tables()
    rows["qrels", "train"].append({"query-id": Q[0], "corpus-id": P[5], "score": 0})
    make_release(world / "release", rows)
    move(world)
    assert pairs(world / "new") == [(Q[0], P[2])] and (Q[0], P[5], 0) in qrels(world / "new", split="train")


ONE, TWO = (md5(question) for question in QUESTIONS["dev"])  # answered by P[4] and P[5]


def merged(release: Path, labels: Labels, split: str = "dev") -> tuple[Path, dict[str, Any]]:
    round_ = make_round(release.parent / "round", release, {f"{split}-001": ("accepted", labels)}, split)
    out = release.parent / "merged"
    return out, merge(round_, open_release(release), out)[split]


def rows(release: Path, config: str, split: str = "dev") -> list[dict[str, Any]]:
    return list(open_release(release).table(config, split).to_pylist())


def qrels(release: Path, config: str = "qrels", split: str = "dev") -> list[tuple[str, str, int]]:
    return [(row["query-id"], row["corpus-id"], row["score"]) for row in rows(release, config, split)]


def checked(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("builders", "check", "--release", release, "--format", "json").stdout)
    return found


LABELS = {(ONE, P[0]): 1, (ONE, P[4]): 1, (ONE, P[1]): 0, (TWO, P[5]): 0, (TWO, P[2]): 1}


def test_a_merge_keeps_the_old_qrels_and_joined_rows_follow_in_both_languages(whole_copy: Path) -> None:
    before, first = qrels(whole_copy), qrels(whole_copy, "qrels-before")
    assert before != first
    out, _ = merged(whole_copy, LABELS)
    assert qrels(out) == [(ONE, P[4], 1), (ONE, P[0], 1), (ONE, P[1], 0), (TWO, P[5], 0), (TWO, P[2], 1)]
    assert qrels(out, "qrels-before") == first  # a second merge does not change qrels-before
    assert checked(out)["errors"] == 0
    for config, query in (("dev", ONE), ("crosslingual", md5(ENGLISH["高铁票提前几天买"]))):
        row = next(row for row in rows(out, config) if row["query_id"] == query)
        positive = [(each["docid"], each["text"]) for each in row["positive_passages"]]
        assert positive == [(P[4], TEXTS[4]), (P[0], TEXTS[0])]
        # P[0] and P[1] were negatives. P[1] is judged 0.
        assert [each["docid"] for each in row["negative_passages"]] == [P[1]]
    # Without qrels-before, the old qrels become qrels-before.
    shutil.rmtree(whole_copy / "qrels-before")
    listed = json.loads((whole_copy / "manifest.json").read_text())
    listed["files"] = [entry for entry in listed["files"] if not entry["path"].startswith("qrels-before")]
    (whole_copy / "manifest.json").write_text(json.dumps(listed))
    merge(whole_copy.parent / "round", open_release(whole_copy), out)
    assert qrels(out, "qrels-before") == before


def test_a_query_without_a_positive_stays_and_is_said(whole_copy: Path) -> None:
    out, found = merged(whole_copy, {(TWO, P[5]): 0})
    assert found["without_positives"] == 1
    assert [row["query_id"] for row in rows(out, "dev")] == [ONE, TWO]
    found = checked(out)
    assert found["errors"] == 0
    (finding,) = next(each for each in found["tests"] if each["test"] == "no-positives-left")["findings"]
    assert (finding["level"], finding["where"], finding["examples"]) == ("warning", "qrels/dev", [TWO])


def test_packages_that_were_not_accepted_and_models_change_nothing(whole_copy: Path) -> None:
    packages: dict[str, tuple[State, Labels]] = {"dev-001": ("accepted", {(ONE, P[0]): 1})}
    packages["dev-002"] = ("sent back", {(TWO, P[2]): 1})
    round_ = make_round(whole_copy.parent / "round", whole_copy, packages)
    add_judgments(round_, [judgment((ONE, P[0]), 0, "dev-001", "model")])
    merge(round_, open_release(whole_copy), whole_copy.parent / "merged")
    assert qrels(whole_copy.parent / "merged") == [(ONE, P[4], 1), (ONE, P[0], 1), (TWO, P[5], 1)]


@pytest.mark.parametrize(("state", "passage", "message"), [("open", P[0], "1 of 1 packages"), ("accepted", "x", "'x'")])
def test_a_round_that_does_not_fit_is_refused(whole_copy: Path, state: State, passage: str, message: str) -> None:
    round_ = make_round(whole_copy.parent / "round", whole_copy, {"dev-001": (state, {(ONE, passage): 1})})
    with pytest.raises(InputError, match=message):
        merge(round_, open_release(whole_copy), whole_copy.parent / "merged")
    assert not (whole_copy.parent / "merged").exists()
