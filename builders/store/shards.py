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

_ROWS_PER_BATCH = 1_024  # few, because a joined row can have 100 kB
_ID_FIELDS = {
    "_id",
    "query-id",
    "corpus-id",
    "query_id",
    "zh_id",
    "docid",
    "original-id",
    "original_id",
    "answer_passages",
}


def wrong_file(file_path: Path, entry: FileEntry, *, again: bool = False) -> str:
    """Describe the first difference between a file of a release and its manifest entry; empty if they agree.

    Size and SHA-256 are compared. A shard's number of rows, columns and values (:func:`wrong_values`) are also checked.
    A file that was correct before and has not changed since is not read again (:mod:`builders.core.cache`), unless
    ``again`` is True.
    """
    if not entry.path.endswith(".parquet"):
        return verified.wrong_file(file_path, entry, again=again)
    return verified.wrong_file(file_path, entry, lambda: _wrong_shard(file_path, entry), again=again)


def _wrong_shard(shard_path: Path, entry: FileEntry) -> str:
    """Describe the first fault of a shard's columns, values or number of rows; empty if the shard is valid."""
    config, _ = config_and_split(entry.path)
    try:
        schema = schema_of(config)
    except ValueError:
        return f"is in a folder {config!r}, which is not a config of a release"
    try:
        with pq.ParquetFile(shard_path, page_checksum_verification=True) as shard:
            fault = wrong_columns(shard.schema_arrow, schema)
            if fault:
                return fault
            row_count = 0  # counted, because the number in the footer could be wrong
            for batch in shard.iter_batches(_ROWS_PER_BATCH, columns=schema.names):
                row_count += batch.num_rows
                fault = wrong_values(batch)
                if fault:
                    return fault
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return f"is not a readable Parquet file ({error})"
    if row_count != entry.rows:
        return f"has {row_count:,} rows, but the manifest lists {entry.rows or 0:,}"
    return ""


def wrong_columns(shard_schema: pa.Schema, expected_schema: pa.Schema) -> str:
    """Describe the first column of ``expected_schema`` that a shard lacks; empty if no column is missing."""
    for column in expected_schema:
        index = shard_schema.get_field_index(column.name)
        # Types are compared instead of schemas, because writers name the items of a list differently.
        if index < 0 or not shard_schema.field(index).type.equals(column.type):
            shard_columns = ", ".join(f"{field.name} ({field.type})" for field in shard_schema)
            return f"expected a column {column.name} ({column.type}), found {shard_columns}"
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
        # The fields of lists and structs have nulls and values of their own.
        for field_path, values in _nested_fields(name, column):
            fault = _wrong_field(field_path, values)
            if fault:
                return f"column {field_path}: {fault}"
    return ""


def _nested_fields(field_path: str, values: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield (path, values) of a column and of the fields inside its lists and structs, such as ``passages.docid``."""
    yield field_path, values
    if pa.types.is_list(values.type):
        yield from _nested_fields(field_path, values.flatten())
    elif pa.types.is_struct(values.type):
        for field in values.type:
            yield from _nested_fields(f"{field_path}.{field.name}", values.field(field.name))


def _wrong_field(field_path: str, values: pa.Array) -> str:
    """Describe the first invalid value of a field; empty if all values are valid."""
    if values.null_count:
        return "expected no null"
    field_name = field_path.rpartition(".")[2]
    # Lengths in bytes are at hand. Characters are counted only if a text could be too long.
    if field_name == "text" and (pc.max(pc.binary_length(values)).as_py() or 0) > LONGEST_TEXT:
        for text in values.to_pylist():
            fault = long_text_fault(text)
            if fault:
                return fault
    # The lists of answer_passages have the field's name, too.
    is_id = field_name in _ID_FIELDS and pa.types.is_string(values.type)
    if is_id and pc.any(pc.match_substring(values, "\0")).as_py():
        return "expected ids without null characters"
    return ""
