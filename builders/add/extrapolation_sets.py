"""Draw training sets for interpolation and extrapolation: ReSTrain and ReSTTest (Zhan et al., arXiv 2204.11447)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.add.vectors import Floats, Ints, best_ranks, clusters, directions, nearest
from builders.core.errors import InputError, log
from builders.core.sampling import size_name
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import label_overlap, labelled
from builders.store.layout import MANIFEST
from builders.store.reader import Release

_FEW = 100  # training queries for each test query; the authors used ReSTrain for 97 test queries, not for 6,980
WARNING = (
    "%s test queries are many for %s training queries. ReSTrain is for small test sets, because almost every training"
    " query is similar to some query of a large test set. Use resttest for large test sets."
)


def write_restrain_sets(
    release: Release,
    out: Path,
    *,
    embeddings: Sequence[Path],
    sizes: Sequence[int],
    exclude: int | None,
    test_splits: Sequence[str],
    seed: int,
) -> list[dict[str, Any]]:
    """Write a copy of ``release`` with the sets of ReSTrain. Return a row of figures for each set.

    The arguments ``sizes``, ``exclude`` and ``seed`` are those of :func:`restrained`. Raises :class:`InputError` for a
    query without a vector.
    """
    qrels = release.table("qrels", "train")
    trains = labelled(qrels)
    test_ids: set[str] = set()
    for split in test_splits:
        test_ids.update(release.table("queries", split, ["_id"])["_id"].to_pylist())
    tests = sorted(test_ids)
    vectors = _vectors_of(release, {"qrels/train": trains, "/".join(test_splits): tests}, embeddings)
    train_vectors, test_vectors = vectors[: len(trains)], vectors[len(trains) :]
    if len(tests) * _FEW > len(trains):
        log.warning(WARNING, f"{len(tests):,}", f"{len(trains):,}")
    sets = restrained(trains, train_vectors, test_vectors, sizes, exclude, seed)
    depth = next(chosen.ranks for chosen in sets if chosen.kind == "extrapolation")
    options = {"size": sorted(set(sizes)), "exclude": depth, "split": [*test_splits], "seed": seed}
    build = {"verb": "extrapolate restrain", "options": options, "sources": _described_embeddings(embeddings)}
    labels = [release.table("qrels", split) for split in test_splits if ("qrels", split) in release.splits()]
    judged = pa.concat_tables(labels) if labels else None
    rows = []
    with draft_release(out, build, release) as draft:
        for chosen in sets:
            name = f"restrain-{size_name(chosen.size)}-{chosen.kind}"
            table = _judgments_of(qrels, trains, chosen.rows)
            draft.write(name, "train", [table])
            row = {
                "config": name,
                "test": "+".join(test_splits),
                "train_queries": chosen.size,
                "test_queries": len(tests),
                "ranks": chosen.ranks,
                "nearest_cosine": _mean(nearest(test_vectors, train_vectors, chosen.rows)),
                **label_overlap(table, judged),
            }
            rows.append(row)
            draft.stats.setdefault("extrapolation", {})[name] = row
    return rows


class TrainingSet(NamedTuple):
    """One set of training queries: its kind (interpolation or extrapolation), size, and ascending rows.

    For interpolation, each query of the set is among the ``ranks`` nearest training queries of some test query. For
    extrapolation, no query of the set is among the ``ranks`` nearest training queries of any test query.
    """

    kind: str
    size: int
    ranks: int
    rows: Ints


def exclusion_depth(ranks: Ints) -> int:
    """Return the default of K: the least depth that allows the largest sets of both kinds.

    K does not depend on a set's size, so smaller sets are parts of larger sets. ``ranks`` (n,): :func:`best_ranks`.
    """
    reached = np.searchsorted(np.sort(ranks), np.arange(1, len(ranks) + 1), side="right")
    return 1 + int(np.argmax(np.minimum(reached, len(ranks) - reached)))


def restrained(
    train_ids: Sequence[str], trains: Floats, tests: Floats, sizes: Sequence[int], exclude: int | None, seed: int
) -> list[TrainingSet]:
    """Return ReSTrain's two sets for each of ``sizes``, the smallest size first.

    Interpolation has the training queries nearest to the test queries: by rank, then by cosine, then by row.
    Extrapolation is drawn with ``seed``, after the ``exclude`` nearest queries of every test query are removed. If
    ``exclude`` is None, it is :func:`exclusion_depth`. Raises :class:`InputError` for a size that is too large.
    """
    ranks, products = best_ranks(tests, trains)
    excluded = exclude or exclusion_depth(ranks)
    total, near = len(trains), int(np.count_nonzero(ranks <= excluded))
    largest = min(near, total - near)
    if max(sizes) > largest:
        raise InputError(
            f"--size {max(sizes):,} is too large for {total:,} training queries: {near:,} are among the {excluded:,}"
            f" nearest of a test query (interpolation), {total - near:,} are not (extrapolation); use at most"
            f" {largest:,}" + " with this --exclude" * (exclude is not None)
        )
    order = np.lexsort((-products, ranks))  # the sort is stable, so ties are in the order of rows
    lots = _drawn(train_ids, seed)
    rest = lots[ranks[lots] > excluded]
    sets = []
    for number in sorted(set(sizes)):
        sets += [
            TrainingSet("interpolation", number, int(ranks[order[number - 1]]), np.sort(order[:number])),
            TrainingSet("extrapolation", number, excluded, np.sort(rest[:number])),
        ]
    return sets


def write_bucket_sets(
    release: Release, out: Path, *, embeddings: Sequence[Path], test_split: str, bucket_count: int, seed: int
) -> list[dict[str, Any]]:
    """Write a copy of ``release`` with the sets of ReSTTest. Return two rows of figures for each bucket.

    Raises :class:`InputError` for a query without a vector, and the errors of :func:`bucketed`.
    """
    qrels, judged = release.table("qrels", "train"), release.table("qrels", test_split)
    trains, tests = labelled(qrels), labelled(judged)
    vectors = _vectors_of(release, {"qrels/train": trains, test_split: tests}, embeddings)
    of_trains, of_tests, cosines = bucketed(trains, tests, vectors, bucket_count, seed)
    options = {"buckets": bucket_count, "split": test_split, "seed": seed}
    build = {"verb": "extrapolate resttest", "options": options, "sources": _described_embeddings(embeddings)}
    rows = []
    with draft_release(out, build, release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith("resttest-")}:
            draft.drop(config)
            draft.stats.get("extrapolation", {}).pop(config, None)
        for bucket in range(bucket_count):
            name = f"resttest-bucket{bucket + 1}"
            chosen = np.flatnonzero(of_trains != bucket)
            train = _judgments_of(qrels, trains, chosen)
            draft.write(name, "train", [train])
            closest = np.delete(cosines, bucket, axis=1).max(axis=1)
            figures = []
            for kind, members in (("interpolation", of_tests != bucket), ("extrapolation", of_tests == bucket)):
                test = _judgments_of(judged, tests, np.flatnonzero(members))
                draft.write(name, kind, [test])
                counts = {"train_queries": len(chosen), "test_queries": int(members.sum())}
                row = {"config": name, "test": kind, **counts, "nearest_cosine": _mean(closest[members])}
                figures.append(row | label_overlap(train, test))
            draft.stats.setdefault("extrapolation", {})[name] = figures
            rows += figures
    return rows


def bucketed(
    train_ids: Sequence[str], test_ids: Sequence[str], vectors: Floats, count: int, seed: int
) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Cluster training and test queries together. ``seed`` draws the initial centres from the queries.

    ``vectors`` (n + m, d) has the training queries first, then the test queries. Returns the bucket, from 0, of every
    training (n,) and test (m,) query. The third array (m, ``count``) has each test query's largest cosine with the
    training queries of each bucket. Raises :class:`InputError` for a bucket without training or without test queries.
    """
    if len(vectors) < count:
        raise InputError(f"{len(vectors):,} queries do not fill {count} buckets; choose fewer buckets")
    labels = clusters(vectors, _drawn([*train_ids, *test_ids], seed)[:count])
    trains, tests = np.split(vectors, [len(train_ids)])
    of_trains, of_tests = np.split(labels, [len(train_ids)])
    for name, buckets in (("training", of_trains), ("test", of_tests)):
        if missing := set(range(count)) - set(buckets.tolist()):
            raise InputError(
                f"k-means left bucket {min(missing) + 1} of {count} without {name} queries; choose fewer buckets or"
                " another seed"
            )
    cosines = [nearest(tests, trains, np.flatnonzero(of_trains == bucket)) for bucket in range(count)]
    return of_trains, of_tests, np.stack(cosines, axis=1)


