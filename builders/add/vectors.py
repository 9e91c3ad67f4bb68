"""Read vectors of queries, and compute cosines, nearest neighbours and clusters.

Vectors come from a directory of ``baselines encode --queries`` for this release, or from a Parquet file. A Parquet file
has a column of ids (``_id``, ``id``, ``query_id`` or ``query-id``) and a column of lists of floats. The floats may be
float16, float32 or float64. Vectors need not be normalised, because only directions count.

A sum of floats depends on the order of its terms, which depends on the number of threads and the processor. So every
vector is scaled to the same length below 4,096, and rounded to whole numbers. Every partial sum of a scalar product
then stays within 2**24 (Cauchy-Schwarz), where float32 represents whole numbers exactly. The product is therefore the
same in any order of summation. The error of a cosine is about 0.0001, less than the error of half-precision embeddings.
If two products are equal, the lower row ranks first.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core.cache import wrong_sha256
from builders.core.errors import InputError, log
from builders.core.files import is_parquet, reading
from builders.core.progress import progress
from builders.core.typed import name_within, read_json
from builders.store.layout import MANIFEST  # also the name of the manifest of `baselines encode`
from builders.store.reader import Release

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_LENGTH = 4096  # greatest length of a scaled vector
_AT_ONCE = 1 << 22  # products in memory; their sort needs 100 MB
_ROUNDS = 100
BLOCK_ROWS = 8192
_ID_NAMES = ("_id", "id", "query_id", "query-id")

Block = tuple[list[str], npt.NDArray[Any]]  # ids and vectors (n, d)


class _Chunk(msgspec.Struct):
    path: str
    sha256: str

    def __post_init__(self) -> None:
        name_within(self.path)


class _Encoded(msgspec.Struct):
    """Fields of the manifest of ``baselines encode`` that assign rows to queries."""

    config: str
    split: str
    fingerprint: str
    shards: list[_Chunk]


def read_embeddings(path: Path, release: Release) -> Iterator[Block]:
    """Yield the vectors of a Parquet file, or of a directory that ``baselines encode`` wrote for ``release``."""
    if is_parquet(path):
        return _parquet(path)
    if (path / MANIFEST).is_file():
        return _encoded(path, release)
    raise InputError("expected a directory of `baselines encode`, or a Parquet file", path=path)


def _encoded(path: Path, release: Release) -> Iterator[Block]:
    """Yield the vectors of a directory of ``baselines encode``. Row n of its files is row n of the release's split."""
    found = read_json(path / MANIFEST, _Encoded)
    split = found.config, found.split
    if split not in release.splits() or found.fingerprint != release.fingerprint(*split):
        raise InputError(f"has vectors of {found.config}/{found.split} of another release", path=path)
    names, row = release.table(*split, ["_id"])["_id"].to_pylist(), 0
    for file, sha256 in ((path / chunk.path, chunk.sha256) for chunk in found.shards):
        if fault := wrong_sha256(file, sha256):
            raise InputError(f"{fault}; encode the queries again", path=file)
        with reading(file, damaged="not a whole .npy array"):
            vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(f"expected floats (queries, dimensions), found {vectors.dtype} {vectors.shape}", path=file)
        if row + len(vectors) > len(names):
            raise InputError(
                f"has more vectors than the {len(names):,} rows of {found.config}/{found.split}", path=path
            )
        for start in range(0, len(vectors), BLOCK_ROWS):
            part = vectors[start : start + BLOCK_ROWS]
            yield names[row + start : row + start + len(part)], part
        row += len(vectors)


def _parquet(path: Path) -> Iterator[Block]:
    with reading(path, damaged="not a whole Parquet file"), pq.ParquetFile(path) as file:
        schema, none = file.schema_arrow, pa.null()
        names = [each.name for each in schema if each.name in _ID_NAMES and pa.types.is_string(each.type)]
        lists = [each.name for each in schema if pa.types.is_floating(getattr(each.type, "value_type", none))]
        if not names or len(lists) != 1:
            found = ", ".join(f"{field.name} ({field.type})" for field in schema)
            expected = f"one column of ids ({', '.join(_ID_NAMES)}) and one of lists of floats"
            raise InputError(f"expected {expected}; found {found}", path=path)
        for batch in file.iter_batches(BLOCK_ROWS, columns=[names[0], lists[0]]):
            ids, vectors = batch.column(names[0]), batch.column(lists[0])
            flat, lengths = vectors.flatten(), pc.unique(pc.list_value_length(vectors)).to_pylist()
            if ids.null_count or flat.null_count or len(lengths) != 1 or not lengths[0]:
                found = ", ".join(map(str, lengths))
                raise InputError(f"has nulls, or vectors of {found} dimensions; expected equal dimensions", path=path)
            yield ids.to_pylist(), flat.to_numpy(zero_copy_only=False).reshape(len(batch), lengths[0])


