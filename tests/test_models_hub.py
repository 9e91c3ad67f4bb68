"""Hub models for encode, search and rerank are pinned to a commit. An unreachable hub is reported at once."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import Done, error_of, run
from hub_server import Hub
from huggingface_hub import constants
from releases import QUESTIONS, TEXTS, make_release, md5
from tiny_hub import publish
from tiny_models import write_bert, write_dual

from baselines.retrieve.hub_models import model_commit
from baselines.retrieve.index import open_vectors
from baselines.retrieve.models import opening
from builders.core.errors import InputError


@pytest.fixture
def release(tmp_path: Path, own_cache: None) -> Path:
    model_commit.cache_clear()
    return make_release(tmp_path / "release")


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("baselines.retrieve.hub_models._ANSWER", 0.3)
        yield address


def test_without_a_hub_every_command_says_so_in_one_line(tmp_path: Path, release: Path, silent: str) -> None:
    run("baselines", "encode", "--release", release, "--model", write_dual(tmp_path / "m"), "--out", tmp_path / "p")
    ranking = tmp_path / "a.run"
    query, answer = md5(QUESTIONS["train"][0]), md5(TEXTS[0])
    ranking.write_text(f"{query} Q0 {answer} 1 1.0 t\n")
    common = ["--release", release, "--split", "train", "--out", tmp_path / "out"]
    for words in (
        ["encode", *common, "--queries", "--model", "org/name"],
        ["search", *common, "--passages", tmp_path / "p", "--model", "org/name"],
        ["rerank", *common, "--run", ranking, "--model", "org/name"],
        ["mine", *common, "--run", ranking, "--cross-encoder", "org/name", "--margin", "1"],
    ):
        started = time.monotonic()
        line = error_of(run("baselines", *words, code=1))
        assert time.monotonic() - started < 15
        assert line.startswith(f"error: the model org/name would come from the hub: {silent} cannot be reached")
        assert line.endswith("; set HF_ENDPOINT to use a mirror or another hub; a directory needs no hub")
        assert not (tmp_path / "out").exists()


def test_a_hub_model_is_pinned_to_a_commit(tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]) -> None:
    first = publish(hub, "org/bert", write_bert(tmp_path / "first"))
    second = publish(hub, "org/bert", write_bert(tmp_path / "second", seed=1))
    options = ["encode", "--release", release]
    for name, words, commit in (("second", [], second), ("first", ["--revision", first.oid], first)):
        model_commit.cache_clear()
        out, own = tmp_path / f"of-{name}", tmp_path / f"own-{name}"
        call(*options, "--model", "org/bert", "--out", out, *words)
        run("baselines", *options, "--model", tmp_path / name, "--out", own)
        told = json.loads((out / "manifest.json").read_text())["model"]
        assert (told["name"], told["commit"]) == ("org/bert", commit.oid)
        np.testing.assert_array_equal(open_vectors(out).all(), open_vectors(own).all())
    assert "commit" not in open_vectors(own).manifest["model"]  # a directory has no commit
    queries = ["--model", "org/bert", "--passages", out, "--out", tmp_path / "a.run", "--split", "train"]
    call("search", "--release", release, *queries, "--revision", first.oid)
    model_commit.cache_clear()
    wrong = call("search", "--release", release, *queries, "--revision", second.oid, code=1)
    assert "is not the model that encoded" in wrong.stderr


def test_a_path_as_a_commit_is_refused(tmp_path: Path, release: Path, hub: Hub, call: Callable[..., Done]) -> None:
    publish(hub, "org/bert", write_bert(tmp_path / "bert")).oid = "../../../evil"
    done = call("encode", "--release", release, "--model", "org/bert", "--out", tmp_path / "out", code=1)
    assert "the hub gives org/bert the commit '../../../evil'; expected 40 hex digits; set HF_ENDPOINT" in done.stderr
    assert not [path for path in tmp_path.rglob("evil*")]


def test_a_download_that_fails_while_a_model_is_opened_names_the_variable() -> None:
    with pytest.raises(InputError, match="set HF_ENDPOINT"), opening("org/name: cannot be opened"):
        raise OSError(f"We couldn't connect to {constants.ENDPOINT!r} to load the files")
