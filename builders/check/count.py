"""Counts a release from its rows: Table 3, the English queries, passage lengths, positive passages a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builders.store.judgments import Judged
from builders.store.layout import BEFORE, SETS, Set
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, round_stat, table3_column

if TYPE_CHECKING:
    from builders.check.survey import Survey  # it reads by DuckDB, which `annotate merge` does without


@dataclass
class Figures:
    """The counts of a release.

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
        config: _counter(tables, "SELECT chars, count(*) FROM texts WHERE config = ? GROUP BY chars", config)
        for config in dict.fromkeys(each.corpus for each in SETS.values())
        if tables.splits(config)
    }
    columns = {
        column: (configs, split)
        for configs in SETS.values()
        for column, split in configs.table3.items()
        if split in tables.splits(configs.queries)
    }
    per_query = """
        SELECT positives, count(*) FROM (
            SELECT count(*) AS positives FROM judged WHERE config = ? AND split = ? AND score > 0 GROUP BY query_id
        ) GROUP BY positives
    """
    counted = {
        column: _counter(tables, per_query, configs.qrels, split) for column, (configs, split) in columns.items()
    }
    positives = {column: counter for column, counter in counted.items() if counter.count}
    stats: dict[str, Any] = {
        "table3": {column: count_column(tables, *place) for column, place in columns.items()},
        "collections": {config: counter.summary() for config, counter in lengths.items()},
        "positives_per_query": {column: counter.histogram(POSITIVES_EDGES) for column, counter in positives.items()},
    }
    further = {"english": count_english(tables), "relabelled": count_relabelled(tables)}
    return Figures(stats | {name: found for name, found in further.items() if found}, lengths, positives)


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
    """:func:`relabelled` of every split whose judgments from before people corrected them are there."""
    figures = {}
    for split in tables.splits(BEFORE):
        judged: dict[str, dict[str, dict[str, int]]] = {BEFORE: {}, "qrels": {}}
        for config, found in judged.items():
            sql = "SELECT query_id, docid, score FROM judged WHERE config = ? AND split = ?"
            for query, passage, score in tables.rows(sql, config, split):
                found.setdefault(query, {})[passage] = score
        queries = [
            query for (query,) in tables.rows("SELECT id FROM texts WHERE config = 'queries' AND split = ?", split)
        ]
        figures[split] = relabelled(queries, judged[BEFORE], judged["qrels"])
    return figures


def relabelled(queries: Sequence[str], before: Judged, after: Judged) -> dict[str, Any]:
    """The differences between two judgments of the same ``queries`` (ids), as JSON values.

    Section 2.3: "the average positive paragraph per query has increased from 2.43 to 4.91. There are 71.53% of queries
    that have at least one false negative relabeled". ``false_negatives`` are pairs that are positive now and were not
    before, ``false_positives`` the other way round; ``without_positives`` counts queries that lost their last one.
    """
    pairs = [(_positives(before, query), _positives(after, query)) for query in queries]
    old, new = sum(len(each) for each, _ in pairs), sum(len(each) for _, each in pairs)
    negatives = [len(now - once) for once, now in pairs]
    positives = [len(once - now) for once, now in pairs]
    count = max(1, len(queries))
    return {
        "queries": len(queries),
        "positives_before": old,
        "positives_after": new,
        "per_query_before": round_stat(old / count),
        "per_query_after": round_stat(new / count),
        "false_negatives": sum(negatives),
        "false_positives": sum(positives),
        "share_with_false_negatives": round_stat(sum(map(bool, negatives)) / count),
        "share_with_false_positives": round_stat(sum(map(bool, positives)) / count),
        "without_positives": sum(bool(once) and not now for once, now in pairs),
    }


def _positives(judged: Judged, query: str) -> set[str]:
    return {passage for passage, score in judged.get(query, {}).items() if score > 0}
