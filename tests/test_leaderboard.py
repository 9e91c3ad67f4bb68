"""``reproduce --leaderboard`` keeps collections apart; ``--dry-run`` counts what each step costs."""

import json
from pathlib import Path

import pytest
from commands import ROOT, Done, run
from releases import make_release

from baselines.reproduce.costs import KNOWN, Sizes, StepCost, step_cost
from baselines.reproduce.leaderboard import read_leaderboard
from baselines.reproduce.matrix import read_matrix
from baselines.train.recipe import read_recipe
from builders.store.reader import open_release


def leaderboard(*words: object) -> Done:
    return run("baselines", "reproduce", "--leaderboard", *words)


def test_the_whole_s_figures_are_those_of_the_matrix() -> None:
    found = {(f.model, f.split, f.metric): f.value for f in read_leaderboard().figures if f.searched == "whole"}
    for row in read_matrix().rows:
        if row.table in (4, 5):
            split = "dev" if row.published_on else "test"
            assert {metric: found[row.title, split, metric] for metric in row.published} == row.published


def test_the_whole_and_the_sample_are_never_in_one_table() -> None:
    report = json.loads(leaderboard("--format", "json").stdout)
    assert [(table["searched"], table["split"]) for table in report["tables"]] == [
        *(("whole", "dev"), ("whole", "test"), ("sample", "dev"))
    ]
    models = [{model["model"] for model in table["models"]} for table in report["tables"]]
    assert not models[2] & (models[0] | models[1]) and len(models[2]) == 88
    for table in report["tables"]:
        first = table["measures"][0]
        values = [model["figures"][first] for model in table["models"]]
        assert values == sorted(values, reverse=True)
    assert set(report["sources"]) == {"paper", "official-code", "issue-39", "mteb"}
    lines = leaderboard("--searched", "whole", "--format", "markdown").stdout.splitlines()
    assert "### the whole collection, 8,096,668 passages; dev questions" in lines
    best = r"official dual-encoder \> official cross-encoder"
    assert f"| {best} | 72.84 | 64.10 | 91.75 | yes | official-code |" in lines


def test_an_own_run_on_another_collection_has_its_own_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release, path = make_release(tmp_path / "release"), tmp_path / "bm25.run"
    run("baselines", "bm25", "--release", release, "--out", path)
    lines = leaderboard(path, "--searched", "sample", "--top", 1, "--release", release).stdout.splitlines()
    assert lines[0] == "MTEB's sample of the collection, 100,001 passages; dev questions, the best 1 of 88"
    start = lines.index(f"{release}, 6 passages: comparable with nothing above; dev questions")
    assert " ".join(lines[start + 1].split()) == "model MRR@10 Recall@1 Recall@50 nDCG@10 R@10 trained source"
    assert lines[start + 2].split() == [str(path), *["100.00"] * 5, "-", "own", "run"]
    assert lines[start + 3].split() == ["95", "%", *["100.0-100.0"] * 5]


ERNIE = KNOWN["nghuyong/ernie-1.0-base-zh"]
LAYERS = 12 * (4 * 768**2 + 2 * 768 * 3072 + 9 * 768 + 3072)  # 85.1 million


def cost(words: str, sizes: Sizes, **recipes: str) -> StepCost:
    return step_cost(words.split(), sizes, {output: read_recipe(name) for output, name in recipes.items()})


def test_the_sample_counted_by_hand(sample_release: Path) -> None:
    """49 training pairs of 30 questions, 16 dev questions, 383 passages."""
    sizes = Sizes(open_release(sample_release))
    assert cost("baselines bm25 --split dev --out o", sizes) == (16, None, None, None)
    assert cost("baselines mine --split train --negatives 4 --out o", sizes) == (30, None, None, None)
    # 49 pairs with 4 negatives are 196 rows: no whole batch of 256, and a training has one step at least.
    rows = 256
    tokens = rows * (32 + 2 * 384)
    disk = 4 * ERNIE.parameters * 7  # the checkpoint, and two states of three times its size
    assert cost("baselines train de-bm25-neg --out m", sizes, m="de-bm25-neg") == (
        *(rows, tokens, 6 * LAYERS * tokens, disk),
    )
    tokens = 383 * 384
    assert cost("baselines encode --model m --out o", sizes, m="de-bm25-neg") == (
        *(383, tokens, 2 * LAYERS * tokens, 383 * 768 * 2),
    )
    assert cost("baselines search --split dev --model m --out o", sizes, m="de-bm25-neg") == (
        *(16, 16 * 32, 2 * LAYERS * 16 * 32, None),
    )
    tokens = 16 * 50 * 384
    assert cost("baselines rerank --split dev --model m --out o", sizes, m="ce-bm25-neg") == (
        *(800, tokens, 2 * LAYERS * tokens, None),
    )


def test_a_dry_run_is_a_script_whose_comments_are_the_costs(sample_release: Path, tmp_path: Path) -> None:
    words = ["reproduce", "--table", 4, "--row", "de-bm25-neg", "--out", tmp_path, "--dry-run", "--release"]
    lines = run("baselines", *words, sample_release).stdout.splitlines()
    table = [line for line in lines if line.startswith("# ")]
    assert table == lines[: len(table)] and all(line.startswith("python -m ") for line in lines[len(table) :])
    assert table[0] == f"# {sample_release}, by formula:"
    assert table[1].split() == ["#", "step", "rows", "tokens", "operations", "disk"]
    assert [line.split()[1] for line in table[2:]] == [
        *("bm25-train", "bm25-negatives", "de", "de-passages", "de-dev", "all")
    ]
    paper = run("baselines", *words, "RELEASE").stdout
    assert paper.startswith("# the paper's collection, by formula:\n") and "3.6e+18  2.78 GB" in paper
