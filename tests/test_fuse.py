"""Fusion compared with direct sums. Tuning never uses the evaluated questions unless asked to."""

import json
import random
from pathlib import Path

import pytest
from commands import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import make_release, tables

from baselines.measure.fuse import fused, mixtures, normalised, tune
from baselines.measure.measures import official
from baselines.measure.qrels import Qrels
from builders.store.runs import Run, read_run, write_run


def fuse(*words: object, code: int = 0) -> Done:
    return run("baselines", "fuse", *words, code=code)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    one = [("q1", [("a", 9.0), ("b", 5.0), ("c", 1.0)]), ("q2", [("a", 3.0)])]
    two = [("q1", [("b", 0.9), ("d", 0.5), ("a", 0.1)]), ("q3", [("c", 0.5), ("d", 0.5)])]
    write_run(tmp_path / "one.run", one)
    write_run(tmp_path / "two.run", two)
    return [tmp_path / "one.run", tmp_path / "two.run"]


def test_reciprocal_ranks_add_up(tmp_path: Path, runs: list[Path]) -> None:
    fuse(*runs, "--out", tmp_path / "f.run")
    found = read_run(tmp_path / "f.run").hits
    assert list(found) == ["q1", "q2", "q3"]
    assert found["q1"] == [
        ("b", pytest.approx(1 / 62 + 1 / 61)),
        ("a", pytest.approx(1 / 61 + 1 / 63)),
        ("d", pytest.approx(1 / 62)),
        ("c", pytest.approx(1 / 63)),
    ]
    assert found["q2"] == [("a", 1 / 61)]
    fuse(*reversed(runs), "--out", tmp_path / "g.run", "--top-k", "2")
    assert read_run(tmp_path / "g.run").hits["q1"] == found["q1"][:2]


def test_weights_times_scores_between_0_and_1(tmp_path: Path, runs: list[Path]) -> None:
    (tmp_path / "w.json").write_text('{"weights": [0.25, 0.75]}')
    options = ["--method", "weighted", "--weights", tmp_path / "w.json", "--out", tmp_path / "f.run"]
    fuse(*runs, *options)
    found = read_run(tmp_path / "f.run").hits
    assert found["q1"] == [("b", 0.875), ("d", 0.375), ("a", 0.25), ("c", 0.0)]
    assert found["q2"] == [("a", 0.25)]  # one hit, which was found
    assert found["q3"] == [("c", 0.75), ("d", 0.75)]


def test_a_passage_that_comes_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.run"
    path.write_text("q Q0 a 1 3.0 t\nq Q0 b 2 2.0 t\nq Q0 a 3 1.0 t\n")
    assert normalised(read_run(path)) == {"q": {"a": 1.0, "b": 0.0}}
    fuse(path, path, "--out", tmp_path / "f.run")
    assert dict(read_run(tmp_path / "f.run").hits["q"]) == {"a": pytest.approx(2 / 61), "b": pytest.approx(2 / 62)}


def random_runs(seed: int, systems: int) -> tuple[list[Run], Qrels]:
    rng = random.Random(seed)
    passages = [f"d{n:02d}" for n in range(25)]
    qrels = Qrels("q", {f"q{n}": dict.fromkeys(rng.sample(passages, rng.choice([1, 2])), 1) for n in range(12)})
    runs = []
    for _ in range(systems):
        hits = {}
        for query in rng.sample(list(qrels.positives), 10):
            scores = [(each, float(rng.randint(0, 6))) for each in rng.sample(passages, rng.choice([1, 15]))]
            hits[query] = sorted(scores, key=lambda hit: (-hit[1], hit[0]))
        runs.append(Run(Path("r"), hits))
    return runs, qrels


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), systems=st.sampled_from([2, 3]))
def test_tuning_finds_the_best_mixture(seed: int, systems: int) -> None:
    runs, qrels = random_runs(seed, systems)
    parts = [normalised(run) for run in runs]

    def measured(weights: list[float]) -> float:
        # Rounded as in tune: what is equal but for the last bits goes by id.
        rankings = {}
        for query, hits in fused(parts, weights, 50):
            hits.sort(key=lambda hit: (-round(hit[1], 12), hit[0]))
            rankings[query] = [corpus for corpus, _ in hits]
        return official(rankings, qrels)["MRR@10"]

    weights, value = tune(parts, qrels, 0.25)
    assert value == pytest.approx(measured(weights))
    assert value == pytest.approx(max(measured(row) for row in mixtures(systems, 0.25).tolist()))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    rows = tables()
    make_release(tmp_path / "release", rows)
    for split in ("train", "dev"):
        good, bad = [], []
        for row in rows[split, split]:
            positive = row["positive_passages"][0]["docid"]
            others = [each["_id"] for each in rows["corpus", "corpus"] if each["_id"] != positive]
            good.append((row["query_id"], [(positive, 2.0), *((other, 1.0) for other in others[:3])]))
            bad.append((row["query_id"], [(other, 5.0 - n) for n, other in enumerate(others)]))
        write_run(tmp_path / f"good.{split}.run", good)
        write_run(tmp_path / f"bad.{split}.run", bad)
    return tmp_path


