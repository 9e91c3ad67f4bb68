"""The official files, and what the steps of their conversion share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from builders.common.command import InputError
from builders.common.jobs import Pool
from builders.official.archives import Member
from builders.official.blocks import Parsed, good_lines, parsed
from builders.official.findings import Findings
from builders.official.formats import LINE_CUT, TSV, TextColumn, TsvBlock, nothing_of, parse_tsv
from builders.official.numbered import NumberedTexts, Numbers, as_keys
from builders.official.passages import Passages
from builders.official.skipped import Skipped
from builders.store.draft import Draft

HEAD = 1 << 20
_TAIL = 1 << 12


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
        return self.member.read(HEAD)

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
        """What the file's blocks hold; arguments as of :meth:`parsed`, see :func:`.blocks.parsed`."""
        return (block.found for block in self.parsed(file, parse, *args, **given))

    def parsed(
        self,
        file: OfficialFile,
        parse: Any,
        *args: Any,
        span: tuple[int, int] | None = None,
        cut: re.Pattern[bytes] = LINE_CUT,
    ) -> Iterator[Parsed]:
        """The file's blocks; bad lines, where they are wanted left out, are taken down on the way."""
        skip = self.skipped.wanted and cut is LINE_CUT
        shared: dict[str, Any] = {"processes": self.processes, "workers": self.workers, "span": span, "cut": cut}
        for block in parsed(file.member, parse, *args, skip=skip, **shared):
            for bad in block.bad:
                self.skip(file, block.line + bad.line, bad.message)
            yield block

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

    def number_texts(self, column: TextColumn) -> Numbers:
        """The numbers of a column's texts."""
        return self.texts.add(column.texts, as_keys(column.digests))
