"""Queries and their vectors, from files that any model wrote, block by block.

Vectors are one of

- a directory that ``baselines encode --queries`` wrote for this release;
- ``NAME.npy``, vectors (n, d), with one id a line in ``NAME.ids.txt`` or the file that ``--ids`` names;
- ``.npz`` with two arrays: the ids (n,), strings, and the vectors (n, d);
- ``.parquet`` with a column of ids (``_id``, ``id``, ``query_id``, ``query-id``, or the only text column) and one of
  lists of numbers.

Vectors may be float16, float32 or float64 and of any length; only their direction counts.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
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
from builders.core.files import read_utf8
from builders.core.typed import name_within, read_json
from builders.store.draft import describe_files
from builders.store.overlap import overlap_table
from builders.store.reader import Release

BLOCK_ROWS = 8192
_ID_NAMES = ("_id", "id", "query_id", "query-id")
_MANIFEST = "manifest.json"  # of the directories that `baselines encode` writes


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``restrain`` and ``resttest`` share."""
    text = "query vectors: directories of `baselines encode --queries`, .npy, .npz or .parquet; together of every query"
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    parser.add_argument("--embeddings", type=Path, nargs="+", required=True, metavar="PATH", help=text)
    parser.add_argument("--ids", type=Path, nargs="+", metavar="FILE", help="the ids of each .npy, in their order")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of what is drawn (0)")
    add_format(parser)


def print_figures(rows: list[dict[str, Any]], form: str) -> None:
    """Print the figures of new sets, as JSON or as an aligned table."""
    print(json.dumps(rows, indent=1) if form == "json" else overlap_table(rows))


class Block(NamedTuple):
    """Some queries' vectors: the file or model they are from, the first one's row there, ids, vectors (n, d)."""

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


def read_embeddings(paths: Sequence[Path], ids: Sequence[Path] | None = None, release: Release | None = None) -> Blocks:
    """The vectors of embedding files, block by block, of any float type; only their shape is checked.

    ``release``: the release that a directory of ``baselines encode`` was made from.

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
        elif release and (path / _MANIFEST).is_file():
            yield from _encoded(path, release)
        else:
            expected = "expected a directory of `baselines encode`, or a file named .npy, .npz or .parquet"
            raise InputError(expected, path=path)


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


def _encoded(path: Path, release: Release) -> Blocks:
    """A directory of ``baselines encode``: row n of its files is row n of the split of the release."""
    found = read_json(path / _MANIFEST, _Encoded)
    split = found.config, found.split
    if split not in release.splits() or found.fingerprint != release.fingerprint(*split):
        raise InputError(f"holds {found.config}/{found.split} of another release than {release.path}", path=path)
    names = ids(release, found.split, found.config)
    row = 0
    for chunk in found.shards:
        if fault := wrong_sha256(path / chunk.path, chunk.sha256):
            raise InputError(f"{fault}; encode it again", path=path / chunk.path)
        with _reading(path / chunk.path, "a whole .npy array"):
            vectors = np.load(path / chunk.path, mmap_mode="r", allow_pickle=False)
            count = len(vectors)
        yield from _blocks(names[row : row + count], vectors, path, path, row)
        row += count


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


def judged_of(release: Release, splits: Sequence[str]) -> pa.Table | None:
    """The qrels of those of the splits that have labels; None where none has."""
    have = [release.table("qrels", split) for split in splits if ("qrels", split) in release.splits()]
    return pa.concat_tables(have) if have else None


def judgments_of(qrels: pa.Table, queries: list[str]) -> pa.Table:
    """The rows of ``qrels`` of these queries."""
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array(queries, pa.string())))


def ids(release: Release, split: str, config: str = "queries") -> list[str]:
    """The ids of a split's queries."""
    found: list[str] = release.table(config, split, ["_id"])["_id"].to_pylist()
    return found


