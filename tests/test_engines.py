"""The adapters of examples/ for search engines give the figures of this project's own exact search.

With ``TEST_TOOLS=1`` (``make test-tools``), the programs run in the engines' own environments.
"""

import os
from pathlib import Path

import pytest
from commands import ROOT
from sentence_transformers import SentenceTransformer
from test_tools import Make, place_of  # noqa: F401
from tiny_models import write_dual

from baselines import evaluate

pytestmark = pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="set TEST_TOOLS=1: environments of 200 MB")


def check_example(place_of: Make, tool: str, program: str, sample_release: Path) -> str:
    """Run a program of examples/ in the environment of a tool. Compare its MRR@10 with ours. Return stdout."""
    place = place_of(tool)
    model = write_dual(place.folder / "dual", similarity="cosine")
    place.environment["PYTHONPATH"] = str(ROOT)
    printed = place.shell(f"python {ROOT / 'examples' / program} --model {model} --release {sample_release}")
    loaded_model = SentenceTransformer(str(model), device="cpu")
    expected = evaluate(loaded_model, sample_release, query_prompt="query: ", passage_prompt="passage: ")
    (mean_line,) = [line for line in printed.splitlines() if line.startswith("MRR@10 ")]
    assert float(mean_line.split()[1]) == pytest.approx(100 * expected["MRR@10"], abs=0.01)
    assert "latency of a query, searched alone: p50 " in printed and "(16 queries)" in printed
    return printed


def test_qdrant_engine(place_of: Make, sample_release: Path) -> None:
    printed = check_example(place_of, "qdrant", "qdrant_engine.py", sample_release)
    assert "nDCG@20" in printed


def test_langchain_retriever(place_of: Make, sample_release: Path) -> None:
    check_example(place_of, "langchain", "langchain_retriever.py", sample_release)


def test_llamaindex_retriever(place_of: Make, sample_release: Path) -> None:
    check_example(place_of, "llamaindex", "llamaindex_retriever.py", sample_release)
