"""Verify the files of a release against the manifest. For a shard, also verify rows, columns and values.

A shard's values are checked once, together with the shard's bytes. Every later reader can rely on valid values.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core import cache as verified
from builders.core.cache import FileEntry
from builders.store.layout import LONGEST_TEXT, config_and_split, long_text_fault, schema_of

_ROWS = 1_024  # rows read at a time, because a joined row can have 100 kB
_IDS = {"_id", "query-id", "corpus-id", "query_id", "zh_id", "docid"}


def wrong_file(path: Path, entry: FileEntry, *, again: bool = False) -> str:
    """Describe the first difference between a file of a release and its manifest entry; empty if they agree.

    Size and SHA-256 are compared. A shard's number of rows, columns and values (:func:`wrong_values`) are also checked.
    The whole file is read if the cache has no record of the file (:mod:`builders.core.cache`), or with ``again``.
    """
    shard = entry.path.endswith(".parquet")
    return verified.wrong_file(path, entry, (lambda: _wrong_shard(path, entry)) if shard else None, again=again)


def _wrong_shard(path: Path, entry: FileEntry) -> str:
    config = config_and_split(entry.path)[0]
    try:
        expected = schema_of(config)
    except ValueError:
        return f"is in a folder {config!r}, which is not a config of a release"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if fault := wrong_columns(file.schema_arrow, expected):
                return fault
            count = 0  # counted, because the number in the footer could be wrong
            for batch in file.iter_batches(_ROWS, columns=expected.names):
                count += batch.num_rows
                if fault := wrong_values(batch):
                    return fault
            return "" if count == entry.rows else f"has {count:,} rows, but the manifest lists {entry.rows or 0:,}"
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"is not a readable Parquet file ({error})"


def wrong_columns(schema: pa.Schema, expected: pa.Schema) -> str:
    """Describe the first column of ``expected`` that a shard's ``schema`` lacks; empty if no column is missing."""
    for column in expected:
        index = schema.get_field_index(column.name)
        # Types are compared instead of schemas, because writers name the items of a list differently.
        if index < 0 or not schema.field(index).type.equals(column.type):
            found = ", ".join(f"{field.name} ({field.type})" for field in schema)
            return f"expected a column {column.name} ({column.type}), found {found}"
    return ""


def wrong_values(batch: pa.RecordBatch) -> str:
    """Describe the first invalid value of a batch; empty if all values are valid.

    Parquet allows nulls everywhere, also inside lists, and does not validate UTF-8. C libraries treat a null character
    as the end of an id.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            return f"column {name}: expected UTF-8 text ({error})"
        for part, values in _parts(name, column):
            if values.null_count:
                return f"column {part}: expected no null"
            field_name = part.rpartition(".")[2]
            # Lengths in bytes are at hand. Characters are counted only if a text could be too long.
            if field_name == "text" and (pc.max(pc.binary_length(values)).as_py() or 0) > LONGEST_TEXT:
                faults = map(long_text_fault, values.to_pylist())
                if fault := next(filter(None, faults), ""):
                    return f"column {part}: {fault}"
            if field_name in _IDS and pc.any(pc.match_substring(values, "\0")).as_py():
                return f"column {part}: expected ids without null characters"
    return ""


def _parts(name: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    yield name, values
    if pa.types.is_list(values.type):
        yield from _parts(name, values.flatten())
    elif pa.types.is_struct(values.type):
        for field in values.type:
            yield from _parts(f"{name}.{field.name}", values.field(field.name))
