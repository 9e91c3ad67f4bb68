"""Shared code for official files and copies: reading in blocks, numbered passages, and counts of disagreements.

Files are read in blocks of whole lines, so that memory does not grow with the size of a file.

Disagreements between files are counted in ``stats.json`` with examples. With ``--skip-bad-lines``, a line is skipped if
it violates its file's format (:mod:`.official_formats`), or if it gives a second text to the id of a question. Skipped
lines are counted and listed in the release. Errors of a file (empty, byte order mark, CR LF, damaged JSON) still stop
the build.
"""

import contextlib
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.files import write_text
from builders.core.folders import work_beside
from builders.core.progress import progress
from builders.official.numbered import Flags, IdMap, Keys, NumberedIds, NumberedTexts, Numbers, as_keys, hex_ids
from builders.official.official_archives import OfficialFile
from builders.official.official_formats import LINE_CUT, BadLine, Texts, lines_of, parse_tsv
from builders.store.draft import Draft, check_release_output, draft_release
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20  # bytes
HEAD = 1 << 20  # bytes that are read to detect the format of a file
SKIPPED = "official/skipped.tsv"
_EXAMPLES = 3


@dataclass
class Findings:
    """Counts and examples of disagreements between files, by kind.

    Attributes:
        skips: True if bad lines are skipped. If False, the first bad line is an error.
        skipped: file -> line number (from 1) and error message of each skipped line.
    """

    skips: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, what: str, times: int = 1, example: str | None = None) -> None:
        """Add ``times`` to the count of ``what``. Store the example unless ``what`` has three examples."""
        if times:
            self.counts[what] = self.counts.get(what, 0) + times
        if example is not None and len(shown := self.examples.setdefault(what, [])) < _EXAMPLES:
            shown.append(example)

    def add_ids(self, what: str, ids: Keys, wrong: Flags) -> None:
        """Count the ids that are ``wrong``, with the first wrong id as the example."""
        self.add(what, int(wrong.sum()), *hex_ids(ids[wrong][:1]))

    def skip(self, file: OfficialFile, line: int, message: str) -> None:
        """Skip a line of a file. Raises :class:`InputError` if lines may not be skipped."""
        if not self.skips:
            raise file.error(message, line)
        self.skipped.setdefault(file.name, []).append((line, message))
        self.add(f"bad lines of {file.name} (skipped)", 1, f"line {line}: {message}")

    def described(self) -> dict[str, Any]:
        """Return the findings for ``stats.json``."""
        return {"findings": self.counts, "examples": self.examples}

    def list_skipped(self, draft: Draft) -> int:
        """Write the list of skipped lines to :data:`SKIPPED` in the release. Return the number of lines."""
        rows = [
            f"{name}\t{line}\t{' '.join(what.split())}\n"
            for name, found in self.skipped.items()
            for line, what in found
        ]
        (draft.folder / SKIPPED).parent.mkdir()
        write_text(draft.folder / SKIPPED, "file\tline\twhat\n" + "".join(rows))
        draft.add_file(SKIPPED)
        return len(rows)


class Passages:
    """The ids of the collection's passages, in the order of the corpus rows.

    A passage keeps the archive's id, because judgments and predictions use it. Without an id, a passage gets the
    MD5 of its text, as in the official data. Ids that differ from the MD5 are counted. An id is written only once.
    """

    def __init__(self) -> None:
        self.ids = NumberedIds()  # the number of an id is its row in the corpus
        # For ids that differ from the MD5 of their text: id -> MD5, and MD5 -> first id.
        self._digests, self._ids_by_digest = IdMap(), IdMap()

    def add(self, ids: Keys, digests: Keys, findings: Findings) -> Flags:
        """Add passages. Return True for each new passage; shape (n,)."""
        new = self.ids.add(ids)[1]
        other = new & (ids != digests).any(axis=1)
        if other.any():
            self._digests.add(ids[other], digests[other])
            self._ids_by_digest.add(digests[other], ids[other])
            findings.add_ids("passages whose id is not the MD5 of their text", ids, other)
        findings.add("passages whose id occurred before (skipped)", int((~new).sum()))
        changed = ~new & self.differ(ids, digests)
        findings.add_ids("passages whose id occurred before with another text (skipped)", ids, changed)
        return new

    def differ(self, ids: Keys, digests: Keys) -> Flags:
        """Return True for each id whose text in the collection has an MD5 other than ``digests``; shape (n,)."""
        return np.asarray(self.has(ids) & (self._digests.get(ids, ids) != digests).any(axis=1))

    def has(self, ids: Keys) -> Flags:
        """Return True for each id that is a passage of the collection; shape (n,)."""
        return self.ids.find(ids) >= 0

    def ids_of(self, digests: Keys) -> Keys:
        """Return the passage ids of texts by their MD5s: the MD5 itself if it is an id or unknown; shape (n, 2)."""
        return np.where(self.has(digests)[:, None], digests, self._ids_by_digest.get(digests, digests))


