"""What people's judgments have changed: the figures of Section 2.3, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builders.store.judgments import Judged
from builders.store.layout import BEFORE
from builders.store.table3 import round_stat

if TYPE_CHECKING:
    from builders.stats.survey import Survey  # reads by DuckDB: what only prints figures does without


def count_relabelled(tables: Survey) -> dict[str, dict[str, Any]]:
    """:func:`relabelled` of every split of which the release has the judgments from before people corrected them."""

    def judged(config: str, split: str) -> Judged:
        found: dict[str, dict[str, int]] = {}
        sql = "SELECT query_id, docid, score FROM judged WHERE config = ? AND split = ?"
        for query, passage, score in tables.rows(sql, config, split):
            found.setdefault(query, {})[passage] = score
        return found

    figures = {}
    for split in tables.splits(BEFORE):
        rows = tables.rows("SELECT id FROM texts WHERE config = 'queries' AND split = ?", split)
        figures[split] = relabelled([query for (query,) in rows], judged(BEFORE, split), judged("qrels", split))
    return figures


def relabelled(queries: Sequence[str], before: Judged, after: Judged) -> dict[str, Any]:
    """What changed between two judgments of the same ``queries`` (ids), as JSON values.

    Section 2.3: "the average positive paragraph per query has increased from 2.43 to 4.91. There are 71.53% of queries
    that have at least one false negative relabeled".

    Returns ``queries``; positives of ``before`` and ``after``, and of each the mean a query; how many pairs were
    ``false_negatives`` (positive now, not before) and ``false_positives`` (the other way round); the shares of
    queries, from 0 to 1, with at least one of them; and how many queries have no positive left.
    """
    negatives = positives = with_negatives = with_positives = empty = 0
    old_total = new_total = 0
    for query in queries:
        old, new = _positives(before, query), _positives(after, query)
        old_total, new_total = old_total + len(old), new_total + len(new)
        negatives, with_negatives = negatives + len(new - old), with_negatives + bool(new - old)
        positives, with_positives = positives + len(old - new), with_positives + bool(old - new)
        empty += not new and bool(old)
    count = max(1, len(queries))
    return {
        "queries": len(queries),
        "positives_before": old_total,
        "positives_after": new_total,
        "per_query_before": round_stat(old_total / count),
        "per_query_after": round_stat(new_total / count),
        "false_negatives": negatives,
        "false_positives": positives,
        "share_with_false_negatives": round_stat(with_negatives / count),
        "share_with_false_positives": round_stat(with_positives / count),
        "without_positives": empty,
    }


def _positives(judged: Judged, query: str) -> set[str]:
    return {passage for passage, score in judged.get(query, {}).items() if score > 0}


_ROWS = (
    ("per_query_before", "positives a query before"),
    ("per_query_after", "positives a query after"),
    ("share_with_false_negatives", "queries with a false negative"),
    ("share_with_false_positives", "queries with a false positive"),
)


def as_text(stats: dict[str, dict[str, Any]], paper: dict[str, Any]) -> str:
    """The figures of every split, and the paper's beside them, as aligned text."""
    if not stats:
        return ""
    lines = [f"{'judged by people':<32}" + "".join(f"{split:>11}" for split in stats) + f"{'paper':>11}"]
    for key, title in _ROWS:
        values = [*(found[key] for found in stats.values()), paper.get(key)]
        lines.append(f"{title:<32}" + "".join(f"{_cell(key, value):>11}" for value in values))
    for split, found in stats.items():
        lines.append(
            f"{split}: of {found['queries']:,} queries, {found['false_negatives']:,} pairs became positive,"
            f" {found['false_positives']:,} no longer are; {found['without_positives']:,} queries have no positive left"
        )
    return "\n".join(lines)


def _cell(key: str, value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}" if key.startswith("share") else f"{value:.2f}"
