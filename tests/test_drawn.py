"""Training questions that were drawn for interpolation or extrapolation, used: trained on, exported, measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.reproduce.costs import Sizes
from baselines.retrieve.passages import open_passages
from baselines.train.data import Sampled, dev_sample, read_pairs
from baselines.train.recipe import read_recipe
from builders.store.reader import open_release

NEAR, FAR, BUCKET = "restrain-2-interpolation", "restrain-1-extrapolation", "resttest-bucket1"


def rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Training questions 0 and 1 are near, 3 is far; bucket 1 holds question 0 of both splits."""
    found = tables()
    train, dev = found["qrels", "train"], found["qrels", "dev"]
    found[NEAR, "train"], found[FAR, "train"] = train[:2], train[3:]
    found[BUCKET, "train"], found[BUCKET, "extrapolation"], found[BUCKET, "interpolation"] = train[1:], dev[:1], dev[1:]
    return found


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", rows())


@pytest.mark.parametrize(("name", "asked"), [(NEAR, [0, 1]), (FAR, [3]), (BUCKET, [1, 2, 3]), ("main", [0, 1, 2, 3])])
def test_a_recipe_trains_on_the_config_that_it_names(
    release: Path, tmp_path: Path, name: str, asked: list[int]
) -> None:
    opened = open_release(release)
    passages = open_passages(opened, keep=tmp_path / "keep")
    negatives = tmp_path / "negatives.jsonl"  # mined once, for every training question
    lines = [{"query-id": md5(text), "negative-ids": [md5(TEXTS[4])]} for text in QUESTIONS["train"]]
    negatives.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    recipe = read_recipe("de-bm25-neg", [f"data.set={name}", "data.negatives_per_positive=1"])
    pairs = read_pairs(opened, recipe, passages, [negatives])
    assert pairs.texts == [QUESTIONS["train"][number] for number in asked]
    assert pairs.positive.tolist() == asked and set(pairs.negatives.ravel().tolist()) == {4}
    assert recipe.resolved()["data"]["set"] == name
    assert Sizes(opened).pairs(name, "train") == len(asked)  # what `reproduce --dry-run` counts
    # Measured in between is what main's dev has: a drawn config has no dev questions of its own.
    sample = dev_sample(opened, recipe, passages, None)
    assert isinstance(sample, Sampled) and list(sample.queries.values()) == QUESTIONS["dev"]


def test_an_export_has_the_drawn_training_questions_and_the_test_questions(release: Path, tmp_path: Path) -> None:
    export = ["export", "--release", release, "--set"]
    run("builders", *export, BUCKET, "--format", "msmarco", "--out", tmp_path / "bucket")
    found = {path.name: path.read_text("utf-8").split("\n")[:-1] for path in (tmp_path / "bucket").glob("q*")}
    dev = QUESTIONS["dev"]
    asked = {"train": QUESTIONS["train"][1:], "interpolation": dev[1:], "extrapolation": dev[:1]}
    assert set(found) == {f"{kind}.{split}.tsv" for kind in ("queries", "qrels") for split in asked}
    for split, questions in asked.items():
        assert found[f"queries.{split}.tsv"] == [f"{md5(text)}\t{text}" for text in questions]
        assert [line.split("\t")[0] for line in found[f"qrels.{split}.tsv"]] == list(map(md5, questions))
    lacks = run("builders", *export, "restrain-14K-interpolation", "--format", "beir", "--out", tmp_path / "x", code=1)
    assert "has no config 'restrain-14K-interpolation'" in lacks.error
