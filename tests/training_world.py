"""A small world to train in: made-up synonyms (:mod:`synonyms`), a start without pretrained weights, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from synonyms import make_synonyms

from baselines.__main__ import VERBS
from builders.core.command import main
from builders.store.reader import open_release

SMALL = ["scratch.layers=2", "scratch.hidden=64", "scratch.heads=4", "scratch.feed_forward=128"]


class World:
    """A release of made-up synonyms, its hard negatives, and a scratch model to start from."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.release, self.negatives = make_synonyms(folder / "release")
        self.start = folder / "mlm-scratch"
        assert self.train("mlm-scratch", self.start, *SMALL, "train.batch=64", "train.max_steps=10") == 0

    def words(self, recipe: str, out: Path, *values: str, start: Path | None = None) -> list[str]:
        words = ["train", recipe, "--release", str(self.release), "--out", str(out), "--device", "cpu"]
        words += ["--cache", str(self.folder / "cache")]
        if not recipe.startswith("mlm"):
            words += ["--negatives", str(self.negatives), "--start", str(start or self.start)]
        shared = ["data.passage_length=16", "data.query_length=8", "train.saves=1", "data.dev_passages=50"]
        return words + [word for value in (*shared, *values) for word in ("--set", value)]

    def train(self, recipe: str, out: Path, *values: str, start: Path | None = None) -> int:
        return main("baselines", "", VERBS, self.words(recipe, out, *values, start=start))

    def dev(self) -> tuple[list[str], list[str], list[list[int]]]:
        """(questions of dev, all passages, for each question the places of its answer, its four hard negatives, and
        answers to questions about other words)."""
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


def training_of(folder: Path) -> dict[str, Any]:
    """The ``training.json`` of a checkpoint."""
    content: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return content
