"""Training by one or more processes: models learn, and a resumed training ends in the same bits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import ROOT, Done, command, output, run
from loaded import Loaded, Started
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from training_world import DUAL, SMALL, World, trained, training_of, weights_of  # noqa: F401  # noqa: F401

from baselines.train.recipe import read_recipe
from baselines.train.trained_models import dual_encoder
from builders.store.reader import Release, open_release

ONE_STEP = ["train.batch=16", "train.max_steps=1", "train.evaluations=0"]


def test_a_dual_encoder_learns_what_words_do_not_tell(trained: World) -> None:
    questions, passages, places = trained.dev()

    def measure(model: Any) -> tuple[float, float]:
        """Return the mean reciprocal rank of the answer and the loss against the hard negatives."""
        every = model.encode_query(questions) @ model.encode_document(passages).T
        scores = np.stack([row[own] for row, own in zip(every, places, strict=True)])
        ranks = 1 + (scores[:, 1:] >= scores[:, :1]).sum(1)
        logits = torch.tensor(scores[:, :5]) * 20
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(places), dtype=torch.long))
        return float(np.mean(1 / ranks)), float(loss)

    recipe = read_recipe("de-bm25-neg-scratch", ["data.passage_length=16", "data.query_length=8"])
    first, before = measure(dual_encoder(recipe, str(trained.still), "cpu"))
    last, after = measure(SentenceTransformer(str(trained.dual), device="cpu"))
    # The hard negatives share words with the question, so before the training they rank above the answer.
    assert first < 0.25 < 0.8 < last
    assert after < 0.3 < np.log(5) < before


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mlm-scratch", "de-bm25-neg-scratch", "ce-bm25-neg-scratch", "static"])
def test_a_killed_training_ends_in_the_same_bits(trained: World, loaded: Loaded, recipe: str) -> None:
    steps = ["train.batch=16", "train.max_steps=16", "train.saves=8", "train.evaluations=0", "train.mini_batch=16"]
    values = [*steps, "scratch.dropout=0.1", *SMALL * recipe.startswith("mlm")]
    values += ["model.outputs=2", "train.adversarial=0.01"] * recipe.startswith("ce")
    values += ["words.dimensions=32", "train.shortest=0"] * (recipe == "static")
    start = Path("words") if recipe == "static" else None
    whole, killed = trained.folder / f"whole-{recipe}", trained.folder / f"killed-{recipe}"
    trained.train(recipe, whole, *values, start=start)
    states = killed.with_name(f"{killed.name}.training")
    words = trained.words(recipe, killed, *values, start=start)
    process: subprocess.Popen[bytes] | Started
    if recipe == "mlm-scratch":
        # The same number of threads as in this process (World), because another number changes the last bits.
        process = subprocess.Popen(command("baselines", *words), cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    else:
        process = loaded.start("baselines", *words, stderr=trained.folder / f"{recipe}.log")
    while process.poll() is None and not list(states.glob("checkpoint-*/sealed.json")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not killed.exists()
    assert 2 <= max(int(path.name.split("-")[1]) for path in states.glob("checkpoint-*")) < 16
    half = states / "checkpoint-15"  # simulates a kill during a save
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    trained.train(recipe, killed, *values, start=start)
    assert not half.exists()
    assert weights_of(killed) == weights_of(whole) != weights_of(trained.start)
    assert training_of(killed)["losses"] == training_of(whole)["losses"]
    if recipe.startswith("ce"):
        model = CrossEncoder(str(whole), device="cpu")
        assert model.predict([("sabada", "tabada"), ("sabada", "sabada")]).shape == (2, 2)


def test_without_the_packages_that_a_bare_cuda_image_lacks(trained: World) -> None:
    out = trained.folder / "bare"
    values = ["train.batch=8", "train.max_steps=2", "train.evaluations=1", "data.dev_queries=3"]
    blocked = """
