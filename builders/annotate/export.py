"""A pool as a round: packages of pairs, for Label Studio, for spreadsheets and as JSON lines.

The pairs of a query stay together, in the order of the passages' ids: their ranks would say what a model thinks of
them. Writes ROUND, which must not be there: a round is never replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builders.annotate.judgments import Pair
from builders.annotate.quality import PACKAGE, add_acceptance
from builders.common.command import InputError, log, whole_number
from builders.store.layout import SPLITS

if TYPE_CHECKING:
    from builders.annotate.rounds import Item
    from builders.store.reader import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool", type=Path, required=True, metavar="FILE", help="what `pool select` wrote")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release with the texts")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries the pool has (dev)")
    parser.add_argument("--unjudged", action="store_true", help="leave out the pairs that the release's qrels have")
    parser.add_argument(
        "--package-size", type=whole_number(1), default=PACKAGE, metavar="N", help=f"pairs a package ({PACKAGE})"
    )
    rule = parser.add_argument_group("quality control (A.3)")
    add_acceptance(rule, "--review-pairs")
    rule.add_argument("--seed", type=int, default=0, help="of the reviewers' pairs (0)")


def run(args: argparse.Namespace) -> None:
    from builders.annotate import rounds
    from builders.annotate.sheets import Task
    from builders.annotate.studio import CONFIG, CONFIG_FILE, write_package
    from builders.common.files import sha256_of, write_text
    from builders.common.folders import new_directory, work_beside
    from builders.pool.pairs import read_pool
    from builders.store.reader import open_release

    if (args.round / rounds.ROUND).exists():
        with work_beside(args.round):  # what is left of an export that was killed when it was done goes
            pass
        raise InputError("is a round already, which may hold judgments; expected a new path", path=args.round)
    rule = rounds.Rule(args.reviewers, args.review_pairs, str(args.min_accuracy), args.seed)
    release, pool = open_release(args.release), read_pool(args.pool)
    chosen = [pair for pair in pool if not (args.unjudged and pair.judged is not None)]
    pairs = sorted({(pair.query_id, pair.corpus_id) for pair in chosen})
    order = {query: place for place, query in enumerate(dict.fromkeys(pair.query_id for pair in chosen))}
    pairs.sort(key=lambda pair: order[pair[0]])
    if not pairs:
        raise InputError("holds no pair that is not judged", path=args.pool)
    items = list(_items(release, args.split, pairs, args.pool))
    packages: list[rounds.Package] = []
    with new_directory(args.round, "a round", rounds.ROUND) as folder:
        write_text(folder / rounds.STUDIO / CONFIG_FILE, CONFIG)
        for start in range(0, len(items), args.package_size):
            part = items[start : start + args.package_size]
            package = rounds.Package(f"{args.split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(item, package.name, 1) for item in part]
            write_package(folder / rounds.PACKAGES, package.stem, tasks, folder / rounds.STUDIO)
            packages.append(package)
        name, fingerprint = release.path.resolve().name, rounds.fingerprint_of(release, args.split)
        content = rounds.Round(1, name, fingerprint, args.split, sha256_of(args.pool), rule, packages)
        rounds.write_round(folder, content)
    log.info("%s: %d pairs of %d queries in %d packages", args.round, len(items), len(order), len(packages))
    print(f"{len(items):,} pairs in {len(packages):,} packages: {args.round}")


def _items(release: Release, split: str, pairs: Sequence[Pair], pool: Path) -> Iterator[Item]:
    """The pairs with their texts. :class:`InputError` for a query or a passage that the release lacks."""
    from builders.annotate.rounds import Item

    queries = release.texts("queries", split)
    passages = release.texts("corpus", "corpus", {passage for _, passage in pairs})
    for query, passage in pairs:
        if query not in queries:
            raise InputError(f"has a query {query!r} that queries/{split} lacks", path=pool)
        if passage not in passages:
            raise InputError(f"has a passage {passage!r} that the corpus lacks", path=pool)
        yield Item(query, passage, queries[query], passages[passage])
