"""A training whose start would come from the hub: asked for once, and said at once where it cannot be reached."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import process
from releases import make_release

from baselines.checkpoint import weights_sha256
from baselines.retrieve.hub_models import model_commit
from builders.core.errors import InputError

hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def closed() -> str:
    """The address of a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("server", ["closed", "silent"])
def test_without_a_hub_it_takes_seconds_to_say_what_else_to_start_from(
    tmp_path: Path, request: pytest.FixtureRequest, server: str
) -> None:
    address = request.getfixturevalue(server)
    words = ["--release", make_release(tmp_path / "release"), "--out", tmp_path / "out"]
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": ""}
    started = time.monotonic()
    done = process(
        *("baselines", "train", "de-bm25-neg", *words, "--set", "data.negatives_per_positive=0"), code=1, **environment
    )
    assert time.monotonic() - started < 15
    assert done.error.startswith("the model nghuyong/ernie-1.0-base-zh would come from the hub: ")
    assert f"{address} cannot be reached" in done.error
    assert done.error.endswith("--start DIR, or the recipe de-bm25-neg-scratch, needs no hub")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The commit of org/cached that the libraries' cache holds; beside it, a hub that does not answer."""

    def refuse(*_: object, **__: object) -> None:
        raise InputError("there is no hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    snapshot = tmp_path / "cache" / "models--org--cached" / "snapshots" / ("a1" * 20)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text(snapshot.name)
    model_commit.cache_clear()
    return snapshot.name


def test_without_a_hub_the_start_is_the_commit_in_the_cache(cached: str, caplog: pytest.LogCaptureFixture) -> None:
    assert model_commit("org/cached", "", "do without") == cached
    assert f"there is no hub; do without; the cache has the commit {cached}" in caplog.text
    with pytest.raises(InputError, match=r"org/name would come from the hub: there is no hub; do without"):
        model_commit("org/name", "", "do without")


def test_offline_the_hub_is_not_asked(cached: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("the hub was asked"))
    assert model_commit("org/cached", "", "do without") == cached
    with pytest.raises(InputError, match=r"org/name is not in the cache, and HF_HUB_OFFLINE is set; do without"):
        model_commit("org/name", "", "do without")


def test_a_folder_has_no_commit_and_a_commit_is_itself(
    cached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model_commit(str(tmp_path), "", "do without") is None
    assert model_commit("org/name", "b2" * 20, "do without") == "b2" * 20
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"'no/such/folder' is neither a folder nor the name of a model on the hub"):
        model_commit("no/such/folder", "", "do without")


def test_a_hub_whose_name_is_never_found_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.retrieve.hub_models._PATIENCE", 0.05)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: time.sleep(2))
    with pytest.raises(InputError, match=r"cannot be reached \(no answer in 0 s\); do without"):
        model_commit("org/never", "", "do without")


def test_the_weights_of_a_folder_are_known_by_their_bytes(tmp_path: Path) -> None:
    assert weights_sha256(tmp_path) is None
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    one = hashlib.sha256(b"weights").hexdigest()
    assert weights_sha256(tmp_path) == one
    (tmp_path / "1_Dense").mkdir()
    (tmp_path / "1_Dense" / "model.safetensors").write_bytes(b"more")
    assert weights_sha256(tmp_path) not in (one, None)
