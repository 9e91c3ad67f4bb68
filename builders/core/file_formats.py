"""Recognise the compression and the encoding of a file by its first bytes.

A file may have any name, because downloads are renamed and other tools do not add ``.gz``.
"""

import codecs
import gzip
import io
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from builders.core.errors import InputError

GZIP = b"\x1f\x8b"
PARQUET = b"PAR1\x15"  # the bytes PAR1 alone could begin a text
HEAD_BYTES = 16
GB_MARK = "\ufeff".encode("gb18030")
# Formats that are recognised, but not decompressed.
_FORMATS = {
    b"\xfd7zXZ\0": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard",
    b"\x04\x22\x4d\x18": "compressed by LZ4",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"PK\x03\x04": "a zip archive",
    PARQUET: "a Parquet file",
}
# A bzip2 file begins with these two, and a digit between them.
_BZIP2 = b"BZh"
_BZIP2_BLOCK = b"1AY&SY"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_WHITE_SPACE = b"\t\n\v\f\r"
# Frequent simplified and traditional characters. Punctuation is omitted, because EUC encodings share its code points.
_COMMON = frozenset("的一是不了在有人我他上大来到时中个地为子以你会可出也這個們來時會為")
_FEW = 100
Open = Callable[[], AbstractContextManager[IO[bytes]]]


def decompressed(file: IO[bytes], name: Path | str) -> IO[bytes]:
    """Return the content of a file that is open at its start: decompressed if it is gzipped, else as it is.

    ``file`` needs ``peek``. Raises :class:`InputError` for another compression, naming the format.
    """
    head = _peek(file)
    if not head.startswith(GZIP):
        expect_no_archive(head, name)
        if str(name).lower().endswith(".gz") and any(byte < 0x20 and byte not in _WHITE_SPACE for byte in head):
            raise InputError("is a damaged gzip file, or no gzip file; expected gzip or plain text", path=name)
        return file
    stream = io.BufferedReader(gzip.GzipFile(fileobj=file))  # type: ignore[arg-type]  # fast iteration over lines
    inner_head = _peek(stream)
    if inner_head.startswith(GZIP):
        raise InputError("is gzipped twice; decompress the file once", path=name)
    expect_no_archive(inner_head, name)
    return stream


def _peek(file: IO[bytes]) -> bytes:
    head: bytes = file.peek(HEAD_BYTES)[:HEAD_BYTES]  # type: ignore[attr-defined]
    return head


def expect_no_archive(head: bytes, name: Path | str) -> None:
    """Raise :class:`InputError` if the first bytes of a text file are those of an archive or of Parquet."""
    found = next((words for signature, words in _FORMATS.items() if head.startswith(signature)), "")
    if head.startswith(_BZIP2) and head[len(_BZIP2) + 1 :].startswith(_BZIP2_BLOCK):
        found = "compressed by bzip2"
    if found == "a Parquet file":
        raise InputError("is a Parquet file; expected text", path=name)
    if found:
        raise InputError(f"is {found}; decompress the file first (only gzip is read directly)", path=name)


def is_utf16(head: bytes) -> bool:
    """True if the first bytes are those of UTF-16 or UTF-32: a byte order mark, or NUL bytes between characters."""
    pairs = head[0:2], head[2:4]
    has_zeros = any(all(pair[place : place + 1] == b"\0" and any(pair) for pair in pairs) for place in (0, 1))
    return head.startswith(_UTF16_MARKS) or has_zeros


def expect_utf8(head: bytes, name: Path | str, allowed: str = "UTF-8") -> None:
    """Raise :class:`InputError` if the first bytes of a file show another encoding than those in ``allowed``."""
    encoding = "UTF-16" if is_utf16(head) else ""
    if head.startswith(_UTF32_MARKS):
        encoding = "UTF-32"
    elif head.startswith(GB_MARK) and "GB18030" not in allowed:
        encoding = "GB18030"
    if encoding:
        raise InputError(f"is {encoding}; save the file as {allowed}", path=name, line=1)


def describe_encoding(content: bytes) -> str:
    """Describe text that is not UTF-8 for an error, and say what to do. ``content`` may be a part of a file."""
    if is_utf16(content[:HEAD_BYTES]):
        return "expected UTF-8 text, found UTF-16; save the file as UTF-8"
    try:
        text = content.decode("gb18030")
    except UnicodeDecodeError:
        return "expected UTF-8 text"
    counts = Counter[str]()
    count_characters(text, counts)
    if looks_chinese(counts):
        return "expected UTF-8 text, found GB18030; save the file as UTF-8"
    return "expected UTF-8 text"


def count_characters(text: str, counts: Counter[str]) -> None:
    """Add the non-ASCII characters, those of GB 2312 and the frequent ones of a text to ``counts``."""
    ascii_characters = len(text.encode("ascii", "ignore"))
    counts["high"] += len(text) - ascii_characters
    counts["gb2312"] += (len(text.encode("gb2312", "ignore")) - ascii_characters) // 2
    counts["common"] += sum(map(text.count, _COMMON))


def looks_chinese(counts: Counter[str]) -> bool:
    """True if text that was decoded as GB18030 looks like Chinese. ``counts`` are from :func:`count_characters`."""
    everyday = counts["high"] < _FEW and 10 * counts["gb2312"] >= 9 * counts["high"]
    return everyday or 100 * counts["common"] >= 3 * counts["high"]
