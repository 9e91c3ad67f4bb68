"""The embedded sample is what the newcomer's first command runs on: it must hold what real rows hold."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from commands import SAMPLE

from baselines.bm25.engine_numba import open_index
from baselines.bm25.index import Texts, search_columns
from baselines.measure.measures import official
from baselines.measure.qrels import read_queries, release_qrels
from builders.release.build import build_release
from builders.release.options import Options
from builders.release.rows import find_sources
from builders.store.reader import open_release


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    lines = [line for path in sorted(SAMPLE.glob("*.json")) for line in path.read_text("utf-8").split("\n") if line]
    return [json.loads(line) for line in lines]


def test_it_holds_what_real_rows_hold(rows: list[dict]) -> None:
    documents = [document for row in rows for document in row["documents"]]
    paragraphs = [paragraph for document in documents for paragraph in document["paragraphs"]]
    assert all(2 <= len(row["documents"]) <= 5 for row in rows)
    assert len({row["question_id"] for row in rows}) == len({row["question"] for row in rows}) == len(rows)
    lengths = [len(paragraph) for paragraph in paragraphs]
    for low, high in ((0, 0), (1, 5), (6, 30), (31, 100), (101, 255), (256, 1000)):
        assert any(low <= length <= high for length in lengths), (low, high)
    assert any("\u2028" in paragraph for paragraph in paragraphs)
    assert max(Counter(tuple(document["paragraphs"]) for document in documents).values()) > 1  # a shared passage
    # Answers that stand in a paragraph, and answers that do not; questions nobody answered; a test set without answers.
    literal = [
        any(answer in p for d in row["documents"] for p in d["paragraphs"])
        for row in rows
        for answer in row.get("answers", [])
    ]
    assert any(literal) and not all(literal)
    assert any(row.get("answers") == [] for row in rows)
    assert any("answers" not in row for row in rows)
    # No two questions were filled into one mould: hardly any paragraph of some length comes twice.
    long = [paragraph for paragraph in paragraphs if len(paragraph) >= 20]
    assert len(set(long)) > 0.95 * len(long)


@pytest.mark.parametrize("unit", ["word", "char"])
def test_bm25_neither_fails_nor_is_perfect_on_it(tmp_path: Path, unit: str) -> None:
    built = build_release(find_sources([SAMPLE]), tmp_path / "release", Options(unit=unit))
    assert built["read"].keys() == {"train", "dev", "test"}
    assert sum(counts["questions"] for counts in built["read"].values()) >= 60
    release = open_release(tmp_path / "release")
    index = open_index(Texts(release), tmp_path / "index", 1)
    parts = search_columns(index, read_queries(release, "dev"), 50, 1)
    found = {query: ids for part in parts for query, ids in part.rankings().items()}
    values = official(found, release_qrels(release, "dev"))
    assert 0.1 < values["recall@1"] < 0.9
    assert 0.2 < values["MRR@10"] < 0.9
