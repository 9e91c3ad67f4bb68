"""Notebooks of docs/: they run, print what they show, and can be read on a phone (``make test-slow``)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
WIDEST = 60  # characters of a line that a phone shows without much scrolling


def printed_texts(cell: dict[str, Any]) -> Iterator[str]:
    """Yield the text of each output of a cell, except stderr."""
    for output in cell.get("outputs", []):
        if output.get("name") != "stderr":
            yield "".join(output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell with the tag ``skip-execution`` installs the package, so it is not run."""
    nbformat = pytest.importorskip("nbformat", reason="needs the group docs: make setup-docs")
    nbclient = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    expected_texts = [list(printed_texts(cell)) for cell in notebook.cells]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources, timeout=None).execute()
    assert [list(printed_texts(cell)) for cell in notebook.cells] == expected_texts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_fits_a_phone_and_one_cell_installs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code_cells]
    for cell, source in zip(code_cells, sources, strict=True):
        for text in (source, *printed_texts(cell)):
            assert max(map(len, text.splitlines())) <= WIDEST, text
    assert sum("%pip install" in source for source in sources) == 1
