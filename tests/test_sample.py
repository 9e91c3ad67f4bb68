"""The embedded sample is what the newcomer's first command runs on: it must hold what real rows hold."""

from __future__ import annotations

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
