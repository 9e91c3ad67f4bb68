"""``reproduce`` trains tiny models: from hub names, folders and scratch, under torchrun, and after kills."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from commands import ROOT, Done, run
from conftest import Once
from hub_server import Hub
from loaded import Loaded, Started
from reproduce_world import SETTINGS, TEXTS, World, make_paper_release, ran
from tiny_families import ERNIE, MBERT, publish, publish_all, write_ernie, write_mbert

from baselines.reproduce.run_steps import run_step
from baselines.reproduce.select_rows import rows_of
from baselines.reproduce.steps import Step, Steps
from baselines.train.recipe_files import recipe_names
from builders.core.errors import log


@pytest.fixture(scope="module")
def world(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with Hub() as hub:
        publish_all(hub, folder / "starts", TEXTS)
        yield World(hub, folder, once("paper", make_paper_release))


@pytest.fixture(scope="module")
def loaded(world: World) -> Iterator[Loaded]:
    with Loaded(**world.environment()) as process:
        yield process


@pytest.fixture(scope="module")
def pinned(world: World) -> str:
    commit = world.commit(MBERT)
    publish(world.hub, MBERT, write_mbert(world.folder / "newer", TEXTS, seed=1))
    return commit


ALL = ("--table", 4, 5, 6, 7, 8, 9, "--figure", 2, "--format", "json")


@pytest.fixture(scope="module")
def first(world: World, loaded: Loaded, pinned: str) -> Done:
    pins = f"{SETTINGS}[mbert-supervised]\nmodel.revision = '{pinned}'\n"
    return world.reproduce(*ALL, settings=pins, loaded=loaded)


def test_every_row_runs_from_the_hub_names_of_its_recipes(world: World, first: Done, pinned: str) -> None:
    rows = json.loads(first.stdout)["rows"]
    every_row = rows_of(Steps(Path("R"), Path("O")))
    assert {(row["table"], row["row"]) for row in rows} == {(row.table, row.name) for row in every_row}
    for row in rows:
        low, high = row["interval"]
        assert 0 <= low <= row["ours"] <= high <= 100
    assert max(row["seconds"] for row in rows) > 0  # some steps take less than a tenth of a second
    with_similar = world.training("ce-bm25-neg-similar")["counts"]
    assert with_similar["queries"] == world.training("ce-bm25-neg")["counts"]["queries"] + 1
    not_in_tables = ("question-matching", "static", "ce-pool", "de-bert", "de-roberta", "de-macbert", "de-distil")
    for recipe in recipe_names():
        if recipe.startswith(not_in_tables) or recipe.endswith("-scratch"):
            continue
        training = world.training(recipe)
        assert training["steps"] == 1
        start = training["about"]["start"]
        if recipe == "mbert-supervised":
            expected_commit = pinned
        elif start in (ERNIE, MBERT):
            expected_commit = world.commit(start)
        else:
            expected_commit = None
        assert training["about"]["start_commit"] == expected_commit


def test_a_second_run_prints_the_same_and_runs_nothing(world: World, first: Done, pinned: str) -> None:
    again = world.reproduce(*ALL, settings=f"{SETTINGS}[mbert-supervised]\nmodel.revision = '{pinned}'\n")
    assert ran(again) == []
    assert again.stdout == first.stdout


def test_without_the_hub_and_its_cache_what_is_done_is_done(world: World, first: Done, tmp_path: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    assert ran(world.reproduce("--table", 4, **offline)) == []
    # With another seed, the training is not finished and needs the hub.
    new_training = world.reproduce("--row", "de-bm25-neg", settings=f"{SETTINGS}train.seed = 5\n", code=1, **offline)
    assert ran(new_training) == []
    assert new_training.stderr.strip().endswith("model.start = DIR uses a local folder instead")


def test_a_branch_that_moved_is_another_start(world: World, loaded: Loaded, first: Done) -> None:
    before = world.commit(ERNIE)
    publish(world.hub, ERNIE, write_ernie(world.folder / "other", TEXTS, seed=1))
    done = world.reproduce("--table", 4, "--row", "de-bm25-neg", loaded=loaded)
    assert ran(done) == ["train", "encode", "search"]
    assert world.training("de-bm25-neg")["about"]["start_commit"] == world.commit(ERNIE) != before


def test_a_local_path_asks_no_hub(world: World) -> None:
    start = write_ernie(world.folder / "local", TEXTS, safetensors=True)
    settings = f"{SETTINGS}[ce-bm25-neg]\nmodel.start = '{start}'\n[options.rerank]\ntop-k = 2\n"
    requests_before = len(world.hub.requests)
    done = world.reproduce("--row", "ce-bm25-neg-on-bm25", "--out", world.folder / "local-out", settings=settings)
    assert ran(done) == ["bm25", "bm25", "mine", "train", "rerank"]
    assert "; rerank --top-k 2" in done.stdout
    assert len(world.hub.requests) == requests_before


def test_a_start_that_nobody_has_is_named_before_any_step_runs(world: World) -> None:
    settings = f"{SETTINGS}[de-bm25-neg]\nmodel.start = 'org/none'\n"
    done = world.reproduce("--row", "de-bm25-neg", "--out", world.folder / "none", "--quiet", settings=settings, code=1)
    assert done.error == (
        f"the model org/none would come from the hub: {world.hub.url} has no model org/none, or the token may not read"
        " it; set HF_ENDPOINT to use a mirror or another hub; --settings FILE with [de-bm25-neg] model.start = DIR uses"
        " a local folder instead"
    )
    assert not (world.folder / "none").exists()


def settings_from_folder(world: World, more_settings: str = "") -> str:
    """Return settings with which two recipes start from a local folder."""
    start = world.folder / "ernie"
    if not start.exists():
        write_ernie(start, TEXTS)
    models = [f"[{name}]\nmodel.start = '{start}'" for name in ("de-bm25-neg", "ce-de-neg")]
    return "\n".join([SETTINGS + more_settings, *models])


def test_a_training_in_several_processes_runs_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def done_at_once(words: list[str], **_: Any) -> Any:
        calls.append(words)
        return mock.Mock(**{"wait.return_value": 0})

    monkeypatch.setattr("baselines.reproduce.run_steps.subprocess.Popen", done_at_once)
    monkeypatch.setattr(log, "level", logging.WARNING)  # as with --quiet
    training = Step("x", "train", {"recipe": "x", "out": "x"}, Path("x"))
    run_step(training)
    run_step(training, here=True, processes=4)
    python = [sys.executable]
    command = ["-m", "baselines", "train", "x", "--out", "x", "--quiet"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    assert calls == [python + command, python + torchrun + command]


def test_a_row_is_trained_in_two_processes(world: World, loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "out", world.folder / "two")
    settings = settings_from_folder(world, '[options.train]\ndevice = "cpu"\n')
    words = ["--row", "de-bm25-neg", "--format", "json"]
    done = world.reproduce(*words, "--processes", 2, settings=settings, loaded=loaded)
    steps = json.loads(done.stdout)["steps"]
    assert world.training("de-bm25-neg")["processes"] == 2
    assert steps["models/de-bm25-neg"]["processes"] == 2
    assert steps["embeddings/de-bm25-neg"]["processes"] == 1
    assert "torch.distributed.run" in steps["models/de-bm25-neg"]["command"]
    # The result equals that of one process, so the step does not run again in one process.
    assert ran(world.reproduce(*words, settings=settings)) == []


def test_killed_in_each_step_it_ends_the_same(world: World, loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "out", world.folder / "killed")
    settings = settings_from_folder(world).replace("max_steps = 1", "max_steps = 4").replace("saves = 0", "saves = 4")
    row_words = ("--row", "ce-de-neg-on-de")
    undisturbed = world.reproduce(*row_words, settings=settings, loaded=loaded)
    verbs = ["bm25", "mine", "train", "encode", "search", "rerank"]
    assert list(dict.fromkeys(ran(undisturbed))) == verbs
    shutil.move(world.out, world.folder / "undisturbed")
    shutil.rmtree(world.folder / "cache")
    command = world.words(*row_words, settings=settings)
    for verb in verbs:
        log = kill_in(world, loaded, command, verb)
        if verb == "train":
            assert list(world.out.glob("models/de-bm25-neg.training/checkpoint-*"))
        if verb == "encode":
            assert "resumed after step" in log
    again = world.reproduce(*row_words, settings=settings)
    assert again.stdout == undisturbed.stdout and ran(again) == ["rerank"]


def kill_in(world: World, loaded: Loaded, words: list[str], verb: str) -> str:
    """Start the run, kill its process group in the first step of a verb, and return its log.

    A training is killed after its first state, every other step as soon as it begins.
    """
    log_path = world.folder / f"{verb}.log"
    log_path.touch()
    run = loaded.start(*words, stderr=log_path, **world.environment())
    try:
        wait_for(lambda: f"running: python -m baselines {verb} " in log_path.read_text("utf-8"), run)
        if verb == "train":
            wait_for(lambda: any(world.out.glob("models/*.training/checkpoint-*/sealed.json")), run)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        code = run.wait()
    assert code == -signal.SIGKILL
    return log_path.read_text("utf-8")


def wait_for(event: Callable[[], bool], run: Started) -> None:
    """Wait until the event has happened, while the process runs."""
    while not event():
        assert run.poll() is None, "it ended before it was killed"
        time.sleep(0.02)


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
        make_pipeline_data(folder, shared_data)
        yield folder


def make_pipeline_data(folder: Path, shared_data: Path) -> None:
    """Write a release with several sets, and the settings of tiny models."""
    release = folder / "release"
    data = folder / "data"
    script = [sys.executable, ROOT / "benchmarks/crosslingual_data.py", "--xquad", shared_data / "xquad"]
    script += ["--pairs", shared_data / "tatoeba-cmn-eng" / "cmn.txt.gz", "--size", "60", "--out", data]
    subprocess.run(script, check=True, capture_output=True)
    for words in (
        ["squad", "--train", data / "train.json", "--dev", data / "dev.json", "--dev-size", 20],
        ["add", "crosslingual", "--source", data / "translations.tsv", "--release", release],
        ["add", "ccovid", "--source", shared_data / "ncp-policies", "--release", release, "--test-size", 100],
        ["add", "cmedqa", "--source", shared_data / "cepilepsyqa", "--release", release, "--test-size", 100],
    ):
        run("builders", *words, "--out", release)
    scratch = "scratch.vocabulary = 1500\nscratch.layers = 1\nscratch.hidden = 32\nscratch.heads = 2\n"
    settings = TINY.format(recipe="mlm-scratch") + scratch + "scratch.feed_forward = 32\n"
    for name in TRAINED + TRIO:
        settings += TINY.format(recipe=f"{name}-scratch") + "train.evaluations = 1\ndata.dev_passages = 50\n"
    (folder / "settings.toml").write_text(settings)


def reproduce_from_scratch(folder: Path, *words: object) -> Done:
    """Reproduce every row with models from scratch."""
    usual_words = ["--release", folder / "release", "--out", folder / "runs", "--settings", folder / "settings.toml"]
    return run("baselines", "reproduce", "--one-process", "--scratch", *usual_words, *words)


def test_every_row_runs(folder: Path) -> None:
    report = json.loads(reproduce_from_scratch(folder, "--format", "json").stdout)
    values = {(row["table"], row["row"], row["metric"]): row["ours"] for row in report["rows"]}
    assert len(values) == 3 * 11 + 4
    assert all(0 <= value <= 100 for value in values.values())
    # BM25 finds XQuAD's paragraphs among the others. A re-ranker cannot find passages that BM25 misses.
    assert values[4, "bm25", "Recall@1"] > 50
    assert values[5, "ce-bm25-neg-on-bm25", "Recall@50"] == values[4, "bm25", "Recall@50"]
    assert values[5, "ce-de-neg-on-de", "Recall@50"] == values[4, "de-bm25-neg", "Recall@50"]
    measured = {measured_set["set"]: measured_set for measured_set in report["sets"]}
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