import sys
sys.modules |= dict.fromkeys("duckdb faiss ir_measures jieba matplotlib numba rjieba tensorboard".split())
from baselines.__main__ import VERBS
from builders.core.command import main
sys.exit(max(main("baselines", "", VERBS, words.split("|")) for words in sys.argv[1:]))
"""
    release = ["--release", str(trained.release), "--device", "cpu"]
    model, ranked = ["--model", str(out / "de")], ["--split", "dev", "--out", str(out / "dev.run")]
    runs = [trained.words(f"{kind}-bm25-neg-scratch", out / kind, *values) for kind in ("de", "ce")]
    runs += [["encode", *release, *model, "--out", str(out / "vectors")]]
    runs += [["search", *release, *model, "--passages", str(out / "vectors"), *ranked]]
    output([sys.executable, "-c", blocked, *map("|".join, runs)])
    assert not (out / "de" / "loss.png").exists() and (out / "dev.run").exists()


def test_a_checkpoint_says_what_it_is(trained: World) -> None:
    out = trained.dual
    training, release = training_of(out), open_release(trained.release)
    assert training["about"]["data"]["corpus/corpus"] == release.fingerprint("corpus", "corpus")
    assert "queries/test" not in training["about"]["data"]
    assert training["counts"] == {"queries": 600, "positives": 600, "negatives": 2400, "random_negatives": 0}
    steps = [step for step, _ in training["losses"]]
    assert (training["steps"], steps, [row["step"] for row in training["dev"]]) == (99, [33, 66, 99], [50, 99])
    assert training["losses"][-1][1] < 0.7 * training["losses"][0][1]
    assert str(trained.base) not in (out / "training.json").read_text(encoding="utf-8")
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len({path.stat().st_mode for path in out.rglob("*") if path.is_file()}) == 1
    assert "trained with the recipe `de-bm25-neg-scratch`" in (out / "README.md").read_text(encoding="utf-8")
    model = SentenceTransformer(str(out), device="cpu")
    long = " ".join(["sabada"] * 60)
    assert model.preprocess([long], task="query")["input_ids"].shape == (1, 8)
    assert model.preprocess([long], task="document")["input_ids"].shape == (1, 16)


def test_the_test_split_is_never_read(trained: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read, batches = set(), Release.batches

    def watched(self: Release, config: str, split: str, *args: Any, **given: Any) -> Any:
        read.add((config, split))
        return batches(self, config, split, *args, **given)

    monkeypatch.setattr(Release, "batches", watched)
    values = ["train.batch=8", "train.max_steps=1", "data.dev_queries=3"]
    trained.train("de-bm25-neg-scratch", trained.folder / "watched", *values)
    assert read == {("queries", "train"), ("qrels", "train"), ("queries", "dev"), ("qrels", "dev")}


def test_a_damaged_checkpoint_is_refused_by_name(trained: World, tmp_path: Path) -> None:
    out = Path(shutil.copytree(trained.dual, tmp_path / "model"))
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for words in (
        ["encode", "--release", trained.release, "--device", "cpu", "--model", out, "--out", tmp_path / "vectors"],
        trained.words("de-bm25-neg-scratch", tmp_path / "next", *ONE_STEP, start=out),
    ):
        said = f"{out / 'model.safetensors'}: SHA-256 differs from training.json"
        assert said in run("baselines", *words, code=1).stderr


STEPS = ["train.batch=16", "train.max_steps=3", "train.logs=3", "train.evaluations=0", "train.mini_batch=2"]
KINDS = {
    "one-negative": ("de-bm25-neg-scratch", 4, ["data.negatives_per_positive=2"]),
    "all-negatives": ("de-bm25-neg-scratch", 2, ["data.negatives_per_positive=2", "data.rows=all-negatives"]),
    "towers": ("de-bm25-neg-scratch", 2, ["model.towers=2"]),
    "cross": ("ce-bm25-neg-scratch", 2, []),
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}


@pytest.fixture(scope="module")
def several(trained: World, loaded: Loaded) -> Path:
    """The folder with a checkpoint of each kind, trained by one process and by several processes.

    The start has no dropout, because several processes would draw different random numbers than one.
    """
    jobs = []
    for kind, (recipe, count, values) in KINDS.items():
        one, many = (trained.folder / f"{kind}-{number}" for number in (1, count))
        trained.train(recipe, one, *STEPS, *values, start=trained.still)
        jobs.append((count, "baselines", trained.words(recipe, many, *STEPS, *values, start=trained.still)))
    loaded.run("ranks", json.dumps(jobs))
    return trained.folder


@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_have_the_losses_and_weights_of_one(trained: World, several: Path, kind: str) -> None:
    count = KINDS[kind][1]
    folders = several / f"{kind}-1", several / f"{kind}-{count}"
    ours, theirs = map(training_of, folders)
    assert (theirs["processes"], theirs["batch"]) == (count, 16)
    losses = [[loss for _, loss in training["losses"]] for training in (ours, theirs)]
    assert len(losses[0]) == 3 and np.allclose(*losses, atol=1e-4)
    files = sorted(path.relative_to(folders[0]) for path in folders[0].rglob("*.safetensors"))
    assert len(files) == 1 + (kind == "towers")
    start = load_file(trained.still / "model.safetensors")
    one, many = ([load_file(folder / file) for file in files] for folder in folders)
    for left, right in zip(one, many, strict=True):
        for name, weights in left.items():
            assert torch.allclose(weights, right[name], atol=2e-5), name
        # The weights have changed, and differ between two towers.
        known = [name for name in left if f"bert.{name}" in start or name in start]
        assert known and any(not torch.equal(left[n], start.get(f"bert.{n}", start.get(n))) for n in known)
    if kind == "towers":
        name = next(name for name in many[0] if name.endswith("layer.0.attention.self.query.weight"))
        assert not torch.equal(many[0][name], many[1][name])


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_process_fails_all_end_with_its_line(trained: World, loaded: Loaded, failing: int) -> None:
    out = trained.folder / f"failed-{failing}"
    words = [str(failing), *trained.words("ce-bm25-neg-scratch", out, *STEPS)]
    words[words.index("--start")] = "--start-from"
    if failing:
        script = [*TORCHRUN, str(ROOT / "tests" / "failing_rank.py"), *words]
        ended = subprocess.run(script, cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=300)
        done = Done(ended.returncode, ended.stdout, ended.stderr)
    else:
        done = loaded.run("ranks", json.dumps([[2, "failing_rank", words]]), code=None)
    assert done.code == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert errors == ["error: the second step fails here"]
    assert not out.exists()
