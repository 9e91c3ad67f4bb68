"""Run files and judgments in every format; fusion compared with direct sums, and its tuning."""

import gzip
import json
import random
from pathlib import Path

import pytest
from commands import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, tables

from baselines.measure.fuse import fuse_runs
from baselines.measure.fusion import fuse_scores, scale_scores, tune_weights, weight_mixtures
from baselines.measure.measures import official
from baselines.measure.qrels import Qrels, read_qrels, release_qrels
from builders.core.errors import InputError, UsageError
from builders.store import runs
from builders.store.reader import open_release
from builders.store.runs import Run, read_run, write_run


def test_a_written_run_has_trec_lines_ranked_by_score_then_id(tmp_path: Path) -> None:
    lines = write_run(tmp_path / "r.run", [("q1", [("b", 1.5), ("c", 2.0), ("a", 1.5)]), ("q2", [])], tag="t")
    assert lines == 3
    assert (tmp_path / "r.run").read_text() == "q1 Q0 c 1 2.0 t\nq1 Q0 a 2 1.5 t\nq1 Q0 b 3 1.5 t\n"


def test_a_gz_run_is_gzip_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.run.gz", "b.run.gz"):
        write_run(tmp_path / name, [("q", [("d", 0.5)])])
    assert gzip.decompress((tmp_path / "a.run.gz").read_bytes()).startswith(b"q Q0 d 1 0.5 ")
    assert (tmp_path / "a.run.gz").read_bytes() == (tmp_path / "b.run.gz").read_bytes()
    assert read_run(tmp_path / "a.run.gz").hits == {"q": [("d", 0.5)]}


@pytest.mark.parametrize("hit", [("a b", 1.0), ("", 1.0), ("a", float("nan")), ("a", float("inf"))])
def test_a_hit_that_trec_cannot_hold_is_refused_and_no_file_is_left(tmp_path: Path, hit: tuple[str, float]) -> None:
    with pytest.raises(InputError, match="a TREC run needs"):
        write_run(tmp_path / "r.run", [("q", [("ok", 2.0), hit])])
    assert list(tmp_path.iterdir()) == []


_ID = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=5).filter(
    lambda text: len(text.split()) == 1
)
_SCORE = st.floats(-1e30, 1e30, allow_nan=False) | st.floats(10, 10.000001)


@given(hits=st.dictionaries(_ID, _SCORE, min_size=1, max_size=20))
def test_reading_gives_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, hits: dict[str, float]) -> None:
    path = tmp_path_factory.mktemp("run") / "r.run"
    write_run(path, [("q", hits.items())])
    assert read_run(path).hits["q"] == sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))
    printed = [float(line.split(" ")[4]) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert printed == sorted(printed, reverse=True)


_ODD = ["", "\t", "\r", "\f", "a\x85b", '"', "a\0", "\ufeff", "9" * 30, "q", "Q0", "号"]
_NUMBERS = "1 2 02 0x1 +1 -1 1_0 1.5 .5 5. 1e3 1e999 nan inf"
_FIELDS = st.sampled_from([*_NUMBERS.split(" "), *_ODD])
_GOOD = st.tuples(st.sampled_from("qr"), st.just("Q0"), st.sampled_from("abc"), _FIELDS, _FIELDS, st.just("t"))
_LINES = st.lists(_GOOD.map(" ".join) | st.lists(_FIELDS, max_size=7).map(" ".join), min_size=1, max_size=4)


@settings(max_examples=150)
@given(lines=_LINES, end=st.sampled_from(["", "\n", "\n\n", " \n"]))
def test_a_block_that_is_parsed_at_once_has_the_hits_of_its_lines(lines: list[str], end: str) -> None:
    block = ("\n".join(lines) + end).encode()
    if table := runs._parse_block(block):
        assert table.equals(runs._parse_lines(block, Path("some.run"), 1))


def test_trec_lines_are_ordered_by_score_then_rank(tmp_path: Path) -> None:
    path = tmp_path / "r.run"
    path.write_text("q Q0 a 2 1.0 t\nq\tQ0  b 1 1.0 t\n\nr Q0 c 1 0.5 t\nq Q0 d 3 7 t\nr Q0 e 2 0.4 t\n")
    assert read_run(path).rankings == {"q": ["d", "b", "a"], "r": ["c", "e"]}


def test_ranks_that_contradict_scores_cause_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "distances.run"
    path.write_text("q Q0 near 1 0.1 t\nq Q0 far 2 0.9 t\nr Q0 a 1 0.5 t\nr Q0 b 2 0.5 t\n")
    assert read_run(path).rankings == {"q": ["far", "near"], "r": ["a", "b"]}
    assert "the ranks of 1 of 2 queries contradict their scores, for example of query 'q'" in caplog.text


@pytest.mark.parametrize("ranks", [(1, 2, 3), (0, 0, 0), (7, 9, 9)])
def test_ranks_that_agree_with_scores_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ranks: tuple[int, ...]
) -> None:
    lines = [f"q Q0 {name} {rank} {score} t\n" for name, rank, score in zip("abc", ranks, (3, 2, 2), strict=True)]
    (tmp_path / "r.run").write_text("".join(lines))
    assert read_run(tmp_path / "r.run").rankings == {"q": ["a", "b", "c"]}
    assert not caplog.text


