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
_OTHER_FORMATS = {
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
_WHITE_SPACE_BYTES = b"\t\n\v\f\r"
_FIRST_PRINTABLE = 0x20  # smaller bytes are control characters
# Frequent simplified and traditional characters. Punctuation is omitted, because EUC encodings share its code points.
_FREQUENT_CHARACTERS = frozenset("的一是不了在有人我他上大来到时中个地为子以你会可出也這個們來時會為")
_FEW_CHARACTERS = 100
Open = Callable[[], AbstractContextManager[IO[bytes]]]


def decompress_file(compressed_file: IO[bytes], shown_path: Path | str) -> IO[bytes]:
    """Return the content of a file that is open at its start: decompressed if it is gzipped, else as it is.

    ``compressed_file`` needs ``peek``. Raises :class:`InputError` for another compression, naming the format, for a
    file that is gzipped twice, and for binary content in a file named ``.gz``.
    """
    head = _peek_head(compressed_file)
    if not head.startswith(GZIP):
        expect_no_archive(head, shown_path)
        is_named_gzip = str(shown_path).lower().endswith(".gz")
        has_control_bytes = any(byte < _FIRST_PRINTABLE and byte not in _WHITE_SPACE_BYTES for byte in head)
        if is_named_gzip and has_control_bytes:
            raise InputError("is a damaged gzip file, or no gzip file; expected gzip or plain text", path=shown_path)
        return compressed_file
    content_file = io.BufferedReader(gzip.GzipFile(fileobj=compressed_file))  # type: ignore[arg-type]  # fast iteration over lines
    content_head = _peek_head(content_file)
    if content_head.startswith(GZIP):
        raise InputError("is gzipped twice; decompress the file once", path=shown_path)
    expect_no_archive(content_head, shown_path)
    return content_file


def _peek_head(file: IO[bytes]) -> bytes:
    head: bytes = file.peek(HEAD_BYTES)[:HEAD_BYTES]  # type: ignore[attr-defined]
    return head


def expect_no_archive(head: bytes, shown_path: Path | str) -> None:
    """Raise :class:`InputError` if ``head`` (first bytes) begins a compressed file, an archive or Parquet, not gzip."""
    format_name = ""
    for signature, description in _OTHER_FORMATS.items():
        if head.startswith(signature):
            format_name = description
            break
    if head.startswith(_BZIP2) and head[len(_BZIP2) + 1 :].startswith(_BZIP2_BLOCK):
        format_name = "compressed by bzip2"
    if format_name == "a Parquet file":
        raise InputError("is a Parquet file; expected text", path=shown_path)
    if format_name:
        raise InputError(f"is {format_name}; decompress the file first (only gzip is read directly)", path=shown_path)


def is_utf16(head: bytes) -> bool:
    """True if the first bytes are those of UTF-16: a byte order mark, or NUL bytes between characters.

    The mark of little-endian UTF-32 begins with that of UTF-16, so the result is True for it, too. ASCII in
    UTF-16 has a NUL in each pair of bytes: ``{\\0"\\0`` (little-endian) or ``\\0{\\0"`` (big-endian).
    """
    if head.startswith(_UTF16_MARKS):
        return True
    first_pair = head[0:2]
    second_pair = head[2:4]
    if not any(first_pair) or not any(second_pair):
        return False  # pairs of two NULs are not text
    is_big_endian = first_pair[0:1] == second_pair[0:1] == b"\0"
    is_little_endian = first_pair[1:2] == second_pair[1:2] == b"\0"
    return is_big_endian or is_little_endian


def expect_utf8(head: bytes, shown_path: Path | str, allowed_encodings: str = "UTF-8") -> None:
    """Raise :class:`InputError` if ``head``, the first bytes of a file, shows UTF-16, UTF-32 or (by its mark) GB18030.

    ``allowed_encodings`` ends the message. If it is "UTF-8 or GB18030", GB18030 is allowed.
    """
    encoding = ""
    # UTF-32 first, because the little-endian mark of UTF-16 begins that of UTF-32.
    if head.startswith(_UTF32_MARKS):
        encoding = "UTF-32"
    elif head.startswith(GB_MARK) and "GB18030" not in allowed_encodings:
        encoding = "GB18030"
    elif is_utf16(head):
        encoding = "UTF-16"
    if encoding:
        raise InputError(f"is {encoding}; save the file as {allowed_encodings}", path=shown_path, line=1)


def describe_encoding(content: bytes) -> str:
    """Describe text that is not UTF-8 for an error, and say what to do. ``content`` may be a part of a file."""
    if is_utf16(content[:HEAD_BYTES]):
        return "expected UTF-8 text, found UTF-16; save the file as UTF-8"
    try:
        text = content.decode("gb18030")
    except UnicodeDecodeError:
        return "expected UTF-8 text"
    # GB18030 decodes nearly any bytes, so the decoded text must also look like Chinese.
    counts = Counter[str]()
    count_characters(text, counts)
    if looks_chinese(counts):
        return "expected UTF-8 text, found GB18030; save the file as UTF-8"
    return "expected UTF-8 text"


def utf8_fault(content: bytes) -> str:
    """Describe why a text is not UTF-8; empty for UTF-8.

    JSON readers ask this function, because the versions of msgspec raise different errors for text that is not UTF-8.
    """
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error.reason} at byte {error.start}; {describe_encoding(content)}"
    return ""


def count_characters(text: str, counts: Counter[str]) -> None:
    """Add three numbers of a text's characters to ``counts``. None of them counts ASCII characters.

    The keys are "high" for all other characters, "gb2312" for those of GB 2312, and "common" for frequent Chinese ones.
    """
    ascii_count = len(text.encode("ascii", "ignore"))
    counts["high"] += len(text) - ascii_count
    # Two bytes a character, except ASCII.
    counts["gb2312"] += (len(text.encode("gb2312", "ignore")) - ascii_count) // 2
    counts["common"] += sum(map(text.count, _FREQUENT_CHARACTERS))


def looks_chinese(counts: Counter[str]) -> bool:
    """True if text that was decoded as GB18030 looks like Chinese. ``counts`` are from :func:`count_characters`."""
    # In a Chinese text, at least three of 100 characters are frequent. A short text may have none, but then nine of ten
    # characters are those of GB 2312. Compared as products, because all characters may be ASCII (then True).
    is_short = counts["high"] < _FEW_CHARACTERS
    is_everyday = is_short and 10 * counts["gb2312"] >= 9 * counts["high"]
    has_frequent_characters = 100 * counts["common"] >= 3 * counts["high"]
    return is_everyday or has_frequent_characters
