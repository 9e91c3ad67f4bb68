"""Counts a release from its rows: Table 3, the English queries, passage lengths, positive passages a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builders.store.judged import Judged
from builders.store.layout import BEFORE, SETS, Set
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, round_stat, table3_column

if TYPE_CHECKING:
    from builders.check.survey import Survey  # it reads by DuckDB, which `annotate merge` does without


@dataclass
class Figures:
    """What was counted.

    Attributes:
        stats: as in ``stats.json``: ``table3``, ``collections``, ``english``, ``positives_per_query``, ``relabelled``,
            ``label_overlap``.
        lengths: characters a passage, by corpus config.
        positives: positive passages a query, by column of Table 3.
    """

    stats: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, LengthCounter] = field(default_factory=dict)
    positives: dict[str, LengthCounter] = field(default_factory=dict)


def count_survey(tables: Survey) -> Figures:
    """The figures of a release whose rows are read already."""
    lengths = {
        config: passage_lengths(tables, config)
        for config in dict.fromkeys(each.corpus for each in SETS.values())
        if tables.splits(config)
    }
    table3, positives = {}, {}
    for column, configs, split in table3_columns(tables):
        table3[column] = count_column(tables, configs, split)
        if (found := positives_per_query(tables, configs.qrels, split)).count:
            positives[column] = found
    stats = {
        "table3": table3,
        "collections": {config: counter.summary() for config, counter in lengths.items()},
        "positives_per_query": {column: counter.histogram(POSITIVES_EDGES) for column, counter in positives.items()},
    }
    if english := count_english(tables):
        stats["english"] = english
    if changed := count_relabelled(tables):
        stats["relabelled"] = changed
    return Figures(stats, lengths, positives)


def table3_columns(tables: Survey) -> Iterator[tuple[str, Set, str]]:
    """The columns of Table 3 that the release has: name, set, split."""
    for configs in SETS.values():
        for column, split in configs.table3.items():
            if split in tables.splits(configs.queries):
                yield column, configs, split


def count_column(tables: Survey, configs: Set, split: str) -> dict[str, float | int | None]:
    """One column of Table 3, for one split of a set."""
    ((queries, query_chars),) = tables.rows(
        "SELECT count(*), sum(chars)::BIGINT FROM texts WHERE config = ? AND split = ?", configs.queries, split
    )
    ((judgments,),) = tables.rows(
        "SELECT count(*) FROM judged WHERE config = ? AND split = ? AND score > 0", configs.qrels, split
    )
    passages = _counter(
        tables,
        """
        WITH positive AS (SELECT docid FROM judged WHERE config = ? AND split = ? AND score > 0),
             passage AS (SELECT id, any_value(chars) AS chars FROM texts
                         WHERE config = ? AND id IN (SELECT docid FROM positive) GROUP BY id)
        SELECT chars, count(*) FROM positive JOIN passage ON id = docid GROUP BY chars
        """,
        *(configs.qrels, split, configs.corpus),
    )
    return table3_column(queries, query_chars or 0, judgments, passages)


def positives_per_query(tables: Survey, qrels: str, split: str) -> LengthCounter:
    """How many queries of a split have one positive passage, two, ..."""
    return _counter(
        tables,
        """
        SELECT positives, count(*) FROM (
            SELECT count(*) AS positives FROM judged
            WHERE config = ? AND split = ? AND score > 0 GROUP BY query_id
        ) GROUP BY positives
        """,
        *(qrels, split),
    )


def passage_lengths(tables: Survey, corpus: str) -> LengthCounter:
    """How many passages of a collection have one character, two, ..."""
    return _counter(tables, "SELECT chars, count(*) FROM texts WHERE config = ? GROUP BY chars", corpus)


def count_english(tables: Survey) -> dict[str, dict[str, float | int | None]]:
    """The English queries and their mean number of words (Section 2.5), by split."""
    sql = "SELECT count(*), avg(words) FROM texts WHERE config = ? AND split = ?"
    return {
        split: {"queries": queries, "words_per_query": round_stat(words)}
        for configs in SETS.values()
        if configs.translated
        for split in tables.splits(configs.queries)
        for queries, words in tables.rows(sql, configs.queries, split)
    }


def _counter(tables: Survey, sql: str, *values: str) -> LengthCounter:
    """Lengths and how often each comes, as ``sql`` gives them."""
    counter = LengthCounter()
    lengths, times = tables.con.execute(sql, list(values)).fetchnumpy().values()
    if len(lengths):
        counter.add(lengths, times)
    return counter


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
