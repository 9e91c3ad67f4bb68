"""A pool as a round: packages of pairs, for Label Studio, for spreadsheets and as JSON lines.

The pairs of a query stay together, in the order of the passages' ids: their ranks would say what a model thinks of
them. Writes ROUND, which must not be there: a round is never replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from builders.annotate.judgments import RELEVANCE, Pair, Question
from builders.annotate.pool import read_pool
from builders.annotate.quality import PACKAGE, Acceptance, percentage
from builders.annotate.rounds import PACKAGES, ROUND, STUDIO, Item, Package, Round, Rule, fingerprint_of, write_round
from builders.annotate.tasks import Task, config_of, write_package
from builders.common.command import InputError, log, whole_number
from builders.common.files import sha256_of, write_text
from builders.common.folders import new_directory, work_beside
from builders.store.layout import SPLITS
from builders.store.reader import Release, open_release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    paper, number = Acceptance(), whole_number(1)
    parser.add_argument("--pool", type=Path, required=True, metavar="FILE", help="what `pool select` wrote")
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release with the texts")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries the pool has (dev)")
    parser.add_argument("--unjudged", action="store_true", help="leave out the pairs that the release's qrels have")
    parser.add_argument(
        "--package-size", type=number, default=PACKAGE, metavar="N", help=f"pairs a package ({PACKAGE})"
    )
    rule = parser.add_argument_group("quality control (A.3)")
    rule.add_argument(
        "--reviewers", type=number, default=paper.reviewers, metavar="N", help=f"at least (default: {paper.reviewers})"
    )
    rule.add_argument(
        "--review-pairs",
        type=number,
        default=paper.items,
        metavar="N",
        help=f"of a package, for each reviewer (default: {paper.items})",
    )
    rule.add_argument(
        "--min-accuracy",
        type=percentage,
        default=100 * paper.accuracy,
        metavar="PERCENT",
        help=f"of a package (default: {100 * paper.accuracy})",
    )
    rule.add_argument("--seed", type=int, default=0, help="of the reviewers' pairs (0)")


def run(args: argparse.Namespace) -> None:
    expect_new(args.round)
    rule = Rule(args.reviewers, args.review_pairs, str(args.min_accuracy), args.seed)
    release, pool = open_release(args.release), read_pool(args.pool)
    chosen = [pair.pair for pair in pool if not (args.unjudged and pair.judged is not None)]
    order = {query: place for place, query in enumerate(dict.fromkeys(query for query, _ in chosen))}
    pairs = sorted(set(chosen), key=lambda pair: (order[pair[0]], pair[1]))
    if not pairs:
        raise InputError("holds no pair that is not judged", path=args.pool)
    packages = make_round(args.round, release, args.split, pairs, args.pool, rule, args.package_size)
    log.info("%s: %d pairs of %d queries in %d packages", args.round, len(pairs), len(order), packages)
    print(f"{len(pairs):,} pairs in {packages:,} packages: {args.round}")


def expect_new(path: Path) -> None:
    """Raise :class:`InputError` where a round is there already."""
    if (path / ROUND).exists():
        with work_beside(path):  # what is left of an export that was killed when it was done goes
            pass
        raise InputError("is a round already, which may hold judgments; expected a new path", path=path)


def make_round(
    path: Path,
    release: Release,
    split: str,
    pairs: Sequence[Pair],
    source: Path,
    rule: Rule,
    size: int = PACKAGE,
    question: Question = RELEVANCE,
) -> int:
    """Write the round ``path``, which must not be there; return the number of its packages.

    Args:
        pairs: in their order; those of a query stand together.
        source: the file that they come from.
        size: pairs a package.

    Raises:
        InputError: a query or a passage that the release lacks.
    """
    expect_new(path)
    queries = release.texts("queries", split)
    passages = release.texts("corpus", "corpus", {passage for _, passage in pairs})
    for query, passage in pairs:
        if query not in queries:
            raise InputError(f"has a query {query!r} that queries/{split} lacks", path=source)
        if passage not in passages:
            raise InputError(f"has a passage {passage!r} that the corpus lacks", path=source)
    packages: list[Package] = []
    with new_directory(path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / "config.xml", config_of(question))
        for start in range(0, len(pairs), size):
            part = pairs[start : start + size]
            package = Package(f"{split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(Item(q, p, queries[q], passages[p]), package.name, 1) for q, p in part]
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            packages.append(package)
        name, fingerprint = release.path.resolve().name, fingerprint_of(release, split)
        write_round(folder, Round(1, name, fingerprint, split, sha256_of(source), rule, packages, question.name))
    return len(packages)
