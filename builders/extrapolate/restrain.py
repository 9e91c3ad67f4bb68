"""ReSTrain: training sets of one size that are like a test set, or unlike it.

After Zhan et al. (arXiv 2204.11447): the interpolation set takes the training queries nearest to the test queries, the
extrapolation set others. Vectors are rows of ``similarity.fixed_point``; ids are sorted, so that the lower row is the
lower id.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from builders.common.command import InputError
from builders.extrapolate.overlap import judged_of, label_overlap, labelled
from builders.extrapolate.queries import check_some, described_build, drawn, ids, judgments_of, mean, vectors_of
from builders.extrapolate.similarity import Floats, Ints, best_ranks, nearest
from builders.store.draft import check_release_output, draft_release
from builders.store.reader import Release


@dataclass(frozen=True)
class TrainingSet:
    """One set of training queries.

    Attributes:
        kind: "interpolation" or "extrapolation".
        size: how many queries.
        ranks: K: the set is taken from every test query's K nearest (interpolation), or holds none of them.
        rows: the chosen training rows, ascending.
    """

    kind: str
    size: int
    ranks: int
    rows: Ints


def interpolation_and_extrapolation(
    ranks: Ints, order: Ints, lots: Ints, size: int, exclude: int
) -> tuple[TrainingSet, TrainingSet]:
    """ReSTrain's two sets of exactly ``size`` training queries (extrapolate-eval).

    The interpolation set takes the queries nearest to the test queries; K is the rank of the last one. The
    extrapolation set is drawn from those of rank above K, and above ``exclude``.

    Args:
        ranks: (n,), each training query's best rank among the neighbours of any test query.
        order: the training queries by rank, then by cosine, then by id.
        lots: the training queries as they are drawn.
    """
    last = int(ranks[order[size - 1]])
    near = TrainingSet("interpolation", size, last, np.sort(order[:size]))
    last = max(last, exclude)
    rest = lots[ranks[lots] > last]
    return near, TrainingSet("extrapolation", size, last, np.sort(rest[:size]))


def restrained(
    train_ids: Sequence[str], trains: Floats, tests: Floats, sizes: Sequence[int], exclude: int, seed: int
) -> list[TrainingSet]:
    """For each size, smallest first, :func:`interpolation_and_extrapolation`; ``seed`` draws the lots.

    Raises:
        InputError: a size that leaves fewer than that many to draw from; names the largest possible.
    """
    total = len(trains)
    wanted = min(max(sizes), total // 2 + 1)  # with more than half taken, too few are left in any case
    depth = min(total, max(2 * exclude, 64, 8 * -(-wanted // len(tests))))
    while True:
        ranks, products, complete = best_ranks(tests, trains, depth)
        if (complete >= exclude and np.count_nonzero(ranks) >= wanted) or complete == total:
            break
        depth = min(total, 4 * depth)
    ranks[ranks == 0] = total + 1
    reached = np.searchsorted(np.sort(ranks), np.arange(complete + 1), side="right")  # queries up to each rank
    first = min(exclude, complete)
    largest = int(np.minimum(reached, total - reached)[first:].max())
    if max(sizes) > largest:
        raise InputError(
            f"a size of {max(sizes):,} is too large for {total:,} training queries: with every test query's nearest"
            f" {first:,} or more left out of the extrapolation set, {largest:,} is the largest possible"
        )
    order = np.lexsort((-products, ranks))  # stable: the lower row first
    lots = drawn(train_ids, seed)
    pairs = (interpolation_and_extrapolation(ranks, order, lots, size, exclude) for size in sorted(set(sizes)))
    return [each for pair in pairs for each in pair]


def size_name(queries: int) -> str:
    """How a size stands in a config's name: ``14K``, ``1500``."""
    return str(queries) if queries % 1000 else f"{queries // 1000}K"


def restrain(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``restrain-SIZE-*`` configs into a copy of ``release``; returns a row of figures each."""
    check_release_output(args.out)
    qrels = release.table("qrels", "train")
    trains = labelled(qrels)
    tests = sorted({query for split in args.split for query in ids(release, split)})
    check_some(release, {"qrels/train": trains, "/".join(args.split): tests})
    (train_vectors, test_vectors), described = vectors_of(release, ["train", *args.split], [trains, tests], args)
    sets = restrained(trains, train_vectors, test_vectors, args.size, args.exclude, args.seed)
    options = {"size": sorted(set(args.size)), "exclude": args.exclude, "split": args.split, "seed": args.seed}
    rows = []
    with draft_release(args.out, described_build("restrain", options, described), release) as draft:
        judged = judged_of(release, args.split)
        for chosen in sets:
            name = f"restrain-{size_name(chosen.size)}-{chosen.kind}"
            table = judgments_of(qrels, [trains[row] for row in chosen.rows])
            draft.write(name, "train", [table])
            row = {
                "config": name,
                "test": "+".join(args.split),
                "train_queries": chosen.size,
                "test_queries": len(tests),
                "ranks": chosen.ranks,
                "nearest_cosine": mean(nearest(test_vectors, train_vectors, chosen.rows)),
                **label_overlap(table, judged),
            }
            rows.append(row)
            draft.stats.setdefault("extrapolation", {})[name] = row
    return rows
