"""The pairs on which people disagree, for somebody to decide.

Writes ROUND/adjudication/PACKAGE.csv, .jsonl and .json (Label Studio's tasks), with the number of people who said the
one and the other, without their names. Imported, the adjudicator's label counts before all others.
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from builders.annotate.judgments import Pair
    from builders.annotate.labels import Standing
    from builders.annotate.questions import Question


def add_arguments(_: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    from builders.annotate.labels import standings
    from builders.annotate.rounds import items_of, open_round
    from builders.annotate.sheets import Task
    from builders.annotate.studio import write_package

    folder, count, found = args.round / "adjudication", 0, open_round(args.round)
    for standing in standings(args.round, found):
        package, disputed = standing.package, set(standing.disputed)
        if not disputed:
            continue
        count += len(disputed)
        items = [item for item in items_of(args.round, package) if item.pair in disputed]
        name, version = package.name, package.version
        said = {item.pair: _said(standing, item.pair, found.asked) for item in items}
        tasks = [Task(item, name, version, "adjudication", said=said[item.pair]) for item in items]
        write_package(folder, package.stem, tasks)
        print(folder / f"{package.stem}.csv")
    print(f"{count:,} pairs to decide")


def _said(standing: Standing, pair: Pair, asked: Question) -> str:
    counts = Counter(standing.votes(pair).values())
    shown = [choice for choice in asked.choices if len(asked.choices) == 2 or counts[choice.label]]
    return ", ".join(f"{choice.name} {counts[choice.label]}" for choice in shown)