def test_a_run_in_memory_is_ordered_by_score_too(caplog: pytest.LogCaptureFixture) -> None:
    run = Run.in_memory("distances", {"q": [("near", 0.1), ("far", 0.9)], "r": [("a", 0.5), ("b", 0.5)]})
    assert run.rankings == {"q": ["far", "near"], "r": ["a", "b"]}
    assert "distances: the ranks of 1 of 2 queries contradict" in caplog.text


def test_predictions_keep_their_order_and_length(tmp_path: Path) -> None:
    content = {"q": [f"p{n}" for n in range(60)], "empty": [], "one": ["x"], "twice": ["x", "x"]}
    path = tmp_path / "p.json"
    path.write_text("\n " + json.dumps(content))
    run = read_run(path)
    assert run.rankings == content
    scores = [score for _, score in run.hits["q"]]
    assert scores == sorted(set(scores), reverse=True)


WANTED = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}}
_ROWS = [
    {
        "question_id": q,
        "question": "",
        "answer_paragraphs": [{"paragraph_id": i, "paragraph_text": "\u2028"} for i in n],
    }
    for q, n in (("q1", "ab"), ("0", ""), ("q2", "c"))
]


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 a 1\nq1 0 b 1\nq1 0 x 0\nnone 0 y 0\n\nq2 0 c 1\n",
        "query-id\tcorpus-id\tscore\nq1\ta\t1\nq1\tb\t1\nnone\tz\t-1\nq2\tc\t1\n",
        "\n".join(json.dumps(row, ensure_ascii=False) for row in _ROWS),
        json.dumps({"data": _ROWS}),
    ],
)
def test_every_form_of_judgments_gives_the_same_reference(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qrels"
    path.write_text(text, encoding="utf-8")
    qrels = read_qrels(path)
    assert (qrels.positives, qrels.pairs, qrels.without) == (WANTED, 3, 1)


def test_a_release_is_a_reference(tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"].append({"_id": "unjudged", "text": "?"})
    rows["qrels", "dev"].append({"query-id": "negative", "corpus-id": "x", "score": 0})
    release = open_release(make_release(tmp_path / "release", rows))
    qrels = release_qrels(release, "dev")
    assert qrels.positives == {
        md5("高铁票提前几天买"): {rows["corpus", "corpus"][4]["_id"]: 1},
        md5("手机进水怎么办"): {rows["corpus", "corpus"][5]["_id"]: 1},
    }
    assert qrels.without == 2
    with pytest.raises(InputError, match="test labels are unpublished"):
        release_qrels(release, "test")


def test_each_set_has_its_own_judgments(whole_release: Path) -> None:
    opened = open_release(whole_release)
    asked = md5("感冒了怎么办")
    assert release_qrels(opened, "test", "cmedqa").positives == {
        asked: {md5(t): 1 for t in ("建议去医院检查。", "按时吃药。")}
    }
    english = md5("How early can I buy a train ticket")  # has the judgments of the original query
    assert release_qrels(opened, "dev", "crosslingual").positives == {english: {md5(TEXTS[4]): 1}}
    with pytest.raises(InputError, match="ccovid-queries"):
        release_qrels(opened, "dev", "ccovid")


def fuse(*words: object, code: int = 0) -> Done:
    return run("baselines", "fuse", *words, code=code)


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    one = [("q1", [("a", 9.0), ("b", 5.0), ("c", 1.0)]), ("q2", [("a", 3.0)])]
    two = [("q1", [("b", 0.9), ("d", 0.5), ("a", 0.1)]), ("q3", [("c", 0.5), ("d", 0.5)])]
    write_run(tmp_path / "one.run", one)
    write_run(tmp_path / "two.run", two)
    return [tmp_path / "one.run", tmp_path / "two.run"]


def test_reciprocal_ranks_add_up(tmp_path: Path, two_runs: list[Path]) -> None:
    fuse(*two_runs, "--out", tmp_path / "f.run")
    found = read_run(tmp_path / "f.run").hits
    assert list(found) == ["q1", "q2", "q3"]
    assert found["q1"] == [
        ("b", pytest.approx(1 / 62 + 1 / 61)),
        ("a", pytest.approx(1 / 61 + 1 / 63)),
        ("d", pytest.approx(1 / 62)),
        ("c", pytest.approx(1 / 63)),
    ]
    assert found["q2"] == [("a", 1 / 61)]
    fuse(*reversed(two_runs), "--out", tmp_path / "g.run", "--top-k", "2")
    assert read_run(tmp_path / "g.run").hits["q1"] == found["q1"][:2]


def test_weights_times_scores_between_0_and_1(tmp_path: Path, two_runs: list[Path]) -> None:
    (tmp_path / "w.json").write_text('{"weights": [0.25, 0.75]}')
    fuse(*two_runs, "--method", "weighted", "--weights", tmp_path / "w.json", "--out", tmp_path / "f.run")
    found = read_run(tmp_path / "f.run").hits
    assert found["q1"] == [("b", 0.875), ("d", 0.375), ("a", 0.25), ("c", 0.0)]
    assert found["q2"] == [("a", 0.25)]  # one hit, which was found
    assert found["q3"] == [("c", 0.75), ("d", 0.75)]


def test_a_passage_that_comes_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.run"
    path.write_text("q Q0 a 1 3.0 t\nq Q0 b 2 2.0 t\nq Q0 a 3 1.0 t\n")
    assert scale_scores(read_run(path)) == {"q": {"a": 1.0, "b": 0.0}}
    fuse(path, path, "--out", tmp_path / "f.run")
    assert dict(read_run(tmp_path / "f.run").hits["q"]) == {"a": pytest.approx(2 / 61), "b": pytest.approx(2 / 62)}


def random_runs(seed: int, systems: int) -> tuple[list[Run], Qrels]:
    rng = random.Random(seed)
    passages = [f"d{n:02d}" for n in range(25)]
    qrels = Qrels("q", {f"q{n}": dict.fromkeys(rng.sample(passages, rng.choice([1, 2])), 1) for n in range(12)})
    found = []
    for _ in range(systems):
        hits = {}
        for query in rng.sample(list(qrels.positives), 10):
            scores = [(each, float(rng.randint(0, 6))) for each in rng.sample(passages, rng.choice([1, 15]))]
            hits[query] = sorted(scores, key=lambda hit: (-hit[1], hit[0]))
        found.append(Run(Path("r"), hits))
    return found, qrels


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), systems=st.sampled_from([2, 3]))
def test_tuning_finds_the_best_mixture(seed: int, systems: int) -> None:
    given, qrels = random_runs(seed, systems)
    parts = [scale_scores(run) for run in given]

    def measured(weights: list[float]) -> float:
        # Rounded as in tune: what is equal but for the last bits goes by id.
        rankings = {}
        for query, hits in fuse_scores(parts, weights, 50):
            hits.sort(key=lambda hit: (-round(hit[1], 12), hit[0]))
            rankings[query] = [corpus for corpus, _ in hits]
        return official(rankings, qrels)["MRR@10"]

    weights, value = tune_weights(parts, qrels, 0.25)
    assert value == pytest.approx(measured(weights))
    assert value == pytest.approx(max(measured(row) for row in weight_mixtures(systems, 0.25).tolist()))


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
    read = ["--method", "weighted", "--weights", world / "w.json"]
    fuse(*of_split(world, "train"), *read, "--out", world / "b.run")
    assert (world / "a.run").read_bytes() == (world / "b.run").read_bytes()


