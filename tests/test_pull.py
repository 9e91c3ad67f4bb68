"""``pull`` over a loopback hub: what comes back, that it is a start, what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from checkpoints import REPO, Command, describe, push, whole
from commands import ROOT, command, run
from hub_client import error_of
from hub_repos import Blob
from hub_server import Hub
from releases import make_release, tables
from tiny_models import write_dual

from builders.store.layout import MANIFEST


def test_pull_brings_the_checkpoint_back(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    push(call, checkpoint, "--create")
    first = hub.repos["model", REPO].commits[-1].oid
    out = tmp_path / "models" / "back"
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    assert {p.name for p in out.iterdir()} == {name.split("/")[0] for name in whole(checkpoint)} | {"README.md"}
    assert [p.name for p in out.parent.iterdir()] == ["back"]
    # What was pulled is a checkpoint again: it can be pushed, and it is the same.
    sent = len(hub.uploads)
    push(call, out)
    assert len(hub.uploads) == sent and len(hub.repos["model", REPO].commits) == 2
    # A newer one, and the older one by its commit; each in the place of the other.
    record = json.loads((checkpoint / "training.json").read_text()) | {"steps": 8}
    (checkpoint / "training.json").write_text(json.dumps(record))
    push(call, checkpoint)
    for revision, steps in ((["--revision", first], 7), ([], 8)):
        call("pull", REPO, "--out", out, *revision)
        assert json.loads((out / "training.json").read_text())["steps"] == steps


def test_a_pulled_checkpoint_is_a_start(hub: Hub, call: Command, checkpoints: Path, tmp_path: Path) -> None:
    """A dual-encoder begins where a cross-encoder's or another's training left: here, from the hub's copy."""
    dual = describe(write_dual(tmp_path / "plain", similarity="cosine"), "dual")
    push(call, dual, "--create")
    call("pull", REPO, "--out", tmp_path / "back")
    release = make_release(tmp_path / "release", tables())
    steps = ["data.negatives_per_positive=0", "train.batch=4", "train.max_steps=2", "train.learning_rate=1e-2"]
    words = ["train", "de-bm25-neg-scratch", "--release", release, "--cache", tmp_path / "texts", "--device", "cpu"]
    words += [word for step in steps for word in ("--set", step)]
    here, there = tmp_path / "from-pulled", tmp_path / "from-hub"
    run("baselines", *words, "--start", tmp_path / "back", "--out", here)
    # A process of its own: transformers, loaded here already, would look for it in this machine's cache.
    # As many threads as in this one: with others the last bits differ.
    environment = hub.environment(tmp_path / "home") | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    argv = command("baselines", *words, "--start", REPO, "--out", there)
    subprocess.run(argv, cwd=ROOT, env=environment, check=True)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (here, there, dual)]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("action", ["break", 503])
def test_a_broken_download_leaves_nothing_and_goes_on(
    hub: Hub, call: Command, checkpoint: Path, tmp_path: Path, action: int | str
) -> None:
    push(call, checkpoint, "--create")
    out = tmp_path / "new" / "out"
    hub.fail("GET", r"/resolve/.*tokenizer\.json$", action)
    assert "what was received is not fetched again" in error_of(call("pull", REPO, "--out", out, code=1))
    assert not out.exists()
    hub.faults.clear()
    asked = len(hub.requests)
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    again = [path for method, path in hub.requests[asked:] if method == "GET" and "/resolve/" in path]
    assert len(again) < len(whole(checkpoint))  # some were there
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_refusals_of_the_hub_are_clear(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    missing = f"there is no model {REPO} on {hub.url} that this token may see"
    assert f"{missing}; --create makes it" in error_of(push(call, checkpoint, code=1))
    pull = ("pull", REPO, "--out", tmp_path / "x")
    assert error_of(call(*pull, code=1)).endswith(missing)
    hub.create(REPO, "model")
    assert f"{REPO} is public" in error_of(push(call, checkpoint, "--private", code=1))
    assert f"{hub.url} refuses the token" in error_of(call(*pull, token="hf_wrong", code=1))
    hub.__exit__()
    assert f"{hub.url} cannot be reached" in error_of(call(*pull, code=1))
    assert not hub.uploads and not (tmp_path / "x").exists()


def test_a_hub_that_gives_a_path_for_a_commit_is_refused(hub: Hub, call: Command, tmp_path: Path) -> None:
    hub.create(REPO, "model").commits[-1].oid = "../../../evil"
    error = error_of(call("pull", REPO, "--out", tmp_path / "a" / "b" / "out", code=1))
    assert error.endswith(f"the hub gives {REPO} the commit '../../../evil'; expected 40 hex digits")
    assert not (tmp_path / "a").exists() and not (tmp_path / "evil").exists()


def test_what_is_not_ours_is_not_pulled(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pulled() -> str:
        error = error_of(call("pull", REPO, "--out", out, code=1))
        assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".out*"))  # nothing stays of what is refused
        return error

    hub.create(REPO, "model")
    assert f"{REPO} is no checkpoint that `push` made (no {MANIFEST})" in pulled()
    push(call, checkpoint)
    assert "Invalid rev id: v9" in error_of(call("pull", REPO, "--out", out, "--revision", "v9", code=1))
    repo = hub.repos["model", REPO]
    held = repo.commits[-1].files
    manifest = json.loads(held[MANIFEST].content)
    repo.add("by another hand", held | {"training.json": Blob(b"{}", False)})
    assert f"{REPO}: training.json is not what its manifest says" in pulled()
    for name in ("evil.py", "../../evil.json", "pytorch_model.bin"):
        entry = {"path": name, "bytes": 1, "sha256": "0" * 64}
        listed = json.dumps(manifest | {"files": [*manifest["files"], entry]}).encode()
        repo.add(name, held | {MANIFEST: Blob(listed, False)})
        assert f"its manifest names {name}, which no checkpoint of ours holds" in pulled()
    # A listed name is no pattern.
    stars = {"files": [*manifest["files"], {"path": "*.json", "bytes": 1, "sha256": "0" * 64}]}
    more = {MANIFEST: Blob(json.dumps(manifest | stars).encode(), False), "other.json": Blob(b"{}", False)}
    repo.add("more", held | more)
    assert "(*.json is missing)" in pulled()
    assert not [path for _, path in hub.requests if path.endswith("other.json")]
    repo.add("a release's", held | {MANIFEST: Blob(b'{"name": "dureader_retrieval"}', False)})
    assert "is no checkpoint that `push` made" in pulled()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    assert "exists and is not a checkpoint" in error_of(call("pull", REPO, "--out", tmp_path / "mine", code=1))
    assert (tmp_path / "mine" / "file").read_text() == "x"
