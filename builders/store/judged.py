"""The judgments of a split, in memory: of millions of passages only those that somebody judged."""

from __future__ import annotations

from collections.abc import Mapping

from builders.store.reader import Release

Judged = Mapping[str, Mapping[str, int]]  # by query id, by passage id: the score; above 0 the passage is a positive


def read_judged(release: Release, config: str, split: str) -> dict[str, dict[str, int]]:
    """The judgments of one split of a config of qrels, in its order; none where the release does not have it."""
    found: dict[str, dict[str, int]] = {}
    if (config, split) in release.splits():
        for batch in release.batches(config, split):
            columns = (batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score"))
            for query, passage, score in zip(*columns, strict=True):
                found.setdefault(query, {})[passage] = score
    return found
