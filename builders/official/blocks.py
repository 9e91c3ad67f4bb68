"""An official file of any size as parsed blocks, in order: cut at line ends, read by worker processes.

A worker reads its own bytes of the file; only what it made of them comes back. A few blocks are in flight, so memory
does not grow with the file.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from builders.common.command import InputError, progress
from builders.common.jobs import Pool, WorkerDied
from builders.official.archives import Member
from builders.official.formats import LINE_CUT, BadLine

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20
_WINDOW = 1 << 20


def cut(member: Member, start: int, stop: int, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
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


def _work(parse: Callable[..., Any], path: str, start: int, size: int, args: tuple[Any, ...]) -> tuple[Any, int]:
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(size)
    return parse(data, *args), data.count(b"\n")


def parsed(
    member: Member,
    parse: Callable[..., Any],
    *args: Any,
    pool: Pool | None,
    workers: int,
    span: tuple[int, int] | None = None,
    pattern: re.Pattern[bytes] = LINE_CUT,
) -> Iterator[Any]:
    """``parse(block, *args)`` of every block of ``member`` in order.

    Args:
        pool: where to parse; None: here.
        workers: the pool's processes.
        span: first byte and end inside the member, of the member as a whole where None.
        pattern: a block may end after what this matches.

    Raises:
        InputError: naming file and line, for what ``parse`` refuses with BadLine.
    """
    low, high = span or (0, member.size)
    line = 1 + (member.read(low).count(b"\n") if low else 0)
    running: collections.deque[Any] = collections.deque()

    def next_block() -> Any:
        nonlocal line
        block = running.popleft()
        try:
            result, lines = block.result() if pool else _work(*block)
        except BadLine as error:
            raise InputError(error.message, path=member.shown, line=line + error.line) from None
        except BrokenProcessPool:
            raise WorkerDied from None
        line += lines
        return result

    try:
        with progress(total=high - low, unit="B", label=member.name.rsplit("/", 1)[-1]) as bar:
            for start, size in cut(member, member.offset + low, member.offset + high, pattern):
                task = (parse, str(member.path), start, size, args)
                running.append(pool.submit(_work, *task) if pool else task)
                while len(running) > (workers + 2 if pool else 0):
                    yield next_block()
                bar.update(size)
            while running:
                yield next_block()
    finally:
        for block in running:
            if pool:
                block.cancel()
