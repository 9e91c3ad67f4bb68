"""Training in several processes: they see the loss of one, leave in order, and end together where one fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ROOT, Done
from loaded import Loaded
from safetensors.torch import load_file
from training_world import SMALL, World, training_of

STEPS = ["train.batch=16", "train.max_steps=3", "train.logs=3", "train.evaluations=0", "train.mini_batch=2"]
KINDS = {
    "one-negative": ("de-bm25-neg-scratch", [4], ["data.negatives_per_positive=2"]),
    "all-negatives": ("de-bm25-neg-scratch", [2], ["data.negatives_per_positive=2", "data.rows=all-negatives"]),
    "towers": ("de-bm25-neg-scratch", [2], ["model.towers=2"]),
    "cross": ("ce-bm25-neg-scratch", [2], []),
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Its start has no dropout: processes that draw their own would differ from one."""
    world = World(tmp_path_factory.mktemp("world"))
    values = [*SMALL, "scratch.dropout=0", "train.batch=64", "train.max_steps=10"]
    assert world.train("mlm-scratch", world.folder / "still", *values) == 0
    world.start = world.folder / "still"
    return world


@pytest.fixture(scope="module")
def trained(world: World, loaded: Loaded) -> Path:
    """The folder of every kind's checkpoints, by one process and by several."""
    jobs = []
    for kind, (recipe, counts, values) in KINDS.items():
        assert world.train(recipe, world.folder / f"{kind}-1", *STEPS, *values) == 0
        for count in counts:
            jobs.append((count, "baselines", world.words(recipe, world.folder / f"{kind}-{count}", *STEPS, *values)))
    loaded.run("ranks", json.dumps(jobs))
    return world.folder


@pytest.mark.parametrize(("kind", "count"), [(kind, count) for kind in KINDS for count in KINDS[kind][1]])
def test_several_processes_see_the_losses_and_learn_the_weights_of_one(
    world: World, trained: Path, kind: str, count: int
) -> None:
    one, several = trained / f"{kind}-1", trained / f"{kind}-{count}"
    ours, theirs = training_of(one), training_of(several)
    assert (theirs["processes"], theirs["batch"]) == (count, 16)
    losses = [[loss for _, loss in training["losses"]] for training in (ours, theirs)]
    assert len(losses[0]) == 3 and np.allclose(*losses, atol=1e-4)
    files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert len(files) == 1 + (kind == "towers")
    start = load_file(world.start / "model.safetensors")
    for file in files:
        left, right = load_file(one / file), load_file(several / file)
        for name, weights in left.items():
            assert torch.allclose(weights, right[name], atol=2e-5), name
        # The weights have gone somewhere.
        known = [name for name in left if f"bert.{name}" in start or name in start]
        assert known and any(not torch.equal(left[n], start.get(f"bert.{n}", start.get(n))) for n in known)


def test_two_towers_are_both_trained(world: World, trained: Path) -> None:
    files = sorted((trained / "towers-2").rglob("*.safetensors"))
    start = load_file(world.start / "model.safetensors")
    query, passage = (load_file(file) for file in files)
    name = next(name for name in query if name.endswith("layer.0.attention.self.query.weight"))
    original = start[f"bert.{name}"]
    assert not torch.equal(query[name], original) and not torch.equal(passage[name], original)
    assert not torch.equal(query[name], passage[name])


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_process_fails_all_end_with_its_line(world: World, loaded: Loaded, failing: int) -> None:
    out = world.folder / f"failed-{failing}"
    words = [str(failing), *world.words("ce-bm25-neg-scratch", out, *STEPS)]
    words[words.index("--start")] = "--start-from"
    if failing:
        script = [*TORCHRUN, str(ROOT / "tests" / "failing_rank.py"), *words]
        ended = subprocess.run(script, cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=300)
        done = Done(ended.returncode, ended.stdout, ended.stderr)
    else:
        done = loaded.run("ranks", json.dumps([[2, "failing_rank", words]]), code=None)
    assert done.code == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert errors == ["error: the second step fails here"]
    assert not out.exists()
