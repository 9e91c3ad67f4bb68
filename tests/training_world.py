"""Data for training tests: a release of synonyms, starting checkpoints, trained models, and trainers of tiny models.

In the release, matching words fails, because an answer uses synonyms of the question's words. Every question word has
one synonym. Only the training questions show which words are synonyms. An answer has the synonyms of the question's
words, and other question words. A passage with the question's own words is no answer.
"""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Done, run
from conftest import Once
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import SAMPLE, write_bert, write_dual

from baselines.train import trainers
from baselines.train.recipe import read_recipe
from baselines.train.training_rows import Batches
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


ASKED = [question for questions in QUESTIONS.values() for question in questions]
Make = Callable[..., Any]


class Rows(list[dict[str, Any]]):
    def __init__(self, kind: str) -> None:
        pairs = [(ASKED[n % len(ASKED)], TEXTS[n % len(TEXTS)], TEXTS[(n + 1) % len(TEXTS)]) for n in range(12)]
        dual = [{"query": q, "positive": good, "negative_1": bad} for q, good, bad in pairs]
        cross = [{"query": q, "passage": good, "label": float(n % 3 == 0)} for n, (q, good, _) in enumerate(pairs)]
        super().__init__(dual if kind == "dual" else cross)
        self.column_names = list(self[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))  # in epoch e, row r has the index e * rows + r


def maker(folder: Path) -> Make:
    """``make(kind, *values, outputs=1, **arguments)`` creates a trainer of a tiny random model, 4 rows per step."""

    def made(kind: str, *values: str, outputs: int = 1, **change: Any) -> Any:
        shared = ["train.batch=4", "train.epochs=1", "data.passage_length=24", "data.query_length=12"]
        name = "de-bm25-neg-scratch" if kind == "dual" else "ce-bm25-neg-scratch"
        recipe = read_recipe(name, [*shared, f"model.outputs={outputs}", *values])
        rows = Rows(kind)
        batches = Batches(rows, 4, recipe.train.epochs, 0)
        given = {**trainers.arguments(recipe, folder / "states", batches, "cpu"), **change}
        if kind == "dual":
            model: Any = SentenceTransformer(str(write_dual(folder / "dual")), device="cpu")
            return trainers.dual_trainer(recipe, model, rows, batches, given)
        bert = write_bert(folder / f"cross-{outputs}", SAMPLE, labels=outputs)
        model = CrossEncoder(str(bert), device="cpu", max_length=24)
        return trainers.cross_trainer(recipe, model, rows, batches, given)

    return made


def first_batch(trainer: Any) -> dict[str, Any]:
    return next(iter(trainer.get_train_dataloader()))


def step(trainer: Any, batch: dict[str, Any], seed: int = 3) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of one step with the given seed, without changing the weights."""
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(seed)
    loss = trainer.training_step(trainer.model, dict(batch))
    return float(loss), {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}


Row = dict[str, Any]


def words(first: str, count: int) -> list[str]:
    syllables = [first + vowel for vowel in "aeiou"], [c + v for c in "bdfgklmnp" for v in "aeiou"]
    return ["".join(pair) for pair in itertools.product(*syllables)][:count]


def make_synonyms(path: Path, questions: int = 600, dev: int = 60, size: int = 6, each: int = 2) -> tuple[Path, Path]:
    """Write the release, and a file of hard negatives: four passages with the words of each question.

    All passages have the same form: ``each`` question words, ``each`` synonyms, and one empty word. Questions have an
    empty word, too. An empty word can be Chinese, so that a tokenizer of these texts knows a Chinese character. All
    texts are different.
    """
    chance = random.Random(0)
    asked, said, empty = words("s", size), words("t", size), [*words("r", 40), "的"]
    synonym = dict(zip(asked, said, strict=True))
    sets = list(itertools.combinations(asked, each))
    rows: dict[tuple[str, str], list[Row]] = {("corpus", "corpus"): []}
    for split in ("train", "dev"):
        rows["queries", split], rows["qrels", split] = [], []
    seen: set[str] = set()

    def new(make: Callable[[], list[str]]) -> str:
        while True:
            parts = [*make(), chance.choice(empty)]
            text = " ".join(chance.sample(parts, len(parts)))
            if text not in seen:
                seen.add(text)
                return text

    negatives = []
    for split, count in (("train", questions), ("dev", dev)):
        for _ in range(count):
            question = new(lambda: list(chance.choice(sets)))
            picked = [word for word in question.split() if word in synonym]
            others = [word for word in asked if word not in picked]
            answer = new(lambda p=picked, o=others: [synonym[word] for word in p] + chance.sample(o, each))
            hard = [
                new(lambda p=picked, o=others: p + [synonym[word] for word in chance.sample(o, each)]) for _ in range(4)
            ]
            rows["corpus", "corpus"] += [{"_id": md5(text), "title": "", "text": text} for text in (answer, *hard)]
            rows["queries", split].append({"_id": md5(question), "text": question})
            rows["qrels", split].append({"query-id": md5(question), "corpus-id": md5(answer), "score": 1})
            negatives.append({"query-id": md5(question), "negative-ids": [md5(text) for text in hard]})
    make_release(path, rows, rows_per_shard=10_000)
    file = path.with_name("negatives.jsonl")
    file.write_text("".join(json.dumps(row) + "\n" for row in negatives), encoding="utf-8")
    return path, file
