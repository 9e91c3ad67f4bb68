"""The files of an export on their way: JSON lines, texts and judgments as lines of fields, copies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.progress import progress

# What one reader or another takes for the end of a field or of a line: str.splitlines() ends lines at all but the tab.
_BREAKS = r"[\t\n\v\f\r\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
_ENDS = re.compile(r"[\t\r\n]")  # those at which the official code cuts fields and lines
_BLOCK = 1 << 20
_ENCODER = msgspec.json.Encoder()
_SPACES = "texts_with_spaces_for_tabs_and_line_ends"

Blocks = Iterable[tuple[int, bytes]]  # rows, and the bytes of these


class Output:
    """The folder of one export, and the release that it is made from.

    Attributes:
        negatives: files of hard negatives, as `baselines mine` writes them.
        negatives_per_positive: how many of them a row of training data has.
        rows: rows of each file written, by its name below the folder.
        notes: further content of EXPORT: by file, how many of its texts had tabs and line ends replaced.
    """

    def __init__(self, folder: Path, source: Path, negatives: tuple[Path, ...], negatives_per_positive: int) -> None:
        self._folder, self._source = folder, source
        self.negatives, self.negatives_per_positive = negatives, negatives_per_positive
        self.rows: dict[str, int] = {}
        self.notes: dict[str, dict[str, Any]] = {_SPACES: {}}

    def json(self, name: str, batches: Iterable[list[dict[str, Any]]]) -> None:
        """Write rows as JSON lines."""
        self.blocks(name, ((len(rows), _json_lines(rows)) for rows in batches))

    def texts(self, name: str, batches: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Write (ids, texts) as a TSV file of two columns: tabs and line ends of a text become spaces."""

        def blocks() -> Blocks:
            for ids, texts in batches:
                self._check_ids(ids, name)
                if broken := pc.sum(pc.match_substring_regex(texts, _BREAKS)).as_py():
                    self._note(name, broken)
                    texts = pc.replace_substring_regex(texts, _BREAKS, " ")
                yield len(ids), _lines(pc.binary_join_element_wise(ids, texts, "\t"))

        self.blocks(name, blocks(), "texts")

    def tsv(self, name: str, rows: Iterable[list[str]]) -> None:
        """Write rows of fields with tabs between them: tabs and line ends of a field become spaces."""

        def blocks() -> Blocks:
            for row in rows:
                fields = [_ENDS.sub(" ", field) for field in row]
                if fields != row:
                    self._note(name, 1)
                yield 1, ("\t".join(fields) + "\n").encode()

        self.blocks(name, blocks(), "rows")

    def _note(self, name: str, broken: int) -> None:
        self.notes[_SPACES][name] = self.notes[_SPACES].get(name, 0) + broken

    def qrels(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: list[str], gap: str, header: bool = False
    ) -> None:
        """Write judgments; ``columns`` are names of qrels columns, or a text that stands in every line."""

        def blocks() -> Blocks:
            if header:
                yield 0, f"{gap.join(columns)}\n".encode()
            for batch in batches:
                self._check_ids(batch["query-id"], name)
                self._check_ids(batch["corpus-id"], name)
                fields = [
                    batch[column].cast(pa.string()) if column in batch.schema.names else pa.scalar(column)
                    for column in columns
                ]
                yield batch.num_rows, _lines(pc.binary_join_element_wise(*fields, gap))

        self.blocks(name, blocks())

    def copy(self, name: str, path: Path) -> None:
        """Copy a file of lines."""
        with open(path, "rb") as file:
            self.blocks(name, ((block.count(b"\n"), block) for block in iter(lambda: file.read(_BLOCK), b"")))

    def remove(self, name: str) -> None:
        """Leave out a file that was written."""
        (self._folder / name).unlink()
        del self.rows[name]

    def _check_ids(self, ids: pa.Array, name: str) -> None:
        """Columns are told apart by blanks: an id must not hold one, nor be empty."""
        bad = ids.filter(pc.invert(pc.match_substring_regex(ids, r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$")))
        if len(bad):
            problem = f"has the id {bad[0].as_py()!r}, which is empty or holds blanks; expected ids without, for {name}"
            raise InputError(problem, path=self._source)

    def blocks(self, name: str, blocks: Blocks, unit: str = "") -> None:
        """Write one file; log how many of its texts or rows, the ``unit``, had tabs and line ends replaced."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        count = 0
        with open(path, "wb") as file, progress(unit="row", label=name) as bar:
            for rows, block in blocks:
                file.write(block)
                count += rows
                bar.update(rows)
        self.rows[name] = count
        if broken := self.notes[_SPACES].get(name):
            log.warning(
                "%s: in %d of %d %s, tabs and line ends were written as spaces; the ids stay those of the"
                " unchanged texts",
                *(name, broken, count, unit),
            )


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    block = _ENCODER.encode_lines(rows)
    # Line ends to str.splitlines() that JSON allows within a string: escaped, every reader of lines agrees.
    for mark in ("\x85", "\u2028", "\u2029"):
        block = block.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    return block


def _lines(column: pa.Array) -> bytes:
    return "".join(f"{line}\n" for line in column.to_pylist()).encode()
