"""Sources as blocks of whole lines, the units of work.

A plain file is cut into ranges of bytes, which a worker reads by itself; what has to be unpacked (gzip, zip members) is
unpacked here and handed on. Lines end at ``\\n`` only: the texts hold U+2028 and U+0085.
"""

from __future__ import annotations

import io
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from builders.core.errors import InputError
from builders.sources.files import Source, damage, open_bytes

BLOCK_BYTES = 4 << 20  # small enough that a few in flight cost little memory
LONGEST_LINE = 1 << 30
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """The lines of ``source`` that begin in its (unpacked) bytes from ``start`` up to ``end``.

    Blocks are numbered in the order of the input, over all sources. ``data``: the lines themselves; None for a plain
    file, of which the last line may end beyond ``end``.
    """

    number: int
    source: Source
    start: int
    end: int
    data: bytes | None = None


def read_blocks(
    sources: Sequence[Source], block_bytes: int = BLOCK_BYTES, done: Container[int] = ()
) -> Iterator[Block]:
    """The sources as blocks, but for those whose numbers are ``done``.

    Memory: one block, or one line if that is longer. Raises :class:`InputError` for a file that is unreadable, broken
    or blank.
    """
    number = 0
    for source in sources:
        with open_bytes(source) as stream:
            plain = source.member is None and isinstance(stream, io.BufferedReader)
            if plain:
                while (data := stream.read(block_bytes)) and not data.strip():
                    pass
                if data:
                    size = source.path.stat().st_size
                    for start in range(0, size, block_bytes):
                        if number not in done:
                            yield Block(number, source, start, min(start + block_bytes, size))
                        number += 1
                seen = bool(data)
            else:
                seen = False
                for start, data in _unpacked(source, stream, block_bytes):
                    seen = seen or bool(data.strip())
                    if number not in done:
                        yield Block(number, source, start, start + len(data), data)
                    number += 1
        if not seen:
            raise InputError("is empty; expected raw DuReader rows, JSON lines", path=source.shown)


def _unpacked(source: Source, stream: IO[bytes], block_bytes: int) -> Iterator[tuple[int, bytes]]:
    start, rest = 0, b""
    while data := stream.read(block_bytes):
        cut = data.rfind(b"\n") + 1
        if not cut:
            rest += data
            _check_length(source, start, len(rest))
            continue
        whole, rest = rest + data[:cut], data[cut:]
        yield start, whole
        start += len(whole)
    if rest:
        yield start, rest


def _check_length(source: Source, start: int, size: int) -> None:
    if size > LONGEST_LINE:
        raise InputError(
            "a line of over 1 GiB; expected JSON lines", path=source.shown, line=line_number(source, start)
        )


def content(block: Block) -> tuple[int, bytes]:
    """Where the first line of ``block`` begins in its source, and the lines' bytes."""
    if block.data is not None:
        return block.start, block.data
    with damage(block.source.shown), open(block.source.path, "rb") as file:
        start = _next_line(block.source, file, block.start, block.end)
        if start >= block.end:
            return block.end, b""
        end = _next_line(block.source, file, block.end)
        file.seek(start)
        return start, file.read(end - start)


def _next_line(source: Source, file: IO[bytes], offset: int, limit: int | None = None) -> int:
    """Where the first line begins at ``offset`` or behind it; there may be none; none is looked for at ``limit``."""
    if offset == 0:
        return 0
    begin = offset = file.seek(offset - 1)  # a line begins behind a line end, perhaps the byte before
    while limit is None or offset < limit:
        piece = file.readline(1 << 20)
        offset += len(piece)
        if not piece or piece.endswith(b"\n"):
            return offset
        _check_length(source, begin, offset - begin)
    return limit


def lines(first: int, data: bytes) -> Iterator[tuple[int, memoryview]]:
    """(where it begins in the source, the line without its end), for every line of a block's content, blank or not."""
    view, start = memoryview(data), 0
    if first == 0 and data.startswith(_BOM):
        start = len(_BOM)
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        yield first + start, view[start:end]
        start = end + 1


def line_number(source: Source, offset: int) -> int:
    """The number, from 1, of the line that holds the byte at ``offset``: counted only where an error names it."""
    number = 1
    with open_bytes(source) as stream:
        while offset > 0 and (data := stream.read(min(offset, BLOCK_BYTES))):
            number += data.count(b"\n")
            offset -= len(data)
    return number
