"""``publish`` to a loopback hub: readers without this project's code, and errors."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, command, run
from hub_client import error_of
from hub_repos import READ, Blob
from hub_server import Hub
from huggingface_hub import HfApi
from publishing import REPO, Publish, _equal_figures_are_drawn_once, hub, listed, load, publish, release  # noqa: F401
from whole_release import make_whole, whole_tables


def test_a_release_is_one_commit_and_loads_everywhere(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    result = publish("--create")
    repo = hub.repos["dataset", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "Release"]
    assert result.stdout.strip().endswith(f"/datasets/{REPO}/commit/{repo.commits[-1].oid}")
    assert load(hub, tmp_path / "plain", "") == whole_tables()
    assert load(hub, tmp_path / "streaming", "streaming=True") == whole_tables()


def test_a_config_has_the_same_splits_by_name_by_path_and_from_a_hub(
    hub: Hub, publish: Publish, release: Path, tmp_path: Path
) -> None:
    publish("--create")
    code = f"""
import datasets, dureader_retrieval, json, os, sys
ways = [("dureader_retrieval", {{"data_dir": {str(release)!r}}}), ({str(release)!r}, {{}}), ({REPO!r}, {{}})]
names = datasets.get_dataset_config_names({REPO!r})
print(json.dumps([
    {{name: [[split, [*rows]] for split, rows in datasets.load_dataset(path, name, **more).items()] for name in names}}
    for path, more in ways
]))
sys.stdout.flush()
os._exit(0)
"""
    environment = hub.environment(tmp_path / "loads", None) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    by_name, by_path, from_hub = json.loads(done.stdout.splitlines()[-1])
    assert by_name == by_path == from_hub and by_name.keys() == {config for config, _ in whole_tables()}
    assert [split for split, _ in by_name["queries"]] == ["queries", "train", "dev", "test"]


@pytest.mark.parametrize("how", ["streaming=True", ""], ids=["streaming", "plain"])
def test_it_loads_on_datasets_36(hub: Hub, publish: Publish, tmp_path: Path, datasets36: Path, how: str) -> None:
    publish("--create")
    assert load(hub, tmp_path / "36", how, datasets36) == whole_tables()


def test_what_is_published_is_a_release_that_passes_check(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    publish("--create")
    copy = tmp_path / "copy"
    for name, content in listed(hub).items():
        if name != ".gitattributes":
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
    found = run("builders", "check", "--release", copy, "--format", "json")
    counts = {test["test"]: test["count"] for test in json.loads(found.stdout)["tests"]}
    assert counts.pop("split-sizes") and not any(counts.values())
    publish(path=copy)
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_new_release_replaces_the_old_one_in_one_commit(
    hub: Hub, publish: Publish, release: Path, tmp_path: Path
) -> None:
    hub.create(REPO).commits[-1].files["NOTES.md"] = Blob(b"mine", False)
    publish()
    sent = len(hub.uploads)

    def fewer(rows: dict[tuple[str, str], Any]) -> None:
        for key in [key for key in rows if key[0].startswith(("cmedqa-", "crosslingual"))]:
            del rows[key]

    make_whole(release, fewer)
    result = publish()
    repo = hub.repos["dataset", REPO]
    assert len(repo.commits) == 3
    assert repo.files["NOTES.md"] == b"mine" and "keeps 1 foreign files: NOTES.md" in result.stderr
    assert len(hub.uploads) == sent  # the remaining Parquet files are unchanged
    expected = whole_tables()
    fewer(expected)
    assert load(hub, tmp_path / "reader", "") == expected


def test_a_killed_upload_is_resumed(hub: Hub, release: Path, tmp_path: Path) -> None:
    hub.create(REPO)
    hub.fail("PUT", "^/lfs/", 503, skip=3)
    words = command("builders", "publish", "--release", release, "--repo", REPO)
    environment = hub.environment(tmp_path / "home")
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    while len(hub.uploads) < 3:  # the library waits before retrying the others
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(hub.repos["dataset", REPO].commits) == 1
    hub.faults.clear()
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert len(hub.uploads) == len(set(hub.uploads))
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_lost_answer_or_anothers_commit_leaves_one_commit(hub: Hub, publish: Publish) -> None:
    repo = hub.create(REPO)
    hub.fail("POST", "/commit/", 412, times=1)
    error = error_of(publish(code=1))
    assert "another commit in the meantime" in error and "set HF_ENDPOINT" in error and len(repo.commits) == 1
    hub.fail("POST", "/commit/", "lose", times=1)
    assert "cannot be reached, or broke the connection" in error_of(publish(code=1))
    publish()
    assert len(repo.commits) == 2


def test_refusals_of_the_hub_are_clear(hub: Hub, publish: Publish) -> None:
    error = error_of(publish(code=1))
    assert f"{hub.url} has no dataset {REPO}, or the token may not read it; --create creates it; set HF_END" in error
    hub.create(REPO)
    assert f"{hub.url} refuses the token" in error_of(publish(token="hf_wrong", code=1))
    assert "HF_TOKEN; set HF_ENDPOINT" in error_of(publish(token=None, code=1))
    assert f"no permission to write to {REPO}" in error_of(publish(token=READ, code=1))
    assert "is public" in error_of(publish("--private", code=1))
    hub.repos["dataset", REPO].commits[-1].files["name.py"] = Blob(b"", False)
    assert f"{REPO} has the script name.py" in error_of(publish(code=1))
    assert not hub.uploads


@pytest.mark.parametrize("gone", [False, True])
def test_a_shard_that_changes_while_it_is_uploaded_is_noticed(
    hub: Hub, publish: Publish, release: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    repo, send = hub.create(REPO), HfApi.preupload_lfs_files
    file = release / "corpus" / "corpus-00000-of-00001.parquet"

    def change(*args: Any, **given: Any) -> None:
        send(*args, **given)
        file.unlink() if gone else file.write_bytes(file.read_bytes()[::-1])

    monkeypatch.setattr(HfApi, "preupload_lfs_files", change)
    assert f"{file}: changed during the upload" in error_of(publish(code=1))
    assert len(repo.commits) == 1


@pytest.mark.parametrize("name", ["dureader_retrieval.py", "corpus/corpus.lock", ".hidden"])
def test_a_release_with_another_file_is_refused(hub: Hub, publish: Publish, release: Path, name: str) -> None:
    (release / name).write_text("x")
    assert name in error_of(publish("--create", code=1))
    assert not hub.requests


def test_a_release_that_fails_check_is_refused(hub: Hub, publish: Publish, release: Path) -> None:
    make_whole(release, lambda rows: rows["qrels", "dev"].pop())
    error = error_of(publish("--create", code=1))
    assert "fails `check`" in error and "joined-rows" in error  # a warning says that a query has lost its only positive
    assert not hub.requests
    publish("--create", "--accept", "joined-rows", "dangling-ids")
