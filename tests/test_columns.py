"""Runs as columns: the same bytes as hit by hit, and read as the lines are."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.store import runs
from builders.store.runs import columns_of, printed, read_run, write_columns, write_run

_IDS = st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1, max_size=4).filter(
    lambda text: len(text.split()) == 1
)
_SCORES = st.floats(-1e30, 1e30, allow_nan=False) | st.integers(-3, 3).map(float) | st.floats(1e-5, 1e-3)
_HITS = st.dictionaries(_IDS, _SCORES, max_size=8).map(lambda d: sorted(d.items(), key=lambda hit: (-hit[1], hit[0])))


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1).map(lambda n: struct.unpack("d", struct.pack("Q", n))[0]) | _SCORES)
def test_numbers_are_printed_as_python_prints_them(number: float) -> None:
    assert printed(np.array([number])).to_pylist() == [repr(number)] or not np.isfinite(number)


_ODD = ["", "\t", "\r", "\f", "a\x85b", '"', "a\0", "\ufeff"]
_NUMBERS = "1 2 02 0x1 +1 -1 1_0 1.5 .5 5. 1e3 1e999 nan inf"
_FIELDS = st.sampled_from([*_NUMBERS.split(" "), "q", "Q0", "号", *_ODD, "9" * 30])
_GOOD = st.tuples(
    *(st.sampled_from(["q", "r", "号"]), st.just("Q0"), st.sampled_from("abc"), _FIELDS, _FIELDS, st.just("t"))
)
_LINES = st.lists(_GOOD.map(" ".join) | st.lists(_FIELDS, max_size=7).map(" ".join), min_size=1, max_size=4)


@settings(deadline=None, max_examples=150)
@given(lines=_LINES, end=st.sampled_from(["", "\n", "\n\n", " \n"]))
def test_what_is_read_as_a_table_is_what_is_read_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str
) -> None:
    path = tmp_path_factory.mktemp("run") / "some.run"
    path.write_bytes(("\n".join(lines) + end).encode())
    if table := runs._plain_table(path):
        plain, by_line = (runs._ordered(each) for each in (table, runs._line_table(path)))
        assert list(plain[0].hits().items()) == list(by_line[0].hits().items()) and plain[1] == by_line[1]


def test_a_run_of_this_project_is_read_as_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hits = {"r": [("b", 2.0), ("a", 1.0), ("c", 1.0)], "q": [("a", -1e-9)]}
    write_run(tmp_path / "one.run.gz", hits.items())
    monkeypatch.setattr(runs, "_line_table", None)
    monkeypatch.setattr("builders.store.runs._BLOCK", 20)  # lines are cut by it
    run = read_run(tmp_path / "one.run.gz")
    assert (run.rankings, run.hits) == ({"r": ["b", "a", "c"], "q": ["a"]}, hits)
    assert list(run.hits) == ["r", "q"]


def test_columns_out_of_order_are_no_run(tmp_path: Path) -> None:
    falling = columns_of([("q", [("a", 2.0), ("b", 1.0)]), ("r", [("a", 5.0)])])  # a query's scores are its own
    assert write_columns(tmp_path / "r.run", [falling]) == 3
    for hits in ([("a", 1.0), ("b", 2.0)], [("b", 1.0), ("a", 1.0)]):
        with pytest.raises(ValueError, match="out of order"):
            write_columns(tmp_path / "r.run", [columns_of([("q", hits)])])
    with pytest.raises(ValueError, match="'q' comes twice"):
        write_columns(tmp_path / "r.run", [falling, falling])
