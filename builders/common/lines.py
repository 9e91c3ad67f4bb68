"""Lines of text files, one at a time, with their numbers: for files too long to be read whole."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

from builders.common.command import InputError
from builders.common.files import rereadable

_BOM = b"\xef\xbb\xbf"
_SHOWN = 40  # bytes of a column that an error quotes


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, the line's bytes without its end) of a file, gzipped where it ends in ``.gz``.

    Lines end at ``\\n`` only: ids and texts may hold the other characters that Python calls line ends. A byte order
    mark is dropped. Raises :class:`InputError` for a damaged gzip file, :class:`OSError` where nothing can be read.
    """
    number = 0
    found = rereadable(path)
    with io.BufferedReader(gzip.GzipFile(found)) if path.suffix == ".gz" else open(found, "rb") as file:
        try:
            for number, line in enumerate(file, 1):
                yield number, (line.removeprefix(_BOM) if number == 1 else line).rstrip(b"\r\n")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"not a whole gzip file ({error})", path=path, line=number + 1) from error


def first_character(path: Path) -> str:
    """The first character that is not blank; an :class:`InputError` where there is none."""
    for _, line in raw_lines(path):
        if text := line.strip():
            return text[:1].decode("utf-8", errors="replace")
    raise InputError("is empty", path=path)


def id_of(field: bytes, path: Path, line: int) -> str:
    """A column as an id; an :class:`InputError` naming the line where it is none (:func:`expect_id`)."""
    try:
        return expect_id(field.decode("utf-8"), path, line)
    except UnicodeDecodeError as error:
        raise InputError("expected UTF-8 text", path=path, line=line) from error


def expect_id(text: str, path: Path, line: int | None = None) -> str:
    """``text``; :class:`InputError` where a null character is in it: to the libraries that measure, it ends there."""
    if "\0" in text:
        raise InputError(f"expected ids without null characters, found {text[:_SHOWN]!r}", path=path, line=line)
    return text


def integer(field: bytes, what: str, path: Path, line: int) -> int:
    """A column as a whole number; an :class:`InputError` naming the line and ``what`` it is where it is none."""
    try:
        return int(field)
    except ValueError:
        raise InputError(f"expected a whole number as the {what}, found {shown(field)}", path=path, line=line) from None


def shown(field: bytes) -> str:
    """A column as an error quotes it."""
    return repr(field[:_SHOWN].decode(errors="replace"))
