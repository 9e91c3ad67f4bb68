"""Counts a release from its rows: Table 3, the English queries, passage lengths, positive passages a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.stats.relabelled import count_relabelled
from builders.stats.survey import Survey, survey, survey_or_fail
from builders.store.judgments import overlaps_with_train
from builders.store.layout import BEFORE, SETS, Set
from builders.store.reader import Release
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, round_stat, table3_column


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


def count(release: Release, tmp: Path | None = None) -> Figures:
    """Count a release from its rows. Errors and ``tmp`` as of :func:`builders.stats.survey.survey`."""
    # The joined rows repeat what the others hold; samples of the judgments have no figures.
    counted = {config for each in SETS.values() for config in (each.corpus, each.queries, each.qrels)} | {BEFORE}
    with survey(release, lambda config, _: config in counted, tmp) as tables:
        figures = count_survey(survey_or_fail(tables))
    if overlap := overlaps_with_train(release.splits(), release.table):
        figures.stats["label_overlap"] = overlap
    return figures


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
