"""``publish`` into a loopback hub, and what readers get from there with no code of this project."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, Done, command, run
from hub_client import error_of, run_at
from hub_repos import READ, WRITE, Blob
from hub_server import Hub
from whole_release import make_whole, whole_tables

from builders.stats.histograms import draw
from builders.store.layout import MANIFEST
from builders.store.reader import open_release
from builders.store.table3 import LengthCounter

REPO = "org/name"
Publish = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def release(whole_copy: Path) -> Path:
    return whole_copy


_DRAWN: dict[bytes, dict[str, bytes]] = {}


@pytest.fixture(autouse=True)
def _equal_figures_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of a publication this small."""

    def drawn(*counted: dict[str, LengthCounter]) -> dict[str, bytes]:
        key = pickle.dumps(counted)
        if key not in _DRAWN:
            _DRAWN[key] = draw(*counted)
        return _DRAWN[key]

    monkeypatch.setattr("builders.publish.upload.draw", drawn)


@pytest.fixture
def publish(hub: Hub, release: Path, tmp_path: Path) -> Publish:
    """``publish(*options)``: run the command, which must exit with ``code``."""

    def run(*more: str, token: str | None = WRITE, path: Path = release, code: int = 0) -> Done:
        words = ["publish", "--release", path, "--repo", REPO, *more]
        return run_at(hub, tmp_path / "home", "builders", *words, token=token, code=code)

    return run


def listed(hub: Hub) -> dict[str, bytes]:
    return hub.repos["dataset", REPO].files


