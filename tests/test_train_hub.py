"""A training whose start would come from the hub: asked for once, and said at once where it cannot be reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import process
from releases import make_release

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
