"""The published archive without ``data_dir``: downloaded once, resumed, read; against a loopback server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import datasets
import pytest
from archive_server import ROOT as FOLDER
from archive_server import ArchiveServer, archive, contents, rows_of_archive, serve
from downloads import Load, downloads, fails, left, load, server, starts  # noqa: F401
from releases import QUESTIONS

import dureader_retrieval

NAME = "dureader_retrieval"


# What is read


@pytest.mark.parametrize("by_name", [False, True], ids=["public API", "by name"])
def test_one_download_serves_every_config(load: Load, server: ArchiveServer, tmp_path: Path, by_name: bool) -> None:
    for streaming in (True, False):
        for (config, split), rows in rows_of_archive().items():
            if by_name:
                cache = str(tmp_path / "cache")
                loaded = datasets.load_dataset(NAME, config, split=split, cache_dir=cache, streaming=streaming)
            else:
                loaded = load(config, split, streaming=streaming)
            assert list(loaded) == rows
    assert starts(server) == [0]
    assert list(load("qrels")) == ["train", "dev"]
    assert datasets.get_dataset_split_names(NAME, "queries") == ["queries", "train", "dev"]


@pytest.mark.parametrize("streaming", [False, True])
def test_the_split_of_all_queries_is_those_of_its_splits(
    load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    """As by a release's card; prepared, every file of the archive is unpacked once."""
    read, reader = list[str](), dureader_retrieval._read_member
    monkeypatch.setattr(dureader_retrieval, "_read_member", lambda *given: read.append(given[0].name) or reader(*given))
    found = {split: list(rows) for split, rows in load("queries", streaming=streaming).items()}
    assert list(found) == ["queries", "train", "dev"]
    assert found["queries"] == [*found["dev"], *found["train"]]
    assert sorted(read) == sorted([f"{FOLDER}/train.json", f"{FOLDER}/dev.json"] * (1 + streaming))


