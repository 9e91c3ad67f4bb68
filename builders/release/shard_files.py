"""Shards: what the two halves of ``release`` hand each other, on disk.

A shard is a folder ``NNNNNN`` in the build's work directory; it appears under its name only when it is whole, which is
what resuming a killed build relies on. In it, as Arrow files that can be mapped into memory: ``questions``, a row for
each row of the block; ``passages``, each text once, at its first place; ``positives``, the ids of a query and of a
passage, with the passage's row number; and ``ids``, the passages' ids sorted (see :mod:`.dedupe`). Once the
files of the release hold its passages, those of a shard may be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from builders.common.addresses import is_address
from builders.common.arrow_files import new_arrow, read_arrow

ID = pa.binary(16)
QUESTIONS = pa.schema(
    [
        ("split", pa.string()),
        ("question_id", pa.string()),  # the raw row's own
        ("query", pa.uuid()),  # its id in the release
        ("text", pa.string()),
        ("answered", pa.bool_()),
        ("blank_passages", pa.int64()),
        ("cut", pa.bool_()),  # the row carried no words: this build cut them
        ("source", pa.string()),
        ("start", pa.int64()),  # where its line begins in the source
    ]
)
PASSAGES = pa.schema([("id", ID), ("text", pa.string())])
POSITIVES = pa.schema([("split", pa.string()), ("query", pa.uuid()), ("docid", pa.uuid()), ("passage", pa.int64())])


def shard_path(work: Path, number: int) -> Path:
    return work / f"{number:06d}"


def write_table(path: Path, schema: pa.Schema, columns: Sequence[pa.Array]) -> None:
    """Columns as one of a shard's files."""
    with new_arrow(path, schema) as out:
        out.write_table(pa.Table.from_arrays(columns, schema=schema))


def remove_passages(work: Path, number: int) -> None:
    """Remove the passages of a finished shard, nearly all of it, from this machine; the rest still tells what it held.

    What is in a store stays until the build is done.
    """
    if not is_address(work):
        (shard_path(work, number) / "passages.arrow").unlink(missing_ok=True)


_SCHEMAS = {"questions": QUESTIONS, "passages": PASSAGES, "positives": POSITIVES}


def read_shard(work: Path, number: int, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A table of a finished shard, or some columns of it."""
    return read_arrow(shard_path(work, number) / f"{name}.arrow", _SCHEMAS[name], columns)
