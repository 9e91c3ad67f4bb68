"""Test pools: the union of runs, the ensemble's selection, counts by run, and extended pools."""

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5

from builders.store.runs import read_run, write_run

P = [md5(text) for text in TEXTS]
ONE, TWO = (md5(question) for question in QUESTIONS["dev"])  # answered by P[4] and P[5]
Rankings = dict[str, list[int]]


def ranked(path: Path, rankings: Rankings) -> Path:
    write_run(path, [(query, [(P[n], -float(rank)) for rank, n in enumerate(own)]) for query, own in rankings.items()])
    return path


def scored(path: Path, scores: dict[str, dict[int, float]]) -> Path:
    write_run(path, [(query, [(P[n], score) for n, score in own.items()]) for query, own in scores.items()])
    return path


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A release, two runs with different passages, and two re-rankers' scores of their union at depth 2."""
    make_release(tmp_path / "release")
    ranked(tmp_path / "bm25.dev.run.gz", {ONE: [0, 1, 2], TWO: [5, 3]})
    ranked(tmp_path / "dense.dev.run", {ONE: [1, 4], TWO: [5, 2]})
    third = math.log(3)  # its sigmoid is 3/4
    scored(tmp_path / "a", {ONE: {0: third, 1: 0, 4: third, 5: 9}, TWO: {5: third, 3: -third, 2: 0}})
    scored(tmp_path / "b", {ONE: {0: -third, 1: 0, 4: third}, TWO: {5: 0, 3: 0, 2: 0}})
    return tmp_path


def pool(world: Path, action: str, *words: object, runs: tuple[str, ...] = (), code: int | None = 0) -> Done:
    paths = [world / name for name in runs or ("bm25.dev.run.gz", "dense.dev.run")]
    of = ["--release", world / "release", "--runs", *paths]
    return run("builders", "annotate", "pool", action, *of, *words, code=code)


def select(world: Path, out: str, *words: object, code: int | None = 0, **given: Any) -> Done:
    scores = ("--scores", world / "a", world / "b")
    return pool(world, "select", *scores, "--out", world / out, *words, code=code, **given)


def rows(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.decode().splitlines()]


def test_candidates_are_the_union_of_the_best_of_every_run(world: Path) -> None:
    done = pool(world, "candidates", "--depth", 2, "--out", world / "union.run", "--format", "json")
    ids = {query: set(ids) for query, ids in read_run(world / "union.run").rankings.items()}
    assert ids == {ONE: {P[0], P[1], P[4]}, TWO: {P[5], P[3], P[2]}}
    found = json.loads(done.stdout)
    assert found["candidates"] == {"pairs": 6, "judged": 2, "positives": 2, "unjudged": 4}
    assert found["runs"] == [
        {"run": "bm25", "pairs": 4, "alone": 2, "positives": 1, "positives_alone": 0},
        {"run": "dense", "pairs": 4, "alone": 2, "positives": 2, "positives_alone": 1},
    ]
    assert found["depths"] == [
        {"depth": 1, "pairs": 3, "positives": 1, "share": 0.5},
        {"depth": 2, "pairs": 6, "positives": 2, "share": 1.0},
    ]


def test_the_pool_holds_the_best_by_the_mean_of_the_probabilities(world: Path) -> None:
    select(world, "pool.jsonl.gz", "--depth", 2, "--top", 2)
    first, *others = rows(world / "pool.jsonl.gz")
    best = {"query-id": ONE, "corpus-id": P[4], "rank": 1, "score": pytest.approx(0.75)}
    assert first == best | {"runs": {"dense": 2}, "judged": 1}
    # Means of 3/4 and 1/4, and of 1/2 and 1/2, are equal, so the id decides.
    equal = min(P[0], P[1])
    assert [(row["query-id"], row["corpus-id"], row["rank"], row["score"]) for row in others] == [
        (ONE, equal, 2, pytest.approx(0.5)),
        (TWO, P[5], 1, pytest.approx(0.625)),
        (TWO, P[2], 2, pytest.approx(0.5)),
    ]
    assert others[1]["runs"] == {"bm25": 1, "dense": 1}
    assert others[2]["judged"] is None


def test_one_sure_re_ranker_outweighs_the_others_in_logits_only(world: Path) -> None:
    ranked(world / "run", {ONE: [0, 1]})
    scored(world / "a", {ONE: {0: 10, 1: 1.5}})
    scored(world / "b", {ONE: {0: -1, 1: 1.5}})
    for scale, expected in (("sigmoid", [P[1], P[0]]), ("none", [P[0], P[1]])):
        select(world, scale, "--scale", scale, runs=("run",))
        assert [row["corpus-id"] for row in rows(world / scale)] == expected


def test_passages_below_the_cut_of_a_re_ranker_have_no_score(world: Path) -> None:
    (world / "a.manifest.json").write_text('{"top_k": 1}')
    assert "lacks 5 of 6 candidates" in select(world, "pool", "--depth", 2, code=1).error


@pytest.mark.parametrize("seed", range(3))
def test_a_topped_up_pool_is_the_pool_of_all_runs(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    make_release(tmp_path / "release")
    for name in ("old", "new"):
        ranked(tmp_path / name, {query: drawn.sample(range(6), 3) for query in (ONE, TWO)})
    for name in ("a", "b"):
        scored(tmp_path / name, {query: {n: drawn.gauss(0, 3) for n in range(6)} for query in (ONE, TWO)})
    select(tmp_path, "whole", "--top", 2, runs=("old", "new"))
    select(tmp_path, "pool", "--top", 2, runs=("old",))
    select(tmp_path, "more", "--top", 2, "--pool", tmp_path / "pool", runs=("new",))

    def pairs(name: str) -> set[tuple[str, str]]:
        return {(row["query-id"], row["corpus-id"]) for row in rows(tmp_path / name)}

    assert pairs("more") == pairs("whole") - pairs("pool")
