"""``reproduce``: the matrix, its commands, and a table that never passes a small run off as the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from releases import make_release, tables

from baselines import matrix as matrices
from baselines.matrix import read_matrix
from builders.command import InputError, main

VERBS = {"reproduce": "baselines.reproduce"}
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture()
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_release(tmp_path / "release", tables())


def test_table_4_bm25_runs_and_says_what_it_was_measured_on(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["reproduce", "--table", "4", "--row", "bm25", "--release", str(release), "--out", str(tmp_path / "runs")]
    assert main("baselines", "", VERBS, argv) == 0
    out, err = capfd.readouterr()
    assert f"measured on: release {release}, split dev, 2 queries with positives, 6 passages" in out
    assert "not the published collection (6 passages against 8,096,668): the two columns are not comparable" in out
    assert "published: the test split, whose labels are unpublished; ours: the dev split" in out
    cells = [line.split() for line in out.splitlines()]
    assert ["table", "row", "metric", "ours", "published"] in cells
    assert ["Table", "4", "bm25", "MRR@10", "100.00", "21.03"] in cells
    assert ["Table", "4", "bm25", "Recall@1", "100.00", "12.08"] in cells
    assert ["Table", "4", "bm25", "Recall@50", "100.00", "70.00"] in cells
    assert "running: python -m baselines bm25 --release" in err
    assert (tmp_path / "runs" / "bm25.dev.run.gz").exists()
    assert list((tmp_path / "cache" / "dureader_retrieval" / "bm25").iterdir())

    assert main("baselines", "", VERBS, [*argv, "--format", "json", "--quiet"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["passages"], report["queries"], report["same_collection"]) == (6, 2, False)
    assert len(report["notes"]) == 2
    assert report["rows"][0] == {"table": 4, "row": "bm25", "metric": "MRR@10", "ours": 100.0, "published": 21.03}


def test_dry_run_prints_the_commands_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main("baselines", "", VERBS, ["reproduce", "--table", "4", "--row", "bm25", "--dry-run"]) == 0
    build, bm25, evaluate = capsys.readouterr().out.splitlines()
    assert build == f"python -m builders release --raw {ROOT / 'builders' / 'sample'} --out build/sample"
    assert bm25 == (
        "python -m baselines bm25 --release build/sample --split dev --top-k 50 --out build/runs/bm25.dev.run.gz"
    )
    assert evaluate == "python -m baselines evaluate --release build/sample --split dev build/runs/bm25.dev.run.gz"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [["--table", "99"], ["--row", "nope"], ["--table", "5", "--row", "bm25"]])
def test_an_unknown_row_names_the_known_ones(wanted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main("baselines", "", VERBS, ["reproduce", "--dry-run", *wanted]) == 1
    err = capsys.readouterr().err
    assert f"no row fits {' '.join(wanted)}; known: " in err
    assert "--table 4 --row bm25" in err


def test_a_step_that_fails_is_named(release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (next((release / "corpus").iterdir())).unlink()
    argv = ["reproduce", "--row", "bm25", "--table", "4", "--release", str(release), "--out", str(tmp_path / "runs")]
    assert main("baselines", "", VERBS, argv) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "error: this step failed with exit code 1: python -m baselines bm25" in err


def test_the_matrix_holds_the_figures_that_the_paper_prints() -> None:
    matrix = read_matrix()
    assert (matrix.passages, matrix.split) == (8_096_668, "test")
    bm25 = matrix.select(4, "bm25")[0]
    assert bm25.published == {"MRR@10": 21.03, "Recall@1": 12.08, "Recall@50": 70.00}
    assert len({(row.table, row.name) for row in matrix.rows}) == len(matrix.rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[row]\n", "expected TOML"),
        ("[published_on]\npassages = 1\nsplit = 'test'\n[[row]]\ntable = 4\n", "with every key"),
        (
            "[published_on]\npassages = 1\nsplit = 'test'\n"
            "[[row]]\ntable = 4\nname = 'x'\ncommands = []\nrun = 'r'\npublished = { 'P@7' = 1.0 }\n",
            "row 'x': unknown measures",
        ),
    ],
)
def test_a_bad_matrix_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / matrices.MATRIX.name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_matrix(path)
