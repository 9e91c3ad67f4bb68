"""``reproduce --dry-run``: what each step costs, counted by hand on the sample and on a tiny release."""

from __future__ import annotations

from pathlib import Path

from commands import run

from baselines.reproduce.costs import KNOWN, Sizes, StepCost, step_cost
from baselines.train.recipe import read_recipe
from builders.store.reader import open_release

ERNIE = KNOWN["nghuyong/ernie-1.0-base-zh"]
LAYERS = 12 * (4 * 768**2 + 2 * 768 * 3072 + 9 * 768 + 3072)  # 85.1 million


def cost(words: str, sizes: Sizes, **recipes: str) -> StepCost:
    """The cost of a command, with recipes by the checkpoints that they leave."""
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
