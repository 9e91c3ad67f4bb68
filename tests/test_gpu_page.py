"""docs/gpu.md lists every place that asks for a card: with none at hand, a place left out is a place forgotten."""

from __future__ import annotations

import ast
import re

from commands import ROOT

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
        if not {".venv", ".venvs"} & {*path.parts} and path.name != "test_gpu_page.py"
        for name in re.findall(r"faiss-gpu[\w-]*", path.read_text(encoding="utf-8"))
    }
    assert named == {"faiss-gpu"}
