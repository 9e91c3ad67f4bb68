"""Add training sets that are like a small test set, or unlike it (ReSTrain).

They measure how a model does on queries like those it was trained on, and on others. After Zhan et al. (arXiv
2204.11447; github.com/jingtaozhan/extrapolate-eval). Queries are compared by the cosine of their vectors, of any model.

SIZE-interpolation holds the SIZE training queries most similar to the test queries: every test query's nearest, then
every one's second nearest, and so on; of the last rank, which is cut to the size, the most similar. SIZE-extrapolation
holds SIZE others, drawn from what is left when every test query's K nearest training queries are removed. K is
--exclude, or the rank that leaves room for the largest sets; it does not depend on the size. So a smaller set is part
of a larger one of its kind, and no extrapolation set shares a query with an interpolation set, whatever their sizes.
Where the test queries are many, a warning says so: almost every training query is similar to some test query then.

The sets are added to a copy of the release as configs with the columns of qrels. The same vectors, seed and options
give the same sets on any number of threads. Printed for every set: the test queries' mean cosine with their nearest
training query, and their label overlap, which `check` prints too.

Example:

  python -m baselines encode --release build/release --model M --queries --split train --out build/vectors/train
  python -m baselines encode --release build/release --model M --queries --split dev --out build/vectors/dev
  python -m builders add restrain --release build/release --embeddings build/vectors/train build/vectors/dev \\
    --size 14K --out build/extrapolation
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from builders.add.similarity import Floats, Ints, best_ranks, nearest
from builders.add.vectors import add_options, drawn, judgments_of, mean, query_ids, vectors_of
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.sampling import size, size_name
from builders.core.tables import print_result
from builders.store.draft import check_release_output, draft_release
from builders.store.judgments import label_overlap, labelled, overlap_table
from builders.store.reader import Release, open_release

# Its authors used it on 97 test queries of 502,939 training queries, and not on 6,980 (their readme): there, almost
# every training query is similar to some test query. Between the two, more than one test query for every so many:
_FEW = 100


WARNING = (
    "%s test queries are many for %s training queries: ReSTrain is for small test sets; of a large one, almost every"
    " training query is similar to some test query, and both sets hold such; resttest is for it (extrapolate-eval)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument(
        "--size", type=size, nargs="+", required=True, metavar="N", help="training queries a set: 14K, 45K, 200K or any"
    )
    parser.add_argument(
        "--exclude",
        type=whole_number(1),
        metavar="K",
        help="ranks never in an extrapolation set (default: about half of the training queries are out)",
    )
    parser.add_argument(
        "--split", nargs="+", default=["dev"], metavar="SPLIT", help="the test queries, labelled or not (dev)"
    )


def run(args: argparse.Namespace) -> None:
    rows = restrain(open_release(args.release), args)
    print_result(rows, overlap_table(rows), args.format)


@dataclass(frozen=True)
class TrainingSet:
    """One set of training queries.

    Attributes:
        kind: "interpolation" or "extrapolation".
        size: how many queries.
        ranks: the rank that the last one has among some test query's nearest (interpolation), or K: every test query's
            K nearest are not in it (extrapolation).
        rows: the chosen training rows, ascending.
    """

    kind: str
    size: int
    ranks: int
    rows: Ints


def exclusion_depth(ranks: Ints, complete: int) -> int:
    """K, where nobody gives one: the depth that leaves room for the largest sets; the least of several.

    It depends on the queries alone, not on a size, so that the sets of all sizes fit together.

    Args:
        ranks: (n,), each training query's best rank among the neighbours of any test query, from 1.
        complete: the depth that they are known to; half of the queries, at least, lie within it.
    """
    reached = np.searchsorted(np.sort(ranks), np.arange(1, complete + 1), side="right")
    return 1 + int(np.argmax(np.minimum(reached, len(ranks) - reached)))


def restrained(
    train_ids: Sequence[str], trains: Floats, tests: Floats, sizes: Sequence[int], exclude: int | None, seed: int
) -> list[TrainingSet]:
    """ReSTrain's two sets of exactly so many training queries, for each size, the smallest first (extrapolate-eval).

    The interpolation set takes the queries nearest to the test queries: by rank, then by cosine, then by id. The
    extrapolation set is drawn from those that are none of any test query's ``exclude`` nearest. Of one depth and one
    draw, as in the published files, a smaller set is part of a larger one of its kind, and sets of different kinds
    share no query, whatever their sizes.

    Args:
        exclude: the depth; None: :func:`exclusion_depth`.
        seed: draws the lots.

    Raises:
        InputError: a size that one of the two cannot have; names the largest possible.
    """
    total = len(trains)
    depth = min(total, 2 * exclude if exclude else max(64, total // len(tests)))
    while True:
        ranks, products, complete = best_ranks(tests, trains, depth)
        enough = complete >= exclude if exclude else complete > 0 and 2 * np.count_nonzero(ranks) >= total
        if enough or complete == total:
            break
        depth = min(total, 4 * depth)
    ranks[ranks == 0] = total + 1
    excluded = exclude or exclusion_depth(ranks, complete)
    near = int(np.count_nonzero(ranks <= excluded))
    largest = min(near, total - near)
    if max(sizes) > largest:
        raise InputError(
            f"a size of {max(sizes):,} is too large for {total:,} training queries: {near:,} are among the {excluded:,}"
            f" nearest of a test query, for interpolation, and {total - near:,} are left for extrapolation; {largest:,}"
            " is the largest possible" + " at this --exclude" * (exclude is not None)
        )
    order = np.lexsort((-products, ranks))  # stable: the lower row first
    lots = drawn(train_ids, seed)
    rest = lots[ranks[lots] > excluded]
    sets = []
    for number in sorted(set(sizes)):
        sets.append(TrainingSet("interpolation", number, int(ranks[order[number - 1]]), np.sort(order[:number])))
        sets.append(TrainingSet("extrapolation", number, excluded, np.sort(rest[:number])))
    return sets


def is_large(tests: int, trains: int) -> bool:
    """True if ReSTrain is not for so many test queries: see ``_FEW``."""
    return tests * _FEW > trains


def restrain(release: Release, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Write the ``restrain-SIZE-*`` configs into a copy of ``release``; returns a row of figures each."""
    check_release_output(args.out)
    qrels = release.table("qrels", "train")
    trains = labelled(qrels)
    tests = sorted({query for split in args.split for query in query_ids(release, split)})
    groups = {"qrels/train": trains, "/".join(args.split): tests}
    vectors, build = vectors_of(release, groups, args)
    train_vectors, test_vectors = vectors[: len(trains)], vectors[len(trains) :]
    if is_large(len(tests), len(trains)):
        log.warning(WARNING, f"{len(tests):,}", f"{len(trains):,}")
    sets = restrained(trains, train_vectors, test_vectors, args.size, args.exclude, args.seed)
    depth = next(chosen.ranks for chosen in sets if chosen.kind == "extrapolation")
    build["options"] = {"size": sorted(set(args.size)), "exclude": depth, "split": args.split, "seed": args.seed}
    _warn_of_others(release, build)
    rows = []
    with draft_release(args.out, build, release) as draft:
        labels = [release.table("qrels", split) for split in args.split if ("qrels", split) in release.splits()]
        judged = pa.concat_tables(labels) if labels else None
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


def _warn_of_others(release: Release, build: dict[str, Any]) -> None:
    """Warn of earlier sets of another draw: they are no part of the new ones, and may share queries with them."""
    own = build["options"] | {"size": None}, [source["sha256"] for source in build["sources"]]
    for earlier in release.manifest.builds:
        other = earlier.options | {"size": None}, [source.sha256 for source in earlier.sources]
        if earlier.verb == build["verb"] and own != other:
            log.warning(
                "%s has sets of %s training queries of other embeddings, test queries, seed or exclusion: they are"
                " not part of the new ones, and may share queries with them",
                *(release.path, ", ".join(map(str, earlier.options.get("size", [])))),
            )
