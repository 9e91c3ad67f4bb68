"""Random pairs of each finished package for each reviewer (A.3).

Writes ROUND/reviews/NAME/PACKAGE.csv, .jsonl and .json (Label Studio's tasks) of every package that is whole and not
accepted: 100 pairs for each reviewer, drawn by the reviewer's name, which is how `import` must call them (user-1 and so
on in Label Studio's exports). Reviewers judge for themselves: the annotators' labels are not shown.
"""

from __future__ import annotations

import argparse

from builders.core.errors import log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reviewers", nargs="+", required=True, metavar="NAME", help="at least two")


def run(args: argparse.Namespace) -> None:
    from builders.annotate.check import drawn_pairs
    from builders.annotate.labels import standings
    from builders.annotate.rounds import items_of, open_round, safe_name
    from builders.annotate.sheets import Task
    from builders.annotate.studio import write_package

    found = open_round(args.round)
    for reviewer in args.reviewers:
        folder = args.round / "reviews" / safe_name(reviewer)
        for standing in standings(args.round, found):
            package = standing.package
            if standing.missing or package.state == "accepted":
                reason = f"{len(standing.missing):,} pairs are not judged" if standing.missing else "is accepted"
                log.info("package %s, version %d: no review (%s)", package.name, package.version, reason)
                continue
            chosen = drawn_pairs(standing, reviewer, found.rule)
            items = [item for item in items_of(args.round, package) if item.pair in chosen]
            tasks = [Task(item, package.name, package.version, "review") for item in items]
            write_package(folder, package.stem, tasks)
            print(folder / f"{package.stem}.csv")
