"""A question-matching model trained on labelled pairs: what it learns, what is recorded, what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Done, run
from releases import make_release
from sentence_transformers import CrossEncoder
from tiny_models import write_bert
from training_world import training_of

from baselines.checkpoint import open_checkpoint
from baselines.hub.card import model_card

# Whether the second of a pair begins with the mark is all that there is to learn.
WORDS = [f"{a}{b}" for a in "北京饺子高铁" for b in "冬天煮票多肉"]
SMALL = ["data.passage_length=16", "train.batch=32", "train.learning_rate=2e-3", "train.saves=1", "train.evaluations=2"]


def write_pairs(path: Path, count: int, seed: int) -> Path:
    chosen = random.Random(seed)
    lines = ["text1\ttext2\tlabel"]
    for _ in range(count):
        label = chosen.randrange(2)
        lines.append(f"{chosen.choice(WORDS)}\t{'是' if label else '否'}{chosen.choice(WORDS)}\t{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class World:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        self.pairs, self.dev = write_pairs(folder / "train.tsv", 800, 1), write_pairs(folder / "dev.tsv", 60, 2)
        self.start = write_bert(folder / "bert", [*WORDS, "是否"])

    def train(self, out: str, *words: object, recipe: str = "question-matching-cpu", code: int = 0) -> Done:
        values = [word for value in SMALL for word in ("--set", value)]
        given = ["--start", self.start, "--out", self.folder / out, "--device", "cpu", *values]
        return run("baselines", "train", recipe, *given, *words, code=code)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def trained(world: World) -> dict[str, Any]:
    done = world.train("ce", "--pairs", world.pairs, "--dev-pairs", world.dev, "--set", "train.epochs=4")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_learns_what_tells_pairs_apart(world: World, trained: dict[str, Any]) -> None:
    model = CrossEncoder(str(world.folder / "ce"), device="cpu")
    same, other = model.predict([("北京", "是饺子"), ("北京", "否饺子")])
    assert other < 0.2 and same > 0.8


def test_auc_and_accuracy_of_the_dev_pairs_are_printed_and_kept(world: World, trained: dict[str, Any]) -> None:
    training = training_of(world.folder / "ce")
    assert trained["dev"] == training["dev"][-1:]
    assert set(training["dev"][-1]) == {"step", "AUC", "accuracy"}
    assert training["dev"][-1]["AUC"] > 0.95 and training["dev"][-1]["accuracy"] > 0.9
    assert len(training["dev"]) == 2
    counts = training["counts"]
    assert (counts["pairs"], counts["dev pairs"]) == (800, 60)
    lines = world.pairs.read_text(encoding="utf-8").splitlines()[1:]
    assert counts["positive pairs"] == sum(line.endswith("1") for line in lines)
    assert (world.folder / "ce" / "loss.png").is_file()


def test_its_card_says_what_it_learned_from(world: World, trained: dict[str, Any]) -> None:
    card = model_card(open_checkpoint(world.folder / "ce"), "ce")
    assert "for telling whether two questions ask the same" in card
    assert "Data, files of labelled pairs of questions (SHA-256):" in card and "train.tsv" in card
    assert "license: other" in card


def test_a_finished_training_of_the_same_pairs_is_left_as_it_is(world: World, trained: dict[str, Any]) -> None:
    done = world.train("ce", "--pairs", world.pairs, "--dev-pairs", world.dev, "--set", "train.epochs=4")
    assert "is this training's checkpoint already" in done.stderr and done.stdout == ""


def test_without_dev_pairs_a_part_is_held_out(world: World) -> None:
    world.train("held", "--pairs", world.pairs, "--set", "train.max_steps=1", "--set", "data.held_out=0.01")
    counts = training_of(world.folder / "held")["counts"]
    assert counts["dev pairs"] == 8 and 0 < counts["pairs"] < 792


@pytest.mark.parametrize(
    ("words", "recipe", "said"),
    [
        (
            (),
            "question-matching-cpu",
            "the recipe question-matching-cpu learns from labelled pairs of questions: --pairs",
        ),
        (
            ("--pairs", "{pairs}", "--release", "{release}"),
            "question-matching-cpu",
            "--release: the recipe question-mat",
        ),
        (
            ("--pairs", "{pairs}", "--dev-run", "x"),
            "question-matching-cpu",
            "--dev-run: the recipe question-matching-cpu",
        ),
        (
            ("--pairs", "{pairs}"),
            "ce-bm25-neg-scratch",
            "--pairs and --dev-pairs: the recipe ce-bm25-neg-scratch learns",
        ),
        ((), "ce-bm25-neg-scratch", "the recipe ce-bm25-neg-scratch learns from a release: --release DIR"),
        (
            ("--pairs", "{pairs}", "--start", "scratch"),
            "question-matching-cpu",
            "start scratch: its vocabulary comes from",
        ),
        (("--pairs", "{one}"), "question-matching-cpu", "expected some with each label, 0 and 1"),
    ],
)
def test_what_does_not_fit_the_recipe_is_one_line(world: World, words: tuple[str, ...], recipe: str, said: str) -> None:
    one = world.folder / "one.tsv"
    one.write_text("text1\ttext2\tlabel\n" + "".join(f"甲{n}\t乙\t1\n" for n in range(40)), encoding="utf-8")
    release = make_release(world.folder / "release")
    given = [word.format(pairs=world.pairs, release=release, one=one) for word in words]
    errors = world.train("refused", *given, recipe=recipe, code=1).stderr.splitlines()
    assert [line for line in errors if line.startswith("error: ") and said in line], errors
    assert not (world.folder / "refused").exists()
