"""Official archives that are refused: bad lines, damaged archives, members that lead elsewhere; fuzzing."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from official_archives import (
    BOTH,
    ORIGINAL,
    original_files,
)

from builders.core.errors import InputError
from builders.official import archives
from builders.official.build import build_official

QUESTION = made.question("问", None)


@pytest.mark.parametrize(
    ("name", "line", "content", "message"),
    [
        ("dual.train.tsv", 2, "问\t\t答\t\t否\t0\n问\t\t答\t\t否\n", "expected 6 columns"),
        ("cross.train.tsv", 2, "问\t\t答\t1\n问\t\t答\t2\n", "expected the label 0 or 1"),
        ("cross.train.tsv", 1, "问\t\t\t1\n", "expected the text of a passage"),
        ("part-00", 1, "-\t\t一段\t0\r\n", "CR LF"),
        ("part-00", 2, "-\t\t一段\t0\n-\t一段\n", "expected 4 columns"),
        ("dev.q.format", 3, "问\t-\t-\t0\n问二\t-\t-\t0\n\n", "expected 4 columns"),
        ("dev.json", 1, '{"question_id": "1", "question": "问"}\n', "question_id"),
        ("dev.json", 1, json.dumps(made.question("问", None)) + "\n", "missing required field `answer_paragraphs`"),
        ("test1.json", 2, json.dumps(made.question("问", None)) + "\n[]\n", "Expected `object`"),
        ("passage_collection.json", 1, '{"paragraph_id": 5, "paragraph_text": ""}\n', "not a passage"),
        ("passage_collection.json", 1, '{"data": [{"paragraph_id": "x"}]}', "not a passage"),
        ("passage2id.map.json", 1, '{"0": "' + "0" * 32 + '", "x": "' + "1" * 32 + '"}', "line number"),
        ("dev.retrieval.top50.res.tsv", 1, "问\t17\t1\t0.93\n", "retriever's output"),
        ("dev.retrieval.top50.res.id_map.tsv", 1, "1\t2\n", "32 hex digits"),
        ("q2qid.dev.json", None, "[]", "one JSON object"),
        ("test1.json", 2, made.lines([QUESTION, QUESTION | {"question": "另问"}]), "two texts"),
        ("part-00", 2, "-\t\t一\t0\n-\t\t\udcff\t0\n", "not UTF-8"),
        ("train.json", None, "", "is empty"),
        ("train.json", None, "\ufeff{}", "byte order mark"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, line: int | None, content: str, message: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError) as error:
        build_official([folder], tmp_path / "release")
    where = f"{folder / name}:" + (f"{line}:" if line else "")
    assert str(error.value).startswith(where)
    assert message in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]  # nothing half-made is left


@pytest.mark.parametrize("files", [{}, {"x/other.txt": "文", "x/readme.md": "文"}, {"x": "<html>404</html>"}])
def test_what_holds_nothing_official_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    made.write_files(tmp_path, files)
    with pytest.raises(InputError):
        build_official([tmp_path / "x"], tmp_path / "release")


def info(name: str, **values: Any) -> tarfile.TarInfo:
    result = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(result, key, value)
    return result


def pax_header(**records: str) -> bytes:
    """A pax header with these records, for whatever follows it."""
    lines = b""
    for name, value in records.items():
        size = len(line := f" {name}={value}\n")
        size += next(digits for digits in range(1, 9) if len(str(size + digits)) == digits)
        lines += f"{size}{line}".encode()
    return info("x", type=tarfile.XHDTYPE, size=len(lines)).tobuf() + lines.ljust(-(-len(lines) // 512) * 512, b"\0")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize(
    "member",
    [
        info("../train.json"),
        info("a/../../x.txt"),
        info("/etc/train.json"),
        info("..\\train.json"),
        info("C:/train.json"),
        info("a\nb/unwanted"),
        info("train.json", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("train.json", type=tarfile.LNKTYPE, linkname="dev.json"),
        info("unwanted", type=tarfile.CHRTYPE),
        info("train.json", type=tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name + member.type.decode(),
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, member: tarfile.TarInfo, mode: str) -> None:
    path = tmp_path / "archive"
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        good = original_files()[f"{ORIGINAL}/dev.json"].encode()
        tar.addfile(info("dev.json", size=len(good)), io.BytesIO(good))
        tar.addfile(member)
    with pytest.raises(InputError, match="refused"):
        build_official([path], tmp_path / "release")
    assert [p.name for p in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("form", ["w", "w:gz"])
def test_far_too_large_members_are_refused(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MEMBER_BYTES", 100)
    path = made.write_tar(tmp_path / "archive", original_files(), tmp_path / "scratch", form)
    with pytest.raises(InputError, match=r"refused.*above 100"):
        build_official([path], tmp_path / "release")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "headers",
    [
        info("train.json", size=-512).tobuf(tarfile.GNU_FORMAT),
        info("x", type=tarfile.XHDTYPE, size=-512).tobuf(tarfile.GNU_FORMAT),
        info("x", type=tarfile.XHDTYPE, size=1 << 32).tobuf(tarfile.USTAR_FORMAT),
        pax_header(size="-1024") + info("train.json").tobuf(),
        pax_header(size="9" * 5000) + info("train.json").tobuf(),
        pax_header(path="train.json") * 5000 + info("train.json").tobuf(),
    ],
    ids=[
        "a negative size",
        "a negative header",
        "a header of gigabytes",
        "a negative pax size",
        "a pax size of 5,000 digits",
        "pax by thousands",
    ],
)
def test_headers_that_no_archive_has_are_one_error(tmp_path: Path, headers: bytes, packed: bool) -> None:
    content = headers + b"\0" * 20_480
    (tmp_path / "archive").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=r"/archive[:!]"):
        build_official([tmp_path / "archive"], tmp_path / "release")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("form", ["w", "w:gz"])
def test_damaged_archives_are_refused(tmp_path: Path, form: str) -> None:
    whole = made.write_tar(tmp_path / "whole", BOTH, tmp_path / "scratch", form).read_bytes()
    # The last KiB of a plain tar is padding beyond the end mark.
    end = len(whole) if form == "w:gz" else whole.rstrip(b"\0").__len__() + 512
    chance = random.Random(0)
    for _ in range(30):
        (tmp_path / "cut").write_bytes(whole[: chance.randrange(1, end)])
        with pytest.raises(InputError):
            build_official([tmp_path / "cut"], tmp_path / "release")
    if form == "w:gz":  # its checksum tells; a plain tar has none but its headers'
        for _ in range(30):
            place = chance.randrange(40, len(whole))  # after the header, whose fields mean nothing
            (tmp_path / "cut").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            with pytest.raises(InputError):
                build_official([tmp_path / "cut"], tmp_path / "release")