_Parser = Callable[[bytes], Any]
Lines = npt.NDArray[np.int64]


def _good_lines(data: bytes, parse: _Parser) -> tuple[bytes, list[BadLine]]:
    good: list[bytes] = []
    bad: list[BadLine] = []
    for number, line in enumerate(lines_of(data)):
        try:
            parse(line + b"\n")
            good.append(line + b"\n")
        except BadLine as error:
            bad.append(BadLine(error.message, number))
    return b"".join(good), bad


def _blocks(source: OfficialFile, start: int, stop: int, cut: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield the bytes from ``start`` to ``stop`` in blocks of about 8 MB. Each block ends after a match of ``cut``.

    Raises :class:`InputError` if 256 MB have no match.
    """
    data = b""
    with open(source.path, "rb") as file:
        file.seek(start)
        while part := file.read(min(BLOCK_BYTES, stop - file.tell())):
            data += part
            if end := max((match.end() for match in cut.finditer(data)), default=0):
                yield data[:end]
                data = data[end:]
            elif len(data) > LONGEST_ROW:
                raise source.error("has a row of over 256 MB; expected shorter rows")
    if data:
        yield data


class Corpus:
    """Writer of the config ``corpus``. Titles are empty."""

    def __init__(self, draft: Draft) -> None:
        self._rows, self.lengths = draft.writer("corpus", "corpus"), LengthCounter()

    def write(self, ids: Keys, texts: pa.StringArray) -> None:
        """Append passages, and count their characters."""
        self.lengths.add(pc.utf8_length(texts).to_numpy())
        self._rows.write(pa.table([hex_ids(ids), [""] * len(texts), texts], schema=CORPUS))


@dataclass
class Work:
    """The release being written, with the texts, findings and passages of the files that were read."""

    folder: Path
    draft: Draft
    texts: NumberedTexts
    findings: Findings
    passages: Passages = field(default_factory=Passages)

    def parsed(
        self, file: OfficialFile, parse: _Parser, span: tuple[int, int] | None = None, cut: re.Pattern[bytes] = LINE_CUT
    ) -> Iterator[tuple[Any, Lines]]:
        """Yield ``parse(block)`` and the numbers (from 1) of the parsed lines, for every block of a file.

        ``parse`` is a function of :mod:`.official_formats`. ``span`` is the byte range to read: start and end. Blocks
        end after a match of ``cut``. Raises :class:`InputError` for a bad line, unless bad lines are skipped.
        """
        low, high = span or (0, file.size)
        line = 1 + file.read(low).count(b"\n")
        with progress(total=high - low, unit="B", label=file.name.rsplit("/", 1)[-1]) as bar:
            for data in _blocks(file, low, high, cut):
                try:
                    found, bad = parse(data), list[BadLine]()
                except BadLine as error:
                    if not self.findings.skips or cut is not LINE_CUT:
                        raise file.error(error.message, line + error.line) from None
                    good, bad = _good_lines(data, parse)
                    if not good and line == 1:  # the file probably has a wrong name
                        raise file.error(f"has no line in the right format; first error: {bad[0].message}", 1) from None
                    found = parse(good)
                for each in bad:
                    self.findings.skip(file, line + each.line, each.message)
                yield found, np.delete(np.arange(line, line + len(lines_of(data))), [each.line for each in bad])
                line += data.count(b"\n")  # a block of the map may end within a line
                bar.update(len(data))

    def columns(self, file: OfficialFile) -> tuple[dict[str, Numbers], npt.NDArray[np.int8]]:
        """Read a TSV. Return the numbers of its texts by column, and the labels. Sets ``file.rows``."""
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        labels: list[int] = []
        for (columns, more), _ in self.parsed(file, functools.partial(parse_tsv, role=file.role)):
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
def open_work(out: Path, skips: bool = False) -> Iterator[Work]:
    """Yield a new release, which is moved to ``out`` when the block ends. For ``skips``, see :class:`Findings`."""
    out = check_release_output(out)
    with work_beside(out) as folder, draft_release(out, work=folder) as draft, open(folder / "texts", "wb+") as file:
        yield Work(folder, draft, NumberedTexts(file), Findings(skips))
