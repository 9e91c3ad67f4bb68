"""Benchmark tasks on the hub. A release lists its tasks in ``eval.yaml``, a model in ``.eval_results/``.

The hub's leaderboard shows one value for each model and task. Each measure of each split is therefore its own task.
The format is described in github.com/huggingface/hub-docs, docs/hub/eval-results.md.
"""

from collections.abc import Collection, Iterator

from builders.store.layout import SETS
from builders.store.names import TESTED_SPLITS

# The paper's measures (Section 3.2) and the suffixes of their task names. Recall@k is a hit rate.
MEASURES = {"MRR@10": "mrr_at_10", "Recall@1": "recall_at_1", "Recall@50": "recall_at_50"}


def parts_of(splits: Collection[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield (set, split) of each dev and test split with queries and judgments.

    ``splits`` has the (config, split) pairs of the release.
    """
    for set_name, dataset_set in SETS.items():
        for split in TESTED_SPLITS:
            if (dataset_set.queries, split) in splits and (dataset_set.qrels, split) in splits:
                yield set_name, split


def part_id(set_name: str, split: str) -> str:
    """Return the prefix of a split's task names, for example ``dev`` or ``cmedqa_test``."""
    return split if set_name == "main" else f"{set_name}_{split}"


def task_id(set_name: str, split: str, measure: str) -> str:
    """Return the task name for one of :data:`MEASURES`, for example ``dev_mrr_at_10``."""
    return f"{part_id(set_name, split)}_{MEASURES[measure]}"
