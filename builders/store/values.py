"""What the values of a shard must be, whoever wrote it: all there, text that is UTF-8, ids that no library cuts."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

_IDS = {"_id", "query-id", "corpus-id", "query_id", "zh_id", "docid"}


def wrong_values(batch: pa.RecordBatch) -> str:
    """What is wrong with the values of some rows, in words; empty where nothing is.

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
