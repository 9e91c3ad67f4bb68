"""Data for training tests: synonyms (:mod:`synonyms`), random starting checkpoints, and trained models."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Done, run
from conftest import Once
from synonyms import make_synonyms

from builders.store.reader import open_release

SMALL = ["scratch.layers=2", "scratch.hidden=64", "scratch.heads=4", "scratch.feed_forward=128"]
DUAL = ["train.batch=64", "train.mini_batch=64", "train.epochs=11", "train.learning_rate=2e-3", "train.logs=3"]
DUAL += ["train.evaluations=2"]


class World:
    """A release of synonyms, its hard negatives, and random starting checkpoints. ``still`` has no dropout.

    ``dual`` is a trained model. Tests write their trainings to ``folder``.
    """

    def __init__(self, base: Path, folder: Path) -> None:
        torch.set_num_threads(1)
        self.base, self.folder, self.release, self.negatives = base, folder, base / "release", base / "negatives.jsonl"
        self.start, self.still, self.dual = (base / name for name in ("mlm-scratch", "still", "dual"))

    def words(self, recipe: str, out: Path, *values: str, start: Path | None = None) -> list[str]:
        words = ["train", recipe, "--release", str(self.release), "--out", str(out), "--device", "cpu"]
        words += ["--cache", str(self.base / "cache")]
        if not recipe.startswith("mlm"):
            words += ["--negatives", str(self.negatives), "--start", str(start or self.start)]
        shared = ["data.passage_length=16", "data.query_length=8", "train.saves=1", "data.dev_passages=50"]
        return words + [word for value in (*shared, *values) for word in ("--set", value)]

    def train(self, recipe: str, out: Path, *values: str, start: Path | None = None, code: int = 0) -> Done:
        return run("baselines", *self.words(recipe, out, *values, start=start), code=code)

    def train_dual(self, out: Path) -> Done:
        return self.train("de-bm25-neg-scratch", out, *DUAL, start=self.still)

    def dev(self) -> tuple[list[str], list[str], list[list[int]]]:
        """Return the dev questions, all passages, and places of passages for each question.

        The places are those of the answer, four hard negatives, and answers to questions about other words.
        """
        release = open_release(self.release)
        passages = release.table("corpus", "corpus").to_pylist()
        place = {row["_id"]: number for number, row in enumerate(passages)}
        answers = {row["query-id"]: row["corpus-id"] for row in release.table("qrels", "dev").to_pylist()}
        mined = [json.loads(line) for line in self.negatives.read_text(encoding="utf-8").splitlines()]
        hard = {row["query-id"]: row["negative-ids"] for row in mined}
        questions = release.table("queries", "dev").to_pylist()
        asked = {q["_id"]: {word for word in q["text"].split() if word.startswith("s")} for q in questions}
        places = []
        for q in asked:
            others = [answers[other] for other in asked if asked[other] != asked[q]]
            places.append([place[each] for each in (answers[q], *hard[q], *others[:20])])
        return [q["text"] for q in questions], [row["text"] for row in passages], places


@pytest.fixture(scope="session")
def trained(once: Once, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The world with its trained model, created once for all tests."""

    def make(folder: Path) -> None:
        world = World(folder, folder)
        make_synonyms(world.release)
        steps = [*SMALL, "train.batch=64", "train.max_steps=10"]
        world.train("mlm-scratch", world.start, *steps)
        world.train("mlm-scratch", world.still, *steps, "scratch.dropout=0")
        world.train_dual(world.dual)

    return World(once("trained", make), tmp_path_factory.mktemp("trainings"))


def training_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


def weights_of(folder: Path) -> bytes:
    return next(folder.rglob("model.safetensors")).read_bytes()
