"""``reproduce --dry-run``: what each step costs, counted by hand on the sample and on a tiny release."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import run

from baselines.reproduce.costs import KNOWN, Architecture, Sizes, StepCost, step_cost, tokens_of_row, training_rows
from baselines.train.recipe import read_recipe
from builders.store.reader import open_release

ERNIE = KNOWN["nghuyong/ernie-1.0-base-zh"]
LAYERS = 12 * (4 * 768**2 + 2 * 768 * 3072 + 9 * 768 + 3072)  # 85.1 million


def cost(words: str, sizes: Sizes, **recipes: str) -> StepCost:
    """The cost of a command, with recipes by the checkpoints that they leave."""
    return step_cost(words.split(), sizes, {output: read_recipe(name) for output, name in recipes.items()})


def test_parameters_are_those_of_the_models_weights() -> None:
    from transformers import BertConfig, BertModel

    sizes = Architecture(vocabulary=50, positions=20, layers=2, hidden=8, feed_forward=12)
    config = BertConfig(
        vocab_size=50,
        max_position_embeddings=20,
        num_hidden_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        intermediate_size=12,
    )
    model = BertModel(config, add_pooling_layer=False)
    assert sizes.in_layers == sum(each.numel() for each in model.encoder.parameters())
    norm = 2 * 8  # of the embeddings, which is left out
    assert sizes.parameters + norm == sum(each.numel() for each in model.parameters())
    assert ERNIE.in_layers == LAYERS


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


@pytest.mark.parametrize(
    ("recipe", "given", "tokens", "rows"),
    [
        ("de-bm25-neg", [], 32 + 2 * 384, 10 * (222_395 * 4 // 256) * 256),
        ("de-bm25-neg", ["data.rows=all-negatives"], 32 + 5 * 384, 10 * (222_395 // 256) * 256),
        ("ce-bm25-neg", ["train.epochs=1"], 384, 222_395 * 5 // 64 * 64),
        ("ce-bm25-neg", ["train.max_steps=3"], 384, 3 * 64),
        ("mlm-scratch", ["train.epochs=1", "train.max_steps=0", "train.batch=1"], None, 8_096_668),
    ],
)
def test_the_papers_collection_in_rows(recipe: str, given: list[str], tokens: int | None, rows: int) -> None:
    found = read_recipe(recipe, given)
    assert tokens_of_row(found) == (tokens or found.data.passage_length)
    assert training_rows(found, Sizes()) == rows


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


def test_a_step_that_cannot_be_counted_has_dashes() -> None:
    table = run("baselines", "reproduce", "--table", 7, "--row", "bm25", "--dry-run", "--release", "R").stdout
    assert table.splitlines()[2].split() == ["#", "cmedqa-bm25", *["-"] * 4]
