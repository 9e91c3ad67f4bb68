"""Training: what the models learn, that a killed training ends in the same bits, that two processes see one's loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import ROOT, command
from loaded import Loaded, Started
from sentence_transformers import CrossEncoder, SentenceTransformer
from training_world import SMALL, World, training_of

from baselines.train.models import cross_encoder, dual_encoder
from baselines.train.recipe import read_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def still(world: World) -> Path:
    """A start without dropout: it learns in fewer steps, and two processes draw nothing that differs."""
    out = world.folder / "still"
    assert world.train("mlm-scratch", out, *SMALL, "scratch.dropout=0", "train.batch=64", "train.max_steps=10") == 0
    return out


def _weights(folder: Path) -> bytes:
    return next(folder.rglob("model.safetensors")).read_bytes()


def test_a_dual_encoder_learns_what_words_do_not_tell(world: World, still: Path) -> None:
    values = ["train.batch=64", "train.mini_batch=64", "train.epochs=11", "train.learning_rate=2e-3"]
    out = world.folder / "de"
    assert world.train("de-bm25-neg-scratch", out, *values, "train.evaluations=1", start=still) == 0
    questions, passages, places = world.dev()

    def measure(model: Any) -> tuple[float, float]:
        """(mean reciprocal rank of the answer, loss against the hard negatives)."""
        every = model.encode_query(questions) @ model.encode_document(passages).T
        scores = np.stack([row[own] for row, own in zip(every, places, strict=True)])
        ranks = 1 + (scores[:, 1:] >= scores[:, :1]).sum(1)
        logits = torch.tensor(scores[:, :5]) * 20
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(places), dtype=torch.long))
        return float(np.mean(1 / ranks)), float(loss)

    recipe = read_recipe("de-bm25-neg-scratch", ["data.passage_length=16", "data.query_length=8"])
    untrained, before = measure(dual_encoder(recipe, str(still), "cpu"))
    trained, after = measure(SentenceTransformer(str(out), device="cpu"))
    # Its words speak for the hard negatives: before the training they are above the answer.
    assert untrained < 0.25 < 0.8 < trained
    assert after < 0.3 < np.log(5) < before
    losses = [loss for _, loss in training_of(out)["losses"]]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def test_a_cross_encoder_learns_what_words_do_not_tell(world: World) -> None:
    values = ["train.batch=64", "train.epochs=6", "train.learning_rate=1e-3", "train.evaluations=1"]
    out = world.folder / "ce"
    assert world.train("ce-bm25-neg-scratch", out, *values) == 0
    questions, passages, places = world.dev()
    pairs = [(question, passages[place]) for question, own in zip(questions, places, strict=True) for place in own[:5]]

    def measure(model: Any) -> float:
        """Mean reciprocal rank of the answer among itself and four passages that have all words of the question."""
        scores = model.predict(pairs, batch_size=256).reshape(len(questions), 5)
        return float(np.mean([1 / (1 + (row[1:] >= row[0]).sum()) for row in scores]))

    recipe = read_recipe("ce-bm25-neg-scratch", ["data.passage_length=16"])
    trained = measure(CrossEncoder(str(out), device="cpu"))
    assert measure(cross_encoder(recipe, str(world.start), "cpu")) < 0.65
    assert trained > 0.9


@pytest.mark.parametrize("recipe", ["mlm-scratch", "de-bm25-neg-scratch", "ce-bm25-neg-scratch", "static"])
def test_a_killed_training_ends_in_the_same_bits(world: World, loaded: Loaded, recipe: str) -> None:
    values = [
        "train.batch=16",
        "train.max_steps=16",
        "train.saves=8",
        "train.evaluations=0",
        "train.mini_batch=16",
        "scratch.dropout=0.1",
    ]
    values += SMALL * recipe.startswith("mlm")
    values += ["model.outputs=2", "train.adversarial=0.01"] * recipe.startswith("ce")
    values += ["words.dimensions=32", "train.shortest=0"] * (recipe == "static")
    start = Path("words") if recipe == "static" else None
    whole, killed = world.folder / f"whole-{recipe}", world.folder / f"killed-{recipe}"
    assert world.train(recipe, whole, *values, start=start) == 0
    states = killed.with_name(f"{killed.name}.training")
    words = world.words(recipe, killed, *values, start=start)
    process: subprocess.Popen[bytes] | Started
    if recipe == "mlm-scratch":
        # As many threads as in this process (World): with others the last bits differ.
        process = subprocess.Popen(command("baselines", *words), cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    else:
        process = loaded.start("baselines", *words, stderr=world.folder / f"{recipe}.log")
    while process.poll() is None and not list(states.glob("checkpoint-*/sealed.json")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not killed.exists()
    last = max(int(path.name.split("-")[1]) for path in states.glob("checkpoint-*"))
    assert 2 <= last < 16
    half = states / "checkpoint-15"  # as if killed while it was written
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert world.train(recipe, killed, *values, start=start) == 0
    assert not half.exists()
    assert _weights(killed) == _weights(whole)
    assert _weights(killed) != _weights(world.start)
    assert [loss for _, loss in training_of(killed)["losses"]] == [loss for _, loss in training_of(whole)["losses"]]


def test_a_cross_encoder_of_two_outputs_is_saved_as_one(world: World) -> None:
    out = world.folder / "two-outputs"
    values = ["train.batch=16", "train.max_steps=2", "train.evaluations=0", "model.outputs=2"]
    assert world.train("ce-bm25-neg-scratch", out, *values) == 0
    model = CrossEncoder(str(out), device="cpu")
    assert model.num_labels == 2
    assert model.predict([("sabada", "tabada"), ("sabada", "sabada")]).shape == (2, 2)


def test_without_the_packages_that_a_bare_cuda_image_lacks(world: World) -> None:
    out = world.folder / "bare"
    values = ["train.batch=8", "train.max_steps=2", "train.evaluations=1", "data.dev_queries=3"]
    blocked = """
import importlib.metadata, importlib.util, sys
gone = set("duckdb faiss ir_measures jieba matplotlib numba rjieba tensorboard".split())
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in gone:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
spec, metadata = importlib.util.find_spec, importlib.metadata.metadata
importlib.util.find_spec = lambda name, package=None: None if name in gone else spec(name, package)
def no_metadata(name):
    if name in gone:
        raise importlib.metadata.PackageNotFoundError(name)
    return metadata(name)
importlib.metadata.metadata = no_metadata
from baselines.__main__ import VERBS
from builders.core.command import main
codes = [main("baselines", "", VERBS, words.split("|")) for words in sys.argv[1:]]
assert not gone & {name.split(".")[0] for name in sys.modules}
sys.exit(max(codes))
"""
    runs = ["|".join(world.words(f"{kind}-bm25-neg-scratch", out / kind, *values)) for kind in ("de", "ce")]
    runs.append("|".join(world.words("mlm-scratch", out / "mlm", *SMALL, *values)))
    subprocess.run([sys.executable, "-c", blocked, *runs], cwd=ROOT, check=True, timeout=300)
    assert not (out / "de" / "loss.png").exists()
    SentenceTransformer(str(out / "de"), device="cpu")
    CrossEncoder(str(out / "ce"), device="cpu")
