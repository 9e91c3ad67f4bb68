"""Run files and judgments in every format; fusion compared with direct sums, and its tuning."""

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, tables

from baselines.measure.fuse import fuse_runs
from baselines.measure.fusion import fuse_scores, scale_scores, tune_weights, weight_mixtures
from baselines.measure.measures import official_figures
from baselines.measure.qrels import Qrels, read_qrels, release_qrels
from builders.core.errors import InputError, UsageError
from builders.store.reader import open_release
from builders.store.run_lines import TREC, parse_block, parse_lines
from builders.store.runs import Run, best_first, columns_of, read_run, write_columns, write_run


def test_a_written_run_has_trec_lines_ranked_by_score_then_id(tmp_path: Path) -> None:
    lines = write_run(tmp_path / "r.run", [("q1", [("b", 1.5), ("c", 2.0), ("a", 1.5)]), ("q2", [])], tag="t")
    assert lines == 3
    assert (tmp_path / "r.run").read_text() == "q1 Q0 c 1 2.0 t\nq1 Q0 a 2 1.5 t\nq1 Q0 b 3 1.5 t\n"


@settings(max_examples=100)
@given(st.lists(st.lists(st.tuples(st.sampled_from("aábc木"), st.sampled_from([0.5, 1.0, 2.0]))), max_size=4))
def test_columns_are_written_as_rankings_are(tmp_path_factory: pytest.TempPathFactory, hits: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("columns")
    for name, is_sorted in (("sorted", True), ("listed", False)):
        rankings = [
            (f"q{number}", best_first(ranking) if is_sorted else ranking) for number, ranking in enumerate(hits)
        ]
        line_count = write_columns(folder / f"{name}.columns", [columns_of(rankings)], "t")
        assert line_count == write_run(folder / f"{name}.run", rankings, "t") == sum(map(len, hits))
        assert (folder / f"{name}.columns").read_bytes() == (folder / f"{name}.run").read_bytes()


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
    by_score_then_id = sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))
    assert read_run(path).hits["q"] == by_score_then_id
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    printed_scores = [float(line.split(" ")[4]) for line in lines]
    assert printed_scores == sorted(printed_scores, reverse=True)


_ODD = ["", "\t", "\r", "\f", "a\x85b", '"', "a\0", "\ufeff", "9" * 30, "q", "Q0", "号"]
_NUMBERS = "1 2 02 0x1 +1 -1 1_0 1.5 .5 5. 1e3 1e999 nan inf"
_FIELDS = st.sampled_from(_NUMBERS.split(" ") + _ODD)
_GOOD = st.tuples(st.sampled_from("qr"), st.just("Q0"), st.sampled_from("abc"), _FIELDS, _FIELDS, st.just("t"))
_LINES = st.lists(_GOOD.map(" ".join) | st.lists(_FIELDS, max_size=7).map(" ".join), min_size=1, max_size=4)


@settings(max_examples=150)
@given(lines=_LINES, end=st.sampled_from(["", "\n", "\n\n", " \n"]))
def test_a_block_that_is_parsed_at_once_has_the_hits_of_its_lines(lines: list[str], end: str) -> None:
    block = ("\n".join(lines) + end).encode()
    table = parse_block(block)
    # Blocks that need a closer look are left to the slow way, line by line.
    if table:
        assert table.equals(parse_lines(block, TREC, Path("some.run"), 1))


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


POSITIVES = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}}


def answer_row(question_id: str, passage_ids: str) -> dict[str, Any]:
    """Return a row of DuReader-retrieval's dev set, whose passage ids are single letters."""
    paragraphs = [{"paragraph_id": passage_id, "paragraph_text": "\u2028"} for passage_id in passage_ids]
    return {"question_id": question_id, "question": "", "answer_paragraphs": paragraphs}


