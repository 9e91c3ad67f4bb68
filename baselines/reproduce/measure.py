"""The runs of the chosen rows, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baselines.measure.evaluate import evaluate
from baselines.measure.measures import PAPER
from baselines.measure.qrels import Qrels, release_qrels
from baselines.measure.significance import official_intervals
from baselines.reproduce.leaderboard import Own, own_of
from baselines.reproduce.matrix import Reference, Row, Step
from baselines.reproduce.report import Measured
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import read_run


def measure(
    rows: Sequence[Row], plan: Mapping[str, Step], release: Release, split: str
) -> tuple[list[Measured], list[Own]]:
    """Each row's run against the judgments of its reference, which are read once.

    Also those of Chinese questions over the benchmark's own collection, by all its judgments, for the leaderboard.
    """
    known: dict[Reference, Qrels] = {}
    found: list[Measured] = []
    own: dict[str, Own] = {}
    for row in rows:
        reference = row.reference(split)
        if reference not in known:
            known[reference] = release_qrels(release, reference.split, row.set, row.queries, row.qrels)
        qrels = known[reference]
        result, by_query = evaluate(read_run(plan[row.step].output), qrels)
        ours = {name: 100 * result["official"][key] for name, key in PAPER.items()}
        sure = official_intervals(by_query)
        intervals = {name: (100 * sure[key][0], 100 * sure[key][1]) for name, key in PAPER.items()}
        found.append(Measured(row, reference.split, qrels, ours, intervals))
        if row.set == "main" and not (row.queries or row.qrels) and row.step not in own:
            passages = release.rows(SETS["main"].corpus, "corpus")
            own[row.step] = own_of(row.title, str(release.path), passages, reference.split, (result, by_query))
    return found, list(own.values())
