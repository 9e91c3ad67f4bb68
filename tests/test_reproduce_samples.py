"""``reproduce --samples``: the same systems on samples and on the whole, and how their order moves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import run
from releases import TEXTS, make_release, tables
from scipy.stats import kendalltau

from baselines.reproduce.matrix import read_matrix
from baselines.reproduce.samples import WHOLE, agreement_of, pairs_apart, with_samples

MATRIX = """
[published_on]
main = { split = "test" }
[step]
words = "baselines bm25 --release {release} --split {split} --engine tantivy --out {out}/words.run"
heads = "baselines bm25 --release {release} --split {split} --engine tantivy --max-chars 4 --out {out}/heads.run"
"""
ROW = '[[row]]\ntable = 4\nname = "{0}"\ntitle = "BM25, {0}"\nstep = "{0}"\npublished = {{}}\n'


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """90 passages with samples of 8 and 20, and two systems: BM25 of whole passages and of their first characters."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    texts = [*TEXTS, *(f"{text}第{number}号" for text in TEXTS for number in range(14))]
    release = make_release(tmp_path / "release", tables(texts))
    (tmp_path / "systems.toml").write_text(MATRIX + ROW.format("words") + ROW.format("heads"), encoding="utf-8")
    words = ["--release", release, "--split", "dev", "--engine", "tantivy", "--threads", "1"]
    run("baselines", "bm25", *words, "--out", tmp_path / "words.run")
    hard = ["--hard", tmp_path / "words.run"]
    run("builders", "add", "samples", "--release", release, "--sizes", "8", "20", *hard, "--out", release)
    return tmp_path


def reproduce(world: Path, *words: str, code: int = 0) -> str:
    options = ["--samples", "--matrix", world / "systems.toml", "--release", world / "release", "--out", world / "runs"]
    done = run("baselines", "reproduce", *options, "--one-process", *words, code=code)
    return done.stdout if not code else done.error


def test_each_system_is_measured_on_each_sample_and_on_the_whole(world: Path) -> None:
    report = json.loads(reproduce(world, "--format", "json"))
    places = {"sample-8": 8, "sample-8-hard": 8, "sample-20": 20, "sample-20-hard": 20, WHOLE: 90}
    assert report["passages"] == places and list(report["passages"]) == list(places)
    assert report["queries"] == 2
    options = ["evaluate", "--release", world / "release", "--format", "json"]
    for system in report["systems"]:
        for where in places:
            path = world / "runs" / ("" if where == WHOLE else where) / f"{system['row']}.run"
            (found,) = json.loads(run("baselines", *options, path).stdout)
            assert system["figures"][where] == {
                "MRR@10": round(100 * found["official"]["MRR@10"], 2),
                "Recall@1": round(100 * found["official"]["recall@1"], 2),
                "Recall@50": round(100 * found["official"]["recall@50"], 2),
            }
    assert {each["sample"] for each in report["agreement"]} == set(places) - {WHOLE}
    for each in report["agreement"]:  # of the same systems with the same embeddings, fewer passages are no harder
        assert each["least_rise"] >= 0
    shown = reproduce(world)  # nothing is run again
    assert "2 queries with positives; percent; the whole: 90 passages" in shown
    assert shown.count("Kendall's tau") == 3 and "BM25, heads" in shown


def test_a_release_without_samples_of_the_split_is_refused(world: Path) -> None:
    assert "has no samples of the collection with the positives of test" in reproduce(world, "--split", "test", code=1)


def test_models_and_embeddings_are_the_same_on_a_sample() -> None:
    matrix = read_matrix()
    extended, names = with_samples(matrix, ["ce-de-neg-on-de", "bm25-dev"], ["sample-10K"])
    added = {name: text for name, text in extended.steps.items() if name not in matrix.steps}
    assert set(added) == {"ce-de-neg-on-de/sample-10K", "de-dev/sample-10K", "bm25-dev/sample-10K"}
    assert names["bm25-dev", "sample-10K"] == "bm25-dev/sample-10K" and names["bm25-dev", WHOLE] == "bm25-dev"
    search, rerank = added["de-dev/sample-10K"], added["ce-de-neg-on-de/sample-10K"]
    assert "--passages {de-passages} " in search and " --sample sample-10K --out {out}/sample-10K/de-" in search
    assert "--run {de-dev/sample-10K} --model {ce-de-neg} " in rerank and "--sample" not in rerank
    assert extended.steps["bm25-dev"] == matrix.steps["bm25-dev"]


def test_agreement_is_kendalls_tau_and_the_kept_pairs_of_those_that_are_apart() -> None:
    random = np.random.default_rng(0)
    whole = [(random.random(400) < share).astype(float) for share in (0.2, 0.21, 0.5, 0.8)]
    apart = pairs_apart(whole)
    assert pairs_apart(whole[:1]) == []
    same = agreement_of([each * 0.5 + 0.5 for each in whole], whole, apart)
    assert same["tau"] == 1 and same["kept"] == same["pairs_apart"] == 5  # 0.2 and 0.21 are not apart
    assert same["mean_rise"] == pytest.approx(50 * (1 - np.mean([each.mean() for each in whole])), abs=0.01)
    turned = agreement_of([1 - each for each in whole], whole, apart)
    assert turned["tau"] == -1 and turned["kept"] == 0
    other = [whole[number] for number in (0, 2, 1, 3)]
    expected = kendalltau([each.mean() for each in other], [each.mean() for each in whole]).statistic
    assert agreement_of(other, whole, apart)["tau"] == pytest.approx(expected, abs=1e-4)
    assert agreement_of(whole[:1], whole[:1], [])["tau"] is None
