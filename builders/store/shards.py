"""The check of a release's files: the bytes that the manifest lists; in a shard also rows, columns and values.

A shard's values are checked once, together with its bytes. After that every reader, DuckDB too, may rely on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core import cache as verified
from builders.core.cache import FileEntry
from builders.store.layout import config_and_split, schema_of

_ROWS = 1_024  # read at a time: a joined row can be 100 kB
_IDS = {"_id", "query-id", "corpus-id", "query_id", "zh_id", "docid"}


def wrong_file(path: Path, entry: FileEntry, *, again: bool = False) -> str:
    """Describe what is wrong with a file of a release; empty if it is what its entry in the manifest says.

    That is its size and SHA-256; of a shard its rows, that it has the columns of its config, and their values
    (:func:`wrong_values`). The whole file is read the first time, and whenever ``again`` says so.
    """
    shard = entry.path.endswith(".parquet")
    return verified.wrong_file(path, entry, (lambda: _wrong_shard(path, entry)) if shard else None, again=again)


def _wrong_shard(path: Path, entry: FileEntry) -> str:
    config = config_and_split(entry.path)[0]
    try:
        expected = schema_of(config)
    except ValueError:
        return f"is of no config of a release ({config!r})"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if fault := wrong_columns(file.schema_arrow, expected):
                return fault
            held = 0  # the footer's number is the file's own word
            for batch in file.iter_batches(_ROWS, columns=expected.names):
                held += batch.num_rows
                if fault := wrong_values(batch):
                    return fault
            return "" if held == entry.rows else f"has {held:,} rows where the manifest says {entry.rows or 0:,}"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"is not Parquet ({error})"


def wrong_columns(schema: pa.Schema, expected: pa.Schema) -> str:
    """Describe the first column of ``expected`` that a shard's ``schema`` lacks; empty if it has them all."""
    for column in expected:
        index = schema.get_field_index(column.name)
        # Lists may name their items differently: two schemas are equal where their fields' types are.
        if index < 0 or not schema.field(index).type.equals(column.type):
            found = ", ".join(f"{field.name} ({field.type})" for field in schema)
            return f"expected a column {column.name} ({column.type}); it has {found}"
    return ""


def wrong_values(batch: pa.RecordBatch) -> str:
    """Describe what is wrong with the values of some rows; empty if nothing is.

    Parquet lets a value be missing anywhere, in a list, too, and bytes of any kind stand for a text. The libraries in C
    take a null character for the end of an id.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return f"the column {name}: expected UTF-8 text ({error})"
        for part, values in _parts(name, column):
            if values.null_count:
                return f"the column {part}: expected no null"
            if part.rpartition(".")[2] in _IDS and pc.any(pc.match_substring(values, "\0")).as_py():
                return f"the column {part}: expected ids without null characters"
    return ""


def _parts(name: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """A column, and what lies in its lists and structs, by name."""
    yield name, values
    if pa.types.is_list(values.type):
        yield from _parts(name, values.flatten())
    elif pa.types.is_struct(values.type):
        for field in values.type:
            yield from _parts(f"{name}.{field.name}", values.field(field.name))
