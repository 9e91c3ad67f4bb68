"""The states of a stopped training: with damaged ones it goes on from the one before, and ends in the same weights."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_train_refused import World

from baselines.train import resume

STEPS = {"max_steps": 4, "saves": 4, "evaluations": 0}  # a state a step, of which two are kept


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A whole training, and ``stopped.training``: the states of one that was stopped when it wrote its checkpoint."""
    world = World(tmp_path_factory.mktemp("world"))
    world.train(**STEPS)

    def stop(*_: object) -> None:
        raise InterruptedError("stopped")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("baselines.train.train.write_checkpoint", stop)
        world.train("--out", world.folder / "stopped", code=1, **STEPS)
    return world


def _again(world: World, out: Path, spoil: Callable[[Path], object]) -> str:
    """What the same training says that goes on from the stopped one's states, once they are spoiled."""
    states = resume.states_of(out)
    shutil.copytree(world.folder / "stopped.training", states)
    spoil(states)
    return world.train("--out", out, **STEPS).stderr


def _weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("model.safetensors", _flip, "damaged"),
        ("trainer_state.json", _flip, "damaged"),
        ("rng_state.pth", _flip, "damaged"),
        ("optimizer.pt", lambda path: os.truncate(path, 10), "damaged"),
        ("config.json", Path.unlink, "missing"),
    ],
)
def test_a_damaged_state_is_named_and_the_one_before_it_gone_on_from(
    stopped: World, tmp_path: Path, name: str, spoil: Callable[[Path], object], said: str
) -> None:
    log = _again(stopped, tmp_path / "out", lambda states: spoil(states / "checkpoint-4" / name))
    assert f"checkpoint-4 is not whole ({name} is {said}); left out" in log
    assert "taken up again after step 3 of 4" in log
    assert _weights(tmp_path / "out") == _weights(stopped.out)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_text("[]")])
def test_a_state_without_its_seal_is_not_gone_on_from(
    stopped: World, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    log = _again(stopped, tmp_path / "out", lambda states: spoil(states / "checkpoint-4" / "sealed.json"))
    assert "checkpoint-4 is not whole (" in log and "taken up again after step 3 of 4" in log


def test_of_damaged_states_alone_the_training_begins_anew(stopped: World, tmp_path: Path) -> None:
    def spoil(states: Path) -> None:
        for name in ("checkpoint-3", "checkpoint-4"):
            _flip(states / name / "optimizer.pt")
        (states / "checkpoint-mine").mkdir()  # of somebody else

    log = _again(stopped, tmp_path / "out", spoil)
    assert log.count("is not whole (optimizer.pt is damaged)") == 2 and "taken up again" not in log
    assert _weights(tmp_path / "out") == _weights(stopped.out)


def test_whole_states_are_gone_on_from_at_the_last(stopped: World, tmp_path: Path) -> None:
    log = _again(stopped, tmp_path / "out", lambda states: None)
    assert "taken up again after step 4 of 4" in log and "not whole" not in log
    assert _weights(tmp_path / "out") == _weights(stopped.out)
