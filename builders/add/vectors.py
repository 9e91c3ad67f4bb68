"""Read vectors of queries, and compute cosines, nearest neighbours and clusters.

Vectors come from a directory of ``baselines encode --queries`` for this release, or from a Parquet file. A Parquet file
has a column of ids (``_id``, ``id``, ``query_id`` or ``query-id``) and a column of lists of floats. The floats may be
float16, float32 or float64. Vectors need not be normalised, because only directions count.

A sum of floats depends on the order of its terms, which depends on the number of threads and the processor. So every
vector is scaled to the same length below 4,096, and rounded to whole numbers. Every partial sum of a scalar product
then stays within 2**24 (Cauchy-Schwarz), where float32 represents whole numbers exactly. The product is therefore the
same in any order of summation. The error of a cosine is about 0.0001, less than the error of half-precision embeddings.
If two products are equal, the lower row ranks first.

Because products are whole numbers, a pair of numbers fits into one 64-bit key, and comparing keys compares the first
numbers, then the second. :func:`best_ranks` uses two such keys:

    upper 32 bits        lower 32 bits           sorting or minimum gives
    -product             training row            falling products, then ascending rows
    rank                 2**25 - product         the best rank, then the largest product at this rank
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
from builders.core.progress import show_progress, slices_with_progress
from builders.core.read_files import convert_read_errors, is_parquet
from builders.core.typed import name_within, read_json
from builders.store.layout import MANIFEST  # also the name of the manifest of `baselines encode`
from builders.store.reader import Release

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

_LENGTH = 4096  # greatest length of a scaled vector
_PRODUCTS_IN_MEMORY = 1 << 22  # their sort needs 100 MB
_LOWER_BITS = 32  # bits of the second number in a key
_LOWER_MASK = (1 << _LOWER_BITS) - 1
_PRODUCT_OFFSET = 1 << 25  # makes negated products positive, because products lie within 2**24
_MAX_ROUNDS = 100  # of k-means
BLOCK_ROWS = 8192
_ID_COLUMNS = ("_id", "id", "query_id", "query-id")

Block = tuple[list[str], npt.NDArray[Any]]  # ids and vectors (n, d)


class _VectorFile(msgspec.Struct):
    path: str
    sha256: str

    def __post_init__(self) -> None:
        name_within(self.path)


class _EncodeManifest(msgspec.Struct):
    """Fields of the manifest of ``baselines encode`` that assign rows to queries."""

    config: str
    split: str
    fingerprint: str
    shards: list[_VectorFile]


def read_embeddings(vectors_path: Path, release: Release) -> Iterator[Block]:
    """Yield blocks of ids and vectors from a Parquet file, or from a directory of ``baselines encode`` for ``release``.

    Raises :class:`InputError` for any other path, for damaged files, and for vectors of another release.
    """
    if is_parquet(vectors_path):
        return _parquet(vectors_path)
    if (vectors_path / MANIFEST).is_file():
        return _encoded(vectors_path, release)
    raise InputError("expected a directory of `baselines encode`, or a Parquet file", path=vectors_path)


def _encoded(encoded_folder: Path, release: Release) -> Iterator[Block]:
    """Yield the vectors of a directory of ``baselines encode``. Row n of its files is row n of the release's split."""
    manifest = read_json(encoded_folder / MANIFEST, _EncodeManifest)
    config = manifest.config
    split = manifest.split
    # Row numbers are only right for the same rows, which the fingerprint identifies.
    if (config, split) not in release.splits() or manifest.fingerprint != release.fingerprint(config, split):
        raise InputError(f"has vectors of {config}/{split} of another release", path=encoded_folder)
    # The files have no ids.
    query_ids = release.table(config, split, ["_id"])["_id"].to_pylist()
    file_start = 0  # the split's row of a file's first vector
    for shard in manifest.shards:
        shard_path = encoded_folder / shard.path
        fault = wrong_sha256(shard_path, shard.sha256)
        if fault:
            raise InputError(f"{fault}; encode the queries again", path=shard_path)
        with convert_read_errors(shard_path, damaged="not a whole .npy array"):
            vectors = np.load(shard_path, mmap_mode="r", allow_pickle=False)
        if vectors.ndim != 2 or not np.issubdtype(vectors.dtype, np.floating):
            raise InputError(
                f"expected floats (queries, dimensions), found {vectors.dtype} {vectors.shape}", path=shard_path
            )
        if file_start + len(vectors) > len(query_ids):
            raise InputError(
                f"has more vectors than the {len(query_ids):,} rows of {config}/{split}", path=encoded_folder
            )
        for block_start in range(0, len(vectors), BLOCK_ROWS):
            block = vectors[block_start : block_start + BLOCK_ROWS]
            first_row = file_start + block_start
            yield query_ids[first_row : first_row + len(block)], block
        file_start += len(vectors)


