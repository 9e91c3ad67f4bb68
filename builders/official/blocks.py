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

from builders.core.folders import work_beside
from builders.core.progress import show_progress
from builders.core.write_files import write_text
from builders.official.numbered import Flags, IdMap, Keys, NumberedIds, NumberedTexts, Numbers, as_keys, hex_ids
from builders.official.official_archives import OfficialFile
from builders.official.official_formats import LINE_CUT, BadLine, OfficialTexts, lines_of, parse_tsv
from builders.store.draft import Draft, check_release_output, draft_release
from builders.store.layout import CORPUS
from builders.store.table3 import LengthCounter

BLOCK_BYTES = 8 << 20
LONGEST_ROW = 256 << 20  # bytes
HEAD = 1 << 20  # bytes that are read to detect the format of a file
SKIPPED = "official/skipped.tsv"
_EXAMPLES = 3


@dataclass
class BlockFindings:
    """Counts and examples of disagreements between files, by kind.

    Attributes:
        skips: True if bad lines are skipped. If False, the first bad line is an error.
        skipped: file -> line number (from 1) and error message of each skipped line.
    """

    skips: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    skipped: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def add(self, finding: str, times: int = 1, example: str | None = None) -> None:
        """Add ``times`` to the count of a finding. Store the example unless the finding has three examples.

        ``finding`` is the description of the disagreement, for example "passages whose id occurred before (skipped)".
        With 0 ``times``, no count appears in the release.
        """
        if times:
            self.counts[finding] = self.counts.get(finding, 0) + times
        if example is None:
            return
        finding_examples = self.examples.setdefault(finding, [])
        if len(finding_examples) < _EXAMPLES:
            finding_examples.append(example)

    def add_ids(self, finding: str, ids: Keys, is_wrong: Flags) -> None:
        """Count the ids whose flag is set, with the first such id as the example."""
        wrong_ids = ids[is_wrong]
        example = hex_ids(wrong_ids[:1])[0] if len(wrong_ids) else None
        self.add(finding, len(wrong_ids), example)

    def skip(self, file: OfficialFile, line_number: int, message: str) -> None:
        """Record that a line of a file is skipped. Raises :class:`InputError` if lines may not be skipped."""
        if not self.skips:
            raise file.error(message, line_number)
        self.skipped.setdefault(file.name, []).append((line_number, message))
        self.add(f"bad lines of {file.name} (skipped)", 1, f"line {line_number}: {message}")

    def described(self) -> dict[str, Any]:
        """Return the counts and examples of all findings for ``stats.json``."""
        return {"findings": self.counts, "examples": self.examples}

    def list_skipped(self, draft: Draft) -> int:
        """Write the list of skipped lines to :data:`SKIPPED` in the release. Return the number of lines."""
        rows: list[str] = []
        for name, skipped_lines in self.skipped.items():
            for line_number, message in skipped_lines:
                one_line_message = " ".join(message.split())
                rows.append(f"{name}\t{line_number}\t{one_line_message}\n")
        (draft.folder / SKIPPED).parent.mkdir()
        write_text(draft.folder / SKIPPED, "file\tline\twhat\n" + "".join(rows))
        draft.add_file(SKIPPED)
        return len(rows)


class BlockPassages:
    """The ids of the collection's passages, in the order of the corpus rows.

    A passage keeps the archive's id, because judgments and predictions use it. Without an id, a passage gets the
    MD5 of its text, as in the official data. Ids that differ from the MD5 are counted. An id is written only once.
    """

    def __init__(self) -> None:
        self.ids = NumberedIds()  # the number of an id is its row in the corpus
        # For ids that differ from the MD5 of their text: id -> MD5, and MD5 -> first id.
        self._digests = IdMap()
        self._ids_by_digest = IdMap()

    def add(self, ids: Keys, digests: Keys, findings: BlockFindings) -> Flags:
        """Add passages by their ids and the MD5s of their texts. Return True for each new passage; shape (n,).

        Repeated ids are skipped and counted in ``findings``.
        """
        _, is_new = self.ids.add(ids)
        differs_from_md5 = is_new & (ids != digests).any(axis=1)
        if differs_from_md5.any():
            self._digests.add(ids[differs_from_md5], digests[differs_from_md5])
            self._ids_by_digest.add(digests[differs_from_md5], ids[differs_from_md5])
            findings.add_ids("passages whose id is not the MD5 of their text", ids, differs_from_md5)
        findings.add("passages whose id occurred before (skipped)", int((~is_new).sum()))
        has_changed_text = ~is_new & self.differ(ids, digests)
        findings.add_ids("passages whose id occurred before with another text (skipped)", ids, has_changed_text)
        return is_new

    def differ(self, ids: Keys, digests: Keys) -> Flags:
        """Return True for each id whose text in the collection has an MD5 other than ``digests``; shape (n,)."""
        stored_digests = self._digests.get(ids, ids)
        return np.asarray(self.has(ids) & (stored_digests != digests).any(axis=1))

    def has(self, ids: Keys) -> Flags:
        """Return True for each id that is a passage of the collection; shape (n,)."""
        return self.ids.find(ids) >= 0

    def ids_of(self, digests: Keys) -> Keys:
        """Return the passage ids of texts by their MD5s: the MD5 itself if it is an id or unknown; shape (n, 2)."""
        return np.where(self.has(digests)[:, None], digests, self._ids_by_digest.get(digests, digests))


_Parser = Callable[[bytes], Any]
Lines = npt.NDArray[np.int64]


