"""``reproduce``: Table 6 and Figure 2, the effects of Section 2.3's strategies."""

from __future__ import annotations

import gzip
import importlib
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from commands import ROOT, Done, run
from releases import QUESTIONS, make_release, md5, quality_tables, tables

from baselines.reproduce.matrix import read_matrix
from baselines.reproduce.steps import run_steps
from builders.store.reader import open_release

LIGHT, DARK = (0xA9, 0xCC, 0xE3), (0x1F, 0x61, 0x8D)  # "before (light blue) and after (dark blue)"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make_release(tmp_path / "release", quality_tables())
    return tmp_path


def reproduce(here: Path, *words: object, code: int = 0) -> Done:
    where = ["--release", here / "release", "--out", here / "out", "--one-process"]
    return run("baselines", "reproduce", *where, *words, code=code)


def commands(here: Path, *words: object) -> list[list[str]]:
    found: list[list[str]] = json.loads(reproduce(here, "--dry-run", "--format", "json", *words).stdout)
    return found


def test_a_bar_of_figure_2_is_measured_by_the_judgments_of_its_time(here: Path) -> None:
    before = json.loads(reproduce(here, "--row", "bm25-before", "--format", "json").stdout)
    after = json.loads(reproduce(here, "--row", "bm25-after", "--format", "json").stdout)
    # BM25 finds both answers; before the correction the first question had another, of which it finds no word.
    for report, series, value in ((before, "before", 50.0), (after, "after", 100.0)):
        assert {row["metric"]: row["ours"] for row in report["rows"]} == dict.fromkeys(
            ("MRR@10", "Recall@1", "Recall@50"), value
        )
        for row in report["rows"]:
            assert (row["figure"], row["table"], row["series"], row["published"]) == (2, None, series, None)
    assert [each.get("by") for each in (*before["sets"], *after["sets"])] == ["qrels-before", None]


def test_figure_2_is_printed_without_published_numbers(here: Path) -> None:
    lines = reproduce(here, "--row", "bm25-before").stdout.splitlines()
    assert f"{lines[0]}".endswith("split dev, 2 queries with positives, 6 passages, by qrels-before")
    (start,) = (number for number, line in enumerate(lines) if line.startswith("Figure 2: by the judgments before"))
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["MRR@10", "Recall@1", "Recall@50"],
        ["BM25,", "before", "50.00", "50.00", "50.00"],
    ]
    assert (
        f"drawn: {here / 'out' / 'figure2.dev.png'}" in lines and f"drawn: {here / 'out' / 'figure2.dev.svg'}" in lines
    )


def test_the_chart_shows_the_bars_and_their_figures(here: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    reproduce(here, "--row", "bm25-before")
    before = (here / "out" / "figure2.dev.png").read_bytes()
    seen = {tuple(map(int, pixel)) for pixel in np.unique(_pixels(image, before), axis=0)}
    assert LIGHT in seen and DARK not in seen
    reproduce(here, "--row", "bm25-after")
    seen = {tuple(map(int, pixel)) for pixel in np.unique(_pixels(image, _png(here)), axis=0)}
    assert DARK in seen and LIGHT not in seen
    words = [text for each in ElementTree.parse(here / "out" / "figure2.dev.svg").iter() if (text := each.text)]
    assert words.count("100.0") == 3 and {"BM25", "after", "MRR@10, %", "Recall@1, %", "Recall@50, %"} <= set(words)


def _png(here: Path) -> bytes:
    return (here / "out" / "figure2.dev.png").read_bytes()


def _pixels(image: Any, content: bytes) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Every pixel's red, green and blue."""
    values = image.imread(io.BytesIO(content), format="png")
    return np.rint(values[..., :3].reshape(-1, 3) * 255)


def test_the_same_figures_are_the_same_files(here: Path) -> None:
    reproduce(here, "--row", "bm25-after")
    files = sorted((here / "out").glob("figure2.*"))
    first = [path.read_bytes() for path in files]
    reproduce(here, "--row", "bm25-after")
    assert [path.read_bytes() for path in files] == first and len(files) == 2


def test_both_trainings_of_table_6_differ_in_the_removed_questions_alone(here: Path) -> None:
    settings = here / "settings.toml"
    settings.write_text("[ce-bm25-neg]\ntrain.max_steps = 7\n")
    found = commands(here, "--table", 6, "--settings", settings)
    similar, plain = (command for command in found if command[1] == "train")
    out, mined = here / "out", str(here / "out" / "bm25.train-similar.negatives.jsonl.gz")
    assert [word for word in similar if word not in plain] == [
        mined,
        "data.similar=true",
        similar[similar.index("--out") + 1],
    ]
    assert [word for word in plain if word not in similar] == [str(out / "models" / "ce-bm25-neg")]
    assert similar[-1] == plain[-1] == "train.max_steps=7"
    measured = [command[command.index("--queries") + 1 :] for command in found if command[1] == "evaluate"]
    with_them, without = (str(out / f"ce-bm25-neg{name}.on-bm25.dev.run.gz") for name in ("-similar", ""))
    assert measured == [[queries, path] for queries in ("duplicated", "others") for path in (with_them, without)]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("--table", 6), "duplicated/dev, others/dev, train-similar, without which with-similar-duplicated, "),
        (("--figure", 2), "qrels-before, qrels-before/dev, without which bm25-before, bm25-after, "),
    ],
)
def test_what_a_release_lacks_for_them_is_named_with_what_makes_it(
    here: Path, words: tuple[object, ...], missing: str
) -> None:
    make_release(here / "release", tables())
    error = reproduce(here, *words, code=1).error
    assert error.startswith(f"{here / 'release'}: has no {missing}")
    assert error.endswith("makes train-similar, duplicated and others, `annotate merge` qrels-before")


