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


def drawn_overlaps(splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]) -> list[dict[str, Any]]:
    """Label overlap of every set for interpolation and extrapolation with its test queries: a row of figures each.

    Arguments as of :func:`overlaps_with_train`.
    """
    tests = [split for split in ("dev", "test") if ("qrels", split) in splits]
    found = []
    for config, split in splits:
        if config.startswith("restrain-"):
            found += [(config, "qrels", test) for test in tests]
        elif config.startswith("resttest-") and split != "train" and (config, "train") in splits:
            found.append((config, config, split))
    rows = []
    for config, tested, split in found:
        train, test = read(config, "train"), read(tested, split)
        counts = {"train_queries": len(labelled(train)), "test_queries": len(labelled(test))}
        rows.append({"config": config, "test": split, **counts, **label_overlap(train, test)})
    return rows


def labelled(qrels: pa.Table) -> list[str]:
    """The queries with a positive passage, sorted: the lower row is the lower id."""
    return sorted(pc.unique(qrels.filter(pc.greater(qrels["score"], 0))["query-id"]).to_pylist())


def overlap_table(rows: list[dict[str, Any]]) -> str:
    """The figures as an aligned table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name.replace("_", " ") for name in names]]
    for row in rows:
        cells.append(["-" if row.get(name) is None else _cell(name, row[name]) for name in names])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = (
            f"{cell:<{w}}" if i < 2 else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return f"{100 * value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else str(value)
