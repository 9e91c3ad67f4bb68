"""The archive that was downloaded: held to its checksum, refused where it is harmful, read record by record."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from archive_server import ROOT as FOLDER
from archive_server import ArchiveServer, archive, contents, file_member, json_lines, rows_of_archive
from downloads import Load, downloads, fails, left, load, server  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from releases import TEXTS, md5

import dureader_retrieval

# Checksums


def publish(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> None:
    monkeypatch.setattr(dureader_retrieval, "ARCHIVE", {**dureader_retrieval.ARCHIVE, **figures})


def test_the_first_checksum_is_printed_and_held_to(
    load: Load, server: ArchiveServer, downloads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_published_figures_are_held_to(
    load: Load, server: ArchiveServer, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = server.sha256
    publish(
        monkeypatch, bytes=server.size, md5=hashlib.md5(server.content).hexdigest(), sha256=hashlib.sha256().hexdigest()
    )
    assert hashlib.sha256().hexdigest() in fails(load)
    publish(monkeypatch, sha256=sha256, md5="0" * 32)
    assert f"MD5 {hashlib.md5(server.content).hexdigest()} where {'0' * 32}" in fails(load)
    publish(monkeypatch, sha256=sha256, md5=None, bytes=server.size + 1)
    assert f"{server.size} bytes where {server.size + 1}" in fails(load)
    assert left(downloads) <= {".json"}
    publish(monkeypatch, sha256=sha256, bytes=server.size, md5=hashlib.md5(server.content).hexdigest())
    asked = len(server.requests)
    builder = dureader_retrieval.DureaderRetrieval(config_name="dev", cache_dir=str(downloads.parent / "cache"))
    assert len(server.requests) == asked  # with a published checksum, building downloads nothing
    builder.download_and_prepare()
    assert list(builder.as_dataset(split="dev")) == rows_of_archive()["dev", "dev"]
    server.wrong_byte(server.size // 2)
    next(downloads.glob("*.gz")).unlink()
    assert server.sha256 in fails(load, "corpus")
    assert left(downloads) <= {".json"}


@pytest.mark.parametrize("place", ["middle", "checksum at the end"])
def test_a_wrong_byte_is_found_without_a_checksum(
    load: Load, server: ArchiveServer, downloads: Path, place: str
) -> None:
    server.wrong_byte(server.size // 2 if place == "middle" else server.size - 6)
    assert "no whole tar.gz" in fails(load)
    assert not any("sha256" in path.read_text() for path in downloads.glob("*.json"))
    assert left(downloads) <= {".json"}


@pytest.mark.parametrize("streaming", [False, True])
def test_a_kept_archive_that_rots_is_deleted_and_loaded_anew(
    load: Load, server: ArchiveServer, downloads: Path, streaming: bool
) -> None:
    load("dev")
    kept = next(downloads.glob("*.gz"))
    content = bytearray(kept.read_bytes())
    content[len(content) // 2] ^= 1
    kept.write_bytes(content)
    message = fails(load, "corpus", streaming=streaming)
    assert message.startswith(f"{kept}: has the SHA-256 {hashlib.sha256(content).hexdigest()}")
    assert not kept.exists()
    assert list(load("corpus", "corpus", streaming=streaming)) == rows_of_archive()["corpus", "corpus"]


# What is refused


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""


def huge(name: str, kind: bytes = tarfile.REGTYPE, size: int = 1 << 40) -> tuple[tarfile.TarInfo, bytes]:
    """A member that says it has a tebibyte (or ``size``), and brings nothing."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member, b""


def with_first(member: tuple[tarfile.TarInfo, bytes], times: int = 1) -> bytes:
    """An archive that begins with the header of ``member``, whatever size that says."""
    import gzip

    return gzip.compress(member[0].tobuf(tarfile.GNU_FORMAT) * times + gzip.decompress(archive()))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (archive(extra=[file_member("../dev.json", b"")]), "name outside"),
        (archive(extra=[file_member(f"{FOLDER}/a/../../../dev.json", b"")]), "name outside"),
        (archive(extra=[file_member("a\\..\\..\\dev.json", b"")]), "name outside"),
        (archive(extra=[file_member("/etc/dev.json", b"")]), "name outside"),
        (archive(extra=[file_member("C:\\dev.json", b"")]), "name outside"),
        (archive(extra=[special("link", tarfile.SYMTYPE, "/etc/passwd")]), "neither a file nor a folder"),
        (archive(extra=[special("link", tarfile.LNKTYPE, f"{FOLDER}/dev.json")]), "neither a file nor a folder"),
        (archive(extra=[special("pipe", tarfile.FIFOTYPE)]), "neither a file nor a folder"),
        (archive(extra=[special("device", tarfile.CHRTYPE)]), "neither a file nor a folder"),
        (with_first(huge("big")), "more than"),
        (archive(extra=[file_member(f"{number}", b"") for number in range(1000)]), "more than"),
        (with_first(huge("././@LongLink", tarfile.GNUTYPE_LONGNAME)), "header"),
        (with_first(huge("pax", tarfile.XHDTYPE)), "header"),
        (with_first(huge("big", size=-512)), "less than no bytes"),
        (with_first(huge("pax", tarfile.XHDTYPE, size=-512)), "header"),
        (with_first(huge("pax", tarfile.XHDTYPE, size=0), 5_000), "no whole tar.gz"),
        (archive()[:-20], "no whole tar.gz"),
        (b"\x1f\x8b and no more", "no whole tar.gz"),
    ],
)
def test_a_harmful_archive_is_refused_and_deleted(
    load: Load, server: ArchiveServer, downloads: Path, content: bytes, words: str
) -> None:
    server.replace(content)
    assert words in fails(load)
    assert left(downloads) <= {".json"}
    assert not any("sha256" in path.read_text() for path in downloads.glob("*.json"))