def _parquet(parquet_path: Path) -> Iterator[Block]:
    """Yield the ids and vectors of a Parquet file. Raises :class:`InputError` for nulls and different dimensions."""
    with convert_read_errors(parquet_path, damaged="not a whole Parquet file"), pq.ParquetFile(parquet_path) as file:
        id_column, vector_column = _columns_of(file.schema_arrow, parquet_path)
        for batch in file.iter_batches(BLOCK_ROWS, columns=[id_column, vector_column]):
            ids = batch.column(id_column)
            vectors = batch.column(vector_column)
            # The lists of a batch become one array, so all must have the same length and no null.
            numbers = vectors.flatten()
            dimensions = pc.unique(pc.list_value_length(vectors)).to_pylist()
            has_nulls = ids.null_count or numbers.null_count
            if has_nulls or len(dimensions) != 1 or not dimensions[0]:
                all_dimensions = ", ".join(map(str, dimensions))
                raise InputError(
                    f"has nulls, or vectors of {all_dimensions} dimensions; expected equal dimensions",
                    path=parquet_path,
                )
            yield ids.to_pylist(), numbers.to_numpy(zero_copy_only=False).reshape(len(batch), dimensions[0])


def _columns_of(schema: pa.Schema, error_path: Path) -> tuple[str, str]:
    """Return the columns of ids and of vectors. Raises :class:`InputError` for other columns."""
    id_columns = []
    vector_columns = []
    for column in schema:
        if column.name in _ID_COLUMNS and pa.types.is_string(column.type):
            id_columns.append(column.name)
        # Only lists have a type of values.
        if pa.types.is_floating(getattr(column.type, "value_type", pa.null())):
            vector_columns.append(column.name)
    if not id_columns or len(vector_columns) != 1:
        present = ", ".join(f"{column.name} ({column.type})" for column in schema)
        expected = f"one column of ids ({', '.join(_ID_COLUMNS)}) and one of lists of floats"
        raise InputError(f"expected {expected}; found {present}", path=error_path)
    return id_columns[0], vector_columns[0]


def read_directions(
    vector_paths: Sequence[Path],
    release: Release,
    query_ids: Sequence[str],
) -> Floats:
    """Return the vectors of the queries, in the order of ``query_ids``, as rows of :func:`fixed_point`.

    If several files have a vector of a query, the first file is used. Raises :class:`InputError` for a query without a
    vector or with two vectors in one file, for different dimensions, and for a vector that is not finite or all zeros.
    """
    # A query that is in train and in dev has one row.
    row_by_id = {query_id: row for row, query_id in enumerate(dict.fromkeys(query_ids))}
    directions: Floats | None = None
    filled_ids: set[str] = set()  # queries with a vector in an earlier file
    with show_progress(total=len(row_by_id), unit="query", label="vectors") as bar:
        for path in vector_paths:
            file_ids: set[str] = set()
            for block_ids, vectors in read_embeddings(path, release):
                if directions is None:
                    directions = np.empty((len(row_by_id), vectors.shape[1]), np.float32)
                _check_vectors(path, block_ids, vectors, directions.shape[1])
                new_positions = []  # of vectors in the block
                new_rows = []
                for position, query_id in enumerate(block_ids):
                    if query_id not in row_by_id:
                        continue
                    if query_id in file_ids:
                        raise InputError(f"has query {query_id!r} twice; expected each query once", path=path)
                    file_ids.add(query_id)
                    if query_id not in filled_ids:
                        new_positions.append(position)
                        new_rows.append(row_by_id[query_id])
                # Only new vectors are scaled, because a file may have millions of other vectors.
                directions[new_rows] = fixed_point(np.asarray(vectors)[new_positions])
                bar.update(len(new_rows))
            repeated_count = len(file_ids & filled_ids)
            if repeated_count:
                log.warning("%s: skipped %d queries that have a vector in an earlier file", path, repeated_count)
            filled_ids |= file_ids
    if directions is None or len(filled_ids) < len(row_by_id):
        without_vector = [query_id for query_id in row_by_id if query_id not in filled_ids]
        error_path = ", ".join(map(str, vector_paths))
        raise InputError(
            f"has no vector for {len(without_vector):,} of {len(row_by_id):,} queries: {without_vector[0]!r}",
            path=error_path,
        )
    return directions[[row_by_id[query_id] for query_id in query_ids]]


def _check_vectors(
    error_path: Path,
    block_ids: list[str],
    vectors: npt.NDArray[Any],
    dimensions: int,
) -> None:
    """Raise :class:`InputError` for vectors of other dimensions, and for a vector without a direction.

    ``block_ids`` are the ids of the rows of ``vectors``. ``dimensions`` is the dimension of the first block of all
    files. A vector of zeros, or with a value that is not finite, has no direction.
    """
    file_dimensions = vectors.shape[1]
    if not dimensions or file_dimensions != dimensions:
        expected = dimensions or "at least 1"
        raise InputError(f"has vectors of {file_dimensions} dimensions; expected {expected}", path=error_path)
    has_direction = np.isfinite(vectors).all(axis=1) & vectors.any(axis=1)
    if not has_direction.all():
        query_id = block_ids[int(has_direction.argmin())]
        raise InputError(f"the vector of query {query_id!r} is not finite, or all zeros", path=error_path)