def test_tuning_on_what_is_fused_is_refused_unless_told(world: Path) -> None:
    options = ["--release", world / "release", "--method", "weighted", "--out", world / "a.run", "--tune", "dev"]
    assert "2 queries of this split are in the runs to fuse" in fuse(*of_split(world, "dev"), *options, code=1).error
    fuse(*of_split(world, "dev"), *options, "--tune-runs", *of_split(world, "dev"), code=1)
    assert not list(world.glob("a.run*"))
    fuse(*of_split(world, "dev"), *options, "--tune-on-these")
    assert json.loads((world / "a.run.weights.json").read_text())["MRR@10"] == 1.0


def _half(world: Path, count: int, **members: dict[str, object]) -> tuple[Done, dict[str, object]]:
    """Tune on ``count`` tuning questions, which the first run answers, and 200 others, which the second run answers."""
    rows, passages = tables(), [row["_id"] for row in tables()["corpus", "corpus"]]
    ids = [f"{n:032x}" for n in range(count)] + [f"f{n:031x}" for n in range(200)]
    rows["queries", "train"] = [{"_id": each, "text": each} for each in ids]
    rows["qrels", "train"] = [{"query-id": each, "corpus-id": passages[0], "score": 1} for each in ids]
    make_release(world / "tuning", rows)
    for place, (name, manifest) in enumerate(members.items()):
        orders = ((each, passages if (each[0] == "f") == bool(place) else passages[::-1]) for each in ids)
        write_run(world / f"{name}.run", ((each, [(c, -float(n)) for n, c in enumerate(own)]) for each, own in orders))
        (world / f"{name}.run.manifest.json").write_text(json.dumps(manifest))
    paths = [world / f"{name}.run" for name in members]
    options = [
        "--release",
        world / "tuning",
        "--tune",
        "train",
        "--tune-runs",
        *paths,
        "--weights",
        world / "w.json",
    ]
    done = fuse(*of_split(world, "dev"), *options, "--out", world / "a.run")
    return done, json.loads((world / "w.json").read_text())