def load(hub: Hub, home: Path, how: str, interpreter: Path | str = sys.executable) -> Any:
    """Every config of the published release, as rows, by another process that has only ``datasets``."""
    code = f"""
import datasets, json, os, sys
names = datasets.get_dataset_config_names({REPO!r})
loaded = {{name: datasets.load_dataset({REPO!r}, name, {how}) for name in names}}
print(json.dumps({{name: {{split: list(rows) for split, rows in found.items()}} for name, found in loaded.items()}}))
sys.stdout.flush()
os._exit(0)  # an interpreter of 3.6 that has streamed Parquet can abort while it shuts down
"""
    environment = hub.environment(home, None)
    environment.pop("PYTHONPATH", None)
    home.mkdir(exist_ok=True)
    result = subprocess.run(
        [interpreter, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    return {(config, split): rows for config, splits in found.items() for split, rows in splits.items()}


def test_a_release_is_one_commit_and_loads_everywhere(hub: Hub, publish: Publish, tmp_path: Path) -> None:
    result = publish("--create")
    repo = hub.repos["dataset", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "Release"]
    assert result.stdout.strip().endswith(f"/datasets/{REPO}/commit/{repo.commits[-1].oid}")
    assert not repo.private
    assert load(hub, tmp_path / "plain", "") == whole_tables()
    assert load(hub, tmp_path / "streaming", "streaming=True") == whole_tables()


@pytest.mark.parametrize("how", ["streaming=True", ""], ids=["streaming", "plain"])
def test_it_loads_on_datasets_36(
    hub: Hub,
    publish: Publish,
    tmp_path: Path,
    datasets36: Path,
    how: str,
) -> None:
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
    # It can be published on: nothing is new then.
    publish(path=copy)
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_the_card_says_what_a_reader_needs(hub: Hub, publish: Publish) -> None:
    publish("--create")
    files = listed(hub)
    card = files["README.md"].decode()
    for needed in (
        f'load_dataset("{REPO}", "dev")',
        "Apache License 2.0",
        "non-commercial",
        "@inproceedings{qiu-etal-2022-dureader",
        "| `dev` | dev | 2 | 1 |",
        "| positive passages | 4 | 2 | - | 2 | 1 |",
        "`test` with size = tiny",
        "![passage length](assets/passage-length.png)",
        "![positives per query](assets/positives-per-query.png)",
        "| characters a passage | corpus | cmedqa-corpus | ccovid-corpus |",
        "| 2 | 0 (0.0%) | 0 (0.0%) | 1 (100.0%) | 0 (0.0%) |",
        "- apache-2.0\n- other\n",
        "- zh\n- en\n",
    ):
        assert needed in card
    for name in ("passage-length", "positives-per-query"):
        assert files[f"assets/{name}.png"].startswith(b"\x89PNG")


def test_a_new_release_replaces_the_old_one_in_one_commit(
    hub: Hub, publish: Publish, release: Path, tmp_path: Path
) -> None:
    hub.create(REPO).commits[-1].files["NOTES.md"] = Blob(b"mine", False)
    publish()
    before, sent = set(listed(hub)), len(hub.uploads)
    assert {"NOTES.md", "cmedqa-qrels/train-00000-of-00001.parquet"} < before

    def fewer(rows: dict[tuple[str, str], Any]) -> None:
        for key in [key for key in rows if key[0].startswith(("cmedqa-", "crosslingual"))]:
            del rows[key]

    make_whole(release, fewer)
    result = publish()
    repo = hub.repos["dataset", REPO]
    assert len(repo.commits) == 3
    gone = before - set(repo.files)
    assert gone and all(name.startswith(("cmedqa-", "crosslingual")) for name in gone)
    assert repo.files["NOTES.md"] == b"mine"
    assert "keeps 1 files that are not ours: NOTES.md" in result.stderr
    assert len(hub.uploads) == sent  # the Parquet files that are left have not changed
    expected = whole_tables()
    fewer(expected)
    assert load(hub, tmp_path / "reader", "") == expected


@pytest.mark.parametrize("action", ["break", 503])
def test_an_interrupted_upload_is_resumed(hub: Hub, publish: Publish, release: Path, action: int | str) -> None:
    hub.fail("PUT", "^/lfs/", action, skip=7)
    hub.create(REPO)
    error = error_of(publish(code=1))
    assert "what was received is not sent again" in error
    assert ("status 503, also after retries" in error) == (action == 503)
    first = list(hub.uploads)
    assert len(first) == 7
    assert len(hub.repos["dataset", REPO].commits) == 1  # nothing that a reader would see
    hub.faults.clear()
    publish()
    shards = {e.sha256 for e in open_release(release).manifest.files if e.path.endswith(".parquet")}
    assert sorted(hub.uploads) == sorted(shards)  # each object once, in the two runs together
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_killed_upload_is_resumed(hub: Hub, release: Path, tmp_path: Path) -> None:
    hub.create(REPO)
    hub.fail("PUT", "^/lfs/", 503, skip=3)
    words = command("builders", "publish", "--release", release, "--repo", REPO)
    environment = hub.environment(tmp_path / "home")
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)
    while len(hub.uploads) < 3:  # the library is waiting to try the others again
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(hub.repos["dataset", REPO].commits) == 1
    hub.faults.clear()
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert len(hub.uploads) == len(set(hub.uploads))
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_short_failure_is_retried(hub: Hub, publish: Publish) -> None:
    hub.create(REPO)
    hub.fail("PUT", "^/lfs/", 503, times=2)
    hub.fail("POST", "/preupload/", "break", times=1)
    publish()
    assert len(hub.repos["dataset", REPO].commits) == 2


def test_a_lost_answer_leaves_one_commit(hub: Hub, publish: Publish) -> None:
    hub.create(REPO)
    hub.fail("POST", "/commit/", "lose", times=1)
    assert "cannot be reached, or broke the connection" in error_of(publish(code=1))
    publish()
    assert len(hub.repos["dataset", REPO].commits) == 2


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
    del environment["HF_HUB_DISABLE_XET"]
    words = command("builders", "publish", "--release", release, "--repo", REPO)
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "HF_HUB_DISABLE_XET=1" in error_of(Done(result.returncode, result.stdout, result.stderr))


def test_a_hub_that_is_not_there(hub: Hub, publish: Publish) -> None:
    hub.__exit__()
    assert f"{hub.url} cannot be reached" in error_of(publish(code=1))


def test_a_private_repository(hub: Hub, publish: Publish) -> None:
    publish("--create", "--private")
    assert hub.repos["dataset", REPO].private
    assert "that this token may see" in error_of(publish(token=READ, code=1))


def test_another_commit_in_the_meantime_is_not_undone(hub: Hub, publish: Publish) -> None:
    repo = hub.create(REPO)
    hub.fail("POST", "/commit/", 412, times=1)
    assert "another commit in the meantime" in error_of(publish(code=1))
    assert len(repo.commits) == 1


def test_a_repository_with_a_script_is_refused(hub: Hub, publish: Publish) -> None:
    hub.create(REPO).commits[-1].files["name.py"] = Blob(b"", False)
    assert f"{REPO} holds name.py" in error_of(publish(code=1))


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
    assert "fails `check`" in error and "queries-without-positives in qrels/dev" in error
    assert not hub.requests
    publish("--create", "--accept", "queries-without-positives", "joined-rows", "dangling-ids")


def test_a_missing_release_and_a_wrong_name(publish: Publish, tmp_path: Path) -> None:
    assert "not a release directory" in error_of(publish(path=tmp_path / "nowhere", code=1))
    assert "expected ORG/NAME" in publish("--repo", "just-a-name", code=2).stderr


def test_the_hub_serves_models_too(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    code = f"""
import huggingface_hub as h
h.create_repo("org/model")
h.upload_folder(repo_id="org/model", folder_path={str(folder)!r})
print(h.snapshot_download("org/model"))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=hub.environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    copy = Path(result.stdout.strip())
    assert {path.name for path in copy.iterdir()} == {".gitattributes", "config.json", "model.safetensors"}
    assert (copy / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
