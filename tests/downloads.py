"""The published archive on a loopback server, and what loading it there gives: fixtures of the tests of downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from archive_server import ArchiveServer, archive, serve

import dureader_retrieval

Load = Callable[..., Any]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    """A server of the tiny archive in the place of the published one, of which no checksum is known."""
    unknown = {**dureader_retrieval.ARCHIVE, "bytes": None, "md5": None, "sha256": None}
    monkeypatch.setattr(dureader_retrieval, "ARCHIVE", unknown)
    monkeypatch.setattr(dureader_retrieval, "_PAUSE", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serve(archive()) as server:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", server.url)
        yield server


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "downloads"
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", folder)
    return folder


@pytest.fixture
def load(server: ArchiveServer, downloads: Path, tmp_path: Path) -> Load:
    return lambda *args, **kwargs: dureader_retrieval.load_dataset(*args, cache_dir=tmp_path / "cache", **kwargs)


def left(downloads: Path) -> set[str]:
    """The kinds of files that are kept: the archive, what arrived of one (part), what is known of it (json)."""
    names = [path.name for path in downloads.iterdir() if path.suffix != ".lock"]
    return {name.rpartition(".v0.tar.gz")[2] or "archive" for name in names}


def starts(server: ArchiveServer) -> list[int]:
    return [request.start for request in server.requests]


def fails(load: Load, config: str = "dev", **kwargs: Any) -> str:
    """The one line that loading fails with."""
    with pytest.raises(ValueError) as error:
        list(load(config, config if config in ("corpus", "dev") else None, **kwargs))
    assert "\n" not in str(error.value)
    return str(error.value)
