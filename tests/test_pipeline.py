"""Every row of the matrix runs end to end, from scratch, on real data, with minimal training."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, run

TINY = """
[{recipe}]
data.passage_length = 24
train.batch = 8
train.mini_batch = 8
train.max_steps = 3
train.saves = 0
"""
TRAINED = ("de-bm25-neg", "ce-bm25-neg", "ce-de-neg", "de-cmedqa", "de-ccovid")
TRIO = ("mbert-zero-shot", "mbert-supervised", "mbert-transferred")


@pytest.fixture(scope="module")
def folder(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("pipeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        make(folder, shared_data)
        yield folder


def make(folder: Path, shared_data: Path) -> None:
    release, pairs = folder / "release", shared_data / "tatoeba-cmn-eng" / "cmn.txt.gz"
    made = folder / "data"
    data = [sys.executable, ROOT / "benchmarks/crosslingual_data.py", "--xquad", shared_data / "xquad", "--size", "60"]
    subprocess.run([*data, "--pairs", pairs, "--out", made], check=True, capture_output=True)
    split = [word for name in ("train", "dev") for word in (f"--{name}", made / f"{name}.json")]
    for words in (
        ["squad", *split, "--dev-size", 20],
        ["add", "crosslingual", "--source", made / "translations.tsv", "--release", release],
        ["add", "ccovid", "--source", shared_data / "ncp-policies", "--release", release, "--test-size", 100],
        ["add", "cmedqa", "--source", shared_data / "cepilepsyqa", "--release", release, "--test-size", 100],
    ):
        run("builders", *words, "--out", release)
    scratch = "scratch.vocabulary = 1500\nscratch.layers = 1\nscratch.hidden = 32\nscratch.heads = 2\n"
    settings = TINY.format(recipe="mlm-scratch") + scratch + "scratch.feed_forward = 32\n"
    for name in (*TRAINED, *TRIO):
        settings += TINY.format(recipe=f"{name}-scratch") + "train.evaluations = 1\ndata.dev_passages = 50\n"
    (folder / "settings.toml").write_text(settings)


def reproduce(folder: Path, *more: object) -> Done:
    where = ["--release", folder / "release", "--out", folder / "runs", "--settings", folder / "settings.toml"]
    return run("baselines", "reproduce", "--one-process", "--scratch", *where, *more)


@pytest.fixture(scope="module")
def report(folder: Path) -> Any:
    return json.loads(reproduce(folder, "--format", "json").stdout)


def test_every_row_runs(folder: Path, report: Any) -> None:
    values = {(row["table"], row["row"], row["metric"]): row["ours"] for row in report["rows"]}
    assert len(values) == 3 * 11 + 4
    assert all(0 <= value <= 100 for value in values.values())
    # BM25 finds XQuAD's paragraphs among the others. A re-ranker cannot find passages that BM25 misses.
    assert values[4, "bm25", "Recall@1"] > 50
    assert values[5, "ce-bm25-neg-on-bm25", "Recall@50"] == values[4, "bm25", "Recall@50"]
    assert values[5, "ce-de-neg-on-de", "Recall@50"] == values[4, "de-bm25-neg", "Recall@50"]
    measured = {each["set"]: each for each in report["sets"]}
    assert (measured["cmedqa"]["split"], measured["cmedqa"]["queries"]) == ("test", 100)
    assert (measured["ccovid"]["split"], measured["ccovid"]["queries"]) == ("test", 100)
    assert measured["crosslingual"]["queries"] >= measured["main"]["queries"] == 20

    # Each model starts from the -scratch variant of the paper's starting checkpoint.
    def start(name: str) -> str:
        record = json.loads((folder / "runs" / "models" / f"{name}-scratch" / "training.json").read_text())
        return str(record["about"]["start"])

    assert start("ce-de-neg") == "ce-bm25-neg-scratch"
    assert start("de-cmedqa") == start("de-ccovid") == "de-bm25-neg-scratch"
    assert start("mbert-transferred") == "mbert-zero-shot-scratch"
    assert start("mbert-supervised") == start("mbert-zero-shot") == start("de-bm25-neg") == "mlm-scratch"