_ROWS = [answer_row("q1", "ab"), answer_row("0", ""), answer_row("q2", "c")]


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
    assert (qrels.positives, qrels.pairs, qrels.without) == (POSITIVES, 3, 1)


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
    medical_positives = {md5("建议去医院检查。"): 1, md5("按时吃药。"): 1}
    assert release_qrels(opened, "test", "cmedqa").positives == {md5("感冒了怎么办"): medical_positives}
    english = md5("How early can I buy a train ticket")  # has the judgments of the original query
    assert release_qrels(opened, "dev", "crosslingual").positives == {english: {md5(TEXTS[4]): 1}}
    with pytest.raises(InputError, match="ccovid-queries"):
        release_qrels(opened, "dev", "ccovid")


def fuse(run_paths: Iterable[Path], *words: object, code: int = 0) -> Done:
    """Fuse run files."""
    return run("baselines", "fuse", run_paths, words, code=code)


@pytest.fixture
def two_runs(tmp_path: Path) -> list[Path]:
    one = [("q1", [("a", 9.0), ("b", 5.0), ("c", 1.0)]), ("q2", [("a", 3.0)])]
    two = [("q1", [("b", 0.9), ("d", 0.5), ("a", 0.1)]), ("q3", [("c", 0.5), ("d", 0.5)])]
    write_run(tmp_path / "one.run", one)
    write_run(tmp_path / "two.run", two)
    return [tmp_path / "one.run", tmp_path / "two.run"]


def test_reciprocal_ranks_add_up(tmp_path: Path, two_runs: list[Path]) -> None:
    fuse(two_runs, "--out", tmp_path / "f.run")
    fused_hits = read_run(tmp_path / "f.run").hits
    assert list(fused_hits) == ["q1", "q2", "q3"]
    assert [passage_id for passage_id, _ in fused_hits["q1"]] == ["b", "a", "d", "c"]
    # The reciprocal of 60 plus the rank: b has ranks 2 and 1, a 1 and 3, d only 2, and c only 3.
    expected_scores = [1 / 62 + 1 / 61, 1 / 61 + 1 / 63, 1 / 62, 1 / 63]
    assert [score for _, score in fused_hits["q1"]] == pytest.approx(expected_scores)
    assert fused_hits["q2"] == [("a", 1 / 61)]
    fuse(two_runs[::-1], "--out", tmp_path / "g.run", "--top-k", "2")
    assert read_run(tmp_path / "g.run").hits["q1"] == fused_hits["q1"][:2]


def test_weights_times_scores_between_0_and_1(tmp_path: Path, two_runs: list[Path]) -> None:
    (tmp_path / "w.json").write_text('{"weights": [0.25, 0.75]}')
    fuse(two_runs, "--method", "weighted", "--weights", tmp_path / "w.json", "--out", tmp_path / "f.run")
    fused_hits = read_run(tmp_path / "f.run").hits
    assert fused_hits["q1"] == [("b", 0.875), ("d", 0.375), ("a", 0.25), ("c", 0.0)]
    assert fused_hits["q2"] == [("a", 0.25)]  # one hit, which was found
    assert fused_hits["q3"] == [("c", 0.75), ("d", 0.75)]


def test_a_passage_that_comes_twice_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.run"
    path.write_text("q Q0 a 1 3.0 t\nq Q0 b 2 2.0 t\nq Q0 a 3 1.0 t\n")
    assert scale_scores(read_run(path)) == {"q": {"a": 1.0, "b": 0.0}}
    fuse([path, path], "--out", tmp_path / "f.run")
    fused_scores = dict(read_run(tmp_path / "f.run").hits["q"])
    assert fused_scores == pytest.approx({"a": 2 / 61, "b": 2 / 62})