def _vectors_of(release: Release, groups: Mapping[str, Sequence[str]], embeddings: Sequence[Path]) -> Floats:
    """Return the concatenated vectors of groups of queries.

    ``groups`` maps the name of a group to query ids. Raises :class:`InputError` for an empty group.
    """
    query_ids: list[str] = []
    for name, group in groups.items():
        if not group:
            raise InputError(f"has no queries in {name}; expected labelled queries", path=release.path)
        query_ids += group
    return directions(embeddings, release, query_ids)


def _described_embeddings(embeddings: Sequence[Path]) -> list[dict[str, Any]]:
    """Describe the files of vectors for the manifest: a directory by its own manifest."""
    files = []
    for path in embeddings:
        files.append((f"{path.name}/{MANIFEST}", path / MANIFEST) if path.is_dir() else (path.name, path))
    return describe_files(files)


def _judgments_of(qrels: pa.Table, queries: Sequence[str], rows: Ints) -> pa.Table:
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array([queries[row] for row in rows], pa.string())))


def _drawn(ids: Sequence[str], seed: int) -> Ints:
    """Shuffle the rows of ``ids`` by a hash of seed and id, which does not depend on the version of numpy."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def _mean(cosines: npt.NDArray[Any]) -> float | None:
    return round(float(cosines.mean()), 4) if len(cosines) else None
