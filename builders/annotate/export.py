"""A pool as a round: packages of pairs, for Label Studio, for spreadsheets and as JSON lines.

The pairs of a query stay together, in the order of the passages' ids: their ranks would say what a model thinks of
them. Writes ROUND, which must not be there: a round is never replaced.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.annotate.quality import PACKAGE, add_acceptance
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.store.layout import SPLITS


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
    from builders.annotate.making import expect_new, make_round
    from builders.annotate.rounds import Rule
    from builders.pool.pairs import read_pool
    from builders.store.reader import open_release

    expect_new(args.round)
    rule = Rule(args.reviewers, args.review_pairs, str(args.min_accuracy), args.seed)
    release, pool = open_release(args.release), read_pool(args.pool)
    chosen = [pair for pair in pool if not (args.unjudged and pair.judged is not None)]
    pairs = sorted({(pair.query_id, pair.corpus_id) for pair in chosen})
    order = {query: place for place, query in enumerate(dict.fromkeys(pair.query_id for pair in chosen))}
    pairs.sort(key=lambda pair: order[pair[0]])
    if not pairs:
        raise InputError("holds no pair that is not judged", path=args.pool)
    packages = make_round(args.round, release, args.split, pairs, args.pool, rule, args.package_size)
    log.info("%s: %d pairs of %d queries in %d packages", args.round, len(pairs), len(order), packages)
    print(f"{len(pairs):,} pairs in {packages:,} packages: {args.round}")
