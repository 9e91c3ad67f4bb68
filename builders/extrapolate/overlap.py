"""Label overlap of all training sets of a release with their test sets, and the queries that have labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.store.judgments import label_overlap
from builders.store.reader import Release


def overlaps(release: Release, split: str) -> list[dict[str, Any]]:
    """Label overlap of every training set of ``release`` with its test sets: a row of figures each."""
    sets = [("qrels", split)]
    for config, test_split in release.splits():
        if config.startswith("restrain-"):
            sets.append((config, split))
        elif config.startswith("resttest-") and test_split != "train":
            sets.append((config, test_split))
    rows = []
    for config, test_split in sets:
        train = release.table(config, "train")
        test = release.table(config if config.startswith("resttest-") else "qrels", test_split)
        counts = {"train_queries": len(labelled(train)), "test_queries": len(labelled(test))}
        rows.append({"config": config, "test": test_split, **counts, **label_overlap(train, test)})
    return rows


def labelled(qrels: pa.Table) -> list[str]:
    """The queries with a positive passage, sorted: the lower row is the lower id."""
    return sorted(pc.unique(qrels.filter(pc.greater(qrels["score"], 0))["query-id"]).to_pylist())


def judged_of(release: Release, splits: Sequence[str]) -> pa.Table | None:
    """The qrels of those of the splits that have labels; None where none has."""
    have = [release.table("qrels", split) for split in splits if ("qrels", split) in release.splits()]
    return pa.concat_tables(have) if have else None