def test_without_their_configs_the_other_tables_run(here: Path) -> None:
    make_release(here / "release", tables())
    done = reproduce(here, "--dry-run")
    assert "--queries" not in done.stdout and "qrels-before" not in done.stdout and "train ce-de-neg" in done.stdout
    assert "without which" in done.stderr and "those rows are left out" in done.stderr


def test_a_split_without_labels_has_no_figure_2(here: Path) -> None:
    assert "has no qrels-before/test, qrels/test" in reproduce(here, "--figure", 2, "--split", "test", code=1).error


def test_a_release_that_similar_wrote_has_all_that_table_6_needs(here: Path) -> None:
    rows, question = tables(), f"{QUESTIONS['dev'][1]}？"
    rows["queries", "train"][0] = {"_id": md5(question), "text": question}
    rows["train", "train"][0] |= {"query_id": md5(question), "query": question}
    rows["qrels", "train"][0]["query-id"] = md5(question)
    run("builders", "similar", "--release", make_release(here / "whole", rows), "--out", here / "release")
    found = commands(here, "--table", 6)
    assert [command[1] for command in found].count("evaluate") == 4
    assert any(word == "data.similar=true" for command in found for word in command)


def test_other_removed_questions_are_searched_again(here: Path) -> None:
    matrix = read_matrix()
    fill = {"release": str(here / "release"), "split": "dev", "out": str(here / "out"), "variant": ""}
    step = matrix.plan(matrix.select([6], None).rows, fill)["bm25-similar"]

    def queries() -> set[str]:
        run_steps({step.name: step}, open_release(here / "release"), here=True, quiet=True)
        lines = gzip.decompress(step.output.read_bytes()).decode().splitlines()
        return {line.split()[0] for line in lines}

    first, rows = queries(), quality_tables()
    rows["train-similar", "train"][0] |= {"query_id": md5("另一个"), "query": "手机"}
    make_release(here / "release", rows)
    assert queries() == {md5("另一个")} != first


def test_planted_questions_reword_a_third_of_dev(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/planted.py, from which docs/baselines.md's figures are."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    planted = importlib.import_module("planted").planted
    rows = planted(open_release(make_release(here / "plain", tables())), 2)
    dev = tables()["dev", "dev"]
    assert [row["query"] for row in rows["train-similar", "train"]] == ["请问高铁票提前几天买"]
    assert rows["train-similar", "train"][0]["positive_passages"] == dev[0]["positive_passages"]
    assert [[row["_id"] for row in rows[name, "dev"]] for name in ("duplicated", "others")] == [
        [row["query_id"]] for row in dev
    ]
    assert [row["query-id"] for row in rows["qrels-before", "dev"]] == [row["query_id"] for row in dev]
