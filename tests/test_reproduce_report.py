"""Reports of `reproduce --format json`, of one seed and of several, as the table of docs/baselines.md."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from releases import make_release, tables

from builders.store.reader import open_release


def report(folder: Path, name: str, **ours: float) -> str:
    """A report with a row a title, MRR@10 alone."""
    rows: list[dict[str, Any]] = [
        {"table": 4, "title": title, "metric": "MRR@10", "ours": value, "interval": [value - 2.04, value + 2]}
        for title, value in ours.items()
    ]
    steps = {"bm25-dev": {"seconds": 4.2, "command": "python -m baselines bm25"}}
    (folder / name).write_text(json.dumps({"rows": rows, "steps": steps}), encoding="utf-8")
    return str(folder / name)


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """Return the output of benchmarks/report.py, which is no module of a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", ["report.py", *arguments])
    importlib.import_module("report").main()
    return capsys.readouterr().out.splitlines()


def test_one_report_is_figures_with_intervals_and_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(capsys, monkeypatch, report(tmp_path, "0", BM25=60.0), "--times")
    assert lines[2] == "| 4 | BM25 | 60.00 (58.0 to 62.0) |  |  |"
    assert lines[-1] == "| 4 | `python -m baselines bm25` |"


def test_several_reports_are_means_with_the_lowest_and_highest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [report(tmp_path, str(seed), BM25=60.0, DE=70.0 + seed) for seed in range(3)]
    seeds.append(report(tmp_path, "3", BM25=60.0))
    assert printed(capsys, monkeypatch, *seeds)[2:] == [
        "| 4 | BM25 | 60.00 (58.0 to 62.0) |  |  |",
        "| 4 | DE | 71.00 (68.0 to 72.0) [70.00, 72.00] |  |  |",
    ]


def test_planted_questions_reword_a_third_of_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/planted.py, from which docs/baselines.md's figures are."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    planted = importlib.import_module("planted").planted
    rows = planted(open_release(make_release(tmp_path / "plain", tables())), 2)
    dev = tables()["dev", "dev"]
    assert [row["query"] for row in rows["train-similar", "train"]] == ["请问高铁票提前几天买"]
    assert rows["train-similar", "train"][0]["positive_passages"] == dev[0]["positive_passages"]
    removed = [[row["_id"] for row in rows[name, "dev"]] for name in ("duplicated", "others")]
    assert removed == [[row["query_id"]] for row in dev]
    assert [row["query-id"] for row in rows["qrels-before", "dev"]] == [row["query_id"] for row in dev]
