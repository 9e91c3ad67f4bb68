"""The published archive: downloaded once, resumed, held to its checksum, refused where harmful, read row by row."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pytest
from archive_server import ROOT as FOLDER
from archive_server import ArchiveServer, archive, contents, json_lines, member, rows_of_archive
from commands import ROOT
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, md5

import dureader_retrieval

NAME = "dureader_retrieval"
Load = Callable[..., Any]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ArchiveServer]:
    """A server of the tiny archive in the place of the published one, of which no checksum is known."""
    unknown = {**dureader_retrieval.ARCHIVE, "bytes": None, "md5": None, "sha256": None}
    monkeypatch.setattr(dureader_retrieval, "ARCHIVE", unknown)
    monkeypatch.setattr(dureader_retrieval, "_FIRST_PAUSE", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ArchiveServer(archive()) as server:
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


def fails(load: Load, config: str = "dev", **kwargs: Any) -> str:
    with pytest.raises(ValueError) as error:
        list(load(config, config if config in ("corpus", "dev") else None, **kwargs))
    assert "\n" not in str(error.value)
    return str(error.value)


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
    assert server.requests == [0]
    with pytest.warns(UserWarning, match=r"dev\.json has 2 rows; published: 2,000"):
        assert list(load("dev", "dev", streaming=True))
    assert list(load("qrels")) == ["train", "dev"]
    queries = load("queries")
    assert list(queries) == datasets.get_dataset_split_names(NAME, "queries") == ["queries", "train", "dev"]
    assert list(queries["queries"]) == [*queries["dev"], *queries["train"]]  # as by a release's card


def test_prepared_copies(load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = load("dev", "dev").cache_files[0]["filename"]
    with ArchiveServer(server.content) as mirror, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUREADER_RETRIEVAL_BASE_URL", mirror.url.rstrip("/"))
        assert load("dev", "dev").cache_files[0]["filename"] == path
        assert mirror.requests == [0]
    for kept in downloads.glob("*.gz"):
        kept.unlink()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    assert load("dev", "dev").cache_files[0]["filename"] == path
    for streaming in (False, True):
        assert "HF_DATASETS_OFFLINE" in fails(load, "corpus", streaming=streaming)
    assert server.requests == [0]


def test_processes_that_load_at_once_download_once(server: ArchiveServer, downloads: Path) -> None:
    url = dureader_retrieval._archive_url()
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(dureader_retrieval._fetch, [url] * 4))
    assert len(set(found)) == 1
    assert server.requests == [0]


@pytest.mark.parametrize(
    ("config", "split", "words"),
    [
        ("test", None, r"without labels; .*builders official"),
        ("queries", "test", r"builders official"),
        ("ccovid-qrels", None, r"DataFountain.*builders add ccovid"),
        ("crosslingual", None, r"builders add crosslingual"),
        ("qrels-before", None, r"builders annotate merge"),
        ("resttest-bucket7", None, r"builders add resttest"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_the_archive_lacks_names_its_builder(
    load: Load, server: ArchiveServer, config: str, split: str | None, words: str, streaming: bool
) -> None:
    with pytest.raises(ValueError, match=f"config '{config}'; .*{words}.*data_dir=DIR"):
        load(config, split, streaming=streaming)
    assert split or server.requests == []


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"break_after": [700, 1, 50]}, [0, 700, 701, 751]),
        # Where nothing says that the rest belongs to the part:
        ({"break_after": [700], "etag": None}, [0, 0]),
        ({"break_after": [700], "etag": 'W/"weak"'}, [0, 0]),
        ({"break_after": [700], "ignore_range": True}, [0, 700]),
        ({"status": [503, 429, None]}, [0, 0, 0]),
        ({"send_length": False}, [0]),
    ],
)
def test_broken_downloads_resume(load: Load, server: ArchiveServer, how: dict[str, Any], expected: list[int]) -> None:
    vars(server).update(how)
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]
    assert server.requests == expected


def test_a_download_that_was_given_up_goes_on_later(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.break_after = [700, 0, 0, 0, 0, 0]
    message = fails(load)
    assert "700 bytes are stored" in message and "builders official" in message
    assert left(downloads) == {".part", ".json"}
    assert server.requests == [0, *[700] * 5]
    assert load("dev").keys() == {"dev"}
    assert server.requests[-1] == 700


def test_killed_between_the_last_byte_and_the_check(load: Load, server: ArchiveServer, downloads: Path) -> None:
    load("dev")
    whole = next(downloads.glob("*.gz"))
    whole.rename(f"{whole}.part")
    assert list(load("corpus", "corpus")) == rows_of_archive()["corpus", "corpus"]
    assert server.requests == [0]


def test_a_file_that_changed_meanwhile_is_taken_from_the_start(load: Load, server: ArchiveServer) -> None:
    server.break_after = [700, *[0] * 5]
    fails(load)
    server.replace(archive({f"{FOLDER}/dev.json": contents()[f"{FOLDER}/train.json"]}))
    assert load("dev", "dev")["query"][:] == QUESTIONS["train"]


@pytest.mark.parametrize(
    ("answer", "requests", "words"),
    [
        ({"status": [404]}, 1, "qianyan/dureader_retrieval-data.v0.tar.gz: HTTP 404"),
        ({"status": [503] * 5}, 5, "HTTP 503"),
        ({"page": ("application/gzip", b"<!DOCTYPE html>")}, 1, "expected a tar.gz, but the server sent application"),
        ({"send_length": False, "break_after": [700]}, 1, "not a complete tar.gz"),
    ],
)
def test_a_refusal_is_final_and_a_busy_server_is_not_asked_for_ever(
    load: Load, server: ArchiveServer, downloads: Path, answer: dict[str, Any], requests: int, words: str
) -> None:
    vars(server).update(answer)
    message = fails(load)
    assert words in message and server.url in message
    assert "builders official" in message or "complete" in words
    assert len(server.requests) == requests
    assert left(downloads) <= {".json"}


def test_an_address_that_nobody_answers_or_that_is_not_http(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArchiveServer(b"") as gone:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", gone.url)
    assert "cannot be reached" in fails(load)
    monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", "file:///etc/")
    assert "expected an http or https URL" in fails(load)


def publish(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    monkeypatch.setattr(dureader_retrieval, "ARCHIVE", {**dureader_retrieval.ARCHIVE, **figures})


def test_first_checksum(load: Load, server: ArchiveServer, downloads: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load("dev")
    first = server.sha256
    assert f"SHA-256 {first}" in capsys.readouterr().err
    note = next(downloads.glob("*.json"))
    assert json.loads(note.read_text())["sha256"] == first
    load("corpus")
    assert "SHA-256" not in capsys.readouterr().err
    next(downloads.glob("*.gz")).unlink()
    server.replace(archive({f"{FOLDER}/dev.json": b""}))
    message = fails(load, streaming=True)
    assert all(part in message for part in (first, server.sha256, str(note)))
    assert left(downloads) == {".json"}
    note.unlink()  # as the message says
    assert list(load("dev", "dev", streaming=True)) == []


def test_published_figures(load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = {"bytes": server.size, "md5": hashlib.md5(server.content).hexdigest(), "sha256": server.sha256}
    for wrong, said in (
        ({"sha256": "0" * 64}, f"SHA-256 {server.sha256}, expected {'0' * 64}"),
        ({"md5": "0" * 32}, f"MD5 {right['md5']}, expected {'0' * 32}"),
        ({"bytes": server.size + 1}, f"{server.size} bytes, expected {server.size + 1}"),
    ):
        publish(monkeypatch, **right | wrong)
        assert said in fails(load)
        assert left(downloads) <= {".json"}
    publish(monkeypatch, **right)
    asked = len(server.requests)
    builder = dureader_retrieval.DureaderRetrieval(config_name="dev", cache_dir=str(downloads.parent / "cache"))
    assert len(server.requests) == asked  # with a published checksum, building downloads nothing
    builder.download_and_prepare()
    assert list(builder.as_dataset(split="dev")) == rows_of_archive()["dev", "dev"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_rotten_archive_is_loaded_anew(load: Load, server: ArchiveServer, downloads: Path, streaming: bool) -> None:
    load("dev")
    kept = next(downloads.glob("*.gz"))
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    message = fails(load, "corpus", streaming=streaming)
    assert message.startswith(f"{kept}: has the SHA-256 {hashlib.sha256(content).hexdigest()}")
    assert not kept.exists()
    assert list(load("corpus", "corpus", streaming=streaming)) == rows_of_archive()["corpus", "corpus"]


def with_first(header: tuple[tarfile.TarInfo, bytes], times: int = 1) -> bytes:
    return gzip.compress(header[0].tobuf(tarfile.GNU_FORMAT) * times + gzip.decompress(archive()))


def with_wrong_byte(place: int) -> bytes:
    content = bytearray(archive())
    content[place] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *(
            (archive(extra=[member(name)]), "leads out of")
            for name in (f"{FOLDER}/a/../../../dev.json", "a\\..\\..\\dev.json", "/etc/dev.json", "C:\\dev.json")
        ),
        *(
            (archive(extra=[member("x", type=kind, linkname=f"{FOLDER}/dev.json")]), "neither a file nor a folder")
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
        ),
        (with_first(member("big", size=1 << 40)), "exceeds the limits"),
        (archive(extra=[member(f"{number}", b"") for number in range(1000)]), "exceeds the limits"),
        (with_first(member("././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=1 << 40)), "header"),
        (with_first(member("pax", type=tarfile.XHDTYPE, size=1 << 40)), "header"),
        (with_first(member("big", size=-512)), "negative size"),
        (with_first(member("pax", type=tarfile.XHDTYPE, size=-512)), "header"),
        (with_first(member("pax", type=tarfile.XHDTYPE, size=0), 5_000), "not a complete tar.gz"),
        *((with_wrong_byte(place), "not a complete tar.gz") for place in (700, -6)),
        (archive()[:-20], "not a complete tar.gz"),
        (b"\x1f\x8b and no more", "not a complete tar.gz"),
    ],
)
def test_what_harms_is_deleted(load: Load, server: ArchiveServer, downloads: Path, content: bytes, words: str) -> None:
    server.replace(content)
    assert words in fails(load)
    assert left(downloads) <= {".json"}
    assert not any("sha256" in path.read_text() for path in downloads.glob("*.json"))


def test_what_follows_has_a_limit_too(load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dureader_retrieval, "_LARGEST_CONTENT_BYTES", 1 << 20)
    server.replace(archive() + gzip.compress(bytes(3 << 20)))
    assert "unpacks to over" in fails(load)


def test_a_missing_file_is_named(load: Load, server: ArchiveServer) -> None:
    server.replace(archive({f"{FOLDER}/train.json": b"", "other/dev.json": b""}))
    assert re.search(f"has no {FOLDER}/dev.json; found .*other/dev.json", fails(load))


GOOD = json_lines([{"paragraph_id": md5(TEXTS[0]), "paragraph_text": TEXTS[0]}])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (GOOD + b"{", "line 2"),
        (GOOD + b'{"paragraph_id": 1, "paragraph_text": "b"}\n', "line 2"),
        (GOOD + b'\n["a", "b"]\n', "line 3"),
        (GOOD + b"\xff\n", "line 2"),
        (GOOD + b"[" * 100_000 + b"\n", "line 2"),
        (b'{"data": [\n' + GOOD + GOOD + b"]}", "line 2"),
        (b'{"data": [\n' + GOOD + b",\n7]}", "line 4"),
        (b'{"data": [\n' + GOOD + b"]} more", "line 2"),
        (b'{"rows": []}', "line 1"),
    ],
)
def test_a_wrong_line_is_named(load: Load, server: ArchiveServer, content: bytes, line: str) -> None:
    server.replace(archive({f"{FOLDER}/passage_collection.json": content}))
    assert re.search(rf"{FOLDER}/passage_collection.json.*{line}.*expected", fails(load, "corpus"))


@pytest.mark.parametrize("answers", [{}, None, [{"paragraph_id": "a"}]])
def test_a_wrong_question_is_named(load: Load, server: ArchiveServer, answers: Any) -> None:
    record = {"question_id": "q", "question": "问"} | ({} if answers == {} else {"answer_paragraphs": answers})
    server.replace(archive({f"{FOLDER}/dev.json": json_lines([record])}))
    assert f"{FOLDER}/dev.json, line 1: expected an object {{question_id, question, answer_par" in fails(load)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('aé四🙂"\\[]{},\n ', max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab四", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    records=st.lists(st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=3), max_size=6),
    block=st.integers(1, 64),
    wrapped=st.booleans(),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_records_are_whole(records: list[Any], block: int, wrapped: bool, ascii_only: bool, indent: int | None) -> None:
    if wrapped:
        content = json.dumps({"data": records}, ensure_ascii=ascii_only, indent=indent).encode()
    else:
        content = b"".join(json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n" for record in records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dureader_retrieval, "_BLOCK_BYTES", block)
        file = io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]
        found = list(dureader_retrieval._read_records(file, "file"))
    assert [record for _, record in found] == records
    lines = content.decode().split("\n")
    numbers = [number for number, _ in found]
    assert all("{" in lines[number - 1] for number in numbers)
    assert wrapped or numbers == list(range(1, len(records) + 1))


def test_the_archive_is_the_one_of_the_builders_sources() -> None:
    source = json.loads((ROOT / "builders" / "sources.json").read_text(encoding="utf-8"))["dureader-retrieval"]
    assert {name: source[name] for name in dureader_retrieval.ARCHIVE} == dureader_retrieval.ARCHIVE