def random_runs(seed: int, systems: int) -> tuple[list[Run], Qrels]:
    rng = random.Random(seed)
    passages = [f"d{n:02d}" for n in range(25)]
    qrels = Qrels("q", {f"q{n}": dict.fromkeys(rng.sample(passages, rng.choice([1, 2])), 1) for n in range(12)})
    system_runs = []
    for _ in range(systems):
        hits = {}
        for query_id in rng.sample(list(qrels.positives), 10):
            candidates = rng.sample(passages, rng.choice([1, 15]))
            scores = [(passage_id, float(rng.randint(0, 6))) for passage_id in candidates]
            hits[query_id] = sorted(scores, key=lambda hit: (-hit[1], hit[0]))
        system_runs.append(Run(Path("r"), hits))
    return system_runs, qrels


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), systems=st.sampled_from([2, 3]))
def test_tuning_finds_the_best_mixture(seed: int, systems: int) -> None:
    system_runs, qrels = random_runs(seed, systems)
    parts = [scale_scores(run) for run in system_runs]

    def measured(weights: list[float]) -> float:
        # Rounded as in tune: what is equal but for the last bits goes by id.
        rankings = {}
        for query, hits in fuse_scores(parts, weights, 50):
            hits.sort(key=lambda hit: (-round(hit[1], 12), hit[0]))
            rankings[query] = [corpus for corpus, _ in hits]
        return official_figures(rankings, qrels)["MRR@10"]

    weights, value = tune_weights(parts, qrels, 0.25)
    assert value == pytest.approx(measured(weights))
    assert value == pytest.approx(max(measured(row) for row in weight_mixtures(systems, 0.25).tolist()))


@pytest.fixture
def world(tmp_path: Path) -> Path:
    rows = tables()
    make_release(tmp_path / "release", rows)
    for split in ("train", "dev"):
        good = []
        bad = []
        for row in rows[split, split]:
            positive = row["positive_passages"][0]["docid"]
            negatives = [passage["_id"] for passage in rows["corpus", "corpus"] if passage["_id"] != positive]
            good_hits = [(positive, 2.0)]
            good_hits += [(passage_id, 1.0) for passage_id in negatives[:3]]
            good.append((row["query_id"], good_hits))
            bad.append((row["query_id"], [(passage_id, 5.0 - n) for n, passage_id in enumerate(negatives)]))
        write_run(tmp_path / f"good.{split}.run", good)
        write_run(tmp_path / f"bad.{split}.run", bad)
    return tmp_path


def of_split(world: Path, split: str) -> list[Path]:
    """Return the two runs of a split."""
    return [world / f"bad.{split}.run", world / f"good.{split}.run"]


def test_weights_are_tuned_on_one_split_and_used_on_another(world: Path) -> None:
    words = ["--release", world / "release", "--method", "weighted", "--out", world / "a.run", "--tune", "dev"]
    words += ["--weights", world / "w.json", "--tune-runs"]
    words += of_split(world, "dev")
    fuse(of_split(world, "train"), *words)
    written = json.loads((world / "w.json").read_text())
    assert written["tuned_on"] == "dev" and written["MRR@10"] == 1.0
    assert written["weights"][1] > 0.5 and sum(written["weights"]) == pytest.approx(1)
    positives = {row["query-id"]: row["corpus-id"] for row in tables()["qrels", "train"]}
    for query_id, passage_ids in read_run(world / "a.run").rankings.items():
        assert passage_ids[0] == positives.pop(query_id)
    assert not positives
    fuse(of_split(world, "train"), "--method", "weighted", "--weights", world / "w.json", "--out", world / "b.run")
    assert (world / "a.run").read_bytes() == (world / "b.run").read_bytes()


def test_tuning_on_what_is_fused_is_refused_unless_told(world: Path) -> None:
    options = ["--release", world / "release", "--method", "weighted", "--out", world / "a.run", "--tune", "dev"]
    dev_runs = of_split(world, "dev")
    error = fuse(dev_runs, *options, code=1).error
    assert "2 queries of this split are in the runs to fuse" in error
    fuse(dev_runs, *options, "--tune-runs", dev_runs[0], dev_runs[1], code=1)
    assert not list(world.glob("a.run*"))
    fuse(dev_runs, *options, "--tune-on-these")
    assert json.loads((world / "a.run.weights.json").read_text())["MRR@10"] == 1.0


