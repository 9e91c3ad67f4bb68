"""Query embeddings in files that any model wrote, block by block.

A file is one of

- ``NAME.npy``, vectors (n, d), with one id a line in ``NAME.ids.txt`` or the file that ``--ids`` names;
- ``.npz`` with two arrays: the ids (n,), strings, and the vectors (n, d);
- ``.parquet`` with a column of ids (``_id``, ``id``, ``query_id``, ``query-id``, or the only text column) and one of
  lists of numbers.

Vectors may be float16, float32 or float64 and of any length; only their direction counts.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.common.command import InputError
from builders.common.files import new_file, read_utf8


class Block(NamedTuple):
    """Some queries' vectors: the file or model they are from, the first one's row there, ids, vectors (n, d)."""

    source: str
    row: int
    ids: list[str]
    vectors: npt.NDArray[Any]


Blocks = Iterator[Block]

BLOCK_ROWS = 8192
_ID_NAMES = ("_id", "id", "query_id", "query-id")


def read_embeddings(paths: Sequence[Path], ids: Sequence[Path] | None = None) -> Blocks:
    """The vectors of embedding files, block by block, of any float type; only their shape is checked.

    Raises:
        InputError: a file that cannot be read, or is not laid out as this module says.
    """
    given = list(ids or [])
    arrays = [path for path in paths if path.suffix == ".npy"]
    if given and len(given) != len(arrays):
        raise InputError(f"--ids names {len(given)} files for {len(arrays)} .npy files; expected one each")
    for path in paths:
        if path.suffix == ".npy":
            yield from _npy(path, given.pop(0) if given else path.with_suffix(".ids.txt"))
        elif path.suffix == ".npz":
            yield from _npz(path)
        elif path.suffix == ".parquet":
            yield from _parquet(path)
        else:
            raise InputError("expected embeddings in a file named .npy, .npz or .parquet", path=path)


def _blocks(ids: Sequence[str], vectors: npt.NDArray[Any], path: Path, ids_path: Path, row: int = 0) -> Blocks:
    if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(
            f"expected vectors as floats of shape (queries, dimensions), found {vectors.dtype} {vectors.shape}",
            path=path,
        )
    if len(ids) != len(vectors):
        raise InputError(f"has {len(ids):,} ids for the {len(vectors):,} vectors of {path}", path=ids_path)
    for start in range(0, len(ids), BLOCK_ROWS):
        yield Block(str(path), row + start, list(ids[start : start + BLOCK_ROWS]), vectors[start : start + BLOCK_ROWS])


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """A damaged file is one :class:`InputError`: numpy, zipfile and pyarrow raise a dozen kinds for wrong bytes."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # it is missing, say: the system's own words name the file
        raise InputError(f"not {what} ({' '.join(str(error).split())})", path=path) from error


def _npy(path: Path, ids_path: Path) -> Blocks:
    with _reading(path, "a whole .npy array"):
        vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    lines = read_utf8(ids_path).splitlines()
    for number, line in enumerate(lines, 1):
        if not line or line != line.strip():
            raise InputError(f"expected one id a line, found {line!r}", path=ids_path, line=number)
    yield from _blocks(lines, vectors, path, ids_path)


def _npz(path: Path) -> Blocks:
    with _reading(path, "a whole .npz file without pickles"), np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    ids = [array for array in arrays.values() if array.ndim == 1 and array.dtype.kind in "US"]
    vectors = [array for array in arrays.values() if array.ndim == 2]
    if len(ids) != 1 or len(vectors) != 1:
        found = ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in arrays.items()) or "none"
        raise InputError(f"expected two arrays, ids (n,) of strings and vectors (n, d); found {found}", path=path)
    with _reading(path, "ids in UTF-8"):
        names = ids[0] if ids[0].dtype.kind == "U" else np.char.decode(ids[0], "utf-8")
    yield from _blocks(names.tolist(), vectors[0], path, path)


def _parquet(path: Path) -> Blocks:
    with _reading(path, "a whole Parquet file"), pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        names = [name for name in _ID_NAMES if name in texts][:1] or texts
        lists = [f.name for f in schema if _is_list(f.type) and pa.types.is_floating(f.type.value_type)]
        if len(names) != 1 or len(lists) != 1:
            raise InputError(
                f"expected one column of ids ({', '.join(_ID_NAMES)}) and one of lists of floats; found "
                + ", ".join(f"{field.name} ({field.type})" for field in schema),
                path=path,
            )
        row = 0
        for batch in file.iter_batches(BLOCK_ROWS, columns=[names[0], lists[0]]):
            yield from _batch(batch.column(names[0]), batch.column(lists[0]), path, row)
            row += len(batch)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _batch(ids: pa.Array, vectors: pa.Array, path: Path, row: int) -> Blocks:
    flat = vectors.flatten()
    if ids.null_count or vectors.null_count or flat.null_count:
        raise InputError(f"has a null in rows {row + 1:,} to {row + len(ids):,}; expected none", path=path)
    dimensions = set(pc.list_value_length(vectors).to_pylist())
    if len(dimensions) != 1:
        found = ", ".join(map(str, sorted(dimensions)))
        raise InputError(f"has vectors of {found} dimensions; expected one number of them", path=path)
    array = flat.to_numpy(zero_copy_only=False).reshape(len(ids), dimensions.pop())
    yield from _blocks(ids.to_pylist(), array, path, path, row)


def write_embeddings(blocks: Blocks, path: Path) -> None:
    """Write vectors as Parquet, ``_id`` and ``vector`` (float32), that :func:`read_embeddings` reads."""
    if path.suffix != ".parquet":
        raise InputError("expected a file name that ends in .parquet", path=path)
    tables = map(_table, blocks)
    first = next(tables, None)
    if first is None:
        raise InputError("there are no queries to embed", path=path)
    with (
        new_file(path) as beside,
        pq.ParquetWriter(beside, first.schema, compression="zstd", use_dictionary=False) as writer,
    ):
        for table in itertools.chain([first], tables):
            writer.write_table(table)


def _table(block: Block) -> pa.Table:
    flat = pa.array(np.ascontiguousarray(block.vectors, np.float32).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(flat, block.vectors.shape[1])
    return pa.table({"_id": pa.array(block.ids, pa.string()), "vector": vectors})