APART = {"kind": "dense", "model": {"name": "m", "left_out": "tuning"}}


def test_weights_are_tuned_on_the_sixteenth_of_the_training_questions(world: Path) -> None:
    second = {**APART, "reranked": {"file": "one.run"}}  # two stages: the first is BM25's
    done, found = _half(world, 60, one={"kind": "bm25"}, two=second)
    assert found["alone"] == [1.0, pytest.approx(1 / 6)] and "WARNING" not in done.stderr
    assert "two.run: the model may have been" in _half(world, 60, one={"kind": "bm25"}, two={"kind": "dense"})[0].stderr
    assert "two.run: the model may have been" in _half(world, 60, one={"kind": "dense"}, two=second)[0].stderr


def test_few_training_questions_are_all_used_with_a_warning(world: Path) -> None:
    done, found = _half(world, 49, one={"kind": "bm25"}, two=APART)
    assert found["alone"] == [pytest.approx((49 + 200 / 6) / 249), pytest.approx((49 / 6 + 200) / 249)]
    assert "only 49 of 249 training" in done.stderr and "two.run: the model may have been" in done.stderr


def test_without_a_file_the_fused_run_is_returned(tmp_path: Path) -> None:
    for name, ids in (("one", "ab"), ("two", "ba")):
        write_run(tmp_path / name, [("q", [(id_, 1 / rank) for rank, id_ in enumerate(ids, 1)])])
    both = [tmp_path / "one", tmp_path / "two"]
    fused = fuse_runs(both, method="rrf", top_k=1)
    assert fused.hits == {"q": [("a", 1 / 61 + 1 / 62)]}
    assert fuse_runs(both, out=tmp_path / "out", top_k=1).hits == fused.hits == read_run(tmp_path / "out").hits
    with pytest.raises(UsageError, match="step: expected 1 / n, for example"):
        fuse_runs(both, step=0.3)
