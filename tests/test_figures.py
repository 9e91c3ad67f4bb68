"""The figures of ``check`` equal manual counts, are shown with the paper's, and are drawn."""

import itertools
import json
import resource
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS
from whole_release import edit_stats

from builders.check.release import check
from builders.store.reader import open_release
from builders.store.table3 import LENGTH_EDGES, POSITIVES_EDGES, LengthCounter


def test_the_figures_are_those_of_the_rows(whole_release: Path) -> None:
    stats = check(open_release(whole_release)).figures.stats
    names = ("queries", "positive_passages", "passages_per_query", "chars_per_query", "chars_per_passage")
    asked, texts = QUESTIONS, (TEXTS[:4], TEXTS[4:])
    lengths = [
        (round(mean(map(len, asked[name])), 4), round(mean(map(len, own)), 4))
        for name, own in zip(("train", "dev"), texts, strict=True)
    ]
    assert {column: tuple(found[name] for name in names) for column, found in stats["table3"].items()} == {
        "train": (4, 4, 1.0, *lengths[0]),
        "dev": (2, 2, 1.0, *lengths[1]),
        "test": (1, None, None, 6.0, None),
        "cmedqa": (1, 2, 2.0, 6.0, 6.5),
        "ccovid": (1, 1, 1.0, 8.0, 7.0),
    }
    means = {"mean_chars": round((9 + 8 + 5) / 3, 4), "median_chars": 8, "min_chars": 5, "max_chars": 9}
    histogram = [{"from": 0, "to": 31, "count": 3}]
    assert stats["collections"]["cmedqa-corpus"] == {"passages": 3, **means, "histogram": histogram}
    assert stats["english"] == {s: {"queries": 1, "words_per_query": n} for s, n in (("train", 5.0), ("dev", 8.0))}
    assert stats["positives_per_query"]["cmedqa"] == [{"from": 2, "to": 2, "count": 1}]


def test_a_build_writes_the_figures_that_are_counted_from_its_rows(sample_release: Path) -> None:
    written = json.loads((sample_release / "stats.json").read_text(encoding="utf-8"))
    del written["read"]
    assert check(open_release(sample_release)).figures.stats == written


def test_the_command_prints_ours_beside_the_papers(whole_copy: Path, tmp_path: Path) -> None:
    edit_stats(whole_copy, lambda stats: stats["table3"]["dev"].update(queries=77))
    result = run("builders", "check", "--release", whole_copy, "--figures", tmp_path / "figures", code=1)
    lines = {line.split("  ")[0]: line.split() for line in result.stdout.splitlines()}
    assert lines["queries"][1:] == ["4", "86,395", "2", "2,000", "1", "4,000", "1", "3,999", "1", "949"]
    assert lines["positive passages"][2:] == ["4", "222,395", "2", "9,863", "-", "19,601", "2", "7,527", "1", "964"]
    assert "corpus: 6 passages" in result.stdout and "8,096,668" in result.stdout
    assert "English dev: 1 queries of 8.00 words (paper: 2,000 of 6.55)" in result.stdout
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["passage-length.png", "positives-per-query.png", "stats.json"]
    for name in names[:2]:
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG\r\n")
    result = run("builders", "check", "--release", whole_copy, "--format", "json", code=1)
    printed = json.loads(result.stdout)
    assert printed["release"] == json.loads((tmp_path / "figures" / "stats.json").read_text(encoding="utf-8"))
    assert printed["paper"]["table3"]["cmedqa"]["queries"] == 3999


lengths = st.lists(st.integers(0, 6000), min_size=1, max_size=60)


@given(lengths, st.sampled_from([LENGTH_EDGES, POSITIVES_EDGES]))
def test_a_histogram_holds_every_value_once(values: list[int], edges: tuple[int, ...]) -> None:
    counter = LengthCounter()
    counter.add(np.array(values))
    bars = counter.histogram(edges)
    for bar in bars:
        inside: list[Any] = [v for v in values if v >= bar["from"] and (bar["to"] is None or v <= bar["to"])]
        assert bar["count"] == len(inside)
    assert sum(bar["count"] for bar in bars) == len(values)
    assert bars[0]["count"] and bars[-1]["count"]
    assert all(first["to"] + 1 == second["from"] for first, second in itertools.pairwise(bars))


def test_a_disk_without_room_for_the_tables_is_named(
    whole_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        error = run("builders", "check", "--release", whole_release, code=1).error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.startswith(f"{tmp}") and "file too large; " in error
    assert not list(tmp.iterdir())
