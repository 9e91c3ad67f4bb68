"""Arrow files, mapped into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa


@contextlib.contextmanager
def new_arrow(path: Path, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchFileWriter]:
    """Not compressed: a reader that needs some rows or columns reads nothing else of it."""
    with pa.ipc.new_file(str(path), schema) as out:
        yield out


def read_arrow(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """The file's rows, in ``columns`` of its ``schema`` or all."""
    fields = None if columns is None else [schema.get_field_index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file, options=options).read_all()
