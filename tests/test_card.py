"""benchmarks/card.py and its pack without a GPU: whole, resumed after a kill. Unpadded encoding, compiled layers."""

import functools
import gzip
import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import ROOT

from baselines.reproduce.step_settings import read_settings
from baselines.retrieve.devices import compile_transformers

STEPS = [
    "heads_in_fp32",
    "device_scores",
    "official_ce",
    "unpadded_encoding",
    "training_profile",
    "training_speed",
    "tables",
]
# Modules that the verbs of these steps import late.
STEP_MODULES = [
    "baselines.reproduce.reproduce_tables",
    "baselines.reproduce.run_tables",
    "baselines.train.mine",
    "baselines.train.train",
    "baselines.train.training",
    "baselines.retrieve.encode",
    "baselines.retrieve.rerank",
    "baselines.retrieve.search_vectors",
    "baselines.measure.evaluate",
    "builders.core.parser",
]


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def card_words(out: Path) -> list[str]:
    words = [sys.executable, str(ROOT / "benchmarks" / "card.py"), "--device", "cpu", "--small"]
    return [*words, "--limit", "5000", "--out", str(out)]


def read_results(out: Path) -> dict[str, Any]:
    """Return the results of the finished steps, {} before the first."""
    path = out / "results.json"
    results: dict[str, Any] = {}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
        results.pop("machine")
    return results