def common_length(dimensions: int) -> float:
    """Return the length to which vectors are scaled: 4,096 less the greatest length of the rounding errors.

    Rounding changes each number by at most 1/2.
    """
    return math.floor(_LENGTH - math.sqrt(dimensions) / 2)


def fixed_point(vectors: npt.NDArray[Any]) -> Floats:
    """Scale rows (n, d) to one length, and round them to whole numbers. Rows must be finite and not all zeros."""
    rows = vectors.astype(np.float64)
    rows /= np.abs(rows).max(axis=1, keepdims=True)  # prevents overflow and underflow of squares
    row_lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    scaled_length = common_length(rows.shape[1])
    rows *= (scaled_length / row_lengths)[:, None]
    return np.asarray(np.rint(rows), np.float32)


def _products(test_vectors: Floats, train_vectors: Floats) -> Iterator[Floats]:
    """Yield the scalar products of blocks of test queries with all training queries, each of shape (block, n)."""
    block_rows = max(1, _PRODUCTS_IN_MEMORY // len(train_vectors))
    for block in slices_with_progress(len(test_vectors), block_rows, unit="query", label="neighbours"):
        yield test_vectors[block] @ train_vectors.T


def best_ranks(test_vectors: Floats, train_vectors: Floats) -> tuple[Ints, Ints]:
    """Return each training query's best rank and product. Vectors (m, d) and (n, d) are from :func:`fixed_point`.

    The first array (n,) has the best rank, from 1, of a training query among the neighbours of any test query. The
    second array (n,) has the largest product at this rank. The module's docstring describes the keys.
    """
    best_keys = np.full(len(train_vectors), np.iinfo(np.int64).max)
    train_rows = np.arange(len(train_vectors))
    rank_parts = np.arange(1, len(train_vectors) + 1) << _LOWER_BITS
    for products in _products(test_vectors, train_vectors):
        # Rank the training queries for each test query.
        sorted_keys = np.sort((-products.astype(np.int64) << _LOWER_BITS) + train_rows, axis=1)
        ranked_rows = sorted_keys & _LOWER_MASK
        negative_products = sorted_keys >> _LOWER_BITS
        np.minimum.at(best_keys, ranked_rows, rank_parts + negative_products + _PRODUCT_OFFSET)
    return best_keys >> _LOWER_BITS, _PRODUCT_OFFSET - (best_keys & _LOWER_MASK)


def nearest_cosines(
    test_vectors: Floats,
    train_vectors: Floats,
    train_rows: Ints,
) -> npt.NDArray[np.float64]:
    """Return every test query's largest cosine with the training queries ``train_rows``, or -1 without such queries."""
    if not len(train_rows):
        return np.full(len(test_vectors), -1.0)
    largest_products = [products.max(axis=1) for products in _products(test_vectors, train_vectors[train_rows])]
    cosines = np.concatenate(largest_products) / common_length(test_vectors.shape[1]) ** 2
    return np.clip(np.asarray(cosines, np.float64), -1, 1)


def find_clusters(vectors: Floats, start_rows: Ints) -> Ints:
    """Cluster (n, d) vectors by spherical k-means. Return every row's cluster, from 0, the largest cluster first.

    ``start_rows`` has the rows of the initial centres. k-means ends after 100 rounds, or if no row changes its cluster.
    An empty cluster gets a new centre: the row that is least similar to the centre of its present cluster.
    """
    centres = vectors[start_rows]
    cluster_count = len(centres)
    labels = np.full(len(vectors), -1)
    for _ in show_progress(range(_MAX_ROUNDS), unit="round", label="k-means"):
        # Assign each row to the most similar centre.
        products = vectors @ centres.T
        new_labels = products.argmax(axis=1)
        if (labels == new_labels).all():
            break
        labels = new_labels

        # The new centre of a cluster is the direction of the sum of its rows.
        members = [np.flatnonzero(labels == cluster) for cluster in range(cluster_count)]
        sums = np.stack([vectors[rows].sum(axis=0, dtype=np.float64) for rows in members])
        has_members = np.array([len(rows) > 0 for rows in members])
        # If the vectors of a cluster cancel out, its first row becomes the centre.
        for cluster in np.flatnonzero(has_members & ~sums.any(axis=1)):
            sums[cluster] = vectors[members[cluster][0]]
        centres[has_members] = fixed_point(sums[has_members])

        # Empty clusters get the least similar rows as centres.
        least_similar = np.argsort(products.max(axis=1), kind="stable")
        empty_count = int((~has_members).sum())
        centres[~has_members] = vectors[least_similar[:empty_count]]

    # Number the clusters by falling size.
    sizes = np.bincount(labels, minlength=cluster_count)
    clusters_by_size = np.argsort(-sizes, kind="stable")
    new_numbers = np.argsort(clusters_by_size)  # the inverse permutation
    return np.asarray(new_numbers[labels], np.int64)