def test_a_prepared_copy_needs_no_archive(
    load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = load("dev", "dev").cache_files[0]["filename"]
    next(downloads.glob("*.gz")).unlink()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    assert load("dev", "dev").cache_files[0]["filename"] == path
    assert "HF_DATASETS_OFFLINE" in fails(load, "corpus")
    assert starts(server) == [0]


def test_a_mirror_of_the_same_archive_serves_the_same_copy(
    load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = load("dev", "dev").cache_files
    with serve(server.content) as mirror:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", mirror.url.rstrip("/"))
        assert load("dev", "dev").cache_files == files
        assert starts(mirror) == [0]
    with serve(archive({f"{FOLDER}/dev.json": b""})) as other:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", other.url)
        assert list(load("dev", "dev", streaming=True)) == []


def test_processes_that_load_at_once_download_once(server: ArchiveServer, downloads: Path) -> None:
    url = dureader_retrieval._archive_url()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(dureader_retrieval._fetch(url))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert starts(server) == [0]


def test_own_features_choose_columns(load: Load) -> None:
    text = datasets.Value("string")
    row = load("queries", "dev", features=datasets.Features({"text": text}))[0]
    assert row == {"text": QUESTIONS["dev"][0]}
    with pytest.raises(ValueError, match="has no columns answer"):
        load("queries", "dev", features=datasets.Features({"answer": text}))


# What the archive lacks


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("test", r"labels were never published.*builders official"),
        ("cmedqa-corpus", r"cMedQA2.*builders add cmedqa"),
        ("ccovid-qrels", r"DataFountain.*builders add ccovid"),
        ("crosslingual", r"builders add crosslingual"),
        ("crosslingual-queries", r"builders add crosslingual"),
        ("train-similar", r"builders similar"),
        ("duplicated", r"builders similar"),
        ("qrels-before", r"builders annotate merge"),
        ("restrain-45K-extrapolation", r"builders add restrain"),
        ("resttest-bucket7", r"builders add resttest"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_the_archive_lacks_names_its_builder(
    load: Load, server: ArchiveServer, config: str, words: str, streaming: bool
) -> None:
    with pytest.raises(ValueError, match=f"lacks config '{config}'; .*{words}.*data_dir=DIR"):
        load(config, streaming=streaming)
    assert server.requests == []


@pytest.mark.parametrize("streaming", [False, True])
def test_the_test_splits_name_their_builder(load: Load, streaming: bool) -> None:
    for config in ("queries", "qrels"):
        with pytest.raises(ValueError, match=rf"lacks split 'test' of config '{config}'; .*builders official"):
            load(config, "test", streaming=streaming)


# The connection


def test_a_broken_connection_is_resumed(load: Load, server: ArchiveServer) -> None:
    server.break_after = [700, 1, 50]
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]
    assert starts(server) == [0, 700, 701, 751]


def test_a_download_that_was_given_up_goes_on_later(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.break_after = [700, 0, 0, 0, 0, 0]
    message = fails(load)
    assert "700 bytes are kept" in message
    assert "builders official" in message
    assert left(downloads) == {".part", ".json"}
    assert starts(server) == [0, *[700] * 5]
    assert load("dev").keys() == {"dev"}
    assert starts(server)[-1] == 700


def test_killed_between_the_last_byte_and_the_check(load: Load, server: ArchiveServer, downloads: Path) -> None:
    load("dev")
    whole = next(downloads.glob("*.gz"))
    whole.rename(f"{whole}.part")
    assert list(load("corpus", "corpus")) == rows_of_archive()["corpus", "corpus"]
    assert starts(server) == [0]


def test_a_file_that_changed_meanwhile_is_taken_from_the_start(load: Load, server: ArchiveServer) -> None:
    server.break_after = [700, *[0] * 5]
    fails(load)
    server.replace(archive({f"{FOLDER}/dev.json": contents()[f"{FOLDER}/train.json"]}))
    assert load("dev", "dev")["query"][:] == QUESTIONS["train"]


@pytest.mark.parametrize("how", [{"etag": None}, {"etag": 'W/"weak"'}, {"ignore_range": True}])
def test_where_nothing_says_that_the_rest_belongs_to_the_part(
    load: Load, server: ArchiveServer, how: dict[str, Any]
) -> None:
    for name, value in how.items():
        setattr(server, name, value)
    server.break_after = [700]
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]
    assert starts(server) == ([0, 700] if "ignore_range" in how else [0, 0])


def test_a_part_that_is_too_long_is_taken_from_the_start(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.break_after = [700, *[0] * 5]
    fails(load)
    next(downloads.glob("*.part")).write_bytes(bytes(server.size + 1))
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]
    assert starts(server)[-2:] == [server.size + 1, 0]


def test_no_length_is_needed(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.send_length = False
    server.break_after = [700]
    assert "no whole tar.gz" in fails(load)
    assert left(downloads) <= {".json"}
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]


def test_a_busy_server_is_asked_again_but_not_for_ever(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.status = [503] * 5
    message = fails(load)
    assert "HTTP 503" in message
    assert "5 tries" in message
    assert left(downloads) == set()
    server.status = [503, 429, None]
    assert load("dev", "dev").num_rows == 2


def test_a_server_that_is_not_there(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(b"") as gone:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", gone.url)
    assert "cannot be reached" in fails(load)


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_final(load: Load, server: ArchiveServer, downloads: Path, status: int) -> None:
    server.status = [status]
    message = fails(load)
    assert f"{server.url}qianyan/dureader_retrieval-data.v0.tar.gz: HTTP {status}" in message
    assert "builders official" in message
    assert len(server.requests) == 1
    assert left(downloads) == set()


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "application/gzip"])
def test_a_page_is_no_archive(load: Load, server: ArchiveServer, downloads: Path, kind: str) -> None:
    server.page = (kind, b"<!DOCTYPE html><title>gone</title>")
    assert "expected a tar.gz, the server sent another thing" in fails(load)
    assert len(server.requests) == 1
    assert left(downloads) == set()


@pytest.mark.parametrize("offline", ["dev", "corpus"])
def test_offline_with_nothing_kept(
    load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch, offline: str
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    assert "HF_DATASETS_OFFLINE" in fails(load, offline)
    assert "HF_DATASETS_OFFLINE" in fails(load, offline, streaming=True)
    assert server.requests == []


def test_an_address_that_is_not_http_is_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", "file:///etc/")
    assert "expected an http or https address" in fails(load)