@pytest.mark.slow
def test_a_killed_card_script_goes_on_with_the_next_step(tmp_path: Path) -> None:
    first = subprocess.Popen(card_words(tmp_path), stdout=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and len(read_results(tmp_path)) < 2:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before = read_results(tmp_path)
    assert list(before) == STEPS[: len(before)]

    done = subprocess.run(card_words(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_results(tmp_path)
    assert list(results) == STEPS
    for name, result in results.items():
        assert result["rows"] and not result["error"], name
        assert all(row.get("passed", True) for row in result["rows"]), result
        # The results of the first call stay.
        assert name not in before or result == before[name]
        was_skipped = f"{name}: finished by an earlier call" in done.stdout
        assert was_skipped == (name in before)


def test_batches_have_at_most_the_tokens_and_keep_the_order(benchmark_module: Any) -> None:
    token_batches = benchmark_module("unpadded").token_batches
    assert list(token_batches([3, 4, 3, 9, 20, 1], 10)) == [[0, 1, 2], [3], [4], [5]]
    assert list(token_batches([], 10)) == []


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
def test_unpadded_vectors_are_those_of_padded_batches(tmp_path: Path, benchmark_module: Any, batch_tokens: int) -> None:
    models, unpadded = benchmark_module("models"), benchmark_module("unpadded")
    model = models.dual_encoder(tmp_path / "bert", layers=2, width=64).eval()
    texts = models.random_texts([3, 60, 1, 17, 400, 9])
    padded = model.encode_document(texts)
    token_ids = model.tokenizer(texts, truncation=True, max_length=384)["input_ids"]
    token_lists = []
    for numbers in unpadded.token_batches([len(ids) for ids in token_ids], batch_tokens):
        token_lists.append([token_ids[number] for number in numbers])
    unpadded.use_unpadded_attention(model)
    for batches in (token_lists, list(unpadded.text_batches(texts, 384, batch_tokens))):
        vectors = unpadded.encode_unpadded(model, batches, 384).numpy()
        np.testing.assert_allclose(vectors, padded, atol=1e-5)


def test_layers_are_compiled_once_for_all(
    tmp_path: Path, benchmark_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = benchmark_module("models")
    # Without a compiler: PyTorch records the operations of the layers, and runs them as they are.
    eager = functools.partialmethod(torch.nn.Module.compile, backend="eager")
    monkeypatch.setattr(torch.nn.Module, "compile", eager)
    texts = models.random_texts([3, 60, 17, 9])
    operation_counts = []
    for layers in (2, 4):
        model = models.dual_encoder(tmp_path / f"bert-{layers}", layers, width=64).eval()
        weight_names = list(model.state_dict())
        vectors = model.encode_document(texts)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compile_transformers(model)
        for batch_size in (4, 2, 3):
            np.testing.assert_allclose(model.encode_document(texts, batch_size=batch_size), vectors, atol=1e-5)
        assert list(model.state_dict()) == weight_names
        operation_counts.append(torch._dynamo.utils.counters["stats"]["calls_captured"])
    # A model with more layers has no more operations to compile.
    assert operation_counts[0] == operation_counts[1] > 0


def test_the_pack_has_every_package_that_an_image_lacks(benchmark_module: Any) -> None:
    pack = benchmark_module("gpu_pack")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    lacking_packages = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
    lacking_packages -= {"dureader-retrieval", *pack.IN_THE_IMAGE, *pack.WHEELS}
    lacking_modules = []
    for module_name, packages in importlib.metadata.packages_distributions().items():
        if lacking_packages.intersection(packages):
            lacking_modules.append(module_name)
    assert "duckdb" in lacking_modules
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({lacking_modules}))\n"  # their imports fail
        "sys.path.insert(0, 'benchmarks')\n"
        "import card, gpu_checks, gpu_speed\n"
        f"for name in {STEP_MODULES}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_short_settings_have_one_epoch_for_every_training(tmp_path: Path, benchmark_module: Any) -> None:
    settings_path = ROOT / "baselines" / "settings" / "e5-gpu.toml"
    short_path = benchmark_module("card").write_short_settings(settings_path, tmp_path / "short.toml")
    settings, short_settings = read_settings(settings_path), read_settings(short_path)
    for recipe in ("de-bm25-neg", "ce-de-neg", "mbert-supervised"):
        changes = set(short_settings.of_recipe(recipe))
        assert "train.epochs=1" in changes
        assert changes - {"train.epochs=1"} == set(settings.of_recipe(recipe)) - {"train.epochs=5"}


def test_unpacked_steps_are_still_finished(tmp_path: Path, benchmark_module: Any) -> None:
    """A step's record has the checksums of its outputs and inputs, which are compressed again."""
    runs = tmp_path / "runs"
    runs.mkdir()
    checksums = {}
    for name, inputs in (("bm25.run.gz", {}), ("negatives.jsonl.gz", {"run": {"": "bm25.run.gz"}})):
        (runs / name).write_bytes(gzip.compress(name.encode() * 9, 9))
        checksums[name] = hashlib.sha256((runs / name).read_bytes()).hexdigest()
        input_checksums = {key: {"": checksums[parts[""]]} for key, parts in inputs.items()}
        step_record = {"files": {name: checksums[name]}, "inputs": input_checksums}
        (runs / f".{name}.made.json").write_text(json.dumps(step_record), encoding="utf-8")
    benchmark_module("gpu_pack").archive_runs(runs, tmp_path / "runs.tar.xz")
    unpacked = tmp_path / "unpacked"
    benchmark_module("gpu").unpack_runs(tmp_path / "runs.tar.xz", unpacked)
    new_checksums = {}
    for name in checksums:
        content = (unpacked / name).read_bytes()
        assert gzip.decompress(content) == name.encode() * 9
        new_checksums[name] = hashlib.sha256(content).hexdigest()
        step_record = json.loads((unpacked / f".{name}.made.json").read_text(encoding="utf-8"))
        assert step_record["files"] == {name: new_checksums[name]}
    assert new_checksums != checksums
    assert step_record["inputs"] == {"run": {"": new_checksums["bm25.run.gz"]}}


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_f32", "matrix products"),
        ("flash_fwd_kernel", "attention"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("Memcpy HtoD (Pinned -> Device)", "copies between host and GPU"),
        ("void at::native::vectorized_elementwise_kernel", "norms, activations, dropout"),
    ],
)
def test_kernels_have_their_kinds(benchmark_module: Any, kernel: str, kind: str) -> None:
    assert benchmark_module("card").kind_of_kernel(kernel) == kind


def test_tokens_are_counted_up_to_the_limit_of_the_model(tmp_path: Path, benchmark_module: Any) -> None:
    models = benchmark_module("models")
    model = models.dual_encoder(tmp_path / "model", 1, 32)
    model[0].document_length = 450
    encoder = benchmark_module("baselines.retrieve.encoder").TextEncoder(model, "document")
    texts = models.random_texts([10, 400, 500])
    # Each character is a token, and each text has a first and a last token.
    assert sorted(benchmark_module("encode").count_tokens(encoder, texts)) == [12, 402, 450]


def test_the_rate_of_a_training_has_the_rows_of_its_batches(benchmark_module: Any) -> None:
    train = benchmark_module("train")
    batches = train.TrainingBatches(range(20), batch=32, epochs=1000, seed=0, max_steps=5)
    clock = train.Clock("cpu")
    clock.times = [0.0, 9.0, 9.5, 10.0, 11.0, 12.0]  # three steps of warm-up, then two steps in two seconds
    assert train.rows_per_second(clock, batches) == 20.0
