"""Add training sets for interpolation and extrapolation: ReSTrain and ReSTTest (Zhan et al., arXiv 2204.11447)."""

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.add.vectors import Floats, Ints, best_ranks, clusters, directions, nearest
from builders.core.command import add_format, whole_number
from builders.core.errors import InputError, log
from builders.core.sampling import size, size_name
from builders.core.tables import print_result
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import label_overlap, labelled, overlap_table
from builders.store.layout import MANIFEST
from builders.store.reader import Release, open_release

_FEW = 100  # training queries for each test query; the authors used ReSTrain for 97 test queries, not for 6,980
WARNING = (
    "%s test queries are many for %s training queries. ReSTrain is for small test sets, because almost every training"
    " query is similar to some query of a large test set. Use resttest for large test sets."
)


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "vectors of all training and test queries: directories of `baselines encode --queries`, or .parquet files"
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="release directory to read")
    parser.add_argument("--embeddings", type=Path, nargs="+", required=True, metavar="PATH", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new release (may be --release)")
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="seed of the draw (default: 0)")
    add_format(parser)


def restrain_arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "--size", type=size, nargs="+", required=True, metavar="N", help="training queries of a set, for example 14K"
    )
    parser.add_argument(
        "--exclude",
        type=whole_number(1),
        metavar="K",
        help="extrapolation excludes the K nearest queries of each test query (default: for the largest sets)",
    )
    parser.add_argument(
        "--split", nargs="+", default=["dev"], metavar="SPLIT", help="test queries, labelled or not (default: dev)"
    )


def restrain(args: argparse.Namespace) -> None:
    """Add training sets that are similar or dissimilar to a small test set (ReSTrain).

    The method is Zhan et al.'s (arXiv 2204.11447; github.com/jingtaozhan/extrapolate-eval). It compares queries by the
    cosine of their vectors, which any model can compute.

    restrain-SIZE-interpolation has SIZE training queries: the nearest training query of every test query, then the
    second nearest, and so on. From the last rank, the queries with the largest cosines are used.

    restrain-SIZE-extrapolation has SIZE other training queries. They are drawn after the K nearest training queries of
    every test query are removed. K is --exclude, or the K that allows the largest sets. K does not depend on SIZE, so a
    smaller set is part of a larger set of its kind. Interpolation and extrapolation sets never share a query. Many test
    queries cause a warning, because almost every training query is then similar to some test query.

    The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
    give the same sets on any number of threads. For every set, the command prints the mean cosine of a test query and
    its nearest training query, and the label overlap, which `check` also prints.

    Example:

      python -m baselines encode --release build/release --model M --queries --split train --out build/vectors/train
      python -m baselines encode --release build/release --model M --queries --split dev --out build/vectors/dev
      python -m builders add restrain --release build/release --embeddings build/vectors/train build/vectors/dev \\
        --size 14K --out build/extrapolation
    """
    release = open_release(args.release)
    qrels = release.table("qrels", "train")
    trains = labelled(qrels)
    ids = (release.table("queries", split, ["_id"])["_id"].to_pylist() for split in args.split)
    tests = sorted({query for own in ids for query in own})
    vectors, build = _vectors_of(release, {"qrels/train": trains, "/".join(args.split): tests}, args)
    train_vectors, test_vectors = vectors[: len(trains)], vectors[len(trains) :]
    if len(tests) * _FEW > len(trains):
        log.warning(WARNING, f"{len(tests):,}", f"{len(trains):,}")
    sets = restrained(trains, train_vectors, test_vectors, args.size, args.exclude, args.seed)
    depth = next(chosen.ranks for chosen in sets if chosen.kind == "extrapolation")
    build["options"] = {"size": sorted(set(args.size)), "exclude": depth, "split": args.split, "seed": args.seed}
    labels = [release.table("qrels", split) for split in args.split if ("qrels", split) in release.splits()]
    judged, rows = pa.concat_tables(labels) if labels else None, []
    with draft_release(args.out, build, release) as draft:
        for chosen in sets:
            name = f"restrain-{size_name(chosen.size)}-{chosen.kind}"
            table = _judgments_of(qrels, trains, chosen.rows)
            draft.write(name, "train", [table])
            row = {
                **{"config": name, "test": "+".join(args.split)},
                **{"train_queries": chosen.size, "test_queries": len(tests), "ranks": chosen.ranks},
                "nearest_cosine": _mean(nearest(test_vectors, train_vectors, chosen.rows)),
                **label_overlap(table, judged),
            }
            rows.append(row)
            draft.stats.setdefault("extrapolation", {})[name] = row
    print_result(rows, overlap_table(rows), args.format)


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


