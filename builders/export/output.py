"""Write the files of an export: JSON lines, TSV files and judgments."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.progress import progress

# Characters that some readers treat as the end of a field or line. str.splitlines() splits at each one except the tab.
BREAKS = r"[\t\n\v\f\r\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
_ENCODER = msgspec.json.Encoder()
_SPACES = "texts_with_spaces_for_tabs_and_line_ends"

Blocks = Iterable[tuple[int, bytes]]  # (number of rows, their bytes)


class Output:
    """The folder of an export.

    Attributes:
        folder: the folder.
        negatives: files of hard negatives from `baselines mine`.
        negatives_per_positive: number of negatives dealt to each positive of training data.
        rows: number of rows of each written file, by the file's name in the folder.
        notes: further content of the file EXPORT, for example the number of changed lines in each file.
    """

    def __init__(self, folder: Path, source: Path, negatives: Sequence[Path], negatives_per_positive: int) -> None:
        self.folder, self._source = folder, source
        self.negatives, self.negatives_per_positive = negatives, negatives_per_positive
        self.rows: dict[str, int] = {}
        self.notes: dict[str, dict[str, Any]] = {_SPACES: {}}

    def json(self, name: str, batches: Iterable[list[dict[str, Any]]]) -> None:
        """Write rows as JSON lines."""
        self.blocks(name, ((len(rows), encoded_lines(rows)) for rows in batches))

    def texts(self, name: str, batches: Iterable[tuple[pa.Array, pa.Array]]) -> None:
        """Write (ids, texts) as a TSV file with two columns."""
        self.tsv(name, ((self._checked(ids, name), texts) for ids, texts in batches))

    def tsv(self, name: str, batches: Iterable[Sequence[pa.Array]], breaks: str = BREAKS) -> None:
        """Write columns of texts as TSV. Characters of a text that match ``breaks`` are replaced by spaces."""

        def blocks() -> Blocks:
            for columns in batches:
                matches = functools.reduce(pc.or_, [pc.match_substring_regex(column, breaks) for column in columns])
                if broken := pc.sum(matches).as_py():
                    self.notes[_SPACES][name] = self.notes[_SPACES].get(name, 0) + broken
                    columns = [pc.replace_substring_regex(column, breaks, " ") for column in columns]
                yield len(matches), _lines(pc.binary_join_element_wise(*columns, "\t"))

        self.blocks(name, blocks())
        if broken := self.notes[_SPACES].get(name):
            words = "%s: replaced tabs and line ends by spaces in %d of %d lines; ids are those of the unchanged texts"
            log.warning(words, name, broken, self.rows[name])

    def qrels(
        self, name: str, batches: Iterable[pa.RecordBatch], columns: list[str], gap: str, header: bool = False
    ) -> None:
        """Write judgments. ``columns`` are names of qrels columns, or constant texts."""

        def blocks() -> Blocks:
            if header:
                yield 0, f"{gap.join(columns)}\n".encode()
            for batch in batches:
                known = {column: self._checked(batch[column], name) for column in ("query-id", "corpus-id")}
                known["score"] = batch["score"].cast(pa.string())
                fields = [known.get(column, pa.scalar(column)) for column in columns]
                yield batch.num_rows, _lines(pc.binary_join_element_wise(*fields, gap))

        self.blocks(name, blocks())

    def _checked(self, ids: pa.Array, name: str) -> pa.Array:
        bad = ids.filter(pc.invert(pc.match_substring_regex(ids, r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$")))
        if len(bad):
            raise InputError(
                f"has the id {bad[0].as_py()!r}, but {name} needs ids that are not empty and have no white space",
                path=self._source,
            )
        return ids

    def blocks(self, name: str, blocks: Blocks) -> None:
        """Write a file from blocks of bytes, with a progress bar."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows[name] = 0
        with open(path, "wb") as file, progress(unit="row", label=name) as bar:
            for rows, block in blocks:
                file.write(block)
                self.rows[name] += rows
                bar.update(rows)


def encoded_lines(rows: list[dict[str, Any]]) -> bytes:
    block = _ENCODER.encode_lines(rows)
    # JSON allows these characters in strings, but str.splitlines() splits at them. Escapes are safe for all readers.
    for mark in ("\x85", "\u2028", "\u2029"):
        block = block.replace(mark.encode(), f"\\u{ord(mark):04x}".encode())
    return block


def _lines(column: pa.Array) -> bytes:
    return "".join(f"{line}\n" for line in column.to_pylist()).encode()
