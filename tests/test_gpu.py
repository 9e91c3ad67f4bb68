"""benchmarks/gpu.py without a card: every step with tiny models, steps that fail, and the files that travel.

docs/gpu.md lists every place that asks for a card: with none at hand, a place left out is a place forgotten."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from releases import TEXTS, make_release, tables

from builders.store.reader import open_release

CHECKS = ("devices", "pinned", "precision", "search", "kinds", "compile", "nccl", "commands", "training", "memory")
STEPS = [*(f"check_{name}" for name in (*CHECKS, "faiss")), "ceilings", "searching", "encoding", "training"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu")


@pytest.fixture
def gpu_pack(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_pack")


def test_every_step_runs_without_a_card(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--small", "--parts", "checks", "speed", "train", "--limit", "5000", "--out", tmp_path]
    before = listing(ROOT / "build" / "gpu")
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert listing(ROOT / "build" / "gpu") == before
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results.pop("machine")["card"] == "cpu"
    assert list(results) == [*STEPS, "real_training"]
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    for name, step in results.items():
        assert step["rows"] and not step["error"], name
        for row in step["rows"]:
            assert row.get("passed", True), row
            assert f"| {next(iter(row.values()))} |" in page
    assert len(results["training"]["rows"]) == 9
    assert {row["table"] for row in results["real_training"]["rows"] if "table" in row} == {4}


def listing(folder: Path) -> list[tuple[Path, float]]:
    return [(path, path.stat().st_mtime) for path in sorted(folder.rglob("*"))]


def test_a_step_that_fails_is_named_and_does_not_end_the_others(gpu: Any, tmp_path: Path) -> None:
    def rows_of(values: range) -> Any:
        rows = gpu.Kept()
        for value in values:
            rows.append({"value": value})
        return rows

    def raises(setting: Any) -> Any:
        rows_of(range(1))
        raise ValueError("no such card")

    def sleeps(setting: Any) -> Any:
        rows_of(range(2))
        child = subprocess.Popen(["sleep", "600"])
        (tmp_path / "child").write_text(str(child.pid))
        time.sleep(600)

    def dies(setting: Any) -> Any:
        rows_of(range(3))
        os.kill(os.getpid(), signal.SIGKILL)

    def disagrees(setting: Any) -> Any:
        return [gpu.check("a check", False, "another value")]

    def works(setting: Any) -> Any:
        assert 0 < setting.seconds <= 300
        return rows_of(range(4))

    steps = [(raises, 300), (sleeps, 6), (dies, 300), (disagrees, 300), (works, 300)]
    setting = gpu.Setting("cpu", False, tmp_path, tmp_path, tmp_path, tmp_path)
    failed = gpu.run_steps(steps, setting, tmp_path, time.monotonic() + 900)
    assert failed == ["raises", "sleeps", "dies", "a check"]
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    errors = {name: step["error"] for name, step in results.items() if name != "machine"}
    assert errors["raises"] == "ValueError: no such card" and errors["sleeps"] == "not done after 6 s"
    assert errors["dies"] == "its process died" and not errors["disagrees"] and not errors["works"]
    assert [len(results[name]["rows"]) for name in errors] == [1, 2, 3, 1, 4]
    assert "raise ValueError" in (tmp_path / "raises.log").read_text(encoding="utf-8")
    child = Path("/proc") / (tmp_path / "child").read_text()
    assert not child.exists() or "Z" in (child / "stat").read_text().split()[2]  # it ended with its step


def test_no_step_begins_after_the_time_is_over(gpu: Any, tmp_path: Path) -> None:
    setting = gpu.Setting("cpu", False, tmp_path, tmp_path, tmp_path, tmp_path)
    assert gpu.run_steps([(print, 30)], setting, tmp_path, time.monotonic() + 1) == ["print"]
    assert json.loads((tmp_path / "results.json").read_text("utf-8"))["print"]["error"] == "no time left"


def test_steps_that_travel_are_done_where_they_are_unpacked(
    gpu: Any, gpu_pack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    joined = [("train", "train"), ("dev", "dev")]  # with these, the negatives would be the official data's
    release = make_release(tmp_path / "release", {key: rows for key, rows in tables().items() if key not in joined})
    runs, archive = tmp_path / "runs", tmp_path / "runs.tar.xz"
    gpu_pack.run_without_models(release, runs, [4])
    texts = {path.name: gpu.gzip.decompress(path.read_bytes()) for path in runs.glob("*.gz")}
    gpu_pack.archive_runs(runs, archive)
    shutil.rmtree(runs)
    gpu.unpack_runs(archive, runs)
    assert {path.name: gpu.gzip.decompress(path.read_bytes()) for path in runs.glob("*.gz")} == texts
    assert len(texts) == 3 and {*texts} >= {"bm25.dev.run.gz", "bm25.negatives.jsonl.gz"}

    def call(*_: Any) -> None:
        raise AssertionError("a step runs again")

    monkeypatch.setattr("baselines.reproduce.steps.call", call)
    gpu_pack.run_without_models(release, runs, [4])
    (runs / "bm25.dev.run.gz").write_bytes(b"")
    with pytest.raises(AssertionError, match="a step runs again"):
        gpu_pack.run_without_models(release, runs, [4])


def test_a_release_travels_without_its_joined_configs(gpu_pack: Any, tmp_path: Path) -> None:
    source = make_release(tmp_path / "source")
    left = gpu_pack.copy_release(source, tmp_path / "copy")
    assert {path.split("/")[0] for path in left} == {"train", "dev", "test"}
    copy = open_release(tmp_path / "copy")
    assert {*copy.splits()} == {
        pair for pair in open_release(source).splits() if pair[0] not in ("train", "dev", "test")
    }
    assert [*copy.texts("corpus", "corpus").values()] == TEXTS
    assert not [path for path in left if (tmp_path / "copy" / path).exists()]


# The page

ASKS = re.compile(
    r"torch\.cuda|is_cuda|[\"']cuda|[\"']nccl|pin_memory|non_blocking|torch_compile|knn_gpu|index_cpu_to_gpu"
    r"|StandardGpuResources|CUDA_VISIBLE_DEVICES"
)
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_every_file_that_asks_for_a_card_is_on_the_page_and_no_other() -> None:
    files = (path for folder in ("baselines", "builders") for path in (ROOT / folder).rglob("*.py"))
    asking = {str(path.relative_to(ROOT)) for path in files if ASKS.search(path.read_text(encoding="utf-8"))}
    assert set(re.findall(r"`(baselines/[\w/]+\.py)`", PAGE)) == asking


def test_every_function_on_the_page_is_in_its_file() -> None:
    places = re.findall(r"`(baselines/[\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", PAGE)
    assert len(places) >= 10
    for path, names in places:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.ClassDef)
        known = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        assert set(re.findall(r"\w+", names)) <= known, path


def test_one_package_is_named_for_faiss_on_a_gpu() -> None:
    named = {
        name
        for path in [*ROOT.glob("*.toml"), *ROOT.glob("*.txt"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/**/*.py")]
        if not {".venv", ".venvs"} & {*path.parts} and path.name != "test_gpu.py"
        for name in re.findall(r"faiss-gpu[\w-]*", path.read_text(encoding="utf-8"))
    }
    assert named == {"faiss-gpu"}
