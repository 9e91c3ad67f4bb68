"""Training: what the models learn, that a killed training ends in the same bits, what the checkpoints hold."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT
from synonyms import make_synonyms

torch = pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

from safetensors.torch import load_file  # noqa: E402
from sentence_transformers import CrossEncoder, SentenceTransformer  # noqa: E402

from baselines.__main__ import VERBS  # noqa: E402
from baselines.train.models import build_cross, build_dual  # noqa: E402
from baselines.train.recipe import read_recipe  # noqa: E402
from builders.common.command import main  # noqa: E402
from builders.store.reader import open_release  # noqa: E402

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
    return (folder / "model.safetensors").read_bytes()


def _training(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return content


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
    untrained, before = measure(build_dual(recipe, str(still), "cpu"))
    trained, after = measure(SentenceTransformer(str(out), device="cpu"))
    # Its words speak for the hard negatives: before the training they are above the answer.
    assert untrained < 0.25 < 0.8 < trained
    assert after < 0.3 < np.log(5) < before
    losses = [loss for _, loss in _training(out)["losses"]]
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
    assert measure(build_cross(recipe, str(world.start), "cpu")) < 0.65
    assert trained > 0.9


def test_a_checkpoint_says_what_it_is(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    out = world.folder / "said"
    values = ["train.batch=16", "train.max_steps=6", "train.logs=3", "train.evaluations=2", "data.dev_queries=10"]
    assert world.train("de-bm25-neg-scratch", out, *values) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    recipe = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    assert (recipe["train"]["batch"], recipe["train"]["epochs"], recipe["data"]["query_length"]) == (16, 10.0, 8)
    training = _training(out)
    release = open_release(world.release)
    assert training["about"]["data"]["corpus/corpus"] == release.fingerprint("corpus", "corpus")
    assert "queries/test" not in training["about"]["data"]
    assert training["counts"] == {"queries": 600, "positives": 600, "negatives": 2400, "random_negatives": 0}
    assert [step for step, _ in training["losses"]] == [2, 4, 6]
    assert [row["step"] for row in training["dev"]] == [3, 6]
    assert all(0 <= row["MRR@10"] <= 1 for row in training["dev"])
    assert str(world.folder) not in (out / "training.json").read_text(encoding="utf-8")
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    model = SentenceTransformer(str(out), device="cpu")
    long = " ".join(["sabada"] * 60)
    assert model.preprocess([long], task="query")["input_ids"].shape == (1, 8)
    assert model.preprocess([long], task="document")["input_ids"].shape == (1, 16)
    assert abs(float(np.linalg.norm(model.encode_query("sabada"))) - 1) < 1e-5

    # The same command again finds its work done; another recipe does not take it for its own.
    before = (out / "training.json").stat().st_mtime_ns
    assert world.train("de-bm25-neg-scratch", out, *values) == 0
    assert (out / "training.json").stat().st_mtime_ns == before
    assert world.train("de-bm25-neg-scratch", out, *values, "train.seed=1") == 1
    assert "train.seed differ" in capsys.readouterr().err


def test_the_test_split_is_never_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from builders.store.reader import Release

    read = set()
    batches = Release.batches

    def watched(self: Release, config: str, split: str, *args: Any, **given: Any) -> Any:
        read.add((config, split))
        return batches(self, config, split, *args, **given)

    monkeypatch.setattr(Release, "batches", watched)
    out = world.folder / "watched"
    assert world.train("ce-bm25-neg-scratch", out, "train.batch=8", "train.max_steps=1", "data.dev_queries=3") == 0
    assert read == {("queries", "train"), ("qrels", "train"), ("queries", "dev"), ("qrels", "dev")}


@pytest.mark.parametrize("recipe", ["mlm-scratch", "de-bm25-neg-scratch", "ce-bm25-neg-scratch"])
def test_a_killed_training_ends_in_the_same_bits(world: World, recipe: str) -> None:
    values = [
        "train.batch=16",
        "train.max_steps=24",
        "train.saves=12",
        "train.evaluations=0",
        "train.mini_batch=16",
        "scratch.dropout=0.1",
    ]
    values += SMALL * recipe.startswith("mlm")
    whole, killed = world.folder / f"whole-{recipe}", world.folder / f"killed-{recipe}"
    assert world.train(recipe, whole, *values) == 0
    states = killed.with_name(f"{killed.name}.training")
    command = [sys.executable, "-m", "baselines", *world.words(recipe, killed, *values)]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        while process.poll() is None and not list(states.glob("checkpoint-1*/trainer_state.json")):
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL and not killed.exists()
    last = max(int(path.name.split("-")[1]) for path in states.glob("checkpoint-*"))
    assert 10 <= last < 24
    half = states / "checkpoint-23"  # as if killed while it was written
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    assert world.train(recipe, killed, *values) == 0
    assert not half.exists()
    assert _weights(killed) == _weights(whole)
    assert _weights(killed) != _weights(world.start)
    assert [loss for _, loss in _training(killed)["losses"]] == [loss for _, loss in _training(whole)["losses"]]


def test_two_processes_see_the_loss_of_one(world: World, still: Path) -> None:
    values = ["train.batch=16", "train.max_steps=4", "train.logs=4", "train.evaluations=0", "train.mini_batch=4"]
    one, two = world.folder / "one", world.folder / "two"
    assert world.train("de-bm25-neg-scratch", one, *values, start=still) == 0
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "baselines"]
    command = [*run, *world.words("de-bm25-neg-scratch", two, *values)]
    at = command.index("--start")
    command[at : at + 2] = ["--start-from", str(still)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    ours, theirs = _training(one), _training(two)
    assert theirs["processes"] == 2 and theirs["batch"] == 16
    assert np.allclose([loss for _, loss in ours["losses"]], [loss for _, loss in theirs["losses"]], atol=1e-4)
    # The gradients, too: the weights have gone the same way.
    start, left, right = (load_file(folder / "model.safetensors") for folder in (still, one, two))
    for name, weights in left.items():
        assert torch.allclose(weights, right[name], atol=2e-5), name
    assert any(
        not torch.equal(weights, start[f"bert.{name}"]) for name, weights in left.items() if f"bert.{name}" in start
    )


def test_without_the_packages_that_a_bare_cuda_image_lacks(world: World) -> None:
    out = world.folder / "bare"
    values = ["train.batch=8", "train.max_steps=2", "train.evaluations=1", "data.dev_queries=3"]
    blocked = """
