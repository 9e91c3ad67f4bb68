"""The files of an export on their way: JSON lines, texts and judgments as lines of fields, copies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Options:
    """What an export takes beside the release.

    Attributes:
        negatives: files of hard negatives, as `baselines mine` writes them.
        negatives_per_positive: how many of them a row of training data has.
        runs: runs to be written beside the set.
        runs_only: write them and nothing else.
    """

    negatives: tuple[Path, ...] = ()
    negatives_per_positive: int = 4
    runs: tuple[Path, ...] = ()
    runs_only: bool = False


class Output:
    """The folder of one export, and the release that it is made from.

    Attributes:
        options: what the export takes beside the release.
        rows: rows of each file written, by its name below the folder; None where they are not counted.
        notes: what EXPORT says besides: by file, how many of its texts had tabs and line ends replaced.
    """

    def __init__(self, folder: Path, source: Path, options: Options) -> None:
        self.folder, self._source, self.options = folder, source, options
        self.rows: dict[str, int | None] = {}
        self.notes: dict[str, dict[str, Any]] = {_SPACES: {}}

    def json(self, name: str, batches: Iterable[list[dict[str, Any]]]) -> None:
        """Write rows as JSON lines."""
        self._write(name, ((len(rows), _json_lines(rows)) for rows in batches))

    def texts(self, name: str, batches: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Write (ids, texts) as a TSV file of two columns: tabs and line ends of a text become spaces."""

        def blocks() -> Iterator[tuple[int, bytes]]:
            for ids, texts in batches:
                self._check_ids(ids, name)
                broken = pc.sum(pc.match_substring_regex(texts, _BREAKS)).as_py()
                if broken:
                    self.notes[_SPACES][name] = self.notes[_SPACES].get(name, 0) + broken
                    texts = pc.replace_substring_regex(texts, _BREAKS, " ")
                yield len(ids), _lines(pc.binary_join_element_wise(ids, texts, "\t"))

        self._write(name, blocks())
        self._warn(name, "texts")

    def tsv(self, name: str, rows: Iterable[list[str]]) -> None:
        """Write rows of fields with tabs between them: tabs and line ends of a field become spaces."""

        def blocks() -> Iterator[tuple[int, bytes]]:
            for row in rows:
                fields = [_ENDS.sub(" ", field) for field in row]
                if fields != row:
                    self.notes[_SPACES][name] = self.notes[_SPACES].get(name, 0) + 1
                yield 1, ("\t".join(fields) + "\n").encode()

        self._write(name, blocks())
        self._warn(name, "rows")

    def _warn(self, name: str, unit: str) -> None:
        """Log how many texts or rows of a file had tabs and line ends replaced, if any had."""
        if broken := self.notes[_SPACES].get(name):
            log.warning(
                "%s: in %d of %d %s, tabs and line ends were written as spaces; the ids stay those of the"
                " unchanged texts",
                *(name, broken, self.rows[name], unit),
            )

    def qrels(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: list[str], gap: str, header: bool = False
    ) -> None:
        """Write judgments; ``columns`` are names of qrels columns, or a text that stands in every line."""

        def blocks() -> Iterator[tuple[int, bytes]]:
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

        self._write(name, blocks())

    def blocks(self, name: str, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Write a file from blocks of (rows, bytes)."""
        self._write(name, blocks)

    def copy(self, name: str, path: Path) -> None:
        """Copy a file of lines."""
        with open(path, "rb") as file:
            self._write(name, ((block.count(b"\n"), block) for block in iter(lambda: file.read(_BLOCK), b"")))

    def remove(self, name: str) -> None:
        """Leave out a file that was written."""
        (self.folder / name).unlink()
        del self.rows[name]

    def _check_ids(self, ids: pa.Array, name: str) -> None:
        """Columns are told apart by blanks: an id must not hold one, nor be empty."""
        bad = pc.invert(pc.match_substring_regex(ids, r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$"))
        if pc.any(bad).as_py():
            found = ids.filter(bad)[0].as_py()
            problem = f"has the id {found!r}, which is empty or holds blanks; expected ids without, for {name}"
            raise InputError(problem, path=self._source)

    def _write(self, name: str, blocks: Iterable[tuple[int, bytes]]) -> None:
        """Write one file from blocks of (rows, bytes)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        count = 0
        with open(path, "wb") as file, progress(unit="row", label=name) as bar:
            for rows, block in blocks:
                file.write(block)
                count += rows
                bar.update(rows)
        self.rows[name] = count


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    block = _ENCODER.encode_lines(rows)
    # Line ends to str.splitlines() that JSON allows within a string: escaped, every reader of lines agrees.
    for mark in ("\x85", "\u2028", "\u2029"):
        block = block.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    return block


def _lines(column: pa.Array) -> bytes:
    return "".join(f"{line}\n" for line in column.to_pylist()).encode()
