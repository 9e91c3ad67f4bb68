"""Recipes: the paper's values in the files, overrides, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from baselines.train import recipe as recipes
from baselines.train.recipe import names, read_recipe
from builders.core.errors import InputError

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


OFFICIAL = {  # what the official code takes: rows of all cards, and what it does otherwise
    "official-de": ("dual", 512, 10, 3e-5, 0.1, "linear", 0.0, 2, 1, 0.0),
    "official-ce": ("cross", 256, 3, 1e-5, 0.0, "constant", 0.01, 1, 2, 0.01),
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_the_official_recipes_hold_the_values_of_the_official_code(name: str) -> None:
    recipe = read_recipe(name)
    model, data, train = recipe.model, recipe.data, recipe.train
    found = (model.kind, train.batch, train.epochs, train.learning_rate, train.warmup, train.schedule)
    assert (*found, train.weight_decay, model.towers, model.outputs, train.adversarial) == OFFICIAL[name]
    assert (model.start, model.inputs, data.negatives) == ("nghuyong/ernie-1.0-base-zh", "official", "release")
    assert (data.negatives_per_positive, data.rows, train.clip, train.seed) == (4, "one-negative", 1.0, 1)
    assert (data.query_length, data.passage_length) == (32, 384)


@pytest.mark.parametrize("name", PAPER)
def test_recipes_hold_the_values_of_the_paper(name: str) -> None:
    recipe = read_recipe(name)
    train = recipe.train
    found = (recipe.model.kind, train.batch, train.epochs, train.learning_rate, train.warmup)
    assert (*found, recipe.model.start, recipe.data.set) == PAPER[name]
    assert recipe.data.negatives_per_positive == 4
    assert (recipe.data.query_length, recipe.data.passage_length) == (32, 384)
    assert (recipe.data.split, recipe.data.rows) == ("train", "one-negative")


def test_every_recipe_has_one_for_machines_without_pretrained_weights() -> None:
    matching = {f"question-matching{variant}" for variant in ("", "-cpu", "-scratch")}
    assert set(names()) == {
        *PAPER,
        *OFFICIAL,
        *(f"{name}-scratch" for name in PAPER),
        "mlm-scratch",
        "static",
        *matching,
    }
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


def test_an_override_is_read_as_the_value_that_its_key_takes() -> None:
    found = read_recipe("de-bm25-neg", ["train.batch=64", "train.learning_rate=1", "model.start=/x", "train.seed=7"])
    assert (found.train.batch, found.train.learning_rate, found.model.start, found.train.seed) == (64, 1.0, "/x", 7)
    assert found.train.epochs == 10
    assert found.resolved()["train"]["batch"] == 64
    assert read_recipe("mlm-scratch", ["scratch.layers=2"]).resolved()["scratch"]["layers"] == 2


@pytest.mark.parametrize(
    ("name", "override", "said"),
    [
        ("de-bm25-neg", "train.batsch=3", "unknown key 'batsch'; expected batch, epochs"),
        ("de-bm25-neg", "trian.batch=3", "unknown key 'trian'; expected model, data, train, scratch, words"),
        ("de-bm25-neg", "train.batch=many", "expected `int`, got `str`"),
        ("de-bm25-neg", "train.batch=0", "expected `int` >= 1"),
        ("de-bm25-neg", "train.epochs=nan", "expected `float` > 0"),
        ("de-bm25-neg", "train.learning_rate=inf", "expected `float` <= 1"),
        ("de-bm25-neg", "train.seed=4294967296", "expected `int` <= 4294967295"),
        ("de-bm25-neg", "data.passage_length=1", "expected `int` >= 3"),
        ("de-bm25-neg", "train.compile=perhaps", "expected `bool`"),
        ("de-bm25-neg", "model.kind=triple", "expected one of cross, dual, mlm, found 'triple'"),
        ("de-bm25-neg", "data.set=mars", "expected one of main"),
        ("de-bm25-neg", "data.split=test", "final evaluation"),
        ("de-bm25-neg", "batch", "expected SECTION.KEY=VALUE"),
        ("ce-bm25-neg", "model.towers=2", "model.towers: for kind = dual alone, found kind = cross"),
        ("de-bm25-neg", "model.outputs=2", "model.outputs: for kind = cross alone, found kind = dual"),
        ("mlm-scratch", "model.inputs=official", "model.inputs: for kind = dual or cross alone, found kind = mlm"),
        ("ce-bm25-neg", "train.embeddings_gradient=2", "train.embeddings_gradient: of an adversarial step alone"),
        ("de-bm25-neg", "train.adversarial=0.01", "train.adversarial: for kind = cross alone, found kind = dual"),
        ("de-bm25-neg", "model.inputs=official", "model: inputs: the official ones differ for queries and passages"),
        ("ce-de-neg", "model.revision=main", "model: revision: of a start on the hub; recipe:ce-bm25-neg is none"),
        ("static", "model.revision=main", "model: revision: of a start on the hub; words is none"),
        ("de-ccovid", "data.negatives=release", "data.negatives: the official negatives are those of main, not of"),
        ("de-bm25-neg", "data.source=pairs", "data.source: for kind = cross alone, found kind = dual"),
        ("de-bm25-neg", "model.towers=3", "expected one of 1, 2, found 3"),
        ("de-bm25-neg", "data.rows=some", "expected one of all-negatives, one-negative, found 'some'"),
        ("de-bm25-neg", "train.schedule=cosine", "expected one of constant, linear, found 'cosine'"),
        ("de-bm25-neg", "train.clip=-1", "expected `float` >= 0"),
    ],
)
def test_a_wrong_override_or_one_that_does_not_fit_the_kind_of_model_is_one_error(
    name: str, override: str, said: str
) -> None:
    with pytest.raises(InputError) as error:
        read_recipe(name, [override])
    assert said in str(error.value)


TRAIN = "[train]\nbatch = 2\nepochs = 1\nlearning_rate = 1e-3\n"
MODEL = '[model]\nkind = "dual"\nstart = "x"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("[model\n", "expected TOML"),
        (f'[model]\nkind = "dual"\n{TRAIN}', "model: lacks start"),
        (MODEL, "train: lacks epochs"),
        (f"{MODEL}{TRAIN}[trian]\n", "unknown key 'trian'; expected model, data, train, scratch, words"),
        (f"{MODEL}{TRAIN}wings = 2\n", "train: unknown key 'wings'; expected batch, epochs"),
        (f"{MODEL}{TRAIN}seed = -1\n", "train.seed: expected `int` >= 0"),
        (f"{MODEL}{TRAIN}scale = nan\n", "train.scale: expected `float` > 0"),
        (f"{MODEL}{TRAIN}seed = {'9' * 6000}\n", "expected TOML (Exceeds the limit"),
        (f"{MODEL}{TRAIN}seed = {'9' * 4000}\n", "train.seed: expected `int` <= 4294967295"),
        (f"{MODEL}{TRAIN}seed = {'[' * 5000}\n", "expected TOML, found lists or tables nested too deep"),
        (f"{MODEL}{TRAIN}seed = '3'\n", "train.seed: expected `int`, got `str`"),
        (f"{MODEL}{TRAIN}precision = 'fp8'\n", "train.precision: expected one of auto, bf16, fp32, found 'fp8'"),
        (f"{MODEL}{TRAIN}[scratch]\nheads = 5\n", "scratch: hidden: expected a multiple of heads (5), found 384"),
        (f"train = 3\n{MODEL}", "train: expected `object`, got `int`"),
    ],
)
def test_a_file_that_is_no_recipe_is_one_error_with_the_file_and_the_key(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_recipe(str(path), ["train.batch=4"])
    assert str(error.value).startswith(f"{path}: {said}")
