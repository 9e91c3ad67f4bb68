"""Recipes: the paper's values in the files, overrides, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baselines.train import recipe as recipes
from baselines.train.recipe import names, read_recipe
from builders.common.command import InputError

PAPER = {  # Appendix A.2, and which model starts from which (Figure 1; Sections 3.6 and 3.7)
    "de-bm25-neg": ("dual", 256, 10, 3e-5, 0.1, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-bm25-neg": ("cross", 64, 3, 1e-5, 0.0, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-de-neg": ("cross", 64, 3, 1e-5, 0.0, "recipe:ce-bm25-neg", "main"),
    "mbert-supervised": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "crosslingual"),
    "mbert-zero-shot": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "main"),
    "mbert-transferred": ("dual", 256, 10, 3e-5, 0.1, "recipe:mbert-zero-shot", "crosslingual"),
    "de-cmedqa": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "cmedqa"),
    "de-ccovid": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "ccovid"),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_values(name: str) -> None:
    recipe = read_recipe(name)
    train = recipe.train
    found = (recipe.model.kind, train.batch, train.epochs, train.learning_rate, train.warmup)
    assert (*found, recipe.model.start, recipe.data.set) == PAPER[name]
    assert recipe.data.negatives_per_positive == 4
    assert (recipe.data.query_length, recipe.data.passage_length) == (32, 384)
    assert recipe.data.split == "train"


def test_every_recipe_has_one_for_machines_without_pretrained_weights() -> None:
    assert set(names()) == {*PAPER, *(f"{name}-scratch" for name in PAPER), "mlm-scratch"}
    assert read_recipe("mlm-scratch").model.start == "scratch"
    for name in PAPER:
        paper, scratch = read_recipe(name), read_recipe(f"{name}-scratch")
        assert (scratch.model.kind, scratch.data.set) == (paper.model.kind, paper.data.set)
        start = paper.model.start
        assert scratch.model.start == (f"{start}-scratch" if start.startswith("recipe:") else "recipe:mlm-scratch")


@pytest.mark.parametrize("name", names())
def test_every_value_says_where_it_is_from(name: str) -> None:
    text = (recipes.RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    values = re.findall(r"^[a-z_]+ = .*$", text, re.MULTILINE)
    assert len(values) >= 10
    assert [line for line in values if "#" not in line] == []


def test_overrides() -> None:
    found = read_recipe("de-bm25-neg", ["train.batch=64", "train.learning_rate=1", "model.start=/x", "train.seed=7"])
    assert (found.train.batch, found.train.learning_rate, found.model.start, found.train.seed) == (64, 1.0, "/x", 7)
    assert found.train.epochs == 10
    assert found.resolved()["train"]["batch"] == 64
    assert read_recipe("mlm-scratch", ["scratch.layers=2"]).resolved()["scratch"]["layers"] == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.batsch=3", "unknown key 'train.batsch'"),
        ("trian.batch=3", r"unknown section \[trian\]"),
        ("train.batch=many", "train.batch: expected int, found 'many'"),
        ("train.batch=0", "train.batch: expected a number above zero"),
        ("train.warmup=1.5", "below 1"),
        ("model.kind=triple", "expected one of dual, cross, mlm"),
        ("data.set=mars", "expected one of main"),
        ("data.dev_split=test", "final evaluation"),
        ("data.split=test", "final evaluation"),
        ("batch", "expected SECTION.KEY=VALUE"),
    ],
)
def test_a_wrong_override_is_one_clear_error(override: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_recipe("de-bm25-neg", [override])


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no recipe 'de'; there are .*de-bm25-neg"):
        read_recipe("de")
    path = tmp_path / "mine.toml"
    with pytest.raises(InputError, match=r"mine.toml: cannot be read"):
        read_recipe(str(path))
    path.write_text("[model\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"mine.toml: expected TOML"):
        read_recipe(str(path))
    path.write_text('[model]\nkind = "dual"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"mine.toml: \[model\] lacks start"):
        read_recipe(str(path))
    path.write_text('[model]\nkind = "dual"\nstart = "x"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"mine.toml: has no section \[train\]"):
        read_recipe(str(path))
