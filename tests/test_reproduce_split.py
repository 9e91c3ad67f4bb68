"""``reproduce``: rows that a release cannot give, and splits whose labels were never published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, run
from releases import make_release, md5, passage, tables

from baselines.measure.qrels import Qrels
from baselines.reproduce.matrix import read_matrix
from baselines.reproduce.report import Measured, side_by_side
from baselines.reproduce.steps import Finished
from baselines.reproduce.text import text
from builders.store.reader import open_release


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def without_negatives() -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows = tables()
    rows["train", "train"] = [{**row, "negative_passages": []} for row in rows["train", "train"]]
    return rows


def reproduce(here: Path, *words: object, code: int = 0) -> Done:
    where = ["--release", here / "release", "--out", here / "out", "--one-process"]
    return run("baselines", "reproduce", *where, *words, code=code)


def test_official_rows_need_official_negatives(here: Path) -> None:
    make_release(here / "release", without_negatives())
    done = reproduce(here, "--row", "official-de", code=1)
    assert done.error == (
        f"{here / 'release'}: official-de: has no hard negatives that came with the data "
        "(`python -m builders official` brings them)"
    )


def test_official_rows_have_no_variant_without_pretrained_weights(here: Path) -> None:
    make_release(here / "release")
    done = reproduce(here, "--row", "official-ce", "--scratch", code=1)
    assert done.error == "--scratch: no pretrained weights for official-ce"


def test_the_test_split_ends_in_predictions_and_says_so_first(here: Path) -> None:
    release = make_release(here / "release")
    done = reproduce(here, "--table", 4, "--row", "bm25", "--split", "test")
    lines = done.stderr.splitlines()
    said = next(number for number, line in enumerate(lines) if "has no labels of the test split" in line)
    assert f"{release} has no labels of the test split (those of the official data were never published)" in lines[said]
    assert said < next(number for number, line in enumerate(lines) if "running: " in line)
    file = here / "out" / "predictions" / "table4.bm25.test" / "predictions" / "bm25.test.json"
    assert done.stdout == f"predictions of the test split, 1 file:\nTable 4, bm25: {file}\n"
    found = json.loads(file.read_text(encoding="utf-8"))
    assert set(found) <= {row["_id"] for row in tables()["queries", "test"]}
    again = reproduce(here, "--table", 4, "--row", "bm25", "--split", "test", "--format", "json")
    report = json.loads(again.stdout)
    assert report["predictions"] == [{"table": 4, "row": "bm25", "split": "test", "file": str(file)}]
    assert report["rows"] == []
    assert "running: " not in again.stderr


def test_the_test_split_of_a_release_that_has_its_labels_is_measured(here: Path) -> None:
    rows = tables()
    query = rows["queries", "test"][0]["_id"]
    rows["qrels", "test"] = [{"query-id": query, "corpus-id": rows["corpus", "corpus"][0]["_id"], "score": 1}]
    make_release(here / "release", rows)
    done = reproduce(here, "--table", 4, "--row", "bm25", "--split", "test")
    assert "never published" not in done.stderr and "predictions" not in done.stdout
    assert "split test, 1 queries with positives" in done.stdout
    assert "ours: the" not in done.stdout  # the paper's split, too


def test_dry_run_of_the_test_split_ends_in_predictions(here: Path) -> None:
    done = reproduce(here, "--table", 4, "--row", "bm25", "--split", "test", "--dry-run")
    assert done.stdout.splitlines()[-1] == (
        f"python -m builders export --release {here / 'release'} --format official --runs-only "
        f"--run {here / 'out'}/bm25.test.run.gz --out {here / 'out'}/predictions/table4.bm25.test"
    )


def test_dry_run_leaves_out_what_a_run_would_leave_out(here: Path) -> None:
    make_release(here / "release", without_negatives())
    done = reproduce(here, "--table", 4, "--dry-run")
    assert "train de-bm25-neg" in done.stdout and "official-de" not in done.stdout
    assert "official-de: has no hard negatives" in done.stderr


def report_of(here: Path, row_name: str, split: str) -> str:
    """The text of a report of one row, with made-up figures."""
    matrix = read_matrix()
    (row,) = matrix.select(None, row_name)
    qrels = Qrels("made up", {md5("q"): {passage("p")["docid"]: 1}})
    figures = {name: 50.0 for name in row.published}
    measured = [Measured(row, split, qrels, figures, dict.fromkeys(figures, (40.0, 60.0)))]
    fill = {"release": "R", "split": split, "out": "O", "variant": ""}
    plan = matrix.plan([row], fill)
    done = {name: Finished(1.0, 1) for name in plan}
    return text(side_by_side(matrix, open_release(make_release(here / "release")), measured, plan, done))


def test_ours_on_dev_stands_beside_the_official_code_on_dev(here: Path) -> None:
    cells = [line.split() for line in report_of(here, "de-bm25-neg", "dev").splitlines()]
    start = next(number for number, line in enumerate(cells) if line[:3] == ["DE", "w/", "BM25"])
    assert cells[start][4:] == [
        "50.00",
        "50.00",
        "50.00",
        "|",
        *["53.96", "41.53", "91.33", "paper,", "test", "not", "comparable", "(1)"],
    ]
    assert cells[start + 1] == ["95", "%", *["40.0-60.0"] * 3, "|"]
    published = ["60.45", "49.75", "91.75", "official", "code,", "dev", "not", "comparable", "(2)"]
    assert cells[start + 2] == ["like", "for", "like", "|", *published]


def test_ours_on_test_is_compared_with_the_paper_alone(here: Path) -> None:
    assert "like for like" not in report_of(here, "de-bm25-neg", "test")


def test_an_official_row_says_that_its_figures_are_of_dev(here: Path) -> None:
    found = report_of(here, "official-ce", "dev")
    assert "official code, dev" in found and "paper, test" not in found
    assert "whose labels are unpublished" not in found  # both are of dev
