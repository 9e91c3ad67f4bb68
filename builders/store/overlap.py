"""Label overlap: test queries whose positive passages are positives of training queries, too.

After Zhan et al. (arXiv 2204.11447): what a model learned of them, it has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.store.layout import SETS


def label_overlap(train: pa.Table, test: pa.Table | None) -> dict[str, Any]:
    """Test queries that have a positive passage of a training query among their own: number and share.

    From one shared passage on; the published script (compute_label_overlap.py) counts from two on.
    """
    if test is None:
        return {"overlapping": None, "overlapping_share": None}
    positives = test.filter(pc.greater(test["score"], 0))
    seen = pc.unique(train.filter(pc.greater(train["score"], 0))["corpus-id"])
    shared = pc.count_distinct(positives.filter(pc.is_in(positives["corpus-id"], seen))["query-id"]).as_py()
    total = pc.count_distinct(positives["query-id"]).as_py()
    return {"overlapping": shared, "overlapping_share": round(shared / total, 6) if total else None}


def overlaps_with_train(
    splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]
) -> dict[str, dict[str, Any]]:
    """Label overlap of every labelled test split with its set's training split, by ``CONFIG/SPLIT`` of the judgments.

    ``read`` gives the rows of a config's split; ``splits``: those that there are.
    """
    found: dict[str, dict[str, Any]] = {}
    for config in dict.fromkeys(each.qrels for each in SETS.values()):
        tests = [split for split in ("dev", "test") if {(config, split), (config, "train")} <= set(splits)]
        train = read(config, "train") if tests else None
        for split in tests:
            test = read(config, split)
            positive = test.filter(pc.greater(test["score"], 0))
            count = {"test_queries": pc.count_distinct(positive["query-id"]).as_py()}
            found[f"{config}/{split}"] = count | label_overlap(train, test)
    return found
