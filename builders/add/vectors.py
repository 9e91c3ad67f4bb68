"""Vectors of queries, from files that any model wrote, block by block.

Vectors are a directory that ``baselines encode --queries`` wrote for this release, or a Parquet file with a column of
ids (``_id``, ``id``, ``query_id`` or ``query-id``) and one of lists of floats. They may be float16, float32 or float64
and of any length; only their direction counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.add.similarity import Floats, fixed_point
from builders.core.cache import wrong_sha256
from builders.core.errors import InputError, log
from builders.core.files import reading
from builders.core.typed import name_within, read_json
from builders.store.layout import MANIFEST  # of the directories that `baselines encode` writes, too
from builders.store.reader import Release

BLOCK_ROWS = 8192
_ID_NAMES = ("_id", "id", "query_id", "query-id")

Block = tuple[list[str], npt.NDArray[Any]]  # ids, and their vectors (n, d)


class _Chunk(msgspec.Struct):
    path: str
    sha256: str

    def __post_init__(self) -> None:
        name_within(self.path)


class _Encoded(msgspec.Struct):
    """The part of the manifest of ``baselines encode`` that says which row is which query."""

    config: str
    split: str
    fingerprint: str
    shards: list[_Chunk]


def read_embeddings(path: Path, release: Release) -> Iterator[Block]:
    """Yield the vectors of a file or directory, of any float type; only their shape is checked.

    ``release``: the release that a directory of ``baselines encode`` was made from.

    Raises:
        InputError: a file that cannot be read, or is not laid out as this module says.
    """
    if path.suffix == ".parquet":
        return _parquet(path)
    if (path / MANIFEST).is_file():
        return _encoded(path, release)
    raise InputError("expected a directory of `baselines encode`, or a file named .parquet", path=path)


def _encoded(path: Path, release: Release) -> Iterator[Block]:
    """A directory of ``baselines encode``: row n of its files is row n of the split of the release."""
    found = read_json(path / MANIFEST, _Encoded)
    split = found.config, found.split
    if split not in release.splits() or found.fingerprint != release.fingerprint(*split):
        raise InputError(f"holds {found.config}/{found.split} of another release than {release.path}", path=path)
    names, row = release.table(*split, ["_id"])["_id"].to_pylist(), 0
    for file, sha256 in ((path / chunk.path, chunk.sha256) for chunk in found.shards):
        if fault := wrong_sha256(file, sha256):
            raise InputError(f"{fault}; encode it again", path=file)
        with reading(file, damaged="not a whole .npy array"):
            vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            shape = f"{vectors.dtype} {vectors.shape}"
            raise InputError(f"expected vectors as floats of shape (queries, dimensions), found {shape}", path=file)
        if row + len(vectors) > len(names):
            raise InputError(f"has {len(names) - row:,} ids for the {len(vectors):,} vectors of {path}", path=path)
        for start in range(0, len(vectors), BLOCK_ROWS):
            part = vectors[start : start + BLOCK_ROWS]
            yield names[row + start : row + start + len(part)], part
        row += len(vectors)


def _parquet(path: Path) -> Iterator[Block]:
    with reading(path, damaged="not a whole Parquet file"), pq.ParquetFile(path) as file:
        names = [
            field.name for field in file.schema_arrow if field.name in _ID_NAMES and pa.types.is_string(field.type)
        ]
        lists = [field.name for field in file.schema_arrow if _is_vector(field.type)]
        if not names or len(lists) != 1:
            found = ", ".join(f"{field.name} ({field.type})" for field in file.schema_arrow)
            expected = f"one column of ids ({', '.join(_ID_NAMES)}) and one of lists of floats"
            raise InputError(f"expected {expected}; found {found}", path=path)
        for batch in file.iter_batches(BLOCK_ROWS, columns=[names[0], lists[0]]):
            ids, vectors = batch.column(names[0]), batch.column(lists[0])
            flat, lengths = vectors.flatten(), pc.unique(pc.list_value_length(vectors)).to_pylist()
            if ids.null_count or flat.null_count or len(lengths) != 1 or not lengths[0]:
                found = ", ".join(map(str, lengths))
                raise InputError(f"has nulls, or vectors of {found} dimensions; expected one number of them", path=path)
            yield ids.to_pylist(), flat.to_numpy(zero_copy_only=False).reshape(len(batch), lengths[0])


def _is_vector(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list and pa.types.is_floating(kind.value_type))


def directions(paths: Sequence[Path], release: Release, queries: Sequence[str]) -> Floats:
    """The vectors of the queries, in their order, as rows of ``similarity.fixed_point``.

    Args:
        paths, release: see :func:`read_embeddings`. Where two files have a query, the first counts.
        queries: ids; one may come several times.

    Raises:
        InputError: a query without a vector or with two in one file, vectors of different dimensions, or one that is
            not finite or all zero.
    """
    rows = {query: row for row, query in enumerate(dict.fromkeys(queries))}
    result: Floats | None = None
    known: set[str] = set()
    for path in paths:
        own: set[str] = set()
        for ids, vectors in read_embeddings(path, release):
            result = np.empty((len(rows), vectors.shape[1]), np.float32) if result is None else result
            _check(path, ids, vectors, result.shape[1])
            wanted = [place for place, query in enumerate(ids) if query in rows]
            for query in (ids[place] for place in wanted):
                if query in own:
                    raise InputError(f"has query {query!r} twice; expected each once", path=path)
                own.add(query)
            new = [place for place in wanted if ids[place] not in known]
            result[[rows[ids[place]] for place in new]] = fixed_point(np.asarray(vectors)[new])
        if again := len(own & known):
            log.warning("%s: %d queries have a vector in an earlier file, too; the first one counts", path, again)
        known |= own
    if result is None or len(known) < len(rows):
        missing = [query for query in rows if query not in known]
        found = ", ".join(map(str, paths))
        raise InputError(f"has no vector for {len(missing):,} of {len(rows):,} queries: {missing[0]!r}", path=found)
    return result[[rows[query] for query in queries]]


def _check(path: Path, ids: list[str], vectors: npt.NDArray[Any], dimensions: int) -> None:
    """:class:`InputError` where a vector has no direction in ``dimensions`` dimensions."""
    found = vectors.shape[1]
    if not dimensions or found != dimensions:
        raise InputError(f"has vectors of {found} dimensions; expected {dimensions or 'at least 1'}", path=path)
    good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not good.all():
        raise InputError(f"the vector of query {ids[int(good.argmin())]!r} is not finite, or all zeros", path=path)