def _split_good_and_bad(data: bytes, parse: _Parser) -> tuple[bytes, list[BadLine]]:
    """Parse each line of a block alone. Return the good lines as a block, and the errors of the bad lines.

    An error's ``line`` is the number of the line in the block, from 0.
    """
    good_lines: list[bytes] = []
    bad_lines: list[BadLine] = []
    for number, line in enumerate(lines_of(data)):
        try:
            parse(line + b"\n")
            good_lines.append(line + b"\n")
        except BadLine as error:
            bad_lines.append(BadLine(error.message, number))
    return b"".join(good_lines), bad_lines


def _read_blocks(source: OfficialFile, start: int, stop: int, cut: re.Pattern[bytes]) -> Iterator[bytes]:
    """Yield the bytes from ``start`` to ``stop`` in blocks of about 8 MB.

    Each block ends after a match of ``cut``, which matches the end of a row. The last block ends at ``stop``. Raises
    :class:`InputError` if 256 MB have no match.
    """
    pending = b""  # the start of a row whose end is not read yet
    with open(source.path, "rb") as file:
        file.seek(start)
        while True:
            new_data = file.read(min(BLOCK_BYTES, stop - file.tell()))
            if not new_data:
                break
            pending += new_data
            # Yield up to the last boundary of rows. The rest waits for the next bytes.
            last_cut = max((match.end() for match in cut.finditer(pending)), default=0)
            if last_cut:
                yield pending[:last_cut]
                pending = pending[last_cut:]
            elif len(pending) > LONGEST_ROW:
                raise source.error("has a row of over 256 MB; expected shorter rows")
    if pending:
        yield pending


class Corpus:
    """Writer of the config ``corpus``. Titles are empty."""

    def __init__(self, draft: Draft) -> None:
        self._rows = draft.writer("corpus", "corpus")
        self.lengths = LengthCounter()

    def write(self, ids: Keys, texts: pa.StringArray) -> None:
        """Append passages, and count their characters."""
        self.lengths.add(pc.utf8_length(texts).to_numpy())
        titles = [""] * len(texts)
        self._rows.write(pa.table([hex_ids(ids), titles, texts], schema=CORPUS))


@dataclass
class BlockWork:
    """The release being written, with the texts, findings and passages of the files that were read."""

    folder: Path  # temporary folder beside the release
    draft: Draft
    texts: NumberedTexts
    findings: BlockFindings
    passages: BlockPassages = field(default_factory=BlockPassages)  # empty for a copy

    def parsed(
        self, file: OfficialFile, parse: _Parser, span: tuple[int, int] | None = None, cut: re.Pattern[bytes] = LINE_CUT
    ) -> Iterator[tuple[Any, Lines]]:
        """Yield ``parse(block)`` and the numbers (from 1) of the parsed lines, for every block of a file.

        ``parse`` is a function of :mod:`.official_formats`. ``span`` is the byte range to read: start and end. Blocks
        end after a match of ``cut``. A file that is one JSON object has another ``cut`` than the end of a line: its
        blocks may end within a line, and the numbers are no line numbers. Raises :class:`InputError` for a bad line,
        unless bad lines are skipped.
        """
        start, stop = span or (0, file.size)
        first_line = 1 + file.read(start).count(b"\n")  # line number of the block's first line
        with show_progress(total=stop - start, unit="B", label=file.name.rsplit("/", 1)[-1]) as bar:
            for data in _read_blocks(file, start, stop, cut):
                # Parse the whole block, and single lines only if the block has a bad line.
                bad_lines: list[BadLine] = []
                try:
                    parsed = parse(data)
                except BadLine as error:
                    # Rows that are not lines cannot be skipped.
                    if not self.findings.skips or cut is not LINE_CUT:
                        raise file.error(error.message, first_line + error.line) from None
                    good_data, bad_lines = _split_good_and_bad(data, parse)
                    if not good_data and first_line == 1:  # the file probably has a wrong name
                        message = f"has no line in the right format; first error: {bad_lines[0].message}"
                        raise file.error(message, 1) from None
                    parsed = parse(good_data)
                for bad_line in bad_lines:
                    self.findings.skip(file, first_line + bad_line.line, bad_line.message)
                line_numbers = np.arange(first_line, first_line + len(lines_of(data)))
                yield parsed, np.delete(line_numbers, [bad_line.line for bad_line in bad_lines])
                first_line += data.count(b"\n")  # a block of the map may end within a line
                bar.update(len(data))

    def columns(self, file: OfficialFile) -> tuple[dict[str, Numbers], npt.NDArray[np.int8]]:
        """Read a TSV. Return the numbers of its texts by column, and the labels. Sets ``file.rows``.

        New texts are added to :attr:`texts`. The labels are empty if the TSV has none.
        """
        numbers: dict[str, list[Numbers]] = defaultdict(list)
        labels: list[int] = []
        for (columns, block_labels), _ in self.parsed(file, functools.partial(parse_tsv, role=file.role)):
            for name, column in columns.items():
                numbers[name].append(self.number(column))
            labels += block_labels
        text_numbers = {name: np.concatenate(blocks) for name, blocks in numbers.items()}
        file.rows = len(text_numbers["query"])  # all columns have the same length
        return text_numbers, np.array(labels, np.int8)

    def number(self, column: OfficialTexts) -> Numbers:
        """Add a column's texts to :attr:`texts`, and return their numbers. Equal texts have the same number."""
        return self.texts.add(column.texts, as_keys(column.digests))


@contextlib.contextmanager
def open_work(out: Path, skips: bool = False) -> Iterator[BlockWork]:
    """Yield a new release, which is moved to ``out`` when the block ends. With ``skips``, bad lines are skipped."""
    out = check_release_output(out)
    with work_beside(out) as folder, draft_release(out, work=folder) as draft, open(folder / "texts", "wb+") as file:
        yield BlockWork(folder, draft, NumberedTexts(file), BlockFindings(skips))
