"""Recipes: the paper's values in the files, overrides, and errors."""

import re

import pytest

from baselines.train.recipe import names, read_recipe
from builders.core.errors import InputError

PAPER = {  # Appendix A.2, and the starting checkpoint of each model (Figure 1; Sections 3.6 and 3.7)
    "de-bm25-neg": ("dual", 256, 10, 3e-5, 0.1, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-bm25-neg": ("cross", 64, 3, 1e-5, 0.0, "nghuyong/ernie-1.0-base-zh", "main"),
    "ce-de-neg": ("cross", 64, 3, 1e-5, 0.0, "recipe:ce-bm25-neg", "main"),
    "mbert-supervised": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "crosslingual"),
    "mbert-zero-shot": ("dual", 256, 10, 3e-5, 0.1, "google-bert/bert-base-multilingual-cased", "main"),
    "mbert-transferred": ("dual", 256, 10, 3e-5, 0.1, "recipe:mbert-zero-shot", "crosslingual"),
    "de-cmedqa": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "cmedqa"),
    "de-ccovid": ("dual", 256, 10, 3e-5, 0.1, "recipe:de-bm25-neg", "ccovid"),
}
OFFICIAL = {  # values of the official code; batches count the rows of all GPUs
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
    others = {"mlm-scratch", "static", "question-matching", "question-matching-cpu", "question-matching-scratch"}
    assert set(names()) == {*PAPER, *OFFICIAL, *(f"{name}-scratch" for name in PAPER), *others}
    assert read_recipe("mlm-scratch").model.start == "scratch"
    for name in PAPER:
        paper, scratch = read_recipe(name), read_recipe(f"{name}-scratch")
        assert (scratch.model.kind, scratch.data.set) == (paper.model.kind, paper.data.set)
        start = paper.model.start
        assert scratch.model.start == (f"{start}-scratch" if start.startswith("recipe:") else "recipe:mlm-scratch")


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
        ("de-bm25-neg", "train.batch=0", "expected `int` >= 1"),
        ("de-bm25-neg", "model.kind=triple", "expected one of cross, dual, mlm, found 'triple'"),
        ("de-bm25-neg", "data.split=test", "final evaluation"),
        ("de-bm25-neg", "train.report_to=mlflow", "train: report_to: expected auto, none, or some of tensorboard, "),
        ("de-bm25-neg", "batch", "expected SECTION.KEY=VALUE"),
        ("ce-bm25-neg", "model.towers=2", "model.towers: needs model.kind = dual, found cross"),
        ("ce-bm25-neg", "train.embeddings_gradient=2", "train.embeddings_gradient: needs train.adversarial"),
        ("de-bm25-neg", "model.inputs=official", "model: inputs: official inputs differ for queries and passages"),
        ("ce-de-neg", "model.revision=main", "model: revision: needs a start on the hub, found recipe:ce-bm25-neg"),
        ("de-ccovid", "data.negatives=release", "data.negatives: official negatives exist only for the set main, not"),
    ],
)
def test_an_override_that_does_not_fit_is_one_error(name: str, override: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read_recipe(name, [override])


def test_a_training_reports_to_installed_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.train.recipe.find_spec", {"tensorboardX", "wandb"}.__contains__)
    auto = read_recipe("static")
    assert auto.train.loggers() == ["tensorboard"]
    for value, expected in (("none", []), ("wandb", ["wandb"]), ("tensorboard,wandb", ["tensorboard", "wandb"])):
        recipe = read_recipe("static", [f"train.report_to={value}"])
        assert recipe.train.loggers() == expected and recipe.resolved() == auto.resolved()  # resumes the same training
    with pytest.raises(InputError, match=r"report_to: trackio is not installed; run `pip install trackio`"):
        read_recipe("static", ["train.report_to=wandb,trackio"]).train.loggers()