def of_split(world: Path, split: str) -> list[Path]:
    return [world / f"bad.{split}.run", world / f"good.{split}.run"]


def test_weights_are_tuned_on_one_split_and_used_on_another(world: Path) -> None:
    weighted = ["--release", world / "release", "--method", "weighted"]
    tuning = ["--tune", "dev", "--tune-runs", *of_split(world, "dev"), "--weights", world / "w.json"]
    fuse(*of_split(world, "train"), *weighted, "--out", world / "a.run", *tuning)
    written = json.loads((world / "w.json").read_text())
    assert written["tuned_on"] == "dev" and written["MRR@10"] == 1.0
    assert written["weights"][1] > 0.5 and sum(written["weights"]) == pytest.approx(1)
    positives = {row["query-id"]: row["corpus-id"] for row in tables()["qrels", "train"]}
    assert {q: ids[0] for q, ids in read_run(world / "a.run").rankings.items()} == positives
    again = ["--weights", world / "w.json", "--out", world / "b.run"]
    fuse(*of_split(world, "train"), *weighted, *again)
    assert (world / "a.run").read_bytes() == (world / "b.run").read_bytes()


def test_tuning_on_what_is_fused_is_refused_unless_told(world: Path) -> None:
    options = ["--release", world / "release", "--method", "weighted", "--out", world / "a.run", "--tune", "dev"]
    assert "2 queries of this split are in the runs to fuse" in fuse(*of_split(world, "dev"), *options, code=1).error
    fuse(*of_split(world, "dev"), *options, "--tune-runs", *of_split(world, "dev"), code=1)
    assert not list(world.glob("a.run*"))
    fuse(*of_split(world, "dev"), *options, "--tune-on-these")
    assert json.loads((world / "a.run.weights.json").read_text())["MRR@10"] == 1.0


def _half(world: Path, count: int, **members: dict[str, object]) -> tuple[Done, dict[str, object]]:
    """Tune on ``count`` tuning questions, for which the first run is right, and 200 others, for which the second is."""
    rows, passages = tables(), [row["_id"] for row in tables()["corpus", "corpus"]]
    ids = [f"{n:032x}" for n in range(count)] + [f"f{n:031x}" for n in range(200)]
    rows["queries", "train"] = [{"_id": each, "text": each} for each in ids]
    rows["qrels", "train"] = [{"query-id": each, "corpus-id": passages[0], "score": 1} for each in ids]
    make_release(world / "tuning", rows)
    for place, (name, manifest) in enumerate(members.items()):
        orders = ((each, passages if (each[0] == "f") == bool(place) else passages[::-1]) for each in ids)
        write_run(
            world / f"{name}.run", ((each, [(c, -float(n)) for n, c in enumerate(order)]) for each, order in orders)
        )
        (world / f"{name}.run.manifest.json").write_text(json.dumps(manifest))
    runs = [world / f"{name}.run" for name in members]
    options = ["--release", world / "tuning", "--tune", "train", "--tune-runs", *runs, "--weights", world / "w.json"]
    done = fuse(*of_split(world, "dev"), *options, "--out", world / "a.run")
    return done, json.loads((world / "w.json").read_text())


APART = {"kind": "dense", "model": {"name": "m", "left_out": "tuning"}}


def test_weights_are_tuned_on_the_sixteenth_of_the_training_questions(world: Path) -> None:
    second = {**APART, "reranked": {"file": "one.run"}}  # two stages: the first is BM25's
    done, found = _half(world, 60, one={"kind": "bm25"}, two=second)
    assert found["alone"] == [1.0, pytest.approx(1 / 6)] and "WARNING" not in done.stderr
    assert "two.run: no record" in _half(world, 60, one={"kind": "bm25"}, two={"kind": "dense"})[0].stderr
    assert "two.run: no record" in _half(world, 60, one={"kind": "dense"}, two=second)[0].stderr


def test_few_training_questions_are_all_used_with_a_warning(world: Path) -> None:
    done, found = _half(world, 49, one={"kind": "bm25"}, two=APART)
    assert found["alone"] == [pytest.approx((49 + 200 / 6) / 249), pytest.approx((49 / 6 + 200) / 249)]
    assert "only 49 of 249 training" in done.stderr and "two.run: no record" in done.stderr
