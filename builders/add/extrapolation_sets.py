"""Draw training sets for interpolation and extrapolation: ReSTrain and ReSTTest (Zhan et al., arXiv 2204.11447)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.add.vectors import Floats, Ints, best_ranks, find_clusters, nearest_cosines, read_directions
from builders.core.errors import InputError, log
from builders.core.sampling import size_name
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import label_overlap, labelled_queries
from builders.store.layout import MANIFEST
from builders.store.reader import Release

# With fewer training queries for each test query, a warning appears. The authors used ReSTrain for 97 test queries, and
# not for 6,980.
_TRAINS_PER_TEST = 100
WARNING = (
    "%s test queries are many for %s training queries. ReSTrain is for small test sets, because almost every training"
    " query is similar to some query of a large test set. Use resttest for large test sets."
)


def write_restrain_sets(
    base_release: Release,
    out_path: Path,
    *,
    embeddings: Sequence[Path],
    sizes: Sequence[int],
    exclude: int | None,
    test_splits: Sequence[str],
    seed: int,
) -> list[dict[str, Any]]:
    """Write a copy of ``base_release`` with the sets of ReSTrain. Return a row of figures for each set.

    ``embeddings`` are files or directories of vectors (:func:`.vectors.read_embeddings`). ``sizes``, ``exclude`` and
    ``seed`` are those of :func:`draw_restrain_sets`. The queries of ``test_splits`` need no labels. Raises
    :class:`InputError` for a query without a vector, and the errors of :func:`draw_restrain_sets`.
    """
    train_qrels = base_release.table("qrels", "train")
    train_ids = labelled_queries(train_qrels)
    test_ids = _query_ids_of(base_release, test_splits)
    # One call reads both kinds of queries, because they may be in the same files. The training queries come first.
    # The names are for errors.
    query_groups = {"qrels/train": train_ids, "/".join(test_splits): test_ids}
    vectors = _vectors_of(base_release, query_groups, embeddings)
    train_vectors = vectors[: len(train_ids)]
    test_vectors = vectors[len(train_ids) :]
    if len(test_ids) * _TRAINS_PER_TEST > len(train_ids):
        log.warning(WARNING, f"{len(test_ids):,}", f"{len(train_ids):,}")
    sets = draw_restrain_sets(train_ids, train_vectors, test_vectors, sizes, exclude, seed)
    # The manifest records K also if it was computed. All extrapolation sets have the same K.
    exclusion = next(training_set.ranks for training_set in sets if training_set.kind == "extrapolation")
    options = {"size": sorted(set(sizes)), "exclude": exclusion, "split": list(test_splits), "seed": seed}
    build = {"verb": "extrapolate restrain", "options": options, "sources": _describe_embeddings(embeddings)}

    test_qrels = _judgments_of_splits(base_release, test_splits)
    rows = []
    with draft_release(out_path, build, base_release) as draft:
        for training_set in sets:
            config = f"restrain-{size_name(training_set.size)}-{training_set.kind}"
            cosines = nearest_cosines(test_vectors, train_vectors, training_set.rows)
            set_qrels = _judgments_of(train_qrels, train_ids, training_set.rows)
            draft.write(config, "train", [set_qrels])
            row = {
                "config": config,
                "test": "+".join(test_splits),
                "train_queries": training_set.size,
                "test_queries": len(test_ids),
                "ranks": training_set.ranks,
                "nearest_cosine": _mean_cosine(cosines),
            }
            row |= label_overlap(set_qrels, test_qrels)
            rows.append(row)
            draft.stats.setdefault("extrapolation", {})[config] = row
    return rows


class TrainingSet(NamedTuple):
    """One set of training queries. ``kind`` is interpolation or extrapolation.

    ``rows`` are the ascending positions of the set's queries among all training queries. For interpolation, each query
    of the set is among the ``ranks`` nearest training queries of some test query. For extrapolation, no query of the
    set is among the ``ranks`` nearest training queries of any test query.
    """

    kind: str
    size: int
    ranks: int
    rows: Ints


def exclusion_depth(query_ranks: Ints) -> int:
    """Return the default of K: the least depth that allows the largest sets of both kinds.

    K does not depend on a set's size, so smaller sets are parts of larger sets. ``query_ranks`` (n,) are the best ranks
    of the training queries, from 1 (:func:`best_ranks`).
    """
    query_count = len(query_ranks)
    depths = np.arange(1, query_count + 1)
    # The number of queries within each depth. They can be used for interpolation, the others for extrapolation.
    within_depth = np.searchsorted(np.sort(query_ranks), depths, side="right")
    largest_sizes = np.minimum(within_depth, query_count - within_depth)
    return 1 + int(np.argmax(largest_sizes))  # argmax returns the first, which is the least depth


def draw_restrain_sets(
    train_ids: Sequence[str],
    train_vectors: Floats,
    test_vectors: Floats,
    sizes: Sequence[int],
    exclude: int | None,
    seed: int,
) -> list[TrainingSet]:
    """Return ReSTrain's two sets for each of ``sizes``, the smallest size first.

    The rows of ``train_vectors`` (n, d) belong to ``train_ids``, and ``test_vectors`` are (m, d). Interpolation has the
    training queries nearest to the test queries: by rank, then by cosine, then by row. Extrapolation is drawn with
    ``seed``, after the ``exclude`` nearest queries of every test query are removed. If ``exclude`` is None, it is
    :func:`exclusion_depth`. Raises :class:`InputError` for a size that is too large.
    """
    ranks, products = best_ranks(test_vectors, train_vectors)
    exclusion = exclude or exclusion_depth(ranks)
    train_count = len(train_vectors)
    # Queries up to rank K are used for interpolation, the others for extrapolation.
    near_count = int(np.count_nonzero(ranks <= exclusion))
    far_count = train_count - near_count
    largest_size = min(near_count, far_count)
    if max(sizes) > largest_size:
        message = (
            f"--size {max(sizes):,} is too large for {train_count:,} training queries: {near_count:,} are among the"
            f" {exclusion:,} nearest of a test query (interpolation), {far_count:,} are not (extrapolation); use at"
            f" most {largest_size:,}"
        )
        if exclude is not None:
            message += " with this --exclude"
        raise InputError(message)

    # The sort is stable, so ties are in the order of rows.
    nearest_first = np.lexsort((-products, ranks))
    shuffled_rows = _shuffle_rows(train_ids, seed)
    # A larger set takes more of the same shuffled rows, so it contains every smaller set.
    far_rows = shuffled_rows[ranks[shuffled_rows] > exclusion]
    sets = []
    for size in sorted(set(sizes)):
        deepest_rank = int(ranks[nearest_first[size - 1]])
        sets.append(TrainingSet("interpolation", size, deepest_rank, np.sort(nearest_first[:size])))
        sets.append(TrainingSet("extrapolation", size, exclusion, np.sort(far_rows[:size])))
    return sets


def write_bucket_sets(
    base_release: Release,
    out_path: Path,
    *,
    embeddings: Sequence[Path],
    test_split: str,
    bucket_count: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Write a copy of ``base_release`` with the sets of ReSTTest. Return two rows of figures for each bucket.

    The first row of a bucket is about its test split ``interpolation``, the second about ``extrapolation``.
    ``embeddings`` are files or directories of vectors (:func:`.vectors.read_embeddings`). Only the labelled queries of
    train and ``test_split`` are used. Raises :class:`InputError` for a query without a vector, and the errors of
    :func:`assign_buckets`.
    """
    train_qrels = base_release.table("qrels", "train")
    test_qrels = base_release.table("qrels", test_split)
    train_ids = labelled_queries(train_qrels)
    test_ids = labelled_queries(test_qrels)
    vectors = _vectors_of(base_release, {"qrels/train": train_ids, test_split: test_ids}, embeddings)
    train_buckets, test_buckets, cosines = assign_buckets(train_ids, test_ids, vectors, bucket_count, seed)
    options = {"buckets": bucket_count, "split": test_split, "seed": seed}
    build = {"verb": "extrapolate resttest", "options": options, "sources": _describe_embeddings(embeddings)}
    rows = []
    with draft_release(out_path, build, base_release) as draft:
        _drop_buckets(draft, base_release)
        for bucket in range(bucket_count):
            config = f"resttest-bucket{bucket + 1}"
            # The training set of a bucket has the queries of all other buckets.
            train_rows = np.flatnonzero(train_buckets != bucket)
            set_train_qrels = _judgments_of(train_qrels, train_ids, train_rows)
            draft.write(config, "train", [set_train_qrels])
            # The largest cosine of each test query to the training queries of the other buckets.
            largest_cosines = np.delete(cosines, bucket, axis=1).max(axis=1)
            is_in_bucket = test_buckets == bucket
            config_rows = []
            for kind, is_member in (("interpolation", ~is_in_bucket), ("extrapolation", is_in_bucket)):
                set_test_qrels = _judgments_of(test_qrels, test_ids, np.flatnonzero(is_member))
                draft.write(config, kind, [set_test_qrels])
                row = {
                    "config": config,
                    "test": kind,
                    "train_queries": len(train_rows),
                    "test_queries": int(is_member.sum()),
                    "nearest_cosine": _mean_cosine(largest_cosines[is_member]),
                }
                config_rows.append(row | label_overlap(set_train_qrels, set_test_qrels))
            draft.stats.setdefault("extrapolation", {})[config] = config_rows
            rows += config_rows
    return rows