def _tune_on_training_questions(
    world: Path, count: int, **members: dict[str, object]
) -> tuple[Done, dict[str, object]]:
    """Tune on ``count`` tuning questions, which the first run answers, and 200 others, which the second run answers."""
    rows = tables()
    passage_ids = [row["_id"] for row in rows["corpus", "corpus"]]
    # Only the ids of tuning questions begin with 0.
    query_ids = [f"{number:032x}" for number in range(count)] + [f"f{number:031x}" for number in range(200)]
    rows["queries", "train"] = [{"_id": query_id, "text": query_id} for query_id in query_ids]
    rows["qrels", "train"] = [{"query-id": query_id, "corpus-id": passage_ids[0], "score": 1} for query_id in query_ids]
    make_release(world / "tuning", rows)
    for answered_letter, (name, manifest) in zip("0f", members.items(), strict=True):
        hits_by_query = []
        for query_id in query_ids:
            # The positive passage is the first of a question that the run answers, and the last of every other.
            ranking = passage_ids if query_id[0] == answered_letter else passage_ids[::-1]
            hits_by_query.append((query_id, [(passage_id, -float(rank)) for rank, passage_id in enumerate(ranking)]))
        write_run(world / f"{name}.run", hits_by_query)
        (world / f"{name}.run.manifest.json").write_text(json.dumps(manifest))
    paths = [world / f"{name}.run" for name in members]
    options = ["--release", world / "tuning", "--tune", "train", "--tune-runs"]
    options += paths
    options += ["--weights", world / "w.json"]
    done = fuse(of_split(world, "dev"), *options, "--out", world / "a.run")
    return done, json.loads((world / "w.json").read_text())


APART = {"kind": "dense", "model": {"name": "m", "left_out": "tuning"}}


def test_weights_are_tuned_on_the_sixteenth_of_the_training_questions(world: Path) -> None:
    second = APART | {"reranked": {"file": "one.run"}}  # two stages: the first is BM25's
    done, weights = _tune_on_training_questions(world, 60, one={"kind": "bm25"}, two=second)
    assert weights["alone"] == [1.0, pytest.approx(1 / 6)]
    assert "WARNING" not in done.stderr
    done, _ = _tune_on_training_questions(world, 60, one={"kind": "bm25"}, two={"kind": "dense"})
    assert "two.run: the model may have been" in done.stderr
    done, _ = _tune_on_training_questions(world, 60, one={"kind": "dense"}, two=second)
    assert "two.run: the model may have been" in done.stderr


def test_few_training_questions_are_all_used_with_a_warning(world: Path) -> None:
    done, weights = _tune_on_training_questions(world, 49, one={"kind": "bm25"}, two=APART)
    # Each run has the reciprocal rank 1 for the questions that it answers, and 1/6 for the others.
    assert weights["alone"] == pytest.approx([(49 + 200 / 6) / 249, (49 / 6 + 200) / 249])
    assert "only 49 of 249 training" in done.stderr
    assert "two.run: the model may have been" in done.stderr


def test_without_a_file_the_fused_run_is_returned(tmp_path: Path) -> None:
    for name, ids in (("one", "ab"), ("two", "ba")):
        write_run(tmp_path / name, [("q", [(id_, 1 / rank) for rank, id_ in enumerate(ids, 1)])])
    both = [tmp_path / "one", tmp_path / "two"]
    fused = fuse_runs(both, method="rrf", top_k=1)
    assert fused.hits == {"q": [("a", 1 / 61 + 1 / 62)]}
    assert fuse_runs(both, out=tmp_path / "out", top_k=1).hits == fused.hits == read_run(tmp_path / "out").hits
    with pytest.raises(UsageError, match="step: expected 1 / n, for example"):
        fuse_runs(both, step=0.3)
