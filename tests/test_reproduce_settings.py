"""``reproduce --settings``: other values for recipes, other options for the steps' commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import ROOT, run

from baselines.reproduce.settings import read_settings
from builders.core.errors import InputError


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def planned(settings: Path, text: str, *more: object) -> list[list[str]]:
    """The commands of a plan with such settings."""
    settings.write_text(text)
    done = run("baselines", "reproduce", "--dry-run", "--format", "json", "--settings", settings, *more)
    commands: list[list[str]] = json.loads(done.stdout)
    return commands


def test_settings_are_given_to_the_training_of_their_recipe(settings: Path) -> None:
    text = "[de-bm25-neg-scratch]\ntrain.epochs = 3\nmodel.similarity = 'dot'\n"
    commands = planned(settings, text, "--row", "de-bm25-neg", "--scratch")
    given = {command[2]: command for command in commands if command[1] == "train"}
    assert given["de-bm25-neg-scratch"][-4:] == ["--set", "train.epochs=3", "--set", "model.similarity=dot"]
    assert "--set" not in given["mlm-scratch"]


def test_settings_of_every_recipe_come_before_those_of_one(settings: Path) -> None:
    text = '["*"]\ntrain.seed = 3\ntrain.max_steps = 2\n[ce-bm25-neg]\ntrain.seed = 4\n'
    trainings = [c for c in planned(settings, text, "--row", "ce-de-neg-on-bm25") if c[1] == "train"]
    given = {command[2]: [word for word in command if word.startswith("train.")] for command in trainings}
    both = ["train.seed=3", "train.max_steps=2"]
    assert given == {"de-bm25-neg": both, "ce-bm25-neg": [*both, "train.seed=4"], "ce-de-neg": both}


def test_a_recipe_with_another_start_runs_no_training_for_its_own(settings: Path) -> None:
    text = "[ce-de-neg]\nmodel.start = './somewhere'\n"
    trained = [c[2] for c in planned(settings, text, "--row", "ce-de-neg-on-bm25") if c[1] == "train"]
    assert trained == ["de-bm25-neg", "ce-de-neg"]  # ce-bm25-neg is its start otherwise


def test_options_are_given_to_every_step_of_their_verb(settings: Path) -> None:
    text = "rerank = { top-k = 20, max-length = 96 }\nmine = { negatives = 1 }\ntrain = { no-resume = true }\n"
    text = f"[options]\n{text}"
    commands = planned(settings, text, "--table", 5)
    for command in commands:
        verb = command[1]
        if verb == "rerank":
            assert command[-4:] == ["--top-k", "20", "--max-length", "96"]
        if verb == "mine":
            place = command.index("--negatives")
            assert command.count("--negatives") == 1 and command[place + 1] == "1"
        if verb == "bm25":
            assert command[command.index("--top-k") + 1] == "50"
        assert ("--no-resume" in command) == (verb == "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nope]\ntrain.epochs = 3\n", "settings.toml: nope: no recipe 'nope'"),
        ("[mlm-scratch]\ntrain.wings = 3\n", "settings.toml: mlm-scratch: --set train.wings=3: unknown key 'wings'"),
        ("[mlm-scratch]\nepochs = 3\n", "settings.toml: mlm-scratch: expected a table a recipe"),
        ("[mlm-scratch\n", "settings.toml: expected TOML"),
        ("options = 3\n", r"settings.toml: expected a table a verb: \[options.rerank\]"),
        ("[options.fly]\nhigh = 3\n", "settings.toml: options.fly: no verb of baselines; expected run, bm25, "),
        ("[options.rerank]\ntop-k = [3]\n", "settings.toml: options.rerank.top-k: expected a text, a number or true"),
        ("[mlm-scratch]\nmodel.start = ['x']\n", "settings.toml: mlm-scratch.model.start: expected a text, a number"),
        ("['*']\nmodel.start = {x = 1}\n", r"settings.toml: \*.model.start: expected a text, a number or true"),
        (f"['*']\nmodel.start = {'{x = ' * 2_000}1{'}' * 2_000}\n", "settings.toml: expected TOML, found lists or"),
        (f"['*']\ntrain.seed = {'9' * 6_000}\n", "settings.toml: expected TOML"),
    ],
)
def test_bad_settings_are_named(settings: Path, text: str, message: str) -> None:
    settings.write_text(text)
    with pytest.raises(InputError, match=message):
        read_settings(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[options.rerank]\nwings = 3\n", "options.rerank: unrecognized arguments: --wings 3"),
        ("[options.rerank]\ntop-k = 0\n", "options.rerank: argument --top-k: expected a whole number of at least 1"),
        ("[options.rerank]\nmodel = 'x'\n", "options.rerank: --model is what the step is about; it cannot be set"),
        ("[options.bm25]\nsplit = 'dev'\n", "options.bm25: --split is what the step is about; it cannot be set"),
        ("['*']\ntrain.wings = 3\n", "--set train.wings=3: unknown key 'wings'"),
    ],
)
def test_settings_that_do_not_fit_a_step_are_named_before_any_runs(settings: Path, text: str, message: str) -> None:
    settings.write_text(text)
    done = run("baselines", "reproduce", "--dry-run", "--row", "ce-bm25-neg-on-bm25", "--settings", settings, code=1)
    assert message in done.error and done.stdout == ""


def test_the_settings_that_come_with_the_project_are_good() -> None:
    found = {path.stem: read_settings(path) for path in (ROOT / "baselines" / "settings").glob("*.toml")}
    assert {"sample", "cmrc-cpu", "crosslingual-cpu"} <= set(found)
