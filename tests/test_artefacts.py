"""``artefacts`` over a loopback hub: what goes there, what comes back, what is refused, what goes on where it broke."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Done
from hub_client import error_of
from hub_repos import Blob
from hub_server import Answer, Hub
from huggingface_hub import constants
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.vectors.embeddings import FORMAT, MANIFEST, NAME, chunk_name, longest
from builders.common.files import sha256_of
from builders.store.reader import open_release
from builders.store.runs import write_run

REPO = "org/artefacts"
Call = Callable[..., Done]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", tables())


def embeddings(folder: Path, release: Path, dim: int = 4) -> Path:
    """Embeddings of the release's six passages, in two chunks."""
    folder.mkdir()
    chunks = []
    for number in range(2):
        rows = np.random.default_rng(number).normal(size=(3, dim)).astype(np.float16)
        path = folder / chunk_name("passages", number, 2)
        np.save(path, rows)
        chunks.append({"path": path.name, "rows": 3, "bytes": path.stat().st_size, "sha256": sha256_of(path)})
        chunks[-1]["longest"] = longest(rows)
    fingerprint = open_release(release).fingerprint("corpus", "corpus")
    about = {"name": NAME, "format": FORMAT, "of": "passages", "config": "corpus", "split": "corpus", "dim": dim}
    about |= {"fingerprint": fingerprint, "model": {"name": "org/m", "fingerprint": "11", "commit": "c" * 40}}
    (folder / MANIFEST).write_text(json.dumps(about | {"dtype": "float16", "shards": chunks}))
    return folder


def a_run(path: Path, passages: tuple[int, ...] = (4, 5)) -> Path:
    write_run(path, [(md5(query), [(md5(TEXTS[n]), 1.0 / n) for n in passages]) for query in QUESTIONS["dev"]])
    return path


def mined(path: Path) -> Path:
    rows = [{"query-id": md5(query), "negative-ids": [md5(TEXTS[5])]} for query in QUESTIONS["train"]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def held(hub: Hub) -> dict[str, bytes]:
    return hub.repos["dataset", REPO].files


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir()}


def test_artefacts_come_back_as_they_went(hub: Hub, call: Call, release: Path, tmp_path: Path) -> None:
    vectors, run = embeddings(tmp_path / "de.passages", release), a_run(tmp_path / "de.dev.run.gz")
    run.with_name("de.dev.run.gz.manifest.json").write_text('{"name": "dureader_retrieval run"}')
    negatives = mined(tmp_path / "de.jsonl")
    of = ["--release", release]
    done = call("artefacts", "push", "--repo", REPO, "--create", *of, vectors, run, negatives)
    assert done.stdout.strip().endswith(f"/commit/{hub.repos['dataset', REPO].commits[-1].oid}")
    listed = {
        each["name"]: each["about"] for each in json.loads(call("artefacts", "list", REPO, "--format", "json").stdout)
    }
    assert listed == {
        "embeddings/de.passages": {"model": "org/m at cccccccc", "of": "passages of corpus/corpus", "size": "6 x 4"},
        "negatives/de.jsonl": {"of": "main train", "size": "4 queries, 4 negatives"},
        "runs/de.dev.run.gz": {"of": "main dev", "size": "2 queries, top 2"},
    }
    assert "| `runs/de.dev.run.gz` | main dev | 2 queries, top 2 |" in held(hub)["README.md"].decode()
    out = tmp_path / "back"
    for name, place in (
        ("embeddings/de.passages", out / "de"),
        ("runs/de.dev.run.gz", out / "a.run.gz"),
        ("negatives/de.jsonl", out / "n.jsonl"),
    ):
        place.parent.mkdir(exist_ok=True)
        call("artefacts", "pull", REPO, name, "--out", place, *of)
    assert contents(out / "de") == contents(vectors)
    assert (out / "a.run.gz").read_bytes() == run.read_bytes() and (
        out / "n.jsonl"
    ).read_text() == negatives.read_text()
    assert (out / "a.run.gz.manifest.json").is_file()
    assert {each.name for each in out.iterdir()} == {"de", "a.run.gz", "a.run.gz.manifest.json", "n.jsonl"}


def test_a_push_adds_to_what_is_there_and_replaces_what_has_the_same_name(
    hub: Hub, call: Call, release: Path, tmp_path: Path
) -> None:
    push = ["artefacts", "push", "--repo", REPO, "--release", release]
    call(*push, "--create", embeddings(tmp_path / "de", release), a_run(tmp_path / "de.run"))
    sent = len(hub.uploads)
    (tmp_path / "de.run").unlink()
    call(*push, a_run(tmp_path / "de.run", (1, 2, 3)), a_run(tmp_path / "ce.run"))
    assert {name for name in held(hub) if name.startswith("runs/")} == {"runs/de.run", "runs/ce.run"}
    assert held(hub)["runs/de.run"] == (tmp_path / "de.run").read_bytes()
    names = [line.split()[0] for line in call("artefacts", "list", REPO).stdout.splitlines()]
    assert names[-3:] == ["embeddings/de", "runs/ce.run", "runs/de.run"]
    assert len(hub.uploads) == sent  # nothing large is new


