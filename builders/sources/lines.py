"""Read sources in blocks of complete lines. Lines end only at ``\\n``, because texts contain U+2028 and U+0085."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from builders.core.errors import InputError
from builders.core.files import BOM, LONGEST_LINE, line_too_long
from builders.sources.source_files import Source, open_bytes

BLOCK_BYTES = 4 << 20  # small, because several blocks are in memory at once


@dataclass(frozen=True)
class Block:
    """Complete lines of a source.

    ``start`` is the offset of the block in the decompressed bytes of ``source``. ``number`` counts the blocks of all
    sources in the order of the input.
    """

    number: int
    source: Source
    start: int
    data: bytes


def read_blocks(
    sources: Sequence[Source], block_bytes: int = BLOCK_BYTES, done: Container[int] = ()
) -> Iterator[Block]:
    """Yield the blocks of all sources, except the numbers in ``done``.

    One block is in memory at a time, or one line that is longer than a block. Raises :class:`InputError` for an
    unreadable, damaged or blank file.
    """
    every = ((source, *found) for source in sources for found in _blocks_of(source, block_bytes))
    return (Block(number, *found) for number, found in enumerate(every) if number not in done)


def _blocks_of(source: Source, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    start, rest, seen = 0, b"", False
    with open_bytes(source) as stream:
        while data := stream.read(block_bytes):
            seen = seen or bool(data.strip())
            whole, end, data = data.rpartition(b"\n")
            if end:
                whole, rest = rest + whole + end, data
                yield start, whole
                start += len(whole)
            else:
                rest += data
            if len(rest) > LONGEST_LINE:
                raise line_too_long(source.shown, line_number(source, start))
    if rest:
        yield start, rest
    if not seen:
        raise InputError("is empty; expected raw DuReader rows as JSON lines", path=source.shown)


def lines(block: Block) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset in the source, line without its end) for every line of a block, including blank lines."""
    data = block.data
    view, start = memoryview(data), len(BOM) if block.start == 0 and data.startswith(BOM) else 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            end = len(data)
        yield block.start + start, view[start:end]
        start = end + 1


def line_number(source: Source, offset: int) -> int:
    """Return the number (from 1) of the line at ``offset``. The source is read again, so only errors call this."""
    number = 1
    with open_bytes(source) as stream:
        while offset > 0 and (data := stream.read(min(offset, BLOCK_BYTES))):
            number += data.count(b"\n")
            offset -= len(data)
    return number
