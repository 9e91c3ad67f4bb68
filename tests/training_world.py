"""Data for training tests: a release of synonyms, starting checkpoints, trained models, and trainers of tiny models.

In the release, matching words fails, because an answer uses synonyms of the question's words. Every question word has
one synonym. Only the training questions show which words are synonyms. An answer has the synonyms of the question's
words, and other question words. A passage with the question's own words is no answer.
"""

import functools
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
from baselines.train.training_rows import TrainingBatches
from builders.store.reader import open_release

SMALL = ["scratch.layers=2", "scratch.hidden=64", "scratch.heads=4", "scratch.feed_forward=128"]
DUAL = ["train.batch=64", "train.mini_batch=64", "train.epochs=11", "train.learning_rate=2e-3", "train.logs=3"]
DUAL += ["train.evaluations=2"]


class World:
    """A release of synonyms, its hard negatives, and starting checkpoints, which were trained for ten steps.

    The starting checkpoint ``still`` has no dropout, unlike ``start``. ``dual`` is a trained model. All are in the
    folder ``base``. Tests write their trainings to ``folder``.
    """

    def __init__(self, base: Path, folder: Path) -> None:
        torch.set_num_threads(1)
        self.base = base
        self.folder = folder
        self.release = base / "release"
        self.negatives = base / "negatives.jsonl"
        self.start = base / "mlm-scratch"
        self.still = base / "still"
        self.dual = base / "dual"

    def words(self, recipe: str, out: Path, *values: str, start: Path | None = None) -> list[str]:
        """Return the words of a command that trains ``recipe`` on the CPU, with short texts and one save.

        ``values``: further settings of the recipe, as in "train.epochs=1". ``start``: another starting checkpoint.
        """
        command_words = ["train", recipe, "--release", str(self.release), "--out", str(out), "--device", "cpu"]
        command_words += ["--cache", str(self.base / "cache")]
        # A masked language model learns from passages alone, and may begin without a checkpoint.
        if not recipe.startswith("mlm"):
            command_words += ["--negatives", str(self.negatives), "--start", str(start or self.start)]
        settings = ["data.passage_length=16", "data.query_length=8", "train.saves=1", "data.dev_passages=50"]
        for setting in settings + list(values):
            command_words += ["--set", setting]
        return command_words

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
        row_numbers = {row["_id"]: number for number, row in enumerate(passages)}
        answers = {row["query-id"]: row["corpus-id"] for row in release.table("qrels", "dev").to_pylist()}
        hard_negatives = {}
        for line in self.negatives.read_text(encoding="utf-8").splitlines():
            mined_row = json.loads(line)
            hard_negatives[mined_row["query-id"]] = mined_row["negative-ids"]

        questions = release.table("queries", "dev").to_pylist()
        question_words = {row["_id"]: _words_with_synonyms(row["text"]) for row in questions}
        candidate_rows = []
        for query_id, query_words in question_words.items():
            # An answer to a question with the same words is right, too, so it is no negative.
            easy_negatives = [answers[q] for q, words_of_q in question_words.items() if words_of_q != query_words]
            candidates = [answers[query_id], *hard_negatives[query_id], *easy_negatives[:20]]
            candidate_rows.append([row_numbers[passage_id] for passage_id in candidates])
        question_texts = [row["text"] for row in questions]
        passage_texts = [row["text"] for row in passages]
        return question_texts, passage_texts, candidate_rows


def _words_with_synonyms(question: str) -> set[str]:
    """Return the words of a question that have synonyms. These words begin with s."""
    return {word for word in question.split() if word.startswith("s")}


@pytest.fixture(scope="session")
def trained(once: Once, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The world with its starting checkpoints and its trained dual-encoder, made once for all processes."""

    def make(folder: Path) -> None:
        world = World(folder, folder)
        make_synonyms(world.release)
        ten_steps = ["train.batch=64", "train.max_steps=10"]
        world.train("mlm-scratch", world.start, *SMALL, *ten_steps)
        world.train("mlm-scratch", world.still, *SMALL, *ten_steps, "scratch.dropout=0")
        world.train_dual(world.dual)

    return World(once("trained", make), tmp_path_factory.mktemp("trainings"))


def training_of(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's training.json."""
    return json.loads((folder / "training.json").read_text(encoding="utf-8"))


def weights_of(folder: Path) -> bytes:
    """Return the bytes of a checkpoint's weights."""
    return next(folder.rglob("model.safetensors")).read_bytes()


ASKED = [question for questions in QUESTIONS.values() for question in questions]
Make = Callable[..., Any]


class Rows(list[dict[str, Any]]):
    """Twelve training rows of a dual-encoder (``kind`` is dual) or of a cross-encoder."""

    def __init__(self, kind: str) -> None:
        rows: list[dict[str, Any]] = []
        for number in range(12):
            query = ASKED[number % len(ASKED)]
            positive = TEXTS[number % len(TEXTS)]
            negative = TEXTS[(number + 1) % len(TEXTS)]
            if kind == "dual":
                rows.append({"query": query, "positive": positive, "negative_1": negative})
            else:
                rows.append({"query": query, "passage": positive, "label": float(number % 3 == 0)})
        super().__init__(rows)
        self.column_names = list(self[0])

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index % len(self))  # in epoch e, row r has the index e * rows + r


