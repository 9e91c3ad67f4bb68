"""The files of an export on their way: JSON lines, columns and judgments as lines of fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.progress import progress

# What one reader or another takes for the end of a field or of a line: str.splitlines() ends lines at all but the tab.
BREAKS = r"[\t\n\v\f\r\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
_ENCODER = msgspec.json.Encoder()
_SPACES = "texts_with_spaces_for_tabs_and_line_ends"

Blocks = Iterable[tuple[int, bytes]]  # rows, and the bytes of these


class Output:
    """The folder of one export, and the release that it is made from.

    Attributes:
        folder: the folder.
        negatives: files of hard negatives, as `baselines mine` writes them.
        negatives_per_positive: how many of them a row of training data has.
        rows: rows of each file written, by its name below the folder.
        notes: further content of EXPORT: by file, how many of its lines had tabs and line ends replaced.
    """

    def __init__(self, folder: Path, source: Path, negatives: Sequence[Path], negatives_per_positive: int) -> None:
        self.folder, self._source = folder, source
        self.negatives, self.negatives_per_positive = negatives, negatives_per_positive
        self.rows: dict[str, int] = {}
        self.notes: dict[str, dict[str, Any]] = {_SPACES: {}}

    def json(self, name: str, batches: Iterable[list[dict[str, Any]]]) -> None:
        """Write rows as JSON lines."""
        self.blocks(name, ((len(rows), _json_lines(rows)) for rows in batches))

    def texts(self, name: str, batches: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Write (ids, texts) as a TSV file of two columns."""
        self.tsv(name, ((self._checked(ids, name), texts) for ids, texts in batches))

    def tsv(self, name: str, batches: Iterable[Sequence[pa.Array]], breaks: str = BREAKS) -> None:
        """Write columns of texts with tabs between them: tabs and line ends of a text, ``breaks``, become spaces."""

        def blocks() -> Blocks:
            for columns in batches:
                holds = pa.array([False] * len(columns[0]))
                for column in columns:
                    holds = pc.or_(holds, pc.match_substring_regex(column, breaks))
                if broken := pc.sum(holds).as_py():
                    self.notes[_SPACES][name] = self.notes[_SPACES].get(name, 0) + broken
                    columns = [pc.replace_substring_regex(column, breaks, " ") for column in columns]
                yield len(holds), _lines(pc.binary_join_element_wise(*columns, "\t"))

        self.blocks(name, blocks())
        if broken := self.notes[_SPACES].get(name):
            kept = "tabs and line ends were written as spaces; the ids stay those of the unchanged texts"
            log.warning("%s: in %d of %d lines, %s", name, broken, self.rows[name], kept)

    def qrels(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: list[str], gap: str, header: bool = False
    ) -> None:
        """Write judgments; ``columns`` are names of qrels columns, or a text that stands in every line."""

        def blocks() -> Blocks:
            if header:
                yield 0, f"{gap.join(columns)}\n".encode()
            for batch in batches:
                have = {each: self._checked(batch[each], name) for each in ("query-id", "corpus-id")}
                have["score"] = batch["score"].cast(pa.string())
                fields = [have.get(column, pa.scalar(column)) for column in columns]
                yield batch.num_rows, _lines(pc.binary_join_element_wise(*fields, gap))

        self.blocks(name, blocks())

    def _checked(self, ids: pa.Array, name: str) -> pa.Array:
        """Columns are told apart by blanks: an id must not hold one, nor be empty."""
        bad = ids.filter(pc.invert(pc.match_substring_regex(ids, r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$")))
        if len(bad):
            problem = f"has the id {bad[0].as_py()!r}, which is empty or holds blanks; expected ids without, for {name}"
            raise InputError(problem, path=self._source)
        return ids

    def blocks(self, name: str, blocks: Blocks) -> None:
        """Write one file."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows[name] = 0
        with open(path, "wb") as file, progress(unit="row", label=name) as bar:
            for rows, block in blocks:
                file.write(block)
                self.rows[name] += rows
                bar.update(rows)


def _json_lines(rows: list[dict[str, Any]]) -> bytes:
    block = _ENCODER.encode_lines(rows)
    # Line ends to str.splitlines() that JSON allows within a string: escaped, every reader of lines agrees.
    for mark in ("\x85", "\u2028", "\u2029"):
        block = block.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    return block


def _lines(column: pa.Array) -> bytes:
    return "".join(f"{line}\n" for line in column.to_pylist()).encode()
