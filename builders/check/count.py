"""Count the rows of a release: Table 3, English queries, passage lengths, positives per query."""

from dataclasses import dataclass
from typing import Any

from builders.check.paper import relabelled
from builders.check.survey import Survey
from builders.core.tables import round_stat
from builders.store.judgments import read_judged
from builders.store.layout import BEFORE, SETS
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column

_HERE = "WHERE config = ? AND split = ?"
_LENGTHS = "SELECT chars, count(*) FROM texts WHERE config = ? GROUP BY chars"
_PER_QUERY = f"""
SELECT positives, count(*) FROM (
    SELECT count(*) AS positives FROM judged {_HERE} AND score > 0 GROUP BY query_id
) GROUP BY positives
"""
_POSITIVE_LENGTHS = f"""
WITH positive AS (SELECT docid FROM judged {_HERE} AND score > 0),
     passage AS (SELECT id, any_value(chars) AS chars FROM texts
                 WHERE config = ? AND id IN (SELECT docid FROM positive) GROUP BY id)
SELECT chars, count(*) FROM positive JOIN passage ON id = docid GROUP BY chars
"""


@dataclass
class Figures:
    """The statistics of a release.

    Attributes:
        stats: the keys ``table3``, ``collections``, ``english``, ``positives_per_query``, ``relabelled`` and
            ``label_overlap``, in the format of ``stats.json``.
        lengths: characters per passage, by corpus config.
        positives: positive passages per query, by column of Table 3.
    """

    stats: dict[str, Any]
    lengths: dict[str, LengthCounter]
    positives: dict[str, LengthCounter]


def count_survey(tables: Survey) -> Figures:
    """Compute the statistics of the release whose rows are in ``tables``."""
    corpora = dict.fromkeys(part.corpus for part in SETS.values())
    lengths = {config: _counter(tables, _LENGTHS, config) for config in corpora if tables.splits(config)}
    positives, table3 = {}, {}
    for configs in SETS.values():
        for column, split in configs.table3.items():
            if split not in tables.splits(configs.queries):
                continue
            queries, judged = (configs.queries, split), (configs.qrels, split)
            ((asked, chars),) = tables.rows(f"SELECT count(*), sum(chars)::BIGINT FROM texts {_HERE}", *queries)
            ((judgments,),) = tables.rows(f"SELECT count(*) FROM judged {_HERE} AND score > 0", *judged)
            passages = _counter(tables, _POSITIVE_LENGTHS, *judged, configs.corpus)
            table3[column] = table3_column(asked, chars or 0, judgments, passages)
            if judgments:
                positives[column] = _counter(tables, _PER_QUERY, *judged)
    english = {
        split: {"queries": queries, "words_per_query": round_stat(words)}
        for configs in SETS.values()
        if configs.translated
        for split in tables.splits(configs.queries)
        for queries, words in tables.rows(f"SELECT count(*), avg(words) FROM texts {_HERE}", configs.queries, split)
    }
    release = tables.release
    corrected = {
        split: relabelled(
            release.table("queries", split, ["_id"])["_id"].to_pylist(),
            before=read_judged(release, BEFORE, split),
            after=read_judged(release, "qrels", split),
        )
        for split in tables.splits(BEFORE)
        if {("queries", split), ("qrels", split)} <= {*tables.loaded}
    }
    stats = {
        "table3": table3,
        "collections": {config: counter.summary() for config, counter in lengths.items()},
        "positives_per_query": {column: counter.histogram(POSITIVES_EDGES) for column, counter in positives.items()},
        **({"english": english} if english else {}),
        **({"relabelled": corrected} if corrected else {}),
    }
    return Figures(stats, lengths, positives)


def _counter(tables: Survey, sql: str, *values: str) -> LengthCounter:
    counter = LengthCounter()
    lengths, times = tables.con.execute(sql, list(values)).fetchnumpy().values()
    if len(lengths):
        counter.add(lengths, times)
    return counter
