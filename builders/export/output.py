"""Write the files of an export: JSON lines, TSV files and judgments."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.progress import show_progress

# Characters that some readers treat as the end of a field or line. str.splitlines() splits at each one except the tab.
BREAKS = r"[\t\n\v\f\r\x1c\x1d\x1e\x{85}\x{2028}\x{2029}]"
_PLAIN_ID = r"^[^\s\v\x1c-\x1f\x{85}\p{Z}]+$"  # an id that is not empty and has no white space
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
        notes: further content of the file EXPORT: name of a note -> file name -> number. For example, the number of
            changed lines in each file.
    """

    def __init__(self, folder: Path, source: Path, negatives: Sequence[Path], negatives_per_positive: int) -> None:
        self.folder = folder
        self._source = source  # the release directory, for errors
        self.negatives = negatives
        self.negatives_per_positive = negatives_per_positive
        self.rows: dict[str, int] = {}
        self.notes: dict[str, dict[str, Any]] = {_SPACES: {}}

    def json(
        self, file_name: str, batches: Iterable[list[dict[str, Any]]], total: int | None = None, bar: Any = None
    ) -> None:
        """Write rows as JSON lines. For ``total`` and ``bar``, see :meth:`blocks`."""
        self.blocks(file_name, ((len(rows), encoded_lines(rows)) for rows in batches), total, bar)

    def texts(self, file_name: str, batches: Iterable[tuple[pa.Array, pa.Array]], total: int | None = None) -> None:
        """Write (ids, texts) as a TSV file with two columns. For ``total``, see :meth:`blocks`."""
        self.tsv(file_name, ((self._check_ids(ids, file_name), texts) for ids, texts in batches), total=total)

    def tsv(
        self,
        file_name: str,
        batches: Iterable[Sequence[pa.Array]],
        breaks: str = BREAKS,
        total: int | None = None,
        bar: Any = None,
    ) -> None:
        """Write columns of texts as TSV. Characters of a text that match ``breaks`` are replaced by spaces.

        For ``total`` and ``bar``, see :meth:`blocks`.
        """
        changed_lines = self.notes[_SPACES]

        def encode_batches() -> Blocks:
            for columns in batches:
                matches = [pc.match_substring_regex(column, breaks) for column in columns]
                is_changed = functools.reduce(pc.or_, matches)
                changed_count = pc.sum(is_changed).as_py()
                if changed_count:
                    changed_lines[file_name] = changed_lines.get(file_name, 0) + changed_count
                    columns = [pc.replace_substring_regex(column, breaks, " ") for column in columns]
                # The last argument separates the fields.
                lines = pc.binary_join_element_wise(*columns, "\t")
                yield len(is_changed), _encode_lines(lines)

        self.blocks(file_name, encode_batches(), total, bar)
        # Warn once for a file, not for every batch.
        if changed_lines.get(file_name):
            log.warning(
                "%s: replaced tabs and line ends by spaces in %d of %d lines; ids are those of the unchanged texts",
                file_name,
                changed_lines[file_name],
                self.rows[file_name],
            )

    def qrels(
        self,
        file_name: str,
        batches: Iterable[pa.RecordBatch],
        columns: list[str],
        gap: str,
        header: bool = False,
        total: int | None = None,
    ) -> None:
        """Write judgments. ``columns`` are names of qrels columns, or constant texts, which ``gap`` separates.

        For ``total``, see :meth:`blocks`.
        """

        def encode_batches() -> Blocks:
            # The header is no row, so it is not counted.
            if header:
                yield 0, f"{gap.join(columns)}\n".encode()
            for batch in batches:
                values = {
                    "query-id": self._check_ids(batch["query-id"], file_name),
                    "corpus-id": self._check_ids(batch["corpus-id"], file_name),
                    "score": batch["score"].cast(pa.string()),
                }
                fields = [values.get(column, pa.scalar(column)) for column in columns]
                yield batch.num_rows, _encode_lines(pc.binary_join_element_wise(*fields, gap))

        self.blocks(file_name, encode_batches(), total)

    def _check_ids(self, ids: pa.Array, file_name: str) -> pa.Array:
        """Return the ids. Raise :class:`InputError` for an id that would break a line of the file ``file_name``."""
        # In a TSV or TREC file, white space within an id would begin the next column.
        bad_ids = ids.filter(pc.invert(pc.match_substring_regex(ids, _PLAIN_ID)))
        if len(bad_ids):
            raise InputError(
                f"has the id {bad_ids[0].as_py()!r}, but {file_name} needs ids that are not empty"
                " and have no white space",
                path=self._source,
            )
        return ids

    def blocks(self, file_name: str, blocks: Blocks, total: int | None = None, bar: Any = None) -> None:
        """Write a file from (number of rows, bytes) pairs, with a progress bar.

        ``total`` is the largest number of rows that the file can have, or None if it is unknown. If ``bar`` is given,
        the producer of ``blocks`` moves this open bar, so no second bar is shown. Otherwise, a new bar counts written
        rows.
        """
        if bar is not None:
            self._write_blocks(file_name, blocks)
            return
        with show_progress(total=total, unit="row", label=file_name) as row_bar:
            self._write_blocks(file_name, _move_bar(row_bar, blocks))

    def _write_blocks(self, file_name: str, blocks: Blocks) -> None:
        path = self.folder / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows[file_name] = 0
        with open(path, "wb") as file:
            for row_count, block in blocks:
                file.write(block)
                self.rows[file_name] += row_count


def _move_bar(bar: Any, blocks: Blocks) -> Blocks:
    """Yield the blocks. Move the bar when a block is written."""
    for row_count, block in blocks:
        yield row_count, block
        bar.update(row_count)


def encoded_lines(rows: list[dict[str, Any]]) -> bytes:
    """Return rows as JSON lines."""
    block = _ENCODER.encode_lines(rows)
    # JSON allows these characters in strings, but str.splitlines() splits at them. Escapes are safe for all readers.
    for line_end in ("\x85", "\u2028", "\u2029"):
        block = block.replace(line_end.encode(), f"\\u{ord(line_end):04x}".encode())
    return block


def _encode_lines(column: pa.Array) -> bytes:
    return "".join(f"{line}\n" for line in column.to_pylist()).encode()
