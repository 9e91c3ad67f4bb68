"""What labelling hands on: for each block of raw rows a folder of three Arrow files.

The folder ``NNNNNN`` appears under its name only when it is whole; a killed build goes on from those that are there.

A row of these files is known by its *place*: ``(block << 32) + its number in the block's file``. Places are in the
order of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Places = npt.NDArray[np.int64]

SCHEMAS = {
    # A row for each raw row.
    "questions": pa.schema(
        [
            ("split", pa.string()),
            ("question_id", pa.string()),  # the raw row's own
            ("query_id", pa.string()),  # MD5 of the text
            ("text", pa.string()),
            ("chars", pa.int64()),
            ("answered", pa.bool_()),
            ("blank_passages", pa.int64()),  # how many were left out
            ("segmented", pa.bool_()),  # the row carried no words: this build cut them
            ("source", pa.string()),
            ("offset", pa.int64()),  # where its line begins in the source
        ]
    ),
    # Every passage, as often as its text comes.
    "passages": pa.schema([("docid", pa.string()), ("text", pa.string()), ("chars", pa.int64())]),
    # The positive ones; ``passage`` is the number of its row in ``passages``.
    "positives": pa.schema(
        [
            ("split", pa.string()),
            ("query_id", pa.string()),
            ("docid", pa.string()),
            ("passage", pa.int64()),
            ("chars", pa.int64()),
        ]
    ),
}


def block_folder(work: Path, block: int) -> Path:
    return work / f"{block:06d}"


def write_labelled(folder: Path, name: str, columns: Mapping[str, Any]) -> None:
    """Write one of a block's files."""
    # Not compressed: a reader that needs some rows or columns reads nothing else of it.
    with pa.ipc.new_file(str(folder / f"{name}.arrow"), SCHEMAS[name]) as out:
        out.write_table(pa.table(columns, schema=SCHEMAS[name]))


def read_labelled(work: Path, block: int, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One of a block's files, or some columns of it."""
    fields = None if columns is None else [SCHEMAS[name].get_field_index(column) for column in columns]
    with pa.memory_map(str(block_folder(work, block) / f"{name}.arrow")) as file:
        return pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(included_fields=fields)).read_all()


def rows_at(places: Places, work: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """The rows at these places, in this order, whatever blocks they are in."""
    if not places.size:
        return SCHEMAS[name].empty_table().select(columns)
    order = np.argsort(places, kind="stable")
    blocks, numbers = np.divmod(places[order], 1 << 32)
    found, starts = np.unique(blocks, return_index=True)
    tables = [
        read_labelled(work, block, name, columns).take(some)
        for block, some in zip(found.tolist(), np.split(numbers, starts[1:]), strict=True)
    ]
    table = pa.concat_tables(tables)
    if (order[1:] > order[:-1]).all():  # they were asked for in the order of the input
        return table
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return table.combine_chunks().take(back)
