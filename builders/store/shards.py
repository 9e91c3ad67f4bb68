"""What the files of a release must be: the bytes that the manifest lists; of a shard the rows and columns, too.

What is a shard's content is looked at together with its bytes, once: then every reader, DuckDB, too, may rely on it.
"""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.cache import fault_once, other_sha256
from builders.store.layout import config_and_split, schema_of
from builders.store.manifest import FileEntry
from builders.store.values import wrong_values

_ROWS = 1_024  # read at a time: a joined row can be 100 kB


def wrong_file(path: Path, entry: FileEntry, *, again: bool = False) -> str:
    """What is wrong with a file of a release, in words; empty where it is what its entry in the manifest says.

    That is its size and SHA-256; of a shard its rows, that it has the columns of its config, and their values
    (:func:`builders.store.values.wrong_values`). The whole file is read the first time
    (:func:`builders.core.cache.fault_once`), and whenever ``again`` says so.
    """
    shard = entry.path.endswith(".parquet")

    def look() -> str:
        return other_sha256(path, entry.sha256) or (_wrong_shard(path, entry) if shard else "")

    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "is no regular file"
        if (size := found.st_size) != entry.bytes:
            return f"has {size:,} bytes where the manifest says {entry.bytes:,}"
        return fault_once(
            path, ["file of a release", entry.path if shard else "", entry.sha256, entry.rows], look, again=again
        )
    except FileNotFoundError:
        return "is listed in the manifest but missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _wrong_shard(path: Path, entry: FileEntry) -> str:
    config = config_and_split(entry.path)[0]
    try:
        expected = schema_of(config)
    except ValueError:
        return f"is of no config of a release ({config!r})"
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            if (rows := file.metadata.num_rows) != entry.rows:
                return f"has {rows:,} rows where the manifest says {entry.rows or 0:,}"
            if fault := wrong_columns(file.schema_arrow, expected):
                return fault
            held = 0  # the number above is the file's own word
            for batch in file.iter_batches(_ROWS, columns=expected.names):
                held += batch.num_rows
                if fault := wrong_values(batch):
                    return fault
            return "" if held == rows else f"holds {held:,} rows and says {rows:,}"
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
