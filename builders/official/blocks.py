"""An official file of any size as parsed blocks, in order: cut at line ends, parsed by worker processes.

A worker reads its own bytes of the file; only what it made of them comes back. A few blocks are in flight, so memory
does not grow with the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from builders.common.command import InputError, progress
from builders.common.jobs import Pool, in_order
from builders.official.archives import Member
from builders.official.formats import LINE_CUT, BadLine

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20
_WINDOW = 1 << 20


class _Block(NamedTuple):
    """``size`` bytes from ``offset`` of the file ``path``, and what parses them."""

    path: Path
    offset: int
    size: int
    parse: Callable[..., Any]
    args: tuple[Any, ...]


def parsed(
    member: Member,
    parse: Callable[..., Any],
    *args: Any,
    processes: Pool | None,
    workers: int,
    span: tuple[int, int] | None = None,
    cut: re.Pattern[bytes] = LINE_CUT,
) -> Iterator[Any]:
    """``parse(bytes, *args)`` of every block of ``member`` in order.

    Args:
        processes: where to parse; None: here.
        workers: how many processes.
        span: first byte and end inside the member, of the member as a whole where None.
        cut: a block may end after what this matches.

    Raises:
        InputError: naming file and line, for what ``parse`` refuses with BadLine.
    """
    low, high = span or (0, member.size)
    line = 1 + member.read(low).count(b"\n")
    ranges = _cut(member, member.offset + low, member.offset + high, cut)
    blocks = (_Block(member.path, offset, size, parse, args) for offset, size in ranges)
    with progress(total=high - low, unit="B", label=member.name.rsplit("/", 1)[-1]) as bar:
        for found, lines, size in in_order(processes, _parse, blocks, workers + 2):
            if isinstance(found, BadLine):
                raise InputError(found.message, path=member.shown, line=line + found.line)
            yield found
            line += lines
            bar.update(size)


def _parse(block: _Block) -> tuple[Any, int, int]:
    """What the block holds, or its :class:`BadLine`; its lines; its bytes."""
    with open(block.path, "rb") as file:
        file.seek(block.offset)
        data = file.read(block.size)
    try:
        return block.parse(data, *block.args), data.count(b"\n"), block.size
    except BadLine as error:
        return error, 0, block.size


def _cut(member: Member, start: int, stop: int, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Ranges (offset and size in ``member.path``) of about 8 MB that end after a match of ``pattern``.

    Raises :class:`InputError` where 256 MB hold no match.
    """
    with open(member.path, "rb") as file:
        while start < stop:
            end = start + BLOCK_BYTES
            found = None
            if end < stop:
                file.seek(end - 1)  # one byte earlier, for what the pattern looks back at
                window = b""
                while found is None and end + len(window) < stop:
                    window += file.read(min(_WINDOW, stop - end - len(window) + 1))
                    found = pattern.search(window, 1)
                    if len(window) > LONGEST_ROW:
                        raise InputError("a row of over 256 MB", path=member.shown)
            end = stop if found is None else end - 1 + found.end()
            yield start, end - start
            start = end
