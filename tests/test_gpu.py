"""Every step of benchmarks/gpu.py with tiny models and without a GPU. docs/gpu.md lists every file that uses a GPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

from commands import ROOT

STEPS = [
    "check_devices",
    "check_pinned",
    "check_precision",
    "check_search",
    "check_kinds",
    "check_compile",
    "check_nccl",
    "check_commands",
    "check_training",
    "check_memory",
    "check_faiss",
    "ceilings",
    "searching",
    "encoding",
    "training",
    "real_training",
]


def test_every_step_runs_without_a_card(tmp_path: Path) -> None:
    project_results = ROOT / "build" / "gpu"
    files_before = list_files(project_results)
    words = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--device", "cpu", "--small"]
    words += ["--parts", "checks", "speed", "train", "--limit", "5000", "--out", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # The results of a real GPU stay as they are.
    assert list_files(project_results) == files_before
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results.pop("machine")["card"] == "cpu"
    assert list(results) == STEPS
    page = (tmp_path / "results.md").read_text(encoding="utf-8")
    for name, step in results.items():
        assert step["rows"] and not step["error"], name
        for row in step["rows"]:
            assert row.get("passed", True), row
            first_cell = next(iter(row.values()))
            assert f"| {first_cell} |" in page
    assert len(results["training"]["rows"]) == 9
    assert {row["table"] for row in results["real_training"]["rows"] if "table" in row} == {4}


def list_files(folder: Path) -> list[tuple[Path, float]]:
    """Return each path below a folder with its time of change."""
    return [(path, path.stat().st_mtime) for path in sorted(folder.rglob("*"))]


USES_GPU = re.compile(
    r"torch\.cuda|is_cuda|[\"']cuda|[\"']nccl|pin_memory|non_blocking|torch_compile|knn_gpu|index_cpu_to_gpu"
    r"|StandardGpuResources|CUDA_VISIBLE_DEVICES"
)
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")


def test_every_file_that_asks_for_a_card_is_on_the_page_and_no_other() -> None:
    files_with_gpu = set()
    for folder in ("baselines", "builders"):
        for path in (ROOT / folder).rglob("*.py"):
            if USES_GPU.search(path.read_text(encoding="utf-8")):
                files_with_gpu.add(str(path.relative_to(ROOT)))
    assert set(re.findall(r"`((?:baselines|builders)/[\w/]+\.py)`", PAGE)) == files_with_gpu
