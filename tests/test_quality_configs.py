"""Test the verbs that read configs of Section 2.3, and sets for interpolation and extrapolation."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, SIMILAR, TEXTS, make_release, md5, quality_tables, tables

from baselines.reproduce.costs import Sizes
from baselines.retrieve.passages import open_passages
from baselines.train.data import Sampled, dev_sample, read_pairs
from baselines.train.recipe import read_recipe
from builders.store.reader import open_release

TRAIN, (EARLIER, WET) = QUESTIONS["train"], QUESTIONS["dev"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", quality_tables())


@pytest.fixture
def ranked(tmp_path: Path) -> Path:
    lines = [
        (md5(question), md5(text), rank)
        for question, texts in ((EARLIER, (TEXTS[4], TEXTS[0])), (WET, (TEXTS[1], TEXTS[5])))
        for rank, text in enumerate(texts, 1)
    ]
    path = tmp_path / "some.run"
    path.write_text("".join(f"{query} Q0 {text} {rank} {9 - rank} x\n" for query, text, rank in lines))
    return path


@pytest.mark.parametrize(
    ("words", "queries", "mrr", "first"),
    [
        ((), 2, 0.75, 0.5),
        (("--queries", "others"), 1, 1.0, 1.0),
        (("--queries", "duplicated"), 1, 0.5, 0.0),
        (("--qrels-config", "qrels-before"), 2, 0.5, 0.0),
        (("--queries", "others", "--qrels-config", "qrels-before"), 1, 0.5, 0.0),
    ],
)
def test_a_run_is_measured_on_some_questions_by_some_judgments(
    release: Path, ranked: Path, words: tuple[str, ...], queries: int, mrr: float, first: float
) -> None:
    done = run("baselines", "evaluate", "--release", release, "--split", "dev", *words, ranked, "--format", "json")
    (result,) = json.loads(done.stdout)
    assert (result["queries"], result["official"]["MRR@10"], result["official"]["recall@1"]) == (queries, mrr, first)


@pytest.fixture
def mined(release: Path, tmp_path: Path, own_cache: None) -> Path:
    similar = ("--release", release, "--queries", "train-similar", "--split", "train")
    run("baselines", "bm25", *similar, "--out", tmp_path / "similar.run", "--index", tmp_path / "index")
    run("baselines", "mine", *similar, "--run", tmp_path / "similar.run", "--out", tmp_path / "similar.jsonl")
    return tmp_path / "similar.jsonl"


def test_bm25_and_mine_take_the_removed_questions_alone(mined: Path, tmp_path: Path) -> None:
    lines = [line.split() for line in (tmp_path / "similar.run").read_text().splitlines()]
    assert {line[0] for line in lines} == {md5(SIMILAR)} and lines[0][2] == md5(TEXTS[5])
    (row,) = map(json.loads, mined.read_text().splitlines())
    # The question's positive, which BM25 ranks first, is not a negative.
    assert row["query-id"] == md5(SIMILAR) and set(row["negative-ids"]) == {line[2] for line in lines[1:]}


def negatives(path: Path) -> Path:
    rows = [{"query-id": md5(question), "negative-ids": [md5(TEXTS[5])]} for question in TRAIN]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return path


def test_a_training_with_similar_questions_has_them_after_the_same_others(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    passages = open_passages(opened, keep=tmp_path / "keep")
    mined, own = negatives(tmp_path / "train.gz"), tmp_path / "similar.jsonl"
    own.write_text(json.dumps({"query-id": md5(SIMILAR), "negative-ids": [md5(TEXTS[1])]}))
    one = ["data.negatives_per_positive=1"]
    without = read_pairs(opened, read_recipe("ce-bm25-neg", one), passages, [mined])
    with_them = read_pairs(opened, read_recipe("ce-bm25-neg", [*one, "data.similar=true"]), passages, [mined, own])
    assert without.texts == TRAIN and with_them.texts == [*TRAIN, SIMILAR]
    assert with_them.positive.tolist() == [*without.positive.tolist(), 5] == [0, 1, 2, 3, 5]
    assert with_them.negatives.tolist() == [*without.negatives.tolist(), [1]] == [[5]] * 4 + [[1]]
    assert with_them.counts["random_negatives"] == 0


NEAR, FAR, BUCKET = "restrain-2-interpolation", "restrain-1-extrapolation", "resttest-bucket1"


def rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Training questions 0 and 1 are near, 3 is far. Bucket 1 has question 0 of both splits."""
    found = tables()
    train, dev = found["qrels", "train"], found["qrels", "dev"]
    found[NEAR, "train"], found[FAR, "train"] = train[:2], train[3:]
    found[BUCKET, "train"], found[BUCKET, "extrapolation"], found[BUCKET, "interpolation"] = train[1:], dev[:1], dev[1:]
    return found


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", rows())


@pytest.mark.parametrize(("name", "asked"), [(NEAR, [0, 1]), (FAR, [3]), (BUCKET, [1, 2, 3]), ("main", [0, 1, 2, 3])])
def test_a_recipe_trains_on_the_config_that_it_names(drawn: Path, tmp_path: Path, name: str, asked: list[int]) -> None:
    opened = open_release(drawn)
    passages = open_passages(opened, keep=tmp_path / "keep")
    negatives = tmp_path / "negatives.jsonl"  # mined once for all training questions
    lines = [{"query-id": md5(text), "negative-ids": [md5(TEXTS[4])]} for text in QUESTIONS["train"]]
    negatives.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    recipe = read_recipe("de-bm25-neg", [f"data.set={name}", "data.negatives_per_positive=1"])
    pairs = read_pairs(opened, recipe, passages, [negatives])
    assert pairs.texts == [QUESTIONS["train"][number] for number in asked]
    assert pairs.positive.tolist() == asked and set(pairs.negatives.ravel().tolist()) == {4}
    assert recipe.resolved()["data"]["set"] == name
    assert Sizes(opened).pairs(name, "train") == len(asked)  # the count of `reproduce --dry-run`
    # Checkpoints are evaluated on dev of the main set, because a drawn config has no dev questions.
    sample = dev_sample(opened, recipe, passages, None)
    assert isinstance(sample, Sampled) and list(sample.queries.values()) == QUESTIONS["dev"]


def test_an_export_has_the_drawn_training_questions_and_the_test_questions(drawn: Path, tmp_path: Path) -> None:
    export = ["export", "--release", drawn, "--set"]
    run("builders", *export, BUCKET, "--format", "msmarco", "--out", tmp_path / "bucket")
    found = {path.name: path.read_text("utf-8").split("\n")[:-1] for path in (tmp_path / "bucket").glob("q*")}
    dev = QUESTIONS["dev"]
    asked = {"train": QUESTIONS["train"][1:], "interpolation": dev[1:], "extrapolation": dev[:1]}
    assert set(found) == {f"{kind}.{split}.tsv" for kind in ("queries", "qrels") for split in asked}
    for split, questions in asked.items():
        assert found[f"queries.{split}.tsv"] == [f"{md5(text)}\t{text}" for text in questions]
        assert [line.split("\t")[0] for line in found[f"qrels.{split}.tsv"]] == list(map(md5, questions))
