"""``pull`` over a loopback hub: what comes back, that it is a start, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import REPO, Command, push, whole
from hub_client import error_of
from hub_repos import Blob
from hub_server import Hub

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
