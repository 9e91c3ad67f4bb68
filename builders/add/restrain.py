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

from builders.add.similarity import Floats, Ints, best_ranks, nearest
from builders.add.vectors import (
    add_options,
    check_some,
    described_build,
    drawn,
    ids,
    judged_of,
    judgments_of,
    mean,
    print_figures,
    vectors_of,
)
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.sampling import size
from builders.store.draft import check_release_output, draft_release
from builders.store.overlap import label_overlap, labelled
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
    print_figures(restrain(open_release(args.release), args), args.format)


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


def interpolation_and_extrapolation(
    ranks: Ints, order: Ints, lots: Ints, size: int, depth: int
) -> tuple[TrainingSet, TrainingSet]:
    """ReSTrain's two sets of exactly ``size`` training queries (extrapolate-eval).

    The interpolation set takes the queries nearest to the test queries; the extrapolation set is drawn from those that
    are none of any test query's ``depth`` nearest. Of one depth and one draw, as in the published files, a smaller set
    is part of a larger one of its kind, and sets of different kinds share no query, whatever their sizes.

    Args:
        ranks: (n,), each training query's best rank among the neighbours of any test query.
        order: the training queries by rank, then by cosine, then by id.
        lots: the training queries as they are drawn.
    """
    near = TrainingSet("interpolation", size, int(ranks[order[size - 1]]), np.sort(order[:size]))
    rest = lots[ranks[lots] > depth]
    return near, TrainingSet("extrapolation", size, depth, np.sort(rest[:size]))


def restrained(
    train_ids: Sequence[str], trains: Floats, tests: Floats, sizes: Sequence[int], exclude: int | None, seed: int
) -> list[TrainingSet]:
    """For each size, smallest first, :func:`interpolation_and_extrapolation`; ``seed`` draws the lots.

    ``exclude``: the depth; None: :func:`exclusion_depth`.

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
    pairs = (interpolation_and_extrapolation(ranks, order, lots, size, excluded) for size in sorted(set(sizes)))
    return [each for pair in pairs for each in pair]


def is_large(tests: int, trains: int) -> bool:
    """Whether ReSTrain is not for so many test queries: see ``_FEW``."""
    return tests * _FEW > trains


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
    (train_vectors, test_vectors), sources = vectors_of(release, [trains, tests], args)
    if is_large(len(tests), len(trains)):
        log.warning(WARNING, f"{len(tests):,}", f"{len(trains):,}")
    sets = restrained(trains, train_vectors, test_vectors, args.size, args.exclude, args.seed)
    depth = next(chosen.ranks for chosen in sets if chosen.kind == "extrapolation")
    options = {"size": sorted(set(args.size)), "exclude": depth, "split": args.split, "seed": args.seed}
    build = described_build("restrain", options, sources)
    _warn_of_others(release, build)
    rows = []
    with draft_release(args.out, build, release) as draft:
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


def _warn_of_others(release: Release, build: dict[str, Any]) -> None:
    """Sets of one draw are part of each other, and apart: those of another are neither, and stay."""

    def drawn_from(verb: str, options: dict[str, Any], sources: Any) -> Any:
        return verb, {**options, "size": None}, sources

    own = drawn_from(build["verb"], build["options"], [source["sha256"] for source in build["sources"]])
    for earlier in release.manifest.builds:
        if earlier.verb == build["verb"]:
            other = drawn_from(earlier.verb, earlier.options, [source.sha256 for source in earlier.sources])
            if own != other:
                log.warning(
                    "%s has sets of %s training queries of other embeddings, test queries, seed or exclusion: they are"
                    " not part of the new ones, and may share queries with them",
                    *(release.path, ", ".join(map(str, earlier.options.get("size", [])))),
                )
