"""The official files, read into one release: their parsed blocks, their passages, and what was found wrong with them.

Files of any size are cut at line ends into blocks, which worker processes parse. A worker reads its own bytes of the
file; only what it made of them comes back. A few blocks are in flight, so memory does not grow with the file.

Disagreements, and the bad lines that ``--skip-bad-lines`` leaves out, are counted in ``stats.json`` and shown by the
first few; bad lines are listed in the release, too. A line is bad where its file's format does not allow it
(:mod:`.formats`), or where it gives a question's id another text. What is wrong with a file as a whole (empty, a byte
order mark, CR LF, an object of JSON that is none) is an error all the same.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from builders.core.errors import log
from builders.core.files import write_text
from builders.core.jobs import Pool, in_order
from builders.core.progress import progress
from builders.official.archives import OfficialFile
from builders.official.formats import LINE_CUT, TSV, BadLine, Texts, TsvBlock, lines_of, nothing_of, parse_tsv
from builders.official.numbered import Flags, Keys, NumberedIds, NumberedTexts, Numbers, as_keys, hex_ids
from builders.store.draft import Draft

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20
_WINDOW = 1 << 20
HEAD = 1 << 20
SKIPPED = "official/skipped.tsv"
MOST = 100_000  # bad lines of a file: with more it is another file than its name says
_EXAMPLES = 3
_LOGGED = 5  # bad lines of a file


@dataclass
class Findings:
    """Counts of each kind of disagreement, in the order in which they were looked for, with examples.

    Attributes:
        skips: bad lines are left out; else the first one is an error.
        skipped: by file, (line, from 1; what is wrong with it) of each bad line.
    """

    skips: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, what: str, times: int = 1, example: str | None = None) -> None:
        """Count ``what``, and keep the example where there are few."""
        self.counts[what] = self.counts.get(what, 0) + times
        if example is not None and len(shown := self.examples.setdefault(what, [])) < _EXAMPLES:
            shown.append(example)

    def add_ids(self, what: str, ids: npt.NDArray[np.uint64], wrong: npt.NDArray[np.bool_]) -> None:
        """Count those of the ids that are ``wrong``, if any is, with the first as the example."""
        if wrong.any():
            self.add(what, int(wrong.sum()), ids[wrong][:1].tobytes().hex())

    def skip(self, file: OfficialFile, line: int, message: str) -> None:
        """Leave a line of a file out. Raises :class:`InputError` where none may be, or too many are."""
        if not self.skips:
            raise file.error(message, line)
        found = self.skipped.setdefault(file.name, [])
        found.append((line, message))
        if len(found) > MOST:
            raise file.error(f"more than {MOST:,} bad lines; the first is line {found[0][0]}: {found[0][1]}")
        if len(found) <= _LOGGED:
            log.warning("%s:%d: %s; skipped", file.shown, line, message)
        if len(found) == _LOGGED:
            log.warning("%s: its other bad lines stand in %s alone", file.shown, SKIPPED)

    def described(self) -> dict[str, Any]:
        """Log the findings, and return them as ``stats.json`` has them."""
        found = {what: times for what, times in self.counts.items() if times}
        for what, times in found.items():
            # That both releases hold the same rows is no disagreement.
            level = logging.INFO if what.endswith("came before") else logging.WARNING
            log.log(level, "%s: %s", what, "; ".join([f"{times:,}", *self.examples.get(what, [])]))
        return {"findings": found, "examples": self.examples}

    def write_skipped(self, draft: Draft) -> dict[str, Any]:
        """List the bad lines in the release, in :data:`SKIPPED`; returns their number and the first few, by file."""
        (draft.folder / SKIPPED).parent.mkdir()
        rows = [
            f"{name}\t{line}\t{' '.join(what.split())}\n"
            for name, found in self.skipped.items()
            for line, what in found
        ]
        write_text(draft.folder / SKIPPED, "file\tline\twhat\n" + "".join(rows))
        draft.add_file(SKIPPED)
        return {
            name: {"lines": len(found), "first": [f"line {line}: {what}" for line, what in found[:_EXAMPLES]]}
            for name, found in self.skipped.items()
        }


class Passages:
    """The ids of the collection's passages, by row of the release's corpus.

    A passage's id is the one that the archive gives it: ``paragraph_id`` in the original release, the entry of
    ``passage2id.map.json`` for its line in the pre-processed one; judgments and predictions use these. Where the
    archive gives none, it is the text's MD5, which the official ids are. Every id is held against the MD5 of its text;
    what differs is counted, shown, and kept as the archive says. Of passages with one id the first is kept.

    Attributes:
        ids: the passages' ids; the number of an id is its row.
    """

    def __init__(self) -> None:
        self.ids = NumberedIds()
        # The passages whose id is not the MD5 of their text: that MD5, their ids and rows. Of one text the first.
        self._other_digests = NumberedIds()
        self._other_ids: Keys = np.empty((0, 2), np.uint64)
        self._other_rows: Numbers = np.empty(0, np.int32)

    @property
    def given(self) -> bool:
        """True if the archives hold a collection at all."""
        return self.ids.count > 0

    def add(self, ids: Keys, digests: Keys, findings: Findings) -> Flags:
        """Add passages; returns True for each that is new, shape (n,)."""
        rows, new = self.ids.add(ids)
        other = new & (ids != digests).any(axis=1)
        if other.any():
            first = self._other_digests.add(digests[other])[1]
            self._other_ids = np.concatenate([self._other_ids, ids[other][first]])
            self._other_rows = np.concatenate([self._other_rows, rows[other][first]])
            what = "passages whose id is not the MD5 of their text"
            for given, digest in zip(hex_ids(ids[other][:3]), hex_ids(digests[other][:3]), strict=True):
                findings.add(what, 0, f"id {given}, MD5 {digest}")
            findings.add(what, int(other.sum()))
        if not new.all():
            findings.add("passages that came before", int((~new).sum()))
            changed = ~new & self.differ(ids, digests)
            findings.add_ids("passages that came before with another text (the first is kept)", ids, changed)
        return new

    def differ(self, ids: Keys, digests: Keys) -> Flags:
        """Return True for each id that the collection has with another text, by the text's MD5; shape (n,)."""
        rows, known = self.ids.find(ids), ids.copy()
        if len(self._other_rows):
            nearest = np.minimum(np.searchsorted(self._other_rows, rows), len(self._other_rows) - 1)
            other = self._other_rows[nearest] == rows
            known[other] = self._other_digests.keys()[nearest[other]]
        changed: Flags = (rows >= 0) & (known != digests).any(axis=1)
        return changed

    def has(self, ids: Keys) -> Flags:
        """Return True for each id that is a passage of the collection; shape (n,)."""
        return self.ids.find(ids) >= 0

    def ids_of(self, digests: Keys) -> Keys:
        """Return the ids of texts, by their MD5: a text that is there under its MD5, too, keeps it."""
        found, result = self._other_digests.find(digests), digests.copy()
        other = (found >= 0) & ~self.has(digests)
        result[other] = self._other_ids[found[other]]
        return result