def test_what_follows_the_last_member_has_a_limit_too(
    load: Load, server: ArchiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gzip

    monkeypatch.setattr(dureader_retrieval, "_LARGEST_CONTENT", 1 << 20)
    server.replace(archive() + gzip.compress(bytes(3 << 20)))
    assert "unpacks to more than" in fails(load)


def test_a_missing_file_is_named(load: Load, server: ArchiveServer) -> None:
    server.replace(archive({f"{FOLDER}/train.json": b"", "other/dev.json": b""}))
    assert re.search(f"holds no {FOLDER}/dev.json; it has .*other/dev.json", fails(load))


# The files


@pytest.mark.parametrize("indent", [None, 1])
def test_files_may_be_wrapped_in_an_object(load: Load, server: ArchiveServer, indent: int | None) -> None:
    files = {
        name: json.dumps({"data": [json.loads(line) for line in content.splitlines()]}, indent=indent).encode()
        for name, content in contents().items()
    }
    server.replace(archive({f"./{name}": content for name, content in files.items()}))  # as tar names them
    for (config, split), rows in rows_of_archive().items():
        assert list(load(config, split, streaming=True)) == rows


def test_unknown_fields_are_left_out(load: Load, server: ArchiveServer) -> None:
    record = {"paragraph_id": "x", "paragraph_text": "y", "source": {"page": 1}}
    server.replace(archive({f"{FOLDER}/passage_collection.json": json_lines([record])}))
    assert list(load("corpus", "corpus")) == [{"_id": "x", "title": "", "text": "y"}]


GOOD = json_lines([{"paragraph_id": md5(TEXTS[0]), "paragraph_text": TEXTS[0]}])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (GOOD + b"{", "line 2"),
        (GOOD + b'{"paragraph_id": "a"}\n', "line 2"),
        (GOOD + b'{"paragraph_id": 1, "paragraph_text": "b"}\n', "line 2"),
        (GOOD + b'{"paragraph_id": null, "paragraph_text": "b"}\n', "line 2"),
        (GOOD + b'\n["a", "b"]\n', "line 3"),
        (GOOD + b"\xff\n", "line 2"),
        (GOOD + b'{"paragraph_id": "a", "paragraph_text": "\\ud800"}\n', "line 2"),
        (GOOD + b"[" * 100_000 + b"\n", "line 2"),
        (b'{"data": [\n' + GOOD + b"\n", "line 2"),
        (b'{"data": [\n' + GOOD + GOOD + b"]}", "line 2"),
        (b'{"data": [\n' + GOOD + b",\n7]}", "line 4"),
        (b'{"data": [\n' + GOOD + b',\n{"paragraph_id": "a"}]}', "line 4"),
        (b'{"data": [\n' + GOOD + b"]} more", "line 2"),
        (b'{"data": [\n' + GOOD + b", \xff]}", "line 1"),
        (b'{"rows": []}', "line 1"),
    ],
)
def test_a_wrong_line_is_named(load: Load, server: ArchiveServer, content: bytes, line: str) -> None:
    server.replace(archive({f"{FOLDER}/passage_collection.json": content}))
    assert re.search(rf"{FOLDER}/passage_collection.json.*{line}.*expected", fails(load, "corpus"))


@pytest.mark.parametrize(
    "answers", ["missing", None, "text", [{"paragraph_id": "a"}], ["a"], {"paragraph_id": "a", "paragraph_text": "b"}]
)
def test_a_wrong_question_is_named(load: Load, server: ArchiveServer, answers: Any) -> None:
    record = {"question_id": "q", "question": "问"} | ({} if answers == "missing" else {"answer_paragraphs": answers})
    server.replace(archive({f"{FOLDER}/dev.json": json_lines([record])}))
    assert f"{FOLDER}/dev.json, line 1: expected an object {{question_id, question, answer_par" in fails(load)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('aé四🙂"\\[]{},\n ', max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab四", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    records=st.lists(st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=3), max_size=6),
    block=st.integers(1, 64),
    wrapped=st.booleans(),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_records_come_whole_whatever_the_blocks(
    records: list[Any], block: int, wrapped: bool, ascii_only: bool, indent: int | None
) -> None:
    if wrapped:
        content = json.dumps({"data": records}, ensure_ascii=ascii_only, indent=indent).encode()
    else:
        content = b"".join(json.dumps(record, ensure_ascii=ascii_only).encode() + b"\n" for record in records)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dureader_retrieval, "_BLOCK", block)
        file = io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]
        found = list(dureader_retrieval._records(file, "file"))
    assert [record for _, record in found] == records
    numbers = [number for number, _ in found]
    assert numbers == sorted(numbers)
    if not wrapped:
        assert numbers == list(range(1, len(records) + 1))
    if wrapped and indent and records:
        lines = content.decode().split("\n")
        assert [lines[number - 1].strip()[:1] for number in numbers] == ["{"] * len(records)


# The declaration


def test_the_archive_is_the_one_of_the_builders_sources() -> None:
    sources = json.loads((Path(__file__).parent.parent / "builders" / "sources.json").read_text(encoding="utf-8"))
    source = sources["dureader-retrieval"]
    assert {name: source[name] for name in dureader_retrieval.ARCHIVE} == dureader_retrieval.ARCHIVE
