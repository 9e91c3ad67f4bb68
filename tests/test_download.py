"""The published archive: downloaded once, resumed, held to its checksum, refused where harmful, read row by row."""

import errno
import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    publish(monkeypatch, bytes=None, md5=None, sha256=None)
    monkeypatch.setattr(dureader_retrieval, "_FIRST_PAUSE", 0)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ArchiveServer(archive()) as server:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", server.url)
        yield server


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads, empty at first."""
    folder = tmp_path / "downloads"
    monkeypatch.setattr(datasets.config, "DOWNLOADED_DATASETS_PATH", folder)
    return folder


@pytest.fixture
def load(server: ArchiveServer, downloads: Path, tmp_path: Path) -> Load:
    """The public ``load_dataset`` with a cache of this test."""
    return partial(dureader_retrieval.load_dataset, cache_dir=tmp_path / "cache")


def stored_kinds(downloads: Path) -> set[str]:
    """Return the kinds of stored files: archive, .part (an incomplete archive), .json (the archive's checksum)."""
    kinds = set()
    for path in downloads.iterdir():
        if path.suffix != ".lock":
            kinds.add(path.name.rpartition(".v0.tar.gz")[2] or "archive")
    return kinds


def publish(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    """Replace published figures of the archive, such as its size and checksums."""
    for name, value in figures.items():
        monkeypatch.setitem(dureader_retrieval.ARCHIVE, name, value)


def load_error(load: Load, config: str = "dev", **options: Any) -> str:
    """Load a config, and return the error, which has one line."""
    split = config if config in ("corpus", "dev") else None
    with pytest.raises(ValueError) as caught:
        list(load(config, split, **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("by_name", [False, True], ids=["public API", "by name"])
def test_one_download_serves_every_config(load: Load, server: ArchiveServer, tmp_path: Path, by_name: bool) -> None:
    if by_name:
        load = partial(datasets.load_dataset, NAME, cache_dir=str(tmp_path / "cache"))
    for streaming in (True, False):
        for (config, split), rows in rows_of_archive().items():
            assert list(load(config, split=split, streaming=streaming)) == rows
    assert server.requests == [0]


def test_fewer_rows_than_published_are_a_warning(load: Load) -> None:
    with pytest.warns(UserWarning, match=r"dev\.json has 2 rows; published: 2,000"):
        assert list(load("dev", "dev", streaming=True))


def test_a_config_has_the_splits_of_a_releases_card(load: Load) -> None:
    assert list(load("qrels")) == ["train", "dev"]
    queries = load("queries")
    assert list(queries) == datasets.get_dataset_split_names(NAME, "queries") == ["queries", "train", "dev"]
    assert list(queries["queries"]) == list(queries["dev"]) + list(queries["train"])


def test_prepared_copies(load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared_path = load("dev", "dev").cache_files[0]["filename"]
    # The same archive comes from a mirror, so the prepared copy is used again.
    with ArchiveServer(server.content) as mirror, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUREADER_RETRIEVAL_BASE_URL", mirror.url.rstrip("/"))
        assert load("dev", "dev").cache_files[0]["filename"] == prepared_path
        assert mirror.requests == [0]
    for stored_archive in downloads.glob("*.gz"):
        stored_archive.unlink()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    assert load("dev", "dev").cache_files[0]["filename"] == prepared_path
    for streaming in (False, True):
        assert "HF_DATASETS_OFFLINE" in load_error(load, "corpus", streaming=streaming)
    assert server.requests == [0]


def test_processes_that_load_at_once_download_once(server: ArchiveServer, downloads: Path) -> None:
    url = dureader_retrieval._archive_url()
    with ThreadPoolExecutor(4) as threads:
        archive_paths = list(threads.map(dureader_retrieval._fetch, [url] * 4))
    assert len(set(archive_paths)) == 1
    assert server.requests == [0]


@pytest.mark.parametrize(
    ("config", "split", "advice"),
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
def test_the_error_for_a_missing_config_or_split_names_the_builder(
    load: Load, server: ArchiveServer, config: str, split: str | None, advice: str, streaming: bool
) -> None:
    with pytest.raises(ValueError, match=f"config '{config}'; .*{advice}.*data_dir=DIR"):
        load(config, split, streaming=streaming)
    if split is None:  # an unknown config is refused before a download
        assert server.requests == []


@pytest.mark.parametrize(
    ("faults", "requested_starts"),  # the first byte of each request
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
def test_broken_downloads_resume(
    load: Load, server: ArchiveServer, faults: dict[str, Any], requested_starts: list[int]
) -> None:
    vars(server).update(faults)
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]
    assert server.requests == requested_starts


def test_a_download_that_was_given_up_goes_on_later(load: Load, server: ArchiveServer, downloads: Path) -> None:
    server.break_after = [700, 0, 0, 0, 0, 0]
    message = load_error(load)
    assert "700 bytes are stored" in message and "builders official" in message
    assert stored_kinds(downloads) == {".part", ".json"}
    assert server.requests == [0, 700, 700, 700, 700, 700]
    assert load("dev").keys() == {"dev"}
    assert server.requests[-1] == 700


def test_killed_between_the_last_byte_and_the_check(load: Load, server: ArchiveServer, downloads: Path) -> None:
    load("dev")
    archive_path = next(downloads.glob("*.gz"))
    archive_path.rename(f"{archive_path}.part")
    assert list(load("corpus", "corpus")) == rows_of_archive()["corpus", "corpus"]
    assert server.requests == [0]


def test_a_file_that_changed_meanwhile_is_taken_from_the_start(load: Load, server: ArchiveServer) -> None:
    server.break_after = [700, 0, 0, 0, 0, 0]
    load_error(load)
    server.replace(archive({f"{FOLDER}/dev.json": contents()[f"{FOLDER}/train.json"]}))
    assert load("dev", "dev")["query"][:] == QUESTIONS["train"]


@pytest.mark.parametrize(
    ("faults", "request_count", "problem"),
    [
        ({"status": [404]}, 1, "qianyan/dureader_retrieval-data.v0.tar.gz: HTTP 404"),
        ({"status": [503] * 5}, 5, "HTTP 503"),
        ({"page": ("application/gzip", b"<!DOCTYPE html>")}, 1, "expected a tar.gz, but the server sent application"),
        ({"send_length": False, "break_after": [700]}, 1, "not a complete tar.gz"),
    ],
)
def test_a_refusal_is_final_and_a_busy_server_is_not_asked_for_ever(
    load: Load, server: ArchiveServer, downloads: Path, faults: dict[str, Any], request_count: int, problem: str
) -> None:
    vars(server).update(faults)
    message = load_error(load)
    assert problem in message and server.url in message
    # An incomplete archive gets no advice to build the release from other sources.
    assert "builders official" in message or "complete" in problem
    assert len(server.requests) == request_count
    assert stored_kinds(downloads) <= {".json"}


def test_an_address_that_nobody_answers_or_that_is_not_http(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    with ArchiveServer(b"") as stopped_server:
        monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", stopped_server.url)
    assert "cannot be reached" in load_error(load)
    monkeypatch.setenv("DUREADER_RETRIEVAL_BASE_URL", "file:///etc/")
    assert "expected an http or https URL" in load_error(load)


def test_the_first_checksum_is_kept_and_another_archive_is_refused(
    load: Load, server: ArchiveServer, downloads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("dev")
    first_checksum = server.sha256
    assert f"SHA-256 {first_checksum}" in capsys.readouterr().err
    checksum_file = next(downloads.glob("*.json"))
    assert json.loads(checksum_file.read_text())["sha256"] == first_checksum
    load("corpus")
    assert "SHA-256" not in capsys.readouterr().err
    # Another archive at the same address is refused until the user deletes the checksum file, as the message says.
    next(downloads.glob("*.gz")).unlink()
    server.replace(archive({f"{FOLDER}/dev.json": b""}))
    message = load_error(load, streaming=True)
    assert first_checksum in message and server.sha256 in message and str(checksum_file) in message
    assert stored_kinds(downloads) == {".json"}
    checksum_file.unlink()
    assert list(load("dev", "dev", streaming=True)) == []


def test_published_figures(load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive_md5 = hashlib.md5(server.content).hexdigest()
    publish(monkeypatch, bytes=server.size, md5=archive_md5, sha256=server.sha256)
    for name, wrong_value, problem in (
        ("sha256", "0" * 64, f"SHA-256 {server.sha256}, expected {'0' * 64}"),
        ("md5", "0" * 32, f"MD5 {archive_md5}, expected {'0' * 32}"),
        ("bytes", server.size + 1, f"{server.size} bytes, expected {server.size + 1}"),
    ):
        with monkeypatch.context() as patch:
            publish(patch, **{name: wrong_value})
            assert problem in load_error(load)
        assert stored_kinds(downloads) <= {".json"}
    request_count = len(server.requests)
    builder = dureader_retrieval.DureaderRetrieval(config_name="dev", cache_dir=str(downloads.parent / "cache"))
    assert len(server.requests) == request_count  # with a published checksum, building downloads nothing
    builder.download_and_prepare()
    assert list(builder.as_dataset(split="dev")) == rows_of_archive()["dev", "dev"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_rotten_archive_is_named_and_stays(
    load: Load, server: ArchiveServer, downloads: Path, streaming: bool
) -> None:
    load("dev")
    archive_path = next(downloads.glob("*.gz"))
    content = bytearray(archive_path.read_bytes())
    content[len(content) // 2] ^= 1
    archive_path.write_bytes(content)
    message = load_error(load, "corpus", streaming=streaming)
    assert message.startswith(f"{archive_path}: has the SHA-256 {hashlib.sha256(content).hexdigest()}")
    assert "; delete this file to download the archive" in message
    assert archive_path.read_bytes() == content  # it may be a file that the user copied
    archive_path.unlink()
    assert list(load("corpus", "corpus", streaming=streaming)) == rows_of_archive()["corpus", "corpus"]


Member = tuple[tarfile.TarInfo, bytes]


def archive_with(name: str, **header_fields: Any) -> bytes:
    """Return the archive with one member more."""
    return archive(extra=[member(name, **header_fields)])


def archive_with_link(link_type: bytes) -> bytes:
    """Return the archive with one member more, which is neither a file nor a folder."""
    return archive_with("x", type=link_type, linkname=f"{FOLDER}/dev.json")


def with_first_header(header: Member, times: int = 1) -> bytes:
    """Return the archive with the header of a member before all others, without the member's content."""
    return gzip.compress(header[0].tobuf(tarfile.GNU_FORMAT) * times + gzip.decompress(archive()))


def with_wrong_byte(position: int) -> bytes:
    """Return the archive with one bit of a byte flipped."""
    content = bytearray(archive())
    content[position] ^= 1
    return bytes(content)


THOUSAND_FILES = [member(f"{number}", b"") for number in range(1000)]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (archive_with(f"{FOLDER}/a/../../../dev.json"), "leads out of"),
        (archive_with("a\\..\\..\\dev.json"), "leads out of"),
        (archive_with("/etc/dev.json"), "leads out of"),
        (archive_with("C:\\dev.json"), "leads out of"),
        (archive_with_link(tarfile.SYMTYPE), "neither a file nor a folder"),
        (archive_with_link(tarfile.LNKTYPE), "neither a file nor a folder"),
        (archive_with_link(tarfile.FIFOTYPE), "neither a file nor a folder"),
        (archive_with_link(tarfile.CHRTYPE), "neither a file nor a folder"),
        (with_first_header(member("big", size=1 << 40)), "exceeds the limits"),
        (archive(extra=THOUSAND_FILES), "exceeds the limits"),
        (with_first_header(member("././@LongLink", type=tarfile.GNUTYPE_LONGNAME, size=1 << 40)), "header"),
        (with_first_header(member("pax", type=tarfile.XHDTYPE, size=1 << 40)), "header"),
        (with_first_header(member("big", size=-512)), "negative size"),
        (with_first_header(member("pax", type=tarfile.XHDTYPE, size=-512)), "header"),
        # Many headers without content, for which tarfile calls itself again and again
        (with_first_header(member("pax", type=tarfile.XHDTYPE, size=0), 5_000), "not a complete tar.gz"),
        (with_wrong_byte(700), "not a complete tar.gz"),
        (with_wrong_byte(-6), "not a complete tar.gz"),
        (archive()[:-20], "not a complete tar.gz"),
        (b"\x1f\x8b and no more", "not a complete tar.gz"),
    ],
    # An archive has the time of its making, and every worker of pytest makes it anew.
    ids=lambda value: "archive" if isinstance(value, bytes) else None,
)
def test_what_harms_is_deleted(
    load: Load, server: ArchiveServer, downloads: Path, content: bytes, problem: str
) -> None:
    server.replace(content)
    assert problem in load_error(load)
    assert stored_kinds(downloads) <= {".json"}
    for checksum_file in downloads.glob("*.json"):
        assert "sha256" not in checksum_file.read_text()


@pytest.mark.parametrize("content", [archive()[:-20], archive_with("/etc/dev.json")], ids=["incomplete", "harmful"])
def test_a_damaged_archive_that_a_user_copied_stays(
    load: Load, server: ArchiveServer, downloads: Path, content: bytes
) -> None:
    archive_path = Path(dureader_retrieval._local_files(dureader_retrieval._archive_url()).archive)
    downloads.mkdir()
    archive_path.write_bytes(content)
    message = load_error(load)
    assert message.startswith(f"{archive_path}: ")
    assert message.endswith("; delete this file to download the archive")
    assert archive_path.read_bytes() == content
    archive_path.unlink()
    assert list(load("dev", "dev")) == rows_of_archive()["dev", "dev"]


@pytest.mark.parametrize("suffix", ["", ".part"], ids=["copied archive", "own download"])
def test_an_archive_that_cannot_be_read_stays(
    load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    load("dev")
    (archive_path,) = downloads.glob("*.gz")
    refused_path = archive_path.rename(f"{archive_path}{suffix}")
    if not suffix:  # an archive without a note is verified
        Path(f"{archive_path}.json").unlink()

    def open_readable(path: Any, *args: Any, **options: Any) -> Any:
        if path == str(refused_path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return open(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(dureader_retrieval, "_open", open_readable)
        message = load_error(load, "corpus")
    assert message == f"{refused_path}: cannot be read (Permission denied); make the file readable"
    assert list(load("corpus", "corpus")) == rows_of_archive()["corpus", "corpus"]
    assert server.requests == [0]


def test_what_follows_has_a_limit_too(load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dureader_retrieval, "_LARGEST_CONTENT_BYTES", 1 << 20)
    server.replace(archive() + gzip.compress(bytes(3 << 20)))
    assert "unpacks to over" in load_error(load)


def test_a_missing_file_is_named(load: Load, server: ArchiveServer) -> None:
    server.replace(archive({f"{FOLDER}/train.json": b"", "other/dev.json": b""}))
    assert re.search(f"has no {FOLDER}/dev.json; found .*other/dev.json", load_error(load))


GOOD = json_lines([{"paragraph_id": md5(TEXTS[0]), "paragraph_text": TEXTS[0]}])


@pytest.mark.parametrize(
    ("content", "line_number"),
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
def test_a_wrong_line_is_named(load: Load, server: ArchiveServer, content: bytes, line_number: str) -> None:
    server.replace(archive({f"{FOLDER}/passage_collection.json": content}))
    assert re.search(rf"{FOLDER}/passage_collection.json.*{line_number}.*expected", load_error(load, "corpus"))


@pytest.mark.parametrize("fields", [{}, {"answer_paragraphs": None}, {"answer_paragraphs": [{"paragraph_id": "a"}]}])
def test_a_wrong_question_is_named(load: Load, server: ArchiveServer, fields: dict[str, Any]) -> None:
    record = {"question_id": "q", "question": "问"} | fields
    server.replace(archive({f"{FOLDER}/dev.json": json_lines([record])}))
    assert f"{FOLDER}/dev.json, line 1: expected an object {{question_id, question, answer_par" in load_error(load)


JSON_SCALARS = st.none() | st.booleans() | st.integers() | st.text('aé四🙂"\\[]{},\n ', max_size=20)


def json_containers(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return short lists and objects of these values."""
    return st.lists(values, max_size=3) | st.dictionaries(st.text("ab四", max_size=3), values, max_size=3)


JSON_VALUES = st.recursive(JSON_SCALARS, json_containers, max_leaves=6)
JSON_OBJECTS = st.dictionaries(st.text("ab", max_size=2), JSON_VALUES, max_size=3)


@pytest.mark.slow
@given(
    records=st.lists(JSON_OBJECTS, max_size=6),
    block_bytes=st.integers(1, 64),
    wrapped=st.booleans(),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_records_are_whole(
    records: list[Any], block_bytes: int, wrapped: bool, ascii_only: bool, indent: int | None
) -> None:
    if wrapped:
        text = json.dumps({"data": records}, ensure_ascii=ascii_only, indent=indent)
    else:
        text = "".join(json.dumps(record, ensure_ascii=ascii_only) + "\n" for record in records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dureader_retrieval, "_BLOCK_BYTES", block_bytes)
        file = io.BufferedReader(io.BytesIO(text.encode()))  # type: ignore[arg-type]
        numbered_records = list(dureader_retrieval._read_records(file, "file"))
    assert [record for _, record in numbered_records] == records
    text_lines = text.split("\n")
    for number, _ in numbered_records:
        assert "{" in text_lines[number - 1]
    # Without a list around them, each record has a line.
    assert wrapped or [number for number, _ in numbered_records] == list(range(1, len(records) + 1))


def test_the_archive_is_the_one_of_the_builders_sources() -> None:
    sources = json.loads((ROOT / "builders" / "sources.json").read_text(encoding="utf-8"))
    for name, value in dureader_retrieval.ARCHIVE.items():
        assert sources["dureader-retrieval"][name] == value