class _Block(NamedTuple):
    """``size`` bytes from ``offset`` of the file ``path``, their parser, and True if bad lines are left out."""

    path: Path
    offset: int
    size: int
    parse: Callable[..., Any]
    args: tuple[Any, ...]
    skip: bool


class Parsed(NamedTuple):
    """A block's content, the number of its first line in the file, from 1, and its bad lines, which are left out."""

    found: Any
    line: int
    bad: list[BadLine]

    def lines(self, rows: int) -> npt.NDArray[np.int64]:
        """Return the line numbers of the ``rows`` that the block holds, a row a line; shape (rows,)."""
        return self.line + np.delete(np.arange(rows + len(self.bad)), [bad.line for bad in self.bad])


def _parse(block: _Block) -> tuple[Any, list[BadLine], int, int]:
    """Return the block's content, or its :class:`BadLine`; the bad lines left out; its lines; its bytes."""
    with open(block.path, "rb") as file:
        file.seek(block.offset)
        data = file.read(block.size)
    found, bad = None, list[BadLine]()
    try:
        found = block.parse(data, *block.args)
    except BadLine as error:
        found = error
        if block.skip:
            good, bad = good_lines(data, block.parse, *block.args)
            found = block.parse(good, *block.args)
    return found, bad, data.count(b"\n"), block.size


def good_lines(data: bytes, parse: Callable[..., Any], *args: Any) -> tuple[bytes, list[BadLine]]:
    """Return the lines that ``parse(line, *args)`` takes, and its errors; stops after ``MOST`` of these."""
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


