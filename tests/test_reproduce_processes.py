"""``reproduce`` starts processes: torchrun's for a training, one card otherwise; killed ones go on where they were."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conftest import Once
from hub_server import Hub
from loaded import Loaded, Started
from reproduce_world import SETTINGS, TEXTS, World, make_paper_release, ran

from baselines.reproduce.steps import call

pytest.importorskip("torch")

from tiny_hub import write_ernie

STARTS = "\n".join(f"[{name}]\nmodel.start = '%(start)s'" for name in ("de-bm25-neg", "ce-de-neg"))


@pytest.fixture(scope="module")
def paper(once: Once) -> Path:
    return once("paper", make_paper_release)


@pytest.fixture
def world(paper: Path, tmp_path: Path) -> Iterator[World]:
    """A world whose models start from a folder; nothing answers for the hub's names."""
    write_ernie(tmp_path / "ernie", TEXTS)
    with Hub() as hub:
        yield World(hub, tmp_path, paper)


def settings(world: World, more: str = "") -> str:
    return SETTINGS + more + STARTS % {"start": world.folder / "ernie"}


class Asked:
    """What ``subprocess.Popen`` was asked for, in the place of it: a process that is done at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[str], dict[str, str]]] = []
        monkeypatch.setattr("baselines.reproduce.steps.subprocess.Popen", self._open)

    def _open(self, words: list[str], env: dict[str, str], **_: Any) -> Any:
        self.calls.append((words, env))
        return mock.Mock(**{"wait.return_value": 0})


@pytest.mark.parametrize(("visible", "given"), [(None, "0"), ("2,3", "2"), ("", "")])
def test_a_training_in_one_process_sees_one_card(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, given: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    started = Asked(monkeypatch)
    call(["baselines", "train", "x"], quiet=False)
    call(["baselines", "encode", "x"], quiet=False)  # takes every card, a process each
    (_, train), (_, encode) = started.calls
    assert train["CUDA_VISIBLE_DEVICES"] == given
    assert encode.get("CUDA_VISIBLE_DEVICES") == visible


def test_several_processes_are_torchruns_and_see_every_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    started = Asked(monkeypatch)
    call(["baselines", "train", "x"], quiet=True, here=True, processes=4)
    ((words, environment),) = started.calls
    assert words == [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"),
        *("-m", "baselines", "train", "x", "--quiet"),
    ]
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_a_row_is_trained_in_two_processes(world: World, loaded: Loaded) -> None:
    more = '[options.train]\ndevice = "cpu"\n'
    row = ("--row", "de-bm25-neg", "--format", "json")
    report = json.loads(world.reproduce(*row, "--processes", 2, settings=settings(world, more), loaded=loaded).stdout)
    assert world.training("de-bm25-neg")["processes"] == 2
    assert report["steps"]["de"]["processes"] == 2 and report["steps"]["de-passages"]["processes"] == 1
    assert "torch.distributed.run" in report["steps"]["de"]["command"]
    # Its result is that of one process: it is not run again in one.
    assert ran(world.reproduce(*row, settings=settings(world, more))) == []


def test_killed_once_in_each_kind_of_step_it_ends_in_the_same_table(world: World, loaded: Loaded) -> None:
    world.out = world.folder / "out"
    text = settings(world).replace("max_steps = 1", "max_steps = 4").replace("saves = 0", "saves = 4")
    row = ("--row", "ce-de-neg-on-de")
    whole = world.reproduce(*row, settings=text, loaded=loaded)
    verbs = ["bm25", "mine", "train", "encode", "search", "rerank"]
    assert list(dict.fromkeys(ran(whole))) == verbs
    shutil.move(world.out, world.folder / "undisturbed")
    shutil.rmtree(world.folder / "cache")
    words = world.words(*row, settings=text)
    for verb in verbs:
        last = kill_in(world, loaded, words, verb)
        if verb == "train":
            assert list(world.out.glob("models/de-bm25-neg.training/checkpoint-*"))
        if verb == "encode":
            assert "taken up again after step" in last
    again = world.reproduce(*row, settings=text)
    assert again.stdout == whole.stdout and ran(again) == ["rerank"]


def kill_in(world: World, loaded: Loaded, words: list[str], verb: str) -> str:
    """Start the run, and kill its whole group in the first step of a verb; what it logged.

    A training is killed when it has left its first state, every other step as soon as it begins.
    """
    log = world.folder / f"{verb}.log"
    log.touch()
    run = loaded.start(*words, stderr=log, **world.environment())
    try:
        wait_for(lambda: f"running: python -m baselines {verb} " in log.read_text("utf-8"), run)
        if verb == "train":
            wait_for(lambda: any(world.out.glob("models/*.training/checkpoint-*/sealed.json")), run)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        code = run.wait()
    assert code == -signal.SIGKILL
    return log.read_text("utf-8")


def wait_for(event: Callable[[], bool], run: Started) -> None:
    while not event():
        assert run.poll() is None, "it ended before it was killed"
        time.sleep(0.02)
