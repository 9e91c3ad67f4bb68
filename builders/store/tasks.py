"""The tasks of a release as a benchmark on the hub: what ``eval.yaml`` lists, and what ``.eval_results/`` names.

The hub's leaderboard has one value a model and task, so that a task is one measure of one split of a set. Its format:
github.com/huggingface/hub-docs, docs/hub/eval-results.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from builders.store.layout import SETS

EVAL = "eval.yaml"
# The paper's measures (Section 3.2) and the ends of their tasks' names. Recall@k is a hit rate.
MEASURES = {"MRR@10": "mrr_at_10", "Recall@1": "recall_at_1", "Recall@50": "recall_at_50"}
_TESTED = ("dev", "test")


@dataclass(frozen=True)
class Task:
    """A measure of a split of a set; ``config``: the config of its queries."""

    set: str
    split: str
    measure: str

    @property
    def id(self) -> str:
        return f"{part_id(self.set, self.split)}_{MEASURES[self.measure]}"

    @property
    def config(self) -> str:
        return SETS[self.set].queries


def part_id(set_name: str, split: str) -> str:
    """``dev``, ``cmedqa_test``: what the names of its tasks begin with."""
    return split if set_name == "main" else f"{set_name}_{split}"


def parts_of(splits: Collection[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The sets and splits that a release with these (config, split) has queries and judgments of."""
    for name, found in SETS.items():
        for split in _TESTED:
            if (found.queries, split) in splits and (found.qrels, split) in splits:
                yield name, split


def tasks_of(splits: Iterable[tuple[str, str]]) -> list[Task]:
    """Every task of a release with these (config, split)."""
    return [Task(*part, measure) for part in parts_of({*splits}) for measure in MEASURES]