def test_what_is_not_of_the_release_is_neither_pushed_nor_pulled(
    hub: Hub, call: Call, release: Path, tmp_path: Path
) -> None:
    other = make_release(tmp_path / "other", tables([*TEXTS[:-1], "手机进水后先关机，再擦干。"]))
    push = ["artefacts", "push", "--repo", REPO, "--create", "--release"]
    vectors, run = embeddings(tmp_path / "de", release), a_run(tmp_path / "de.run")
    assert "was encoded from another release" in error_of(call(*push, other, vectors, code=1))
    assert f"corpus has no passage '{md5(TEXTS[5])}'" in error_of(call(*push, other, run, code=1))
    run.write_text(f"q Q0 {md5(TEXTS[0])} 1 1.0 x\n")
    assert "no split of queries has all of its queries; 'q' is missing" in error_of(call(*push, release, run, code=1))
    assert "two of them would be embeddings/de" in error_of(call(*push, release, vectors, vectors, code=1))
    (vectors / chunk_name("passages", 1, 2)).write_bytes(b"x")
    assert "encode it again" in error_of(call(*push, release, vectors, code=1))
    assert not hub.requests
    call(*push, release, a_run(tmp_path / "ok.run"))
    pull = ["artefacts", "pull", REPO, "runs/ok.run", "--out", tmp_path / "out"]
    assert f"is of another release: corpus/corpus of {other}" in error_of(call(*pull, "--release", other, code=1))
    pull[3] = "runs/no.run"
    assert f"{REPO} has no artefact runs/no.run; it has runs/ok.run" in error_of(call(*pull, code=1))
    assert not (tmp_path / "out").exists()


def test_a_broken_download_goes_on(hub: Hub, call: Call, release: Path, tmp_path: Path) -> None:
    vectors = embeddings(tmp_path / "de", release, dim=1_000)
    call("artefacts", "push", "--repo", REPO, "--create", "--release", release, vectors)
    first, second = (chunk_name("passages", number, 2) for number in range(2))
    size = (vectors / first).stat().st_size
    asked: list[tuple[str, int, int]] = []

    def broken(method: str, path: str, given: Answer) -> Answer:
        constants.DOWNLOAD_CHUNK_SIZE = 100  # of 10 MB, which is what the library keeps of a broken answer
        status, content, headers = given
        if method == "GET" and path.endswith(".npy"):
            asked.append((path.rsplit("/", 1)[1], status, len(content)))
            if path.endswith(second):
                return 503, b"", {}
            if status == 200:
                return status, content[:1_000], {**headers, "Content-Length": str(len(content))}
        return given

    pull = ["artefacts", "pull", REPO, "embeddings/de", "--out", tmp_path / "back" / "de"]
    hub.answer = broken
    assert "what was received is not fetched again" in error_of(call(*pull, code=1))
    assert not (tmp_path / "back" / "de").exists()
    assert [each for each in asked if each[0] == first] == [(first, 200, size), (first, 206, size - 1_000)]
    hub.answer = None
    before = len(hub.requests)
    call(*pull)
    assert contents(tmp_path / "back" / "de") == contents(vectors)
    again = [path for method, path in hub.requests[before:] if method == "GET" and path.endswith(".npy")]
    assert len(again) == 1 and again[0].endswith(second)


def test_a_damaged_artefact_and_a_repository_of_something_else_are_refused(
    hub: Hub, call: Call, release: Path, tmp_path: Path
) -> None:
    push = ["artefacts", "push", "--repo", REPO, "--release", release, a_run(tmp_path / "de.run")]
    pull = ["artefacts", "pull", REPO, "runs/de.run", "--out", tmp_path / "out"]
    assert f"there is no dataset {REPO}" in error_of(call(*push, code=1))
    assert f"there is no dataset {REPO}" in error_of(call(*pull, code=1))
    repo = hub.create(REPO)
    assert f"{REPO} holds no artefacts that `artefacts push` put there (no manifest.json)" in error_of(
        call("artefacts", "list", REPO, code=1)
    )
    repo.add("a release", repo.commits[-1].files | {MANIFEST: Blob(b'{"name": "dureader_retrieval"}', False)})
    assert f"{REPO} holds something else" in error_of(call(*push, code=1))
    repo.add("nothing", {})
    call(*push)
    files = repo.commits[-1].files
    repo.add("by another hand", files | {"runs/de.run": Blob(b"q Q0 d 1 1.0 x\n", False)})
    assert "runs/de.run is not what its manifest says, fetched twice" in error_of(call(*pull, code=1))
    manifest = json.loads(files[MANIFEST].content)
    for path in ("../evil", "runs/evil.py", "/tmp/evil"):
        manifest["artefacts"][0]["paths"] = [path]
        manifest["files"][0]["path"] = path
        repo.add(path, files | {MANIFEST: Blob(json.dumps(manifest).encode(), False)})
        assert "holds no artefacts that `artefacts push` put there" in error_of(call(*pull, code=1))
    assert not (tmp_path / "out").exists() and not list(tmp_path.rglob("*evil*"))


def test_a_commit_in_the_meantime_is_not_undone(hub: Hub, call: Call, release: Path, tmp_path: Path) -> None:
    repo = hub.create(REPO)

    def theirs(_: str, path: str, given: Answer) -> Answer:
        if "whoami" in path:  # asked when the list of what is there has been read
            repo.add("theirs", {})
        return given

    hub.answer = theirs
    push = ["artefacts", "push", "--repo", REPO, "--release", release, a_run(tmp_path / "de.run")]
    assert f"{REPO} has got another commit in the meantime; run the same command" in error_of(call(*push, code=1))
    assert repo.commits[-1].message == "theirs"
