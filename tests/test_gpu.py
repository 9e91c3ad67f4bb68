"""Every step of benchmarks/gpu.py with tiny models and without a GPU. docs/gpu.md lists every file that uses a GPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

from commands import ROOT

CHECKS = ("devices", "pinned", "precision", "search", "kinds", "compile", "nccl", "commands", "training", "memory")
STEPS = [*(f"check_{name}" for name in (*CHECKS, "faiss")), "ceilings", "searching", "encoding", "training"]


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


ASKS = re.compile(
    r"torch\.cuda|is_cuda|[\"']cuda|[\"']nccl|pin_memory|non_blocking|torch_compile|knn_gpu|index_cpu_to_gpu"
    r"|StandardGpuResources|CUDA_VISIBLE_DEVICES"
)
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_every_file_that_asks_for_a_card_is_on_the_page_and_no_other() -> None:
    files = (path for folder in ("baselines", "builders") for path in (ROOT / folder).rglob("*.py"))
    asking = {str(path.relative_to(ROOT)) for path in files if ASKS.search(path.read_text(encoding="utf-8"))}
    assert set(re.findall(r"`((?:baselines|builders)/[\w/]+\.py)`", PAGE)) == asking