def directions(paths: Sequence[Path], release: Release, queries: Sequence[str]) -> Floats:
    """Return the vectors of the queries, in the order of ``queries``, as rows of :func:`fixed_point`.

    If several files have a vector of a query, the first file is used. Raises :class:`InputError` for a query without a
    vector or with two vectors in one file, for different dimensions, and for a vector that is not finite or all zeros.
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
                    raise InputError(f"has query {query!r} twice; expected each query once", path=path)
                own.add(query)
            new = [place for place in wanted if ids[place] not in known]
            result[[rows[ids[place]] for place in new]] = fixed_point(np.asarray(vectors)[new])
        if again := len(own & known):
            log.warning("%s: skipped %d queries that have a vector in an earlier file", path, again)
        known |= own
    if result is None or len(known) < len(rows):
        missing = [query for query in rows if query not in known]
        found = ", ".join(map(str, paths))
        raise InputError(f"has no vector for {len(missing):,} of {len(rows):,} queries: {missing[0]!r}", path=found)
    return result[[rows[query] for query in queries]]


def _check(path: Path, ids: list[str], vectors: npt.NDArray[Any], dimensions: int) -> None:
    found = vectors.shape[1]
    if not dimensions or found != dimensions:
        raise InputError(f"has vectors of {found} dimensions; expected {dimensions or 'at least 1'}", path=path)
    good = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not good.all():
        raise InputError(f"the vector of query {ids[int(good.argmin())]!r} is not finite, or all zeros", path=path)


def scale(dimensions: int) -> float:
    """Return the length to which vectors are scaled: 4,096 less the greatest length of the rounding errors."""
    return math.floor(_LENGTH - math.sqrt(dimensions) / 2)


def fixed_point(vectors: npt.NDArray[Any]) -> Floats:
    """Scale rows (n, d) to one length, and round them to whole numbers. Rows must be finite and not all zeros."""
    rows = vectors.astype(np.float64)
    rows /= np.abs(rows).max(axis=1, keepdims=True)  # prevents overflow and underflow of squares
    rows *= scale(rows.shape[1]) / np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]
    return np.asarray(np.rint(rows), np.float32)


def _products(tests: Floats, trains: Floats) -> Iterator[Floats]:
    step = max(1, _AT_ONCE // len(trains))
    with progress(total=len(tests), unit="query", label="neighbours") as bar:
        for start in range(0, len(tests), step):
            found = tests[start : start + step] @ trains.T
            yield found
            bar.update(len(found))


def best_ranks(tests: Floats, trains: Floats) -> tuple[Ints, Ints]:
    """Return each training query's best rank and product. Vectors (m, d) and (n, d) are from :func:`fixed_point`.

    The first array (n,) has the best rank, from 1, of a training query among the neighbours of any test query. The
    second array (n,) has the largest product at this rank.
    """
    best = np.full(len(trains), np.iinfo(np.int64).max)
    ranks = np.arange(1, len(trains) + 1) << 32
    for products in _products(tests, trains):
        order = np.sort((-products.astype(np.int64) << 32) + np.arange(len(trains)), axis=1)
        # The minimum of (rank, -product) wins. One integer encodes both values. An offset makes the product positive.
        np.minimum.at(best, order & 0xFFFFFFFF, ranks + (order >> 32) + (1 << 25))
    return best >> 32, (1 << 25) - (best & 0xFFFFFFFF)


def nearest(tests: Floats, trains: Floats, rows: Ints) -> npt.NDArray[np.float64]:
    """Return every test query's largest cosine with the training queries ``rows``, or -1 if ``rows`` is empty."""
    if not len(rows):
        return np.full(len(tests), -1.0)
    products = np.concatenate([found.max(axis=1) for found in _products(tests, trains[rows])])
    return np.clip(np.asarray(products / scale(tests.shape[1]) ** 2, np.float64), -1, 1)


def clusters(vectors: Floats, starts: Ints) -> Ints:
    """Cluster (n, d) vectors by spherical k-means. Return every row's cluster, from 0, the largest cluster first.

    ``starts`` has the rows of the initial centres. k-means ends after 100 rounds, or if no row changes its cluster. An
    empty cluster gets a new centre: the row that is least similar to the centre of its present cluster.
    """
    centres = vectors[starts]
    labels = np.full(len(vectors), -1)
    for _ in progress(range(_ROUNDS), unit="round", label="k-means"):
        products = vectors @ centres.T
        before, labels = labels, products.argmax(axis=1)
        if (before == labels).all():
            break
        members = [np.flatnonzero(labels == cluster) for cluster in range(len(centres))]
        sums = np.stack([vectors[rows].sum(axis=0, dtype=np.float64) for rows in members])
        filled = np.array([len(rows) > 0 for rows in members])
        # If the vectors of a cluster cancel out, its first row becomes the centre.
        for cluster in np.flatnonzero(filled & ~sums.any(axis=1)):
            sums[cluster] = vectors[members[cluster][0]]
        centres[filled] = fixed_point(sums[filled])
        far = np.argsort(products.max(axis=1), kind="stable")
        centres[~filled] = vectors[far[: int((~filled).sum())]]
    order = np.argsort(-np.bincount(labels, minlength=len(centres)), kind="stable")
    return np.asarray(np.argsort(order)[labels], np.int64)
