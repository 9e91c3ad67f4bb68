"""Add training and test sets by k-means, each bucket in turn kept from training (ReSTTest).

After Zhan et al. (arXiv 2204.11447). k-means puts training and test queries together into K buckets (5), by their
vectors, of any model. For bucket N, `train` holds the training queries of the other buckets, `extrapolation` the test
queries of bucket N and `interpolation` the other test queries. Report the mean over the buckets.

The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
give the same sets on any number of threads. Printed for every set: the test queries' mean cosine with their nearest
training query, and their label overlap, which `check` prints too.

Example:

  python -m builders add resttest --release build/release --embeddings build/vectors/train build/vectors/dev \\
    --out build/extrapolation
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.add.similarity import Floats, Ints, clusters, nearest
from builders.add.vectors import (
    add_options,
    check_some,
    described_build,
    drawn,
    judgments_of,
    mean,
    print_figures,
    vectors_of,
)
from builders.core.command import whole_number
from builders.core.errors import InputError
from builders.store.draft import check_release_output, draft_release
from builders.store.overlap import label_overlap, labelled
from builders.store.reader import Release, open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--split", default="dev", help="the test queries, labelled (dev)")
    parser.add_argument("--buckets", type=whole_number(2), default=5, metavar="K", help="of k-means (5)")


def run(args: argparse.Namespace) -> None:
    print_figures(resttest(open_release(args.release), args), args.format)


@dataclass(frozen=True)
class Buckets:
    """Training and test queries by bucket.

    Attributes:
        trains, tests: the bucket, from 0, of every training (n,) and test (m,) query.
        nearest: (m, K), a test query's largest cosine with a training query of each bucket.
    """

    trains: Ints
    tests: Ints
    nearest: npt.NDArray[np.float64]


def bucketed(train_ids: Sequence[str], test_ids: Sequence[str], vectors: Floats, count: int, seed: int) -> Buckets:
    """Cluster training and test queries together; ``seed`` draws the queries that the centres start from.

    Args:
        vectors: (n + m, d), of the training queries, then of the test queries.

    Raises:
        InputError: fewer queries than buckets, or a bucket without training or without test queries.
    """
    if len(vectors) < count:
        raise InputError(f"{len(vectors):,} queries do not fill {count} buckets")
    labels = clusters(vectors, drawn([*train_ids, *test_ids], seed)[:count])
    trains, tests = vectors[: len(train_ids)], vectors[len(train_ids) :]
    of_trains, of_tests = labels[: len(train_ids)], labels[len(train_ids) :]
    for name, buckets in (("training", of_trains), ("test", of_tests)):
        missing = np.flatnonzero(np.bincount(buckets, minlength=count) == 0)
        if len(missing):
            raise InputError(
                f"k-means left bucket {missing[0] + 1} of {count} without {name} queries; choose fewer buckets or"
                " another seed"
            )
    cosines = [nearest(tests, trains, np.flatnonzero(of_trains == bucket)) for bucket in range(count)]
    return Buckets(of_trains, of_tests, np.stack(cosines, axis=1))


def _chosen(queries: Sequence[str], chosen: npt.NDArray[np.bool_]) -> list[str]:
    return [query for query, taken in zip(queries, chosen.tolist(), strict=True) if taken]


def resttest(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``resttest-bucketN`` configs into a copy of ``release``; returns two rows of figures each."""
    check_release_output(args.out)
    qrels, judged = release.table("qrels", "train"), release.table("qrels", args.split)
    trains, tests = labelled(qrels), labelled(judged)
    check_some(release, {"qrels/train": trains, args.split: tests})
    (vectors,), sources = vectors_of(release, [[*trains, *tests]], args)
    found = bucketed(trains, tests, vectors, args.buckets, args.seed)
    options = {"buckets": args.buckets, "split": args.split, "seed": args.seed}
    rows = []
    with draft_release(args.out, described_build("resttest", options, sources), release) as draft:
        for config in {config for config, _ in release.splits() if config.startswith("resttest-")}:
            draft.drop(config)
            draft.stats.get("extrapolation", {}).pop(config, None)
        for bucket in range(args.buckets):
            name = f"resttest-bucket{bucket + 1}"
            train = judgments_of(qrels, _chosen(trains, found.trains != bucket))
            draft.write(name, "train", [train])
            cosines = np.delete(found.nearest, bucket, axis=1).max(axis=1)
            figures = []
            for kind, members in (("interpolation", found.tests != bucket), ("extrapolation", found.tests == bucket)):
                test = judgments_of(judged, _chosen(tests, members))
                draft.write(name, kind, [test])
                figures.append(
                    {
                        "config": name,
                        "test": kind,
                        "train_queries": int((found.trains != bucket).sum()),
                        "test_queries": int(members.sum()),
                        "nearest_cosine": mean(cosines[members]),
                        **label_overlap(train, test),
                    }
                )
            draft.stats.setdefault("extrapolation", {})[name] = figures
            rows += figures
    return rows
