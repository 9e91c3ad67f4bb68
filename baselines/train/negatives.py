"""Hard negatives of the training queries: from a file that `mine` wrote, or as they came with the official data.

Held are row numbers of the collection: the texts of the official negatives, some 400 MB, are never read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from baselines.retrieve.passages import Passages
from builders.core.errors import InputError
from builders.store.layout import SETS, base_set
from builders.store.negatives import read_negative_ids
from builders.store.reader import Release

_ROWS_AT_ONCE = 4_096


def read_negatives(path: Path, passages: Passages, queries: dict[str, list[int]]) -> dict[str, list[int]]:
    """Rows of the negatives of every query, from the JSON lines that ``mine`` writes; queries of other splits left out.

    ``queries``: rows of the positives by query id; they are no negatives. Raises :class:`InputError` naming the line
    where it is no such line, or names a passage that is not there.
    """
    found = read_negative_ids(path)
    rows = _of_queries(found, passages, queries, path)
    if not rows:
        raise InputError("has none of the queries that are trained on", path=path)
    return rows


def release_negatives(
    release: Release, set_name: str, split: str, passages: Passages, queries: dict[str, list[int]]
) -> dict[str, list[int]]:
    """Rows of the negatives of every query, from ``negative_passages`` of the release's joined rows.

    They are those of the official dual.train.tsv and cross.train.tsv together, each once a query. Raises
    :class:`InputError` where the release has none, or one names a passage that is not there.
    """
    config = SETS[base_set(set_name)].joined[split]
    columns = ["query_id", "negative_passages.list.element.docid"]
    rows: dict[str, list[int]] = {}
    for batch in release.batches(config, split, columns, rows=_ROWS_AT_ONCE):
        ids = [[each["docid"] for each in row] for row in batch.column("negative_passages").to_pylist()]
        own = zip(batch.column("query_id").to_pylist(), ids, (None for _ in ids), strict=True)
        rows |= _of_queries(own, passages, queries, release.path)
    if not any(rows.values()):
        raise InputError(
            f"has no hard negatives in {config}/{split} (data.negatives = release): `python -m builders official` "
            "brings those of the official training files; --negatives F takes what `python -m baselines mine` makes",
            path=release.path,
        )
    return rows


def _of_queries(
    found: Iterable[tuple[str, list[str], int | None]], passages: Passages, queries: dict[str, list[int]], path: Path
) -> dict[str, list[int]]:
    """The negatives that are no positives, as rows, of those among ``queries``; all ids are looked up together."""
    every = list(found)
    ids = [each for _, negatives, _ in every for each in negatives]
    rows = passages.rows(ids)
    kept, start = {}, 0
    for query, negatives, line in every:
        own = rows[start : start + len(negatives)]
        if (own < 0).any():
            missing = negatives[int(np.argmin(own))]
            raise InputError(f"the collection has no passage {missing!r}", path=path, line=line)
        if query in queries:
            good = set(queries[query])
            kept[query] = [row for row in own.tolist() if row not in good]
        start += len(negatives)
    return kept