def resttest_arguments(parser: argparse.ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument("--split", default="dev", help="labelled split of the test queries (default: dev)")
    parser.add_argument("--buckets", type=whole_number(2), default=5, metavar="K", help="buckets (default: 5)")


def resttest(args: argparse.Namespace) -> None:
    """Add training and test sets by k-means, each with one bucket excluded from training (ReSTTest).

    The method is Zhan et al.'s (arXiv 2204.11447). k-means assigns training and test queries to K buckets by their
    vectors. The config of bucket N has three splits. `train` has the training queries of the other buckets,
    `extrapolation` the test queries of bucket N, and `interpolation` the other test queries. Average over the buckets.

    The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
    give the same sets on any number of threads. For every set, the command prints the mean cosine of a test query and
    its nearest training query, and the label overlap, which `check` also prints.

    Example:

      python -m builders add resttest --release build/release --embeddings build/vectors/train build/vectors/dev \\
        --out build/extrapolation
    """
    release = open_release(args.release)
    qrels, judged = release.table("qrels", "train"), release.table("qrels", args.split)
    trains, tests = labelled(qrels), labelled(judged)
    vectors, build = _vectors_of(release, {"qrels/train": trains, args.split: tests}, args)
    of_trains, of_tests, cosines = bucketed(trains, tests, vectors, args.buckets, args.seed)
    build["options"] = {"buckets": args.buckets, "split": args.split, "seed": args.seed}
    rows = []
    with draft_release(args.out, build, release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith("resttest-")}:
            draft.drop(config)
            draft.stats.get("extrapolation", {}).pop(config, None)
        for bucket in range(args.buckets):
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
    print_result(rows, overlap_table(rows), args.format)


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


def _vectors_of(
    release: Release, groups: Mapping[str, Sequence[str]], args: argparse.Namespace
) -> tuple[Floats, dict[str, Any]]:
    """Return the concatenated vectors of groups of queries, and the manifest's record of the build.

    ``groups`` maps the name of a group to query ids. Raises :class:`InputError` for an empty group.
    """
    for name, found in groups.items():
        if not found:
            raise InputError(f"has no queries in {name}; expected labelled queries", path=release.path)
    vectors = directions(args.embeddings, release, [query for group in groups.values() for query in group])
    files = [(f"{p.name}/{MANIFEST}", p / MANIFEST) if p.is_dir() else (p.name, p) for p in args.embeddings]
    return vectors, {"verb": f"extrapolate {args.step}", "sources": describe_files(files)}


def _judgments_of(qrels: pa.Table, queries: Sequence[str], rows: Ints) -> pa.Table:
    return qrels.filter(pc.is_in(qrels["query-id"], pa.array([queries[row] for row in rows], pa.string())))


def _drawn(ids: Sequence[str], seed: int) -> Ints:
    """Shuffle the rows of ``ids`` by a hash of seed and id, which does not depend on the version of numpy."""
    keys = [hashlib.sha256(f"{seed}:{query}".encode()).digest() for query in ids]
    return np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)


def _mean(cosines: npt.NDArray[Any]) -> float | None:
    return round(float(cosines.mean()), 4) if len(cosines) else None
