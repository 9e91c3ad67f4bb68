"""Training in several processes: the losses of one process, orderly exit, and a common end if one process fails."""

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
from training_world import World, trained, training_of  # noqa: F401

STEPS = ["train.batch=16", "train.max_steps=3", "train.logs=3", "train.evaluations=0", "train.mini_batch=2"]
KINDS = {
    "one-negative": ("de-bm25-neg-scratch", 4, ["data.negatives_per_positive=2"]),
    "all-negatives": ("de-bm25-neg-scratch", 2, ["data.negatives_per_positive=2", "data.rows=all-negatives"]),
    "towers": ("de-bm25-neg-scratch", 2, ["model.towers=2"]),
    "cross": ("ce-bm25-neg-scratch", 2, []),
}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH}


@pytest.fixture(scope="module")
def several(trained: World, loaded: Loaded) -> Path:
    """The folder with a checkpoint of each kind, trained by one process and by several processes.

    The start has no dropout, because several processes would draw different random numbers than one.
    """
    jobs = []
    for kind, (recipe, count, values) in KINDS.items():
        one, many = (trained.folder / f"{kind}-{number}" for number in (1, count))
        trained.train(recipe, one, *STEPS, *values, start=trained.still)
        jobs.append((count, "baselines", trained.words(recipe, many, *STEPS, *values, start=trained.still)))
    loaded.run("ranks", json.dumps(jobs))
    return trained.folder


@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_see_the_losses_and_learn_the_weights_of_one(
    trained: World, several: Path, kind: str
) -> None:
    count = KINDS[kind][1]
    folders = several / f"{kind}-1", several / f"{kind}-{count}"
    ours, theirs = map(training_of, folders)
    assert (theirs["processes"], theirs["batch"]) == (count, 16)
    losses = [[loss for _, loss in training["losses"]] for training in (ours, theirs)]
    assert len(losses[0]) == 3 and np.allclose(*losses, atol=1e-4)
    files = sorted(path.relative_to(folders[0]) for path in folders[0].rglob("*.safetensors"))
    assert len(files) == 1 + (kind == "towers")
    start = load_file(trained.still / "model.safetensors")
    one, many = ([load_file(folder / file) for file in files] for folder in folders)
    for left, right in zip(one, many, strict=True):
        for name, weights in left.items():
            assert torch.allclose(weights, right[name], atol=2e-5), name
        # The weights have changed, and differ between two towers.
        known = [name for name in left if f"bert.{name}" in start or name in start]
        assert known and any(not torch.equal(left[n], start.get(f"bert.{n}", start.get(n))) for n in known)
    if kind == "towers":
        name = next(name for name in many[0] if name.endswith("layer.0.attention.self.query.weight"))
        assert not torch.equal(many[0][name], many[1][name])


@pytest.mark.parametrize("failing", [0, 1])
def test_where_one_process_fails_all_end_with_its_line(trained: World, loaded: Loaded, failing: int) -> None:
    out = trained.folder / f"failed-{failing}"
    words = [str(failing), *trained.words("ce-bm25-neg-scratch", out, *STEPS)]
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
