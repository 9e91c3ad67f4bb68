"""Official files of any size as parsed blocks, in order: cut at line ends, parsed by worker processes.

A worker reads its own bytes of the file; only what it made of them comes back. A few blocks are in flight, so memory
does not grow with the file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from builders.core.errors import InputError
from builders.core.jobs import Pool, in_order
from builders.core.progress import progress
from builders.official.archives import Member
from builders.official.findings import MOST, Findings, Skipped
from builders.official.formats import LINE_CUT, TSV, BadLine, TextColumn, TsvBlock, lines_of, nothing_of, parse_tsv
from builders.official.numbered import NumberedTexts, Numbers, Passages, as_keys
from builders.store.draft import Draft

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20
_WINDOW = 1 << 20
_HEAD = 1 << 20
_TAIL = 1 << 12


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


class TextColumns(NamedTuple):
    """A TSV: the numbers of its texts by column, its labels, if it has any, and its rows' lines, from 1."""

    texts: dict[str, Numbers]
    labels: npt.NDArray[np.int8]
    lines: npt.NDArray[np.int64]


@dataclass
class OfficialFile:
    """An official file. ``rows``: its rows without the bad lines; None for a document."""

    member: Member
    name: str
    role: str
    rows: int | None = None

    @property
    def head(self) -> bytes:
        """The file's first bytes, about a megabyte."""
        return self.member.read(_HEAD)

    @property
    def tail(self) -> bytes:
        """The file's last bytes, about 4,000."""
        with open(self.member.path, "rb") as file:
            file.seek(self.member.offset + max(0, self.member.size - _TAIL))
            return file.read(min(_TAIL, self.member.size))


@dataclass
class Work:
    """The release being written, the processes that parse, and what was read so far."""

    draft: Draft
    processes: Pool | None
    workers: int
    texts: NumberedTexts
    passages: Passages = field(default_factory=Passages)
    findings: Findings = field(default_factory=Findings)
    skipped: Skipped = field(default_factory=Skipped)

    def blocks(self, file: OfficialFile, parse: Any, *args: Any, **given: Any) -> Iterator[Any]:
        """What the file's blocks hold; arguments as of :meth:`parsed`, see there."""
        return (block.found for block in self.parsed(file, parse, *args, **given))

    def parsed(
        self,
        file: OfficialFile,
        parse: Callable[..., Any],
        *args: Any,
        span: tuple[int, int] | None = None,
        cut: re.Pattern[bytes] = LINE_CUT,
    ) -> Iterator[Parsed]:
        """``parse(bytes, *args)`` of every block of a file in order; bad lines that may be skipped are recorded.

        Args:
            span: first byte and end inside the file, of the whole file where None.
            cut: a block may end after a match of this pattern.

        Raises:
            InputError: naming file and line, for what ``parse`` refuses with BadLine, unless such lines are skipped.
        """
        member, (low, high) = file.member, span or (0, file.member.size)
        skip, line = self.skipped.wanted and cut is LINE_CUT, 1 + member.read(low).count(b"\n")
        ranges = _cut(member, member.offset + low, member.offset + high, cut)
        blocks = (_Block(member.path, offset, size, parse, args, skip) for offset, size in ranges)
        with progress(total=high - low, unit="B", label=member.name.rsplit("/", 1)[-1]) as bar:
            for (found, lines, bad), size in in_order(self.processes, _parse, blocks, self.workers + 2):
                if isinstance(found, BadLine):
                    raise InputError(found.message, path=member.shown, line=line + found.line)
                for each in bad:
                    self.skip(file, line + each.line, each.message)
                yield Parsed(found, line, bad)
                line += lines
                bar.update(size)

    def skip(self, file: OfficialFile, line: int, message: str) -> None:
        """Leave a bad line out; an :class:`InputError` where that is not wanted."""
        self.skipped.add(file.name, file.member.shown, line, message)

    def head(self, file: OfficialFile, parse: Any, *args: Any) -> bytes:
        """The file's first bytes, without lines that are skipped.

        Raises :class:`InputError` where all of these lines would be skipped.
        """
        head, whole = file.head, len(file.head) == file.member.size
        if not self.skipped.wanted:
            return head
        end = len(head) if whole else head.rfind(b"\n") + 1
        good, bad = good_lines(head[:end], parse, *args)
        if bad and not good:
            message = f"{bad[0].message} (and no other of its first {len(bad):,} lines is good)"
            raise InputError(message, path=file.member.shown, line=1)
        return good + head[end:]

    def tsv_blocks(self, file: OfficialFile) -> Iterator[TsvBlock]:
        """The blocks of a TSV. Lines whose columns without a meaning are not as in the first line are counted."""
        usual = self.first_nothing(file)
        for found in self.parsed(file, parse_tsv, file.role, usual):
            block: TsvBlock = found.found
            block.lines = found.lines(len(next(iter(block.columns.values())).texts))
            if block.unusual:
                what = f"lines of {file.name} whose unused columns are not as in its first"
                self.findings.add(what, block.unusual)
            yield block

    def first_nothing(self, file: OfficialFile) -> list[bytes]:
        """What the columns that mean nothing hold in the first line of a TSV."""
        if file.head.split(b"\n", 1)[0].endswith(b"\r"):
            raise InputError(
                "lines end in CR LF; expected LF alone, as in the official files", path=file.member.shown, line=1
            )
        row = self.head(file, parse_tsv, file.role, []).split(b"\n", 1)[0].split(b"\t")
        return nothing_of(file.role, row) if len(row) == len(TSV[file.role]) else []

    def text_columns(self, file: OfficialFile) -> TextColumns:
        """The columns of a TSV, whose texts are numbered; sets the rows of ``file``."""
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        labels, lines = [np.empty(0, np.int8)], [np.empty(0, np.int64)]
        for block in self.tsv_blocks(file):
            for name, column in block.columns.items():
                numbers[name].append(self.number_texts(column))
            labels.append(np.array(block.labels or [], np.int8))
            lines.append(block.lines)
        file.rows = sum(map(len, lines))
        texts = {name: np.concatenate(found) for name, found in numbers.items()}
        return TextColumns(texts, np.concatenate(labels), np.concatenate(lines))

    def number_texts(self, column: TextColumn) -> Numbers:
        """The numbers of a column's texts."""
        return self.texts.add(column.texts, as_keys(column.digests))
