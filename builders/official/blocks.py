"""The release that official files or copies are read into: parsed blocks, passages, disagreements.

Files of any size are cut at line ends into blocks, which worker processes read and parse. A few blocks are in flight,
so memory does not grow with the file.

Disagreements are counted in ``stats.json`` with examples. With ``--skip-bad-lines``, a line is skipped if its file's
format (:mod:`.formats`) does not allow it, or if it gives a question's id another text; skipped lines are listed in the
release. What is wrong with a file as a whole (empty, a byte order mark, CR LF, a damaged JSON object) is an error all
the same.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import log
from builders.core.files import write_text
from builders.core.folders import work_beside
from builders.core.jobs import Pool, in_order, process_pool
from builders.core.progress import progress
from builders.official.archives import OfficialFile
from builders.official.formats import LINE_CUT, BadLine, Texts, lines_of, parse_tsv
from builders.official.numbered import Flags, IdMap, Keys, NumberedIds, NumberedTexts, Numbers, as_keys, hex_ids
from builders.store.draft import Draft, check_release_output, draft_release
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter

BLOCK_BYTES = 8 << 20
SMALL = 32 << 20  # below this many bytes of a file, starting worker processes costs more than it saves
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
        skips: bad lines are skipped; else the first one is an error.
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

    def add_ids(self, what: str, ids: Keys, wrong: Flags) -> None:
        """Count those of the ids that are ``wrong``, if any is, with the first as the example."""
        if wrong.any():
            self.add(what, int(wrong.sum()), hex_ids(ids[wrong][:1])[0])

    def skip(self, file: OfficialFile, line: int, message: str) -> None:
        """Skip a line of a file. Raises :class:`InputError` where none may be skipped, or too many are."""
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
    archive gives none, it is the text's MD5, which the official ids are. An id that differs from the MD5 of its text is
    counted and kept. Of passages with one id the first is kept.

    Attributes:
        ids: the passages' ids; the number of an id is its row.
    """

    def __init__(self) -> None:
        self.ids = NumberedIds()
        # Where an id is not the MD5 of its text: the MD5 by id, and the first id by MD5.
        self._digests, self._ids_by_digest = IdMap(), IdMap()

    def add(self, ids: Keys, digests: Keys, findings: Findings) -> Flags:
        """Add passages; returns True for each that is new, shape (n,)."""
        new = self.ids.add(ids)[1]
        other = new & (ids != digests).any(axis=1)
        if other.any():
            self._digests.add(ids[other], digests[other])
            self._ids_by_digest.add(digests[other], ids[other])
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
        changed: Flags = self.has(ids) & (self._digests.get(ids, ids) != digests).any(axis=1)
        return changed

    def has(self, ids: Keys) -> Flags:
        """Return True for each id that is a passage of the collection; shape (n,)."""
        return self.ids.find(ids) >= 0

    def ids_of(self, digests: Keys) -> Keys:
        """Return the ids of texts, by their MD5: a text that is there under its MD5, too, keeps it."""
        return np.where(self.has(digests)[:, None], digests, self._ids_by_digest.get(digests, digests))


class Parsed(NamedTuple):
    """A block's content, the number of its first line in the file, from 1, and its bad lines, which are skipped."""

    found: Any
    line: int
    bad: list[BadLine]

    def lines(self, rows: int) -> npt.NDArray[np.int64]:
        """Return the line numbers of the ``rows`` that the block holds, a row a line; shape (rows,)."""
        return self.line + np.delete(np.arange(rows + len(self.bad)), [bad.line for bad in self.bad])


_Parser = Callable[[bytes], Any]


def _parse(path: Path, parse: _Parser, skip: bool, span: tuple[int, int]) -> tuple[Any, list[BadLine], int, int]:
    """Parse the bytes from a start up to an end: returns the content, the bad lines, the lines and the bytes.

    With a bad line, the content is that of the other lines if ``skip``, else None.
    """
    with open(path, "rb") as file:
        file.seek(span[0])
        data = file.read(span[1] - span[0])
    try:
        found, bad = parse(data), list[BadLine]()
    except BadLine as error:
        found, bad = None, [error]
        if skip:
            good, bad = good_lines(data, parse)
            found = parse(good)
    return found, bad, data.count(b"\n"), len(data)


