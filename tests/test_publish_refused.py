"""Refusals of ``publish``, and of a hub: one clear error, and nothing that a reader would see."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, command
from hub_client import error_of
from hub_repos import READ, Blob
from hub_server import Hub
from huggingface_hub import HfApi
from publishing import REPO, Publish, _equal_figures_are_drawn_once, hub, publish, release  # noqa: F401
from whole_release import make_whole

from builders.store.layout import MANIFEST


def test_refusals_of_the_hub_are_clear(hub: Hub, publish: Publish) -> None:
    error = error_of(publish(code=1))
    assert f"there is no dataset {REPO} on {hub.url} that this token may see; --create makes it" in error
    hub.create(REPO)
    assert f"{hub.url} refuses the token" in error_of(publish(token="hf_wrong", code=1))
    assert "no token" in error_of(publish(token=None, code=1))
    assert f"no right to write to {REPO}" in error_of(publish(token=READ, code=1))
    assert "is public" in error_of(publish("--private", code=1))
    del hub.repos["dataset", REPO]
    assert "no right to write" in error_of(publish("--create", token=READ, code=1))
    assert not hub.uploads


def test_a_hub_without_xet_storage(hub: Hub, release: Path, tmp_path: Path) -> None:
    pytest.importorskip("hf_xet")
    hub.create(REPO)
    environment = hub.environment(tmp_path / "home")
    del environment["HF_HUB_DISABLE_XET"], environment["SSL_CERT_DIR"]  # its client does not start without certificates
    words = command("builders", "publish", "--release", release, "--repo", REPO)
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "HF_HUB_DISABLE_XET=1" in error_of(Done(result.returncode, result.stdout, result.stderr))


def test_another_commit_in_the_meantime_is_not_undone(hub: Hub, publish: Publish) -> None:
    repo = hub.create(REPO)
    hub.fail("POST", "/commit/", 412, times=1)
    assert "another commit in the meantime" in error_of(publish(code=1))
    assert len(repo.commits) == 1


def test_a_repository_with_a_script_is_refused(hub: Hub, publish: Publish) -> None:
    hub.create(REPO).commits[-1].files["name.py"] = Blob(b"", False)
    assert f"{REPO} holds name.py" in error_of(publish(code=1))


@pytest.mark.parametrize("name", ["corpus/corpus-00000-of-00001.parquet", "qrels/dev-00000-of-00001.parquet"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_shard_that_changes_while_it_is_uploaded_is_noticed(
    hub: Hub, publish: Publish, release: Path, monkeypatch: pytest.MonkeyPatch, name: str, gone: bool
) -> None:
    repo, file, send = hub.create(REPO), release / name, HfApi.preupload_lfs_files

    def change(*args: Any, **given: Any) -> None:
        send(*args, **given)
        file.unlink() if gone else file.write_bytes(file.read_bytes()[::-1])

    monkeypatch.setattr(HfApi, "preupload_lfs_files", change)
    assert f"{file}: has changed since the upload began" in error_of(publish(code=1))
    assert len(repo.commits) == 1


@pytest.mark.parametrize("name", ["dureader_retrieval.py", "corpus/corpus.lock", "notes.txt", ".hidden"])
def test_a_release_with_another_file_is_refused(hub: Hub, publish: Publish, release: Path, name: str) -> None:
    (release / name).write_text("x")
    assert name in error_of(publish("--create", code=1))
    assert not hub.requests


def test_a_script_in_the_manifest_is_refused(hub: Hub, publish: Publish, release: Path) -> None:
    (release / "run.py").write_text("")
    manifest = json.loads((release / MANIFEST).read_text())
    manifest["files"].append({"path": "run.py", "bytes": 0, "rows": None, "sha256": "e3b0c442" * 8})
    (release / MANIFEST).write_text(json.dumps(manifest))
    assert "run.py; no .py and no .lock file" in error_of(publish("--create", code=1))


def test_a_release_that_fails_check_is_refused(hub: Hub, publish: Publish, release: Path) -> None:
    make_whole(release, lambda rows: rows["qrels", "dev"].pop())
    error = error_of(publish("--create", code=1))
    assert "fails `check`" in error and "joined-rows" in error  # a warning says that a query has lost its only positive
    assert not hub.requests
    publish("--create", "--accept", "joined-rows", "dangling-ids")