def _cut(source: OfficialFile, start: int, stop: int, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Yield ranges (offset and size in ``source.path``) of about 8 MB that end after a match of ``pattern``.

    Raises :class:`InputError` where 256 MB hold no match.
    """
    with open(source.path, "rb") as file:
        while start < stop:
            end = start + BLOCK_BYTES
            found, window = None, b""
            file.seek(end - 1)  # one byte earlier, for what the pattern looks back at
            while found is None and end + len(window) < stop:
                window += file.read(min(_WINDOW, stop - end - len(window) + 1))
                found = pattern.search(window, 1)
                if len(window) > LONGEST_ROW:
                    raise source.error("a row of over 256 MB")
            end = stop if found is None else end - 1 + found.end()
            yield start, end - start
            start = end


class Columns(NamedTuple):
    """A TSV: the numbers of its texts by column, its labels, if it has any, and its rows' lines, from 1."""

    texts: dict[str, Numbers]
    labels: npt.NDArray[np.int8]
    lines: npt.NDArray[np.int64]


@dataclass
class Work:
    """The release being written, the processes that parse, and what was read so far."""

    draft: Draft
    processes: Pool | None
    workers: int
    texts: NumberedTexts
    findings: Findings
    passages: Passages = field(default_factory=Passages)

    def parsed(
        self,
        file: OfficialFile,
        parse: Callable[..., Any],
        *args: Any,
        span: tuple[int, int] | None = None,
        cut: re.Pattern[bytes] = LINE_CUT,
    ) -> Iterator[Parsed]:
        """Yield ``parse(bytes, *args)`` of every block of a file in order; bad lines that may be skipped are recorded.

        Args:
            span: first byte and end inside the file, of the whole file where None.
            cut: a block may end after a match of this pattern.

        Raises:
            InputError: naming file and line, for what ``parse`` refuses with BadLine, unless such lines are skipped.
        """
        low, high = span or (0, file.size)
        skip, line = self.findings.skips and cut is LINE_CUT, 1 + file.read(low).count(b"\n")
        ranges = _cut(file, file.offset + low, file.offset + high, cut)
        blocks = (_Block(file.path, offset, size, parse, args, skip) for offset, size in ranges)
        with progress(total=high - low, unit="B", label=file.name.rsplit("/", 1)[-1]) as bar:
            for found, bad, lines, size in in_order(self.processes, _parse, blocks, self.workers + 2):
                if isinstance(found, BadLine):
                    raise file.error(found.message, line + found.line)
                for each in bad:
                    self.findings.skip(file, line + each.line, each.message)
                yield Parsed(found, line, bad)
                line += lines
                bar.update(size)

    def head(self, file: OfficialFile, parse: Any, *args: Any) -> bytes:
        """Return the file's first bytes, about a megabyte, without lines that are skipped.

        Raises :class:`InputError` where all of these lines would be skipped.
        """
        head = file.read(HEAD)
        if not self.findings.skips:
            return head
        end = len(head) if len(head) == file.size else head.rfind(b"\n") + 1
        good, bad = good_lines(head[:end], parse, *args)
        if bad and not good:
            raise file.error(f"{bad[0].message} (and no other of its first {len(bad):,} lines is good)", 1)
        return good + head[end:]

    def tsv_blocks(self, file: OfficialFile) -> Iterator[tuple[TsvBlock, npt.NDArray[np.int64]]]:
        """Yield the blocks of a TSV with their rows' lines. Lines with other unused columns than the first's count."""
        usual = self.first_nothing(file)
        for parsed in self.parsed(file, parse_tsv, file.role, usual):
            block: TsvBlock = parsed.found
            if block.unusual:
                what = f"lines of {file.name} whose unused columns are not as in its first"
                self.findings.add(what, block.unusual)
            yield block, parsed.lines(len(next(iter(block.columns.values())).texts))

    def first_nothing(self, file: OfficialFile) -> list[bytes]:
        """Return the values of the columns that mean nothing in the first line of a TSV."""
        if file.read(HEAD).split(b"\n", 1)[0].endswith(b"\r"):
            raise file.error("lines end in CR LF; expected LF alone, as in the official files", 1)
        row = self.head(file, parse_tsv, file.role, []).split(b"\n", 1)[0].split(b"\t")
        return nothing_of(file.role, row) if len(row) == len(TSV[file.role]) else []

    def columns(self, file: OfficialFile) -> Columns:
        """Return the columns of a TSV, whose texts are numbered; sets the rows of ``file``."""
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        labels, lines = [np.empty(0, np.int8)], [np.empty(0, np.int64)]
        for block, at in self.tsv_blocks(file):
            for name, column in block.columns.items():
                numbers[name].append(self.number(column))
            labels.append(np.array(block.labels, np.int8))
            lines.append(at)
        file.rows = sum(map(len, lines))
        texts = {name: np.concatenate(found) for name, found in numbers.items()}
        return Columns(texts, np.concatenate(labels), np.concatenate(lines))

    def number(self, column: Texts) -> Numbers:
        """Return the numbers of a column's texts."""
        return self.texts.add(column.texts, as_keys(column.digests))