def drawn(ids: Sequence[str], seed: int) -> Ints:
    """The rows of ``ids`` in an order drawn by ``seed``: by a hash of seed and id, the same in every numpy version."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def check_some(release: Release, groups: Mapping[str, Sequence[str]]) -> None:
    """:class:`InputError` where there are no queries in one of the groups, named by where they are from."""
    for name, found in groups.items():
        if not found:
            raise InputError(f"has no queries in {name}; expected some", path=release.path)


def vectors_of(
    release: Release, groups: Sequence[Sequence[str]], args: argparse.Namespace
) -> tuple[list[Floats], list[dict[str, Any]]]:
    """The vectors of the groups of queries, and their files as the manifest lists sources."""
    found = directions(read_embeddings(args.embeddings, args.ids, release), groups)
    named = [
        (f"{path.name}/{_MANIFEST}", path / _MANIFEST) if path.is_dir() else (path.name, path)
        for path in [*args.embeddings, *(args.ids or [])]
    ]
    return found, describe_files(named)


def described_build(command: str, options: dict[str, Any], sources: list[dict[str, Any]]) -> dict[str, Any]:
    """What the manifest says of a build; ``sources``: the files of its vectors."""
    return {"verb": f"extrapolate {command}", "options": options, "sources": sources}


def directions(blocks: Blocks, groups: Sequence[Sequence[str]]) -> list[Floats]:
    """The vectors of the queries of every group, in its order, as rows of ``similarity.fixed_point``.

    Args:
        blocks: the vectors. Those of queries of no group are passed over; where two sources have a query, the first
            counts.
        groups: the ids of each group; an id may be in several.

    Raises:
        InputError: a query without a vector or with two in one source, vectors of different dimensions, or one that is
            not finite or all zero.
    """
    rows: dict[str, int] = {}
    copies: list[tuple[int, int]] = []
    for row, query in enumerate(query for group in groups for query in group):
        if rows.setdefault(query, row) != row:
            copies.append((rows[query], row))
    result: Floats | None = None
    sources: dict[str, int] = {}
    owner = np.zeros(sum(map(len, groups)), np.int32)  # the source of each row's vector, from 1
    other = again = 0
    for block in blocks:
        source = sources.setdefault(block.source, len(sources) + 1)
        if result is None:
            result = np.empty((len(owner), block.vectors.shape[1]), np.float32)
        _check(block, result.shape[1])
        taken, targets = [], []
        for offset, query in enumerate(block.ids):
            target = rows.get(query)
            if target is None:
                other += 1
            elif owner[target] == source:
                raise InputError(f"has query {query!r} twice; expected each once", path=block.source)
            elif owner[target]:
                again += 1
            else:
                owner[target] = source
                taken.append(offset)
                targets.append(target)
        if taken:
            result[targets] = fixed_point(np.asarray(block.vectors)[taken])
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
    ends = np.cumsum([len(group) for group in groups])
    return [result[end - len(group) : end] for group, end in zip(groups, ends, strict=True)]


def _check(block: Block, dimensions: int) -> None:
    """:class:`InputError` naming the row, from 1, where a vector has no direction in ``dimensions`` dimensions."""
    if not dimensions or block.vectors.shape[1] != dimensions:
        raise InputError(
            f"has vectors of {block.vectors.shape[1]} dimensions; expected {dimensions or 'at least 1'}",
            path=block.source,
        )
    for good, problem in (
        (np.isfinite(block.vectors).all(axis=1), "is not finite"),
        (block.vectors.any(axis=1), "is all zeros, which is no direction"),
    ):
        if not good.all():
            row = int(good.argmin())
            raise InputError(
                f"the vector of query {block.ids[row]!r} (row {block.row + row + 1:,}) {problem}", path=block.source
            )


def mean(cosines: npt.NDArray[Any]) -> float | None:
    """The mean cosine as the figures have it; None of none."""
    return round(float(cosines.mean()), 4) if len(cosines) else None
