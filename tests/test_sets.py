"""BM25 and evaluate on the sets beside the benchmark, against judgments written out by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from baselines.__main__ import VERBS
from baselines.measure.qrels import release_qrels
from builders.core.command import main
from builders.core.errors import InputError
from builders.store.draft import draft_release
from builders.store.reader import open_release


@pytest.fixture
def release(tmp_path: Path) -> Path:
    with draft_release(tmp_path / "release", {"verb": "test", "options": {}, "sources": []}) as draft:
        for prefix in ("", "cmedqa-"):
            texts = [f"{prefix}{word}" for word in ("绿萝浇水", "手机发烫", "租房押金")]
            passages = {"_id": [f"{prefix}p{i}" for i in range(3)], "title": [""] * 3, "text": texts}
            draft.write(f"{prefix}corpus", "corpus", [pa.table(passages)])
            draft.write(
                f"{prefix}queries", "test", [pa.table({"_id": [f"{prefix}q1", f"{prefix}q2"], "text": texts[:2]})]
            )
            judged = {
                "query-id": [f"{prefix}q1", f"{prefix}q2"],
                "corpus-id": [f"{prefix}p0", f"{prefix}p1"],
                "score": [1, 1],
            }
            draft.write(f"{prefix}qrels", "test", [pa.table(judged)])
        english = {"_id": ["e1", "e2"], "text": ["water pothos", "pothos watering"], "zh_id": ["q1", "q1"]}
        draft.write("crosslingual-queries", "test", [pa.table(english)])
    return tmp_path / "release"


def test_each_set_has_its_own_judgments(release: Path) -> None:
    opened = open_release(release)
    assert release_qrels(opened, "test").positives == {"q1": {"p0": 1}, "q2": {"p1": 1}}
    assert release_qrels(opened, "test", "cmedqa").positives == {
        "cmedqa-q1": {"cmedqa-p0": 1},
        "cmedqa-q2": {"cmedqa-p1": 1},
    }
    # Both translations of q1 have its judgments; q2 was never translated.
    assert release_qrels(opened, "test", "crosslingual").positives == {"e1": {"p0": 1}, "e2": {"p0": 1}}
    with pytest.raises(InputError, match="ccovid-queries"):
        release_qrels(opened, "test", "ccovid")


def test_bm25_searches_the_sets_own_passages(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.trec"
    common = ["--release", str(release), "--split", "test", "--set", "cmedqa", "--quiet"]
    assert main("baselines", "", VERBS, ["bm25", *common, "--out", str(run), "--index", str(tmp_path / "index")]) == 0
    first = [line.split() for line in run.read_text().splitlines() if line.split()[3] == "1"]
    assert [(line[0], line[2]) for line in first] == [("cmedqa-q1", "cmedqa-p0"), ("cmedqa-q2", "cmedqa-p1")]
    assert main("baselines", "", VERBS, ["evaluate", *common, "--format", "json", str(run)]) == 0
    assert '"MRR@10": 1.0' in capsys.readouterr().out