def good_lines(data: bytes, parse: _Parser) -> tuple[bytes, list[BadLine]]:
    """Return the lines that ``parse`` takes, and its errors; stops after ``MOST`` of these."""
    good: list[bytes] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines_of(data)):
        try:
            parse(line + b"\n")
            good.append(line + b"\n")
        except BadLine as error:
            bad.append(BadLine(error.message, number))
            if len(bad) > MOST:
                break
    return b"".join(good), bad


def _cut(source: OfficialFile, start: int, stop: int, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Yield ranges (start and end) of about 8 MB that end after a match of ``pattern``.

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
            yield start, end
            start = end


class Corpus:
    """The config ``corpus`` being written; titles are empty."""

    def __init__(self, draft: Draft) -> None:
        self._rows, self._lengths = draft.writer("corpus", "corpus"), LengthCounter()

    def write(self, ids: Keys, texts: pa.StringArray) -> None:
        """Append passages."""
        self._lengths.add(pc.utf8_length(texts).to_numpy())
        titles = pa.repeat(pa.scalar(""), len(texts))
        self._rows.write(pa.table([pa.array(hex_ids(ids), pa.string()), titles, texts], schema=CORPUS))

    def summary(self) -> dict[str, Any]:
        """Return the number of passages and their lengths, for ``stats.json``."""
        return self._lengths.summary()


@dataclass
class Work:
    """The release being written, the processes that parse, and what was read so far."""

    folder: Path
    draft: Draft
    processes: Pool | None
    workers: int
    texts: NumberedTexts
    findings: Findings
    passages: Passages = field(default_factory=Passages)

    def parsed(
        self,
        file: OfficialFile,
        parse: _Parser,
        span: tuple[int, int] | None = None,
        cut: re.Pattern[bytes] = LINE_CUT,
    ) -> Iterator[Parsed]:
        """Yield ``parse(bytes)`` of every block of a file in order; bad lines that may be skipped are recorded.

        Args:
            file: an official file.
            parse: a function of :mod:`.formats`.
            span: first byte and end inside the file, of the whole file where None.
            cut: a block may end after a match of this pattern.

        Raises:
            InputError: naming file and line, for what ``parse`` refuses with BadLine, unless such lines are skipped.
        """
        low, high = span or (0, file.size)
        skip, line = self.findings.skips and cut is LINE_CUT, 1 + file.read(low).count(b"\n")
        parser = functools.partial(_parse, file.path, parse, skip)
        pool = self.processes if high - low > SMALL else None
        with progress(total=high - low, unit="B", label=file.name.rsplit("/", 1)[-1]) as bar:
            for found, bad, lines, size in in_order(pool, parser, _cut(file, low, high, cut), self.workers + 2):
                for each in bad:
                    if found is None:
                        raise file.error(each.message, line + each.line)
                    self.findings.skip(file, line + each.line, each.message)
                yield Parsed(found, line, bad)
                line += lines
                bar.update(size)

    def columns(self, file: OfficialFile) -> tuple[dict[str, Numbers], npt.NDArray[np.int8]]:
        """Return the numbers of a TSV's texts by column, and its labels, if it has any; sets the rows of ``file``."""
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        labels: list[int] = []
        for block in self.parsed(file, functools.partial(parse_tsv, role=file.role)):
            columns, more = block.found
            for name, column in columns.items():
                numbers[name].append(self.number(column))
            labels += more
        texts = {name: np.concatenate(found) for name, found in numbers.items()}
        file.rows = len(next(iter(texts.values())))
        return texts, np.array(labels, np.int8)

    def number(self, column: Texts) -> Numbers:
        """Return the numbers of a column's texts."""
        return self.texts.add(column.texts, as_keys(column.digests))


@contextlib.contextmanager
def open_work(out: Path, workers: int = 1, skips: bool = False) -> Iterator[Work]:
    """Start the release ``out``, which appears when the block ends without an error.

    ``workers``: processes that parse large files; ``skips``: see :class:`Findings`.
    """
    out = check_release_output(out)
    with (
        work_beside(out) as folder,
        draft_release(out, work=folder) as draft,
        process_pool(workers) as processes,
        contextlib.closing(NumberedTexts(folder / "texts")) as texts,
    ):
        yield Work(folder, draft, processes, workers, texts, Findings(skips))
