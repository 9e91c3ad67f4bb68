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
from training_world import DUAL, SMALL, World, trained, training_of, weights_of  # noqa: F401

from baselines.train.recipe import read_recipe
from baselines.train.trained_models import dual_encoder
from builders.store.reader import Release, open_release

ONE_STEP = ["train.batch=16", "train.max_steps=1", "train.evaluations=0"]


def test_a_dual_encoder_learns_what_words_do_not_tell(trained: World) -> None:
    questions, passages, candidate_rows = trained.dev()

    def measure(model: Any) -> tuple[float, float]:
        """Return the mean reciprocal rank of the answer and the loss against the hard negatives."""
        all_scores = model.encode_query(questions) @ model.encode_document(passages).T
        # Columns: the answer, four hard negatives, other passages.
        scores = np.take_along_axis(all_scores, np.array(candidate_rows), axis=1)
        ranks = 1 + (scores[:, 1:] >= scores[:, :1]).sum(1)
        logits = torch.tensor(scores[:, :5]) * 20
        loss = torch.nn.functional.cross_entropy(logits, torch.zeros(len(questions), dtype=torch.long))
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
    values = ["train.batch=16", "train.max_steps=16", "train.saves=8", "train.evaluations=0", "train.mini_batch=16"]
    values.append("scratch.dropout=0.1")
    if recipe.startswith("mlm"):
        values += SMALL
    if recipe.startswith("ce"):
        values += ["model.outputs=2", "train.adversarial=0.01"]
    if recipe == "static":
        values += ["words.dimensions=32", "train.shortest=0"]
    start = Path("words") if recipe == "static" else None
    uninterrupted = trained.folder / f"whole-{recipe}"
    killed = trained.folder / f"killed-{recipe}"
    trained.train(recipe, uninterrupted, *values, start=start)
    states = killed.with_name(f"{killed.name}.training")
    words = trained.words(recipe, killed, *values, start=start)
    process: subprocess.Popen[bytes] | Started
    if recipe == "mlm-scratch":
        # The same number of threads as in this process (World), because another number changes the last bits.
        process = subprocess.Popen(command("baselines", words), cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    else:
        process = loaded.start("baselines", *words, stderr=trained.folder / f"{recipe}.log")
    while process.poll() is None and not list(states.glob("checkpoint-*/sealed.json")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not killed.exists()
    saved_steps = [int(path.name.split("-")[1]) for path in states.glob("checkpoint-*")]
    assert 2 <= max(saved_steps) < 16
    half = states / "checkpoint-15"  # simulates a kill during a save
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    trained.train(recipe, killed, *values, start=start)
    assert not half.exists()
    assert weights_of(killed) == weights_of(uninterrupted) != weights_of(trained.start)
    assert training_of(killed)["losses"] == training_of(uninterrupted)["losses"]
    if recipe.startswith("ce"):
        model = CrossEncoder(str(uninterrupted), device="cpu")
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
    training = training_of(out)
    release = open_release(trained.release)
    assert training["about"]["data"]["corpus/corpus"] == release.fingerprint("corpus", "corpus")
    assert "queries/test" not in training["about"]["data"]
    assert training["counts"] == {"queries": 600, "positives": 600, "negatives": 2400, "random_negatives": 0}
    steps = [step for step, _ in training["losses"]]
    assert (training["steps"], steps) == (99, [33, 66, 99])
    assert [row["step"] for row in training["dev"]] == [50, 99]
    losses = [loss for _, loss in training["losses"]]
    assert losses[-1] < 0.7 * losses[0]
    assert str(trained.base) not in (out / "training.json").read_text(encoding="utf-8")
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert len({path.stat().st_mode for path in out.rglob("*") if path.is_file()}) == 1
    assert "trained with the recipe `de-bm25-neg-scratch`" in (out / "README.md").read_text(encoding="utf-8")
    model = SentenceTransformer(str(out), device="cpu")
    long = " ".join(["sabada"] * 60)
    assert model.preprocess([long], task="query")["input_ids"].shape == (1, 8)
    assert model.preprocess([long], task="document")["input_ids"].shape == (1, 16)


def test_the_test_split_is_never_read(trained: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read_splits = set()
    original_batches = Release.batches

    def record_split(self: Release, config: str, split: str, *args: Any, **options: Any) -> Any:
        read_splits.add((config, split))
        return original_batches(self, config, split, *args, **options)

    monkeypatch.setattr(Release, "batches", record_split)
    values = ["train.batch=8", "train.max_steps=1", "data.dev_queries=3"]
    trained.train("de-bm25-neg-scratch", trained.folder / "watched", *values)
    assert read_splits == {("queries", "train"), ("qrels", "train"), ("queries", "dev"), ("qrels", "dev")}


def test_a_damaged_checkpoint_is_refused_by_name(trained: World, tmp_path: Path) -> None:
    out = Path(shutil.copytree(trained.dual, tmp_path / "model"))
    content = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for words in (
        ["encode", "--release", trained.release, "--device", "cpu", "--model", out, "--out", tmp_path / "vectors"],
        trained.words("de-bm25-neg-scratch", tmp_path / "next", *ONE_STEP, start=out),
    ):
        error = f"{out / 'model.safetensors'}: SHA-256 differs from training.json"
        assert error in run("baselines", words, code=1).stderr


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
        trained.train(recipe, trained.folder / f"{kind}-1", *STEPS, *values, start=trained.still)
        out = trained.folder / f"{kind}-{count}"
        jobs.append((count, "baselines", trained.words(recipe, out, *STEPS, *values, start=trained.still)))
    loaded.run("ranks", json.dumps(jobs))
    return trained.folder


@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_have_the_losses_and_weights_of_one(trained: World, several: Path, kind: str) -> None:
    count = KINDS[kind][1]
    one_folder = several / f"{kind}-1"
    many_folder = several / f"{kind}-{count}"
    training = training_of(many_folder)
    assert (training["processes"], training["batch"]) == (count, 16)
    losses = np.array(training["losses"])
    assert len(losses) == 3 and np.allclose(losses, training_of(one_folder)["losses"], atol=1e-4)
    weight_files = sorted(path.relative_to(one_folder) for path in one_folder.rglob("*.safetensors"))
    assert len(weight_files) == (2 if kind == "towers" else 1)
    start = load_file(trained.still / "model.safetensors")
    for weight_file in weight_files:
        weights = load_file(one_folder / weight_file)
        weights_of_many = load_file(many_folder / weight_file)
        for name, values in weights.items():
            assert torch.allclose(values, weights_of_many[name], atol=2e-5), name
        # Weights of the start have changed. In a dual-encoder their names lack the prefix bert.
        changes = []
        for name, values in weights.items():
            start_values = start.get(f"bert.{name}", start.get(name))
            if start_values is not None:
                changes.append(not torch.equal(values, start_values))
        assert any(changes)
    if kind == "towers":
        first_tower, second_tower = (load_file(many_folder / weight_file) for weight_file in weight_files)
        name = next(name for name in first_tower if name.endswith("layer.0.attention.self.query.weight"))
        assert not torch.equal(first_tower[name], second_tower[name])


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