def maker(folder: Path) -> Make:
    """``make(kind, *values, outputs=1, **arguments)`` creates a trainer of a tiny random model, 4 rows per step."""

    def make_trainer(kind: str, *values: str, outputs: int = 1, **changed_arguments: Any) -> Any:
        settings = ["train.batch=4", "train.epochs=1", "data.passage_length=24", "data.query_length=12"]
        settings.append(f"model.outputs={outputs}")
        recipe_name = "de-bm25-neg-scratch" if kind == "dual" else "ce-bm25-neg-scratch"
        recipe = read_recipe(recipe_name, settings + list(values))
        rows = Rows(kind)
        batches = TrainingBatches(rows, 4, recipe.train.epochs, 0)
        trainer_arguments = trainers.training_arguments(recipe, folder / "states", batches, "cpu") | changed_arguments
        if kind == "dual":
            dual_model = SentenceTransformer(str(write_dual(folder / "dual")), device="cpu")
            return trainers.dual_trainer(recipe, dual_model, rows, batches, trainer_arguments)
        bert = write_bert(folder / f"cross-{outputs}", SAMPLE, labels=outputs)
        cross_model = CrossEncoder(str(bert), device="cpu", max_length=24)
        return trainers.cross_trainer(recipe, cross_model, rows, batches, trainer_arguments)

    return make_trainer


def first_batch(trainer: Any) -> dict[str, Any]:
    """Return the trainer's first batch."""
    return next(iter(trainer.get_train_dataloader()))


def step(trainer: Any, batch: dict[str, Any], seed: int = 3) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients by parameter of one step with the given seed, without changing the weights."""
    trainer.model.zero_grad()
    # The library's training loop sets this before it calls training_step().
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(seed)
    loss = trainer.training_step(trainer.model, dict(batch))
    gradients = {}
    for name, parameter in trainer.model.named_parameters():
        if parameter.grad is not None:
            gradients[name] = parameter.grad.clone()
    return float(loss), gradients


Row = dict[str, Any]


def words(first: str, count: int) -> list[str]:
    """Return ``count`` different words of two syllables that begin with the letter ``first``."""
    vowels = "aeiou"
    made_words = []
    for first_vowel, consonant, last_vowel in itertools.product(vowels, "bdfgklmnp", vowels):
        made_words.append(first + first_vowel + consonant + last_vowel)
    return made_words[:count]


def passage_row(text: str) -> Row:
    """Return the row of a passage without a title."""
    return {"_id": md5(text), "title": "", "text": text}


class TextMaker:
    """Random texts of which no two are equal. ``empty_words``: words without meaning, one for each text."""

    def __init__(self, chance: random.Random, empty_words: list[str]) -> None:
        self.chance = chance
        self.empty_words = empty_words
        self.earlier_texts: set[str] = set()

    def make_text(self, draw_words: Callable[[], list[str]]) -> str:
        """Return a new text of the words that ``draw_words`` draws, and one empty word, in a random order."""
        while True:
            text_words = draw_words()
            text_words.append(self.chance.choice(self.empty_words))
            text = " ".join(self.chance.sample(text_words, len(text_words)))
            if text not in self.earlier_texts:
                self.earlier_texts.add(text)
                return text


def make_synonyms(path: Path, questions: int = 600, dev: int = 60, size: int = 6, each: int = 2) -> tuple[Path, Path]:
    """Write the release, and a file of hard negatives: four passages with the words of each question.

    Return the paths of both. ``questions`` and ``dev`` are the numbers of train and dev questions. ``size`` is the
    number of different question words, and ``each`` the number of words in a question.

    All passages have the same form: ``each`` question words, ``each`` synonyms, and one empty word. Questions have an
    empty word, too. An empty word can be Chinese, so that a tokenizer of these texts knows a Chinese character. All
    texts are different.
    """
    chance = random.Random(0)
    question_words = words("s", size)
    synonyms = dict(zip(question_words, words("t", size), strict=True))
    word_sets = list(itertools.combinations(question_words, each))
    empty_words = words("r", 40)
    empty_words.append("的")
    text_maker = TextMaker(chance, empty_words)
    rows: dict[tuple[str, str], list[Row]] = {("corpus", "corpus"): []}
    for split in ("train", "dev"):
        rows["queries", split] = []
        rows["qrels", split] = []

    def draw_question() -> list[str]:
        return list(chance.choice(word_sets))

    def draw_answer(asked_words: list[str], unasked_words: list[str]) -> list[str]:
        return [synonyms[word] for word in asked_words] + chance.sample(unasked_words, each)

    def draw_negative(asked_words: list[str], unasked_words: list[str]) -> list[str]:
        return asked_words + [synonyms[word] for word in chance.sample(unasked_words, each)]

    negatives = []
    for split, count in (("train", questions), ("dev", dev)):
        for _ in range(count):
            question = text_maker.make_text(draw_question)
            asked_words = [word for word in question.split() if word in synonyms]
            unasked_words = [word for word in question_words if word not in asked_words]
            answer = text_maker.make_text(functools.partial(draw_answer, asked_words, unasked_words))
            hard_negatives = []
            for _ in range(4):
                hard_negative = text_maker.make_text(functools.partial(draw_negative, asked_words, unasked_words))
                hard_negatives.append(hard_negative)
            rows["corpus", "corpus"].append(passage_row(answer))
            rows["corpus", "corpus"] += map(passage_row, hard_negatives)
            rows["queries", split].append({"_id": md5(question), "text": question})
            rows["qrels", split].append({"query-id": md5(question), "corpus-id": md5(answer), "score": 1})
            negatives.append({"query-id": md5(question), "negative-ids": list(map(md5, hard_negatives))})
    make_release(path, rows, rows_per_shard=10_000)
    negatives_path = path.with_name("negatives.jsonl")
    negatives_path.write_text("".join(json.dumps(row) + "\n" for row in negatives), encoding="utf-8")
    return path, negatives_path