def _drop_buckets(draft: Draft, base_release: Release) -> None:
    """Remove the sets of an earlier build, which may have had more buckets."""
    earlier_configs = {config for config, _ in base_release.splits() if config.startswith("resttest-")}
    for config in earlier_configs:
        draft.drop(config)
        draft.stats.get("extrapolation", {}).pop(config, None)


def assign_buckets(
    train_ids: Sequence[str],
    test_ids: Sequence[str],
    query_vectors: Floats,
    bucket_count: int,
    seed: int,
) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Cluster training and test queries together. ``seed`` draws the initial centres from the queries.

    ``query_vectors`` (n + m, d) has the training queries first, then the test queries. Returns the bucket, from 0, of
    every training (n,) and test (m,) query. The third array (m, ``bucket_count``) has each test query's largest cosine
    with the training queries of each bucket. Raises :class:`InputError` for fewer queries than buckets, and for a
    bucket without training or without test queries.
    """
    if len(query_vectors) < bucket_count:
        raise InputError(f"{len(query_vectors):,} queries do not fill {bucket_count} buckets; choose fewer buckets")
    # The initial centres are random queries of both kinds.
    start_rows = _shuffle_rows([*train_ids, *test_ids], seed)[:bucket_count]
    buckets = find_clusters(query_vectors, start_rows)
    train_vectors, test_vectors = np.split(query_vectors, [len(train_ids)])
    train_buckets, test_buckets = np.split(buckets, [len(train_ids)])
    # Every bucket needs training and test queries, because it is held out in turn.
    for group_name, group_buckets in (("training", train_buckets), ("test", test_buckets)):
        empty_buckets = set(range(bucket_count)) - set(group_buckets.tolist())
        if empty_buckets:
            raise InputError(
                f"k-means left bucket {min(empty_buckets) + 1} of {bucket_count} without {group_name} queries; choose"
                " fewer buckets or another seed"
            )
    cosines = []
    for bucket in range(bucket_count):
        bucket_rows = np.flatnonzero(train_buckets == bucket)
        cosines.append(nearest_cosines(test_vectors, train_vectors, bucket_rows))
    return train_buckets, test_buckets, np.stack(cosines, axis=1)


def _judgments_of_splits(release: Release, splits: Sequence[str]) -> pa.Table | None:
    """Return the main set's judgments of several splits in one table, or None if no split has labels."""
    tables = []
    for split in splits:
        if ("qrels", split) in release.splits():
            tables.append(release.table("qrels", split))
    return pa.concat_tables(tables) if tables else None


