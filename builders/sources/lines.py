"""Read sources in blocks of complete lines. Lines end only at ``\\n``, because texts contain U+2028 and U+0085."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from builders.core.errors import InputError
from builders.core.read_files import BOM, LONGEST_LINE, line_too_long
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


def read_blocks(sources: Sequence[Source], block_bytes: int | None = None) -> Iterator[Block]:
    """Yield the blocks of all sources.

    One block is in memory at a time, or one line that is longer than a block. ``block_bytes`` is
    :data:`BLOCK_BYTES` by default. Raises :class:`InputError` for an unreadable, damaged or blank file.
    """
    # An interrupted build knows its finished blocks by number.
    block_number = 0
    for source in sources:
        for start, block_data in _blocks_of(source, block_bytes or BLOCK_BYTES):
            yield Block(block_number, source, start, block_data)
            block_number += 1


def _blocks_of(source: Source, block_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, complete lines) of a source. The end of a read without a line end waits for the next read."""
    start = 0
    unfinished_line = b""
    has_text = False
    with open_bytes(source) as stream:
        for read_bytes in iter(lambda: stream.read(block_bytes), b""):
            has_text = has_text or bool(read_bytes.strip())
            complete, line_end, remainder = read_bytes.rpartition(b"\n")
            del read_bytes  # only the block that is yielded stays in memory
            if line_end:
                complete = unfinished_line + complete + line_end
                unfinished_line = remainder
                yield start, complete
                start += len(complete)
            else:
                unfinished_line += remainder
            if len(unfinished_line) > LONGEST_LINE:
                raise line_too_long(source.shown, line_number(source, start))
    if unfinished_line:
        yield start, unfinished_line
    if not has_text:
        raise InputError("is empty; expected raw DuReader rows as JSON lines", path=source.shown)


def lines_of_block(block: Block) -> Iterator[tuple[int, memoryview]]:
    """Yield (offset in the source, line without its end) for every line of a block, including blank lines."""
    data = block.data
    view = memoryview(data)  # a slice of a view copies no bytes
    has_mark = block.start == 0 and data.startswith(BOM)
    line_start = len(BOM) if has_mark else 0
    while line_start < len(data):
        line_end = data.find(b"\n", line_start)
        if line_end < 0:
            line_end = len(data)
        yield block.start + line_start, view[line_start:line_end]
        line_start = line_end + 1


def line_number(source: Source, offset: int) -> int:
    """Return the number (from 1) of the line at ``offset``. The source is read again, so only errors call this."""
    number = 1
    remaining_bytes = offset
    with open_bytes(source) as stream:
        while remaining_bytes > 0:
            read_bytes = stream.read(min(remaining_bytes, BLOCK_BYTES))
            if not read_bytes:
                break
            number += read_bytes.count(b"\n")
            remaining_bytes -= len(read_bytes)
    return number
