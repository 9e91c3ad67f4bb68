"""``reproduce``: what is done already, by which code; what is displayed; Tables 3 and 10; the embedded sample's way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, run
from releases import make_release

from baselines.reproduce import code
from baselines.reproduce.data import data_figures
from baselines.reproduce.matrix import read_matrix
from builders.check.paper import published
from builders.store.manifest import write_stats
from builders.store.reader import open_release

BM25 = ("--table", 4, "--row", "bm25")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_release(tmp_path / "release")
    return tmp_path


def reproduce(here: Path, *words: object, code: int = 0) -> Done:
    where = ["--release", here / "release", "--out", here / "out", "--one-process"]
    return run("baselines", "reproduce", *where, *words, code=code)


def test_what_other_code_made_is_made_again_or_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "running: " in reproduce(here, *BM25).stderr
    assert "running: " not in reproduce(here, *BM25).stderr
    monkeypatch.setattr("baselines.reproduce.keys.code_of", lambda module: f"another version of {module}")
    assert "running: " not in reproduce(here, *BM25, "--any-code").stderr
    said = reproduce(here, *BM25).stderr
    assert "1 steps were done by another version of the code and are run again (--any-code keeps them" in said
    assert "running: " in said
    assert "another version" not in (again := reproduce(here, *BM25).stderr) and "running: " not in again


def test_code_is_what_runs_with_all_that_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_CHECKOUT", tmp_path)
    files = {
        "baselines/verb/__init__.py": '"""Doc."""\nimport json\n\ndef run():\n    from builders.tool import x\n',
        "baselines/verb/engine.py": "y = 2  # chosen by its name\n",
        "baselines/other.py": "z = 1\n",
        "builders/tool.py": "x = 1\n",
    }

    def version(**changes: str) -> str:
        code.code_of.cache_clear()
        code._read.cache_clear()
        for name, text in (files | {name.replace("__", "/") + ".py": text for name, text in changes.items()}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return code.code_of("baselines.verb")

    first = version()
    assert version(builders__tool='"""What it is."""\n\n# a comment\nx = 1\n') == first
    assert version(baselines__other="z = 2\n") == first
    assert version(builders__tool="x = 2\n") != first
    assert version(baselines__verb__engine="y = 3\n") != first
    assert version() == first
    code.code_of.cache_clear()
    code._read.cache_clear()


def test_the_commands_of_a_row_are_displayed_with_it(here: Path) -> None:
    release, file = here / "release", here / "out" / "bm25.dev.run.gz"
    own = [
        f"  python -m baselines bm25 --release {release} --split dev --top-k 50 --out {file}",
        f"  python -m baselines evaluate --release {release} --split dev {file}",
    ]
    assert reproduce(here, *BM25, "--display-commands", "--dry-run").stdout.splitlines() == ["Table 4, bm25:", *own]
    lines = reproduce(here, *BM25, "--display-commands").stdout.splitlines()
    assert lines[-3:] == ["Table 4, bm25:", *own] and "Table 4: retrieval" in lines
    found = json.loads(reproduce(here, *BM25, "--format", "json").stdout)["commands"]
    assert found == [{"table": 4, "row": "bm25", "commands": [line.strip() for line in own]}]


def test_the_embedded_sample_is_run_small_where_nothing_else_is_said(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)

    def trained(*words: object) -> list[str]:
        found = run("baselines", "reproduce", "--dry-run", "--format", "json", *words).stdout
        return [command[2] + " " + command[-1] for command in json.loads(found) if command[1] == "train"]

    small = ["de-bm25-neg-scratch train.evaluations=2"]  # of static vectors, which begin from the words
    assert trained("--row", "de-bm25-neg") == trained("--row", "de-bm25-neg", "--small", "--release", "x") == small
    assert trained("--row", "de-bm25-neg", "--release", "build/sample")[0].startswith("de-bm25-neg ")
    assert "--set" not in run("baselines", "reproduce", "--dry-run", "--row", "de-bm25-neg", "--scratch").stdout


def test_table_3_is_the_releases_own_counts(here: Path, sample_release: Path) -> None:
    done = run("baselines", "reproduce", "--release", sample_release, "--out", here / "out", "--table", 3)
    rows = [line.split() for line in done.stdout.splitlines()]
    stats = json.loads((sample_release / "stats.json").read_text(encoding="utf-8"))["table3"]["dev"]
    own = next(row for row in rows if row[:1] == ["development"])
    assert own[1:3] == [str(stats["queries"]), str(stats["positive_passages"])]
    theirs = rows[rows.index(own) + 1]
    assert theirs == ["published", "2,000", "9,863", "4.93", "9.29", "398.59", "not", "comparable", "(1)"]
    assert "cMedQA" not in done.stdout and "has no cMedQA, cCOVID-News, English, train" in done.stderr


def test_counts_are_compared_where_the_collection_is_the_papers(here: Path) -> None:
    stats: dict[str, Any] = {
        "table3": {
            "dev": {"queries": 2000, "positive_passages": 9800, "chars_per_query": 8.0},
            "test": {"queries": 4000},
        },
        "collections": {"corpus": {"passages": 8_096_668, "mean_chars": 272.0, "median_chars": 304}},
    }
    release = make_release(here / "whole")
    write_stats(release, stats)
    (release / "manifest.json").write_text((release / "manifest.json").read_text().replace("stats.json", "other.json"))
    matrix = read_matrix()
    found = data_figures(matrix, matrix.select_counts([3], None), open_release(release))
    marks = {(each["row"], each["metric"]): each["mark"] for each in found}
    assert marks["dev", "queries"] == "OK" and marks["dev", "positive_passages"] == "close"
    assert marks["dev", "chars_per_query"] == "off" and marks["collection", "passages"] == "OK"
    assert marks["test", "positive_passages"] is None  # no labels, nothing to compare


def test_the_matrix_has_the_kinds_of_errors_that_the_paper_prints() -> None:
    found = {each.name: each.published for each in read_matrix().categories}
    assert found == {name: round(100 * share, 2) for name, share in published()["table10"].items()}
    assert sum(found.values()) == 100


def test_table_10_comes_from_a_tally_or_is_left_out_with_the_reason(here: Path) -> None:
    error = reproduce(here, "--table", 10, code=1).error
    assert error.startswith("Table 10 is left out: its errors are told apart by people.")
    assert "Table 10" not in reproduce(here, *BM25).stdout
    names = [each.name for each in read_matrix().categories]
    kinds = {name: {"pairs": 1, "share": 0.125, "low": 0.05, "high": 0.25} for name in names}
    tally = here / "tally.json"
    tally.write_text(json.dumps({"release": "R", "split": "dev", "decided": 8, "categories": kinds}))
    lines = reproduce(here, "--table", 10, "--errors", tally).stdout.splitlines()
    start = lines.index("Table 10: why wrong predictions are wrong, by people")
    assert lines[start + 2].split() == [
        "Entity",
        "mismatch",
        "12.50",
        "|",
        "39.00",
        "paper,",
        "500",
        "pairs",
        "not",
        "comparable",
        "(1)",
    ]
    assert lines[start + 3].split() == ["95", "%", "5.0-25.0", "|"]
    tally.write_text(json.dumps({"decided": 8, "categories": {}}))
    assert (
        reproduce(here, "--table", 10, "--errors", tally, code=1).error == f"{tally}: categories: lacks entity_mismatch"
    )


def test_before_anything_is_built_it_says_that_test_labels_were_never_published(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    done = run("baselines", "reproduce", "--split", "test", *BM25, "--one-process")
    lines = done.stderr.splitlines()
    said = next(
        number for number, line in enumerate(lines) if "the labels of the official test split were never pub" in line
    )
    assert said < next(number for number, line in enumerate(lines) if "running: " in line)
    assert "Table 4, bm25: build/runs/predictions/table4.bm25.test/predictions/bm25.test.json" in done.stdout
    dry = run("baselines", "reproduce", "--split", "test", *BM25, "--dry-run")
    assert "never published" in dry.stderr and dry.stdout.splitlines()[-1].startswith("python -m builders export")