def _query_ids_of(release: Release, splits: Sequence[str]) -> list[str]:
    """Return the ids of the queries of the splits, sorted, each once."""
    query_ids: set[str] = set()
    for split in splits:
        query_ids.update(release.table("queries", split, ["_id"])["_id"].to_pylist())
    return sorted(query_ids)


def _vectors_of(
    release: Release,
    query_groups: Mapping[str, Sequence[str]],
    embedding_paths: Sequence[Path],
) -> Floats:
    """Return the vectors (n, d) of groups of queries, one group after the other, from :func:`read_directions`.

    ``query_groups`` maps the name of a group, for errors, to its query ids. Raises :class:`InputError` for an empty
    group, and for a query without a vector.
    """
    query_ids: list[str] = []
    for name, group_ids in query_groups.items():
        if not group_ids:
            raise InputError(f"has no queries in {name}; expected labelled queries", path=release.path)
        query_ids += group_ids
    return read_directions(embedding_paths, release, query_ids)


def _describe_embeddings(embedding_paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe the files of vectors for the manifest: a directory by its own manifest."""
    files = []
    # The manifest of a directory has the SHA-256 of its files.
    for path in embedding_paths:
        if path.is_dir():
            files.append((f"{path.name}/{MANIFEST}", path / MANIFEST))
        else:
            files.append((path.name, path))
    return describe_files(files)


def _judgments_of(qrels: pa.Table, query_ids: Sequence[str], query_rows: Ints) -> pa.Table:
    """Return the judgments of some queries. ``query_rows`` are the positions of their ids in ``query_ids``."""
    set_ids = pa.array([query_ids[row] for row in query_rows], pa.string())
    return qrels.filter(pc.is_in(qrels["query-id"], set_ids))


def _shuffle_rows(query_ids: Sequence[str], seed: int) -> Ints:
    """Return the positions in ``query_ids`` in random order: by a hash of seed and id, for any version of numpy."""
    sort_keys = [hashlib.sha256(f"{seed}:{query_id}".encode()).digest() for query_id in query_ids]
    return np.array(sorted(range(len(sort_keys)), key=sort_keys.__getitem__), np.int64)


def _mean_cosine(cosines: npt.NDArray[Any]) -> float | None:
    """Return the mean with four decimals, or None without cosines."""
    return round(float(cosines.mean()), 4) if len(cosines) else None
