"""BM25's tokens in bm25s and in mteb, by the lines of docs/bm25.md: ``TEST_TOOLS=1`` (``make test-tools``)."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, run
from environments import environment
from pages import blocks
from test_peers import ROWS, Place, block

pytestmark = pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="set TEST_TOOLS=1: environments of 200 MB")

PASSAGES, QUESTIONS = ROWS["corpus", "corpus"], ROWS["queries", "dev"]
TUNED = ["--k1", "1.2", "--b", "0.75"]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A folder with RELEASE, bm25s and mteb, and this project's checkout to import from."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the other tools' environments are pinned for Python 3.11")
    requirements = Path(__file__).with_name("bm25s-requirements.txt")
    made = Place(tmp_path, environment("bm25s", requirements, "DUREADER_RETRIEVAL_VENV_BM25S", borrow=True))
    made.environment["PYTHONPATH"] = str(ROOT)
    return made


def lines_of(tool: str) -> str:
    """The block of docs/bm25.md that imports a tool."""
    found = [each.text for each in blocks(ROOT / "docs" / "bm25.md") if each.text.startswith(f"import {tool}\n")]
    return found[0]


def ours(folder: Path, *options: str) -> dict[str, dict[str, float]]:
    """The scores that our own BM25 gives, by question and passage."""
    out = folder / "ours.run"
    release = ["--release", folder / "RELEASE", "--split", "dev", "--quiet"]
    run("baselines", "bm25", *release, "--top-k", 1000, *TUNED, *options, "--out", out)
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for line in out.read_text(encoding="utf-8").splitlines():
        question, _, passage, _, score, _ = line.split()
        scores[question][passage] = float(score)
    return scores


def test_bm25s_scores_our_tokens_as_we_do(place: Place) -> None:
    texts: dict[str, Any] = {
        "passages": [row["text"] for row in PASSAGES],
        "questions": [row["text"] for row in QUESTIONS],
    }
    given = "".join(f"{name} = {each!r}\n" for name, each in texts.items())
    code = lines_of("bm25s").replace("k=50", f"k={len(PASSAGES)}")
    rows, scores = place.python(given + code, "[rows.tolist(), scores.tolist()]")
    expected = ours(place.folder, "--stop-words", "drop")
    assert any(expected.values())
    for question, own, reached in zip(QUESTIONS, rows, scores, strict=True):
        found = {PASSAGES[row]["_id"]: score for row, score in zip(own, reached, strict=True) if score > 0}
        # Lucene counts lengths above 39 tokens in steps; these are shorter.
        assert found == pytest.approx(expected[question["_id"]], rel=1e-4)


def test_mteb_scores_with_our_tokens(place: Place) -> None:
    task = block("mteb", "python").rpartition("results = ")[0]
    (scores,) = place.python(f"{task}\n{lines_of('mteb')}", "results[0].scores['dev']")
    runs = ours(place.folder)
    relevant = {(row["query-id"], row["corpus-id"]) for row in ROWS["qrels", "dev"]}
    total = 0.0
    for question in QUESTIONS:
        best = sorted(runs[question["_id"]].items(), key=lambda pair: -pair[1])[:10]
        hits = [rank for rank, (passage, _) in enumerate(best, 1) if (question["_id"], passage) in relevant]
        total += 1 / hits[0] if hits else 0
    assert scores["mrr_at_10"] == pytest.approx(total / len(QUESTIONS), abs=1e-5)
