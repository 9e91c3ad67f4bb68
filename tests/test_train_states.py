"""The states of a stopped training: with damaged ones it resumes from the one before, and ends in the same weights."""

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


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _flip_both(optimizer: Path) -> None:
    for step in (3, 4):
        _flip(optimizer.parents[1] / f"checkpoint-{step}" / optimizer.name)
    (optimizer.parents[1] / "checkpoint-mine").mkdir()  # of somebody else


@pytest.mark.parametrize(
    ("name", "spoil", "step", "said"),
    [
        ("model.safetensors", _flip, 3, "checkpoint-4 is not whole (model.safetensors has the SHA-256"),
        ("trainer_state.json", _flip, 3, "checkpoint-4 is not whole (trainer_state.json has the SHA-256"),
        ("rng_state.pth", _flip, 3, "checkpoint-4 is not whole (rng_state.pth has the SHA-256"),
        ("optimizer.pt", lambda path: os.truncate(path, 10), 3, "checkpoint-4 is not whole (optimizer.pt has 10 bytes"),
        ("config.json", Path.unlink, 3, "checkpoint-4 is not whole (config.json is listed in the manifest but missing"),
        ("sealed.json", Path.unlink, 3, "checkpoint-4 is not whole (the training was killed while it was written)"),
        ("sealed.json", lambda path: path.write_text("[]"), 3, "checkpoint-4 is not whole ("),
        ("optimizer.pt", _flip_both, None, "checkpoint-3 is not whole (optimizer.pt has the SHA-256"),
        ("config.json", lambda path: None, 4, ""),
    ],
)
def test_a_training_resumes_from_the_last_whole_state(
    stopped: World, tmp_path: Path, name: str, spoil: Callable[[Path], object], step: int | None, said: str
) -> None:
    out = tmp_path / "out"
    states = Path(shutil.copytree(stopped.folder / "stopped.training", resume.states_of(out)))
    spoil(states / "checkpoint-4" / name)
    log = stopped.train("--out", out, **STEPS).stderr
    assert said in log and ("not whole" in log) == bool(said)
    assert (f"resumed after step {step} of 4" in log) == ("resumed" in log) == (step is not None)
    assert (out / "model.safetensors").read_bytes() == (stopped.out / "model.safetensors").read_bytes()
