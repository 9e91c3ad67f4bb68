"""Queries and their vectors, from files that any model wrote, block by block.

Vectors are a directory that ``baselines encode --queries`` wrote for this release, or a Parquet file with a column of
ids (``_id``, ``id``, ``query_id``, ``query-id``, or the only text column) and one of lists of floats. They may be
float16, float32 or float64 and of any length; only their direction counts.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.add.similarity import Floats, Ints, fixed_point
from builders.core.cache import wrong_sha256
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.typed import name_within, read_json
from builders.store.draft import describe_files
from builders.store.reader import Release

BLOCK_ROWS = 8192
_ID_NAMES = ("_id", "id", "query_id", "query-id")
_MANIFEST = "manifest.json"  # of the directories that `baselines encode` writes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``restrain`` and ``resttest`` share."""
    text = "query vectors: directories of `baselines encode --queries`, or .parquet; together of every query"
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    parser.add_argument("--embeddings", type=Path, nargs="+", required=True, metavar="PATH", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of what is drawn (0)")
    add_format(parser)


class Block(NamedTuple):
    """Some queries' vectors: the file or directory they are from, the first one's row there, ids, vectors (n, d)."""

    source: str
    row: int
    ids: list[str]
    vectors: npt.NDArray[Any]


Blocks = Iterator[Block]


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


def read_embeddings(paths: Sequence[Path], release: Release | None = None) -> Blocks:
    """The vectors of embedding files, block by block, of any float type; only their shape is checked.

    ``release``: the release that a directory of ``baselines encode`` was made from.

    Raises:
        InputError: a file that cannot be read, or is not laid out as this module says.
    """
    for path in paths:
        if path.suffix == ".parquet":
            yield from _parquet(path)
        elif release and (path / _MANIFEST).is_file():
            yield from _encoded(path, release)
        else:
            expected = "expected a directory of `baselines encode`, or a file named .parquet"
            raise InputError(expected, path=path)


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """A damaged file is one :class:`InputError`: numpy and pyarrow raise a dozen kinds for wrong bytes."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise  # it is missing, say: the system's own words name the file
        raise InputError(f"not {what} ({' '.join(str(error).split())})", path=path) from error


def _encoded(path: Path, release: Release) -> Blocks:
    """A directory of ``baselines encode``: row n of its files is row n of the split of the release."""
    found = read_json(path / _MANIFEST, _Encoded)
    split = found.config, found.split
    if split not in release.splits() or found.fingerprint != release.fingerprint(*split):
        raise InputError(f"holds {found.config}/{found.split} of another release than {release.path}", path=path)
    names = query_ids(release, found.split, found.config)
    row = 0
    for file, sha256 in ((path / chunk.path, chunk.sha256) for chunk in found.shards):
        if fault := wrong_sha256(file, sha256):
            raise InputError(f"{fault}; encode it again", path=file)
        with _reading(file, "a whole .npy array"):
            vectors = np.load(file, mmap_mode="r", allow_pickle=False)
            count = len(vectors)
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            shape = f"{vectors.dtype} {vectors.shape}"
            raise InputError(f"expected vectors as floats of shape (queries, dimensions), found {shape}", path=file)
        if row + count > len(names):
            raise InputError(f"has {len(names) - row:,} ids for the {count:,} vectors of {path}", path=path)
        for start in range(0, count, BLOCK_ROWS):
            part = vectors[start : start + BLOCK_ROWS]
            yield Block(str(path), row + start, names[row + start : row + start + len(part)], part)
        row += count


def _parquet(path: Path) -> Blocks:
    with _reading(path, "a whole Parquet file"), pq.ParquetFile(path) as file:
        schema, row = file.schema_arrow, 0
        texts = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)]
        names = [name for name in _ID_NAMES if name in texts][:1] or texts
        lists = [f.name for f in schema if _is_list(f.type) and pa.types.is_floating(f.type.value_type)]
        if len(names) != 1 or len(lists) != 1:
            raise InputError(
                f"expected one column of ids ({', '.join(_ID_NAMES)}) and one of lists of floats; found "
                + ", ".join(f"{field.name} ({field.type})" for field in schema),
                path=path,
            )
        for batch in file.iter_batches(BLOCK_ROWS, columns=[names[0], lists[0]]):
            ids, vectors = batch.column(names[0]), batch.column(lists[0])
            flat, last = vectors.flatten(), row + len(batch)
            if ids.null_count or vectors.null_count or flat.null_count:
                raise InputError(f"has a null in rows {row + 1:,} to {last:,}; expected none", path=path)
            dimensions = sorted(set(pc.list_value_length(vectors).to_pylist()))
            if len(dimensions) != 1:
                found = ", ".join(map(str, dimensions))
                raise InputError(f"has vectors of {found} dimensions; expected one number of them", path=path)
            array = flat.to_numpy(zero_copy_only=False).reshape(len(batch), dimensions[0])
            yield Block(str(path), row, ids.to_pylist(), array)
            row = last


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def judgments_of(qrels: pa.Table, queries: list[str]) -> pa.Table:
    """The rows of ``qrels`` of these queries."""
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array(queries, pa.string())))


def query_ids(release: Release, split: str, config: str = "queries") -> list[str]:
    """The ids of a split's queries."""
    return release.table(config, split, ["_id"])["_id"].to_pylist()  # type: ignore[no-any-return]


def drawn(ids: Sequence[str], seed: int) -> Ints:
    """The rows of ``ids`` in an order drawn by ``seed``: by a hash of seed and id, the same in every numpy version."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def vectors_of(
    release: Release, groups: Mapping[str, Sequence[str]], args: argparse.Namespace
) -> tuple[Floats, dict[str, Any]]:
    """The vectors of groups of queries, one after the other, and the manifest's record of the build that uses them.

    ``groups``: by the place in the release that they are from. Raises :class:`InputError` where one is empty.
    """
    for name, found in groups.items():
        if not found:
            raise InputError(f"has no queries in {name}; expected some", path=release.path)
    queries = [query for group in groups.values() for query in group]
    files = [(f"{p.name}/{_MANIFEST}", p / _MANIFEST) if p.is_dir() else (p.name, p) for p in args.embeddings]
    vectors = directions(read_embeddings(args.embeddings, release), queries)
    return vectors, {"verb": f"extrapolate {args.step}", "sources": describe_files(files)}


def directions(blocks: Blocks, queries: Sequence[str]) -> Floats:
    """The vectors of the queries, in their order, as rows of ``similarity.fixed_point``.

    Args:
        blocks: the vectors. Those of other queries are passed over; where two sources have a query, the first counts.
        queries: ids; one may come several times.

    Raises:
        InputError: a query without a vector or with two in one source, vectors of different dimensions, or one that is
            not finite or all zero.
    """
    rows: dict[str, int] = {}
    copies: list[tuple[int, int]] = []
    for row, query in enumerate(queries):
        if rows.setdefault(query, row) != row:
            copies.append((rows[query], row))
    result: Floats | None = None
    sources: dict[str, int] = {}
    owner = np.zeros(len(queries), np.int32)  # the source of each row's vector, from 1
    other = again = 0
    for block in blocks:
        source = sources.setdefault(block.source, len(sources) + 1)
        if result is None:
            result = np.empty((len(owner), block.vectors.shape[1]), np.float32)
        _check(block, result.shape[1])
        taken: dict[int, int] = {}  # row of the result -> row of the block
        for offset, query in enumerate(block.ids):
            target = rows.get(query)
            if target is None:
                other += 1
            elif owner[target] == source:
                raise InputError(f"has query {query!r} twice; expected each once", path=block.source)
            elif owner[target]:
                again += 1
            else:
                owner[target], taken[target] = source, offset
        if taken:
            result[list(taken)] = fixed_point(np.asarray(block.vectors)[list(taken.values())])
    missing = [query for query, row in rows.items() if not owner[row]]
    if missing or result is None:
        example = f", {missing[0]!r} for one" if missing else ""
        found = ", ".join(sources) or "the embeddings"
        raise InputError(f"has no vector for {len(missing):,} of {len(rows):,} queries{example}", path=found)
    for first, row in copies:
        result[row] = result[first]
    if other:
        log.info("%d vectors of other queries passed over", other)
    if again:
        log.warning("%d queries have a vector in more than one source; the first one counts", again)
    return result


def _check(block: Block, dimensions: int) -> None:
    """:class:`InputError` naming the row, from 1, where a vector has no direction in ``dimensions`` dimensions."""
    found = block.vectors.shape[1]
    if not dimensions or found != dimensions:
        expected = f"has vectors of {found} dimensions; expected {dimensions or 'at least 1'}"
        raise InputError(expected, path=block.source)
    for good, problem in (
        (np.isfinite(block.vectors).all(axis=1), "is not finite"),
        (block.vectors.any(axis=1), "is all zeros, which is no direction"),
    ):
        if not good.all():
            row = int(good.argmin())
            which = f"the vector of query {block.ids[row]!r} (row {block.row + row + 1:,})"
            raise InputError(f"{which} {problem}", path=block.source)


def mean(cosines: npt.NDArray[Any]) -> float | None:
    """The mean cosine as the figures have it; None of none."""
    return round(float(cosines.mean()), 4) if len(cosines) else None
