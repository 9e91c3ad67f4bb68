"""An official file of any size as parsed blocks, in order: cut at line ends, parsed by worker processes.

A worker reads its own bytes of the file; only what it made of them comes back. A few blocks are in flight, so memory
does not grow with the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from builders.common.command import InputError, progress
from builders.common.jobs import Pool, in_order
from builders.official.archives import Member
from builders.official.formats import LINE_CUT, BadLine, lines_of
from builders.official.skipped import MOST

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20
_WINDOW = 1 << 20


class _Block(NamedTuple):
    """``size`` bytes from ``offset`` of the file ``path``, what parses them, and whether bad lines are left out."""

    path: Path
    offset: int
    size: int
    parse: Callable[..., Any]
    args: tuple[Any, ...]
    skip: bool


class Parsed(NamedTuple):
    """What a block holds. ``line``: the number of its first line in the file, from 1; ``bad``: lines left out."""

    found: Any
    line: int
    bad: list[BadLine]

    def lines(self, rows: int) -> npt.NDArray[np.int64]:
        """The line numbers of the ``rows`` that the block holds, a row a line; shape (rows,)."""
        return self.line + np.delete(np.arange(rows + len(self.bad)), [bad.line for bad in self.bad])


def parsed(
    member: Member,
    parse: Callable[..., Any],
    *args: Any,
    processes: Pool | None,
    workers: int,
    span: tuple[int, int] | None = None,
    cut: re.Pattern[bytes] = LINE_CUT,
    skip: bool = False,
) -> Iterator[Parsed]:
    """``parse(bytes, *args)`` of every block of ``member`` in order.

    Args:
        processes: where to parse; None: here.
        workers: how many processes.
        span: first byte and end inside the member, of the member as a whole where None.
        cut: a block may end after what this matches.
        skip: leave lines out that ``parse`` refuses with BadLine; ``cut`` is at lines then.

    Raises:
        InputError: naming file and line, for what ``parse`` refuses with BadLine.
    """
    low, high = span or (0, member.size)
    line = 1 + member.read(low).count(b"\n")
    ranges = _cut(member, member.offset + low, member.offset + high, cut)
    blocks = (_Block(member.path, offset, size, parse, args, skip) for offset, size in ranges)
    with progress(total=high - low, unit="B", label=member.name.rsplit("/", 1)[-1]) as bar:
        for (found, lines, bad), size in in_order(processes, _parse, blocks, workers + 2):
            if isinstance(found, BadLine):
                raise InputError(found.message, path=member.shown, line=line + found.line)
            yield Parsed(found, line, bad)
            line += lines
            bar.update(size)


def _parse(block: _Block) -> tuple[tuple[Any, int, list[BadLine]], int]:
    """What the block holds, or its :class:`BadLine`; its lines; the bad ones; its bytes."""
    with open(block.path, "rb") as file:
        file.seek(block.offset)
        data = file.read(block.size)
    lines = data.count(b"\n")
    try:
        return (block.parse(data, *block.args), lines, []), block.size
    except BadLine as error:
        if not block.skip:
            return (error, lines, []), block.size
    good, bad = good_lines(data, block.parse, *block.args)
    return (block.parse(good, *block.args), lines, bad), block.size


def good_lines(data: bytes, parse: Callable[..., Any], *args: Any) -> tuple[bytes, list[BadLine]]:
    """The lines that ``parse(line, *args)`` takes, and what it says of the others; after ``MOST`` of these it stops."""
    good: list[bytes] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines_of(data)):
        try:
            parse(line + b"\n", *args)
            good.append(line + b"\n")
        except BadLine as error:
            bad.append(BadLine(error.message, number))
            if len(bad) > MOST:
                break
    return b"".join(good), bad


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