import importlib.metadata, importlib.util, sys
gone = set("datasets duckdb faiss ir_measures jieba matplotlib msgspec numba rjieba tantivy tensorboard".split())
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
from builders.common.command import main
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


def test_what_is_missing_is_one_clear_error(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def error(recipe: str, *more: str, drop: str = "", **change: str) -> str:
        words = world.words(recipe, tmp_path / "out")
        for name, value in change.items():
            words[words.index(f"--{name}") + 1] = value
        if drop:
            at = words.index(f"--{drop}")
            del words[at : at + 2]
        assert main("baselines", "", VERBS, [*words, *more]) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return line

    assert "wants 4 hard negatives a positive: --negatives F" in error("de-bm25-neg-scratch", drop="negatives")
    assert "nowhere.jsonl: no such file of hard negatives" in error("ce-bm25-neg-scratch", negatives="nowhere.jsonl")
    assert "no checkpoint of mlm-scratch, from which de-bm25-neg-scratch starts" in error(
        "de-bm25-neg-scratch", drop="start"
    )
    assert "no recipe 'de-bm26'" in error("de-bm26")
    assert "unknown key 'train.batches'" in error("de-bm25-neg-scratch", "--set", "train.batches=3")
    assert "has no config 'queries' with a split 'nope'" in error("de-bm25-neg-scratch", "--set", "data.split=nope")
    assert "cmedqa-corpus" in error("de-cmedqa-scratch")
    (tmp_path / "empty").mkdir()
    assert "cannot start from the model" in error("de-bm25-neg-scratch", start=str(tmp_path / "empty"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "exists and is no checkpoint of `train`" in error("de-bm25-neg-scratch", out=str(tmp_path / "full"))
    assert (tmp_path / "full" / "thesis.txt").read_text(encoding="utf-8") == "mine"
    if not torch.cuda.is_available():
        assert "no CUDA device is usable here" in error("de-bm25-neg-scratch", device="cuda")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_the_same_every_time(world: World) -> None:
    from baselines.passages import open_passages
    from baselines.train.models import wordpieces

    passages = open_passages(open_release(world.release), keep=world.folder / "cache")
    first = wordpieces(passages, 60, 500)
    assert first == wordpieces(passages, 60, 500)
    assert first[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and len(first) <= 60
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(world.start)
    found = tokenizer.tokenize("sabada tabada 。")
    assert (
        "[UNK]" in found and "".join(piece.removeprefix("##") for piece in found if piece != "[UNK]") == "sabadatabada"
    )
