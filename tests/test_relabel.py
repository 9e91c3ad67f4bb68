"""Training negatives that an ensemble of re-rankers holds positive become positives of a new release."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.store.reader import open_release
from builders.store.runs import write_run

P = [md5(text) for text in TEXTS]
Q = [md5(question) for question in QUESTIONS["train"]]  # question n is answered by text n
NINE = math.log(9)  # whose sigmoid is 9/10


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Negatives of two queries, and two re-rankers: of (Q0, P5) both are sure, of (Q0, P2) one, of (Q1, P3) none."""
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
    return relabel(
        world, "move", "--scores", world / "one.run", world / "two.run", "--out", world / "new", *words, code=code
    )


def moved(release: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (release / "relabelled.train.jsonl").read_text("utf-8").splitlines()]


def pairs(release: Path) -> list[tuple[str, str]]:
    return [(row["query-id"], row["corpus-id"]) for row in moved(release)]


def judged(release: Path) -> dict[tuple[str, str], int]:
    rows = open_release(release).table("qrels", "train").to_pylist()
    return {(row["query-id"], row["corpus-id"]): row["score"] for row in rows}


def test_negatives_that_the_ensemble_holds_positive_are_positives_of_the_new_release(world: Path) -> None:
    found = json.loads(move(world, "--threshold", 0.65, "--format", "json").stdout)
    assert found == {
        **{"queries": 4, "negatives": 3, "held_positive": {"one": 2, "two": 1}, "moved": 2, "queries_with_moved": 1},
        **{"per_query_before": 1.0, "per_query_after": 1.5},
    }
    assert judged(world / "new") == {**judged(world / "release"), (Q[0], P[2]): 1, (Q[0], P[5]): 1}
    release = open_release(world / "new")
    rows = {row["query_id"]: row for row in release.table("train", "train").to_pylist()}
    assert [each["docid"] for each in rows[Q[0]]["positive_passages"]] == [P[0], P[2], P[5]]
    assert rows[Q[0]]["positive_passages"][1]["text"] == TEXTS[2]
    assert rows[Q[1]]["positive_passages"] == [{"docid": P[1], "title": "", "text": TEXTS[1]}]
    text = move(world, "--threshold", 0.65).stdout
    assert "moved 2 of 3 negatives (66.7%), of 1 of 4 queries\none holds 2 positive; two holds 1 positive" in text


def test_the_list_says_who_moved_it_and_a_second_relabelling_goes_on_from_it(world: Path) -> None:
    move(world, "--threshold", 0.8)
    scores = {"one": pytest.approx(0.9), "two": pytest.approx(0.9)}
    assert moved(world / "new") == [
        {"query-id": Q[0], "corpus-id": P[5], "score": pytest.approx(0.9), "scores": scores}
    ]
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
def test_the_threshold_is_held_against_the_mean_or_each_score(
    world: Path, words: list[str], expected: list[str]
) -> None:
    move(world, *words)
    assert pairs(world / "new") == [(Q[0], each) for each in expected]


def test_a_moved_passage_is_no_negative_of_the_training_row_any_more(tmp_path: Path) -> None:
    make_release(tmp_path / "release")  # the negatives of its rows are P0 and P1
    hits = [(query, [(each, NINE if n == 2 else -NINE) for each in P[:2]]) for n, query in enumerate(Q)]
    write_run(tmp_path / "one.run", hits)
    words = ("--scores", tmp_path / "one.run", "--out", tmp_path / "new")
    run("builders", "annotate", "relabel", "move", "--release", tmp_path / "release", *words)
    row = open_release(tmp_path / "new").table("train", "train").to_pylist()[2]
    assert [each["docid"] for each in row["positive_passages"]] == [P[2], P[0], P[1]]
    assert row["negative_passages"] == []


def test_what_people_refuted_no_model_takes_back(world: Path) -> None:
    rows = tables()
    rows["qrels", "train"].append({"query-id": Q[0], "corpus-id": P[5], "score": 0})
    make_release(world / "release", rows)
    move(world)
    assert pairs(world / "new") == [(Q[0], P[2])] and judged(world / "new")[Q[0], P[5]] == 0


@pytest.mark.parametrize(
    ("negatives", "message"),
    [
        ('{"query-id": "who", "negative-ids": ["x"]}', "has no hard negative of the queries of train"),
        (f'{{"query-id": "{Q[0]}", "negative-ids": ["x"]}}', "has a passage 'x' that the corpus lacks"),
        ('{"query-id": "who"}', "negatives.jsonl:1: lacks negative-ids"),
        ("", "is empty; expected hard negatives"),
    ],
)
def test_wrong_negatives_are_one_error_and_nothing_is_written(world: Path, negatives: str, message: str) -> None:
    (world / "negatives.jsonl").write_text(negatives)
    error = move(world, code=1).error
    assert str(world / "negatives.jsonl") in error and message in error
    assert not (world / "new").exists()


def test_missing_scores_are_named(world: Path) -> None:
    assert "move needs --scores" in relabel(world, "move", "--out", world / "new", code=2).stderr
    write_run(world / "two.run", [(Q[0], [(P[2], 1.0)])])
    error = move(world, code=1).error
    assert error.startswith(f"{world / 'two.run'}: lacks 2 of 3 candidates") and "`relabel candidates`" in error
