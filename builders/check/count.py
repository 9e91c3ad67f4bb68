"""Count the rows of a release: Table 3, English queries, passage lengths, positives per query."""

from dataclasses import dataclass
from typing import Any

from builders.check.paper import count_relabelled
from builders.check.survey import Survey
from builders.core.tables import round_stat
from builders.store.benchmark_tasks import part_id
from builders.store.judgments import read_judged
from builders.store.layout import BEFORE, SETS, STRESS, STRESS_KINDS
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column

_OF_SPLIT = "WHERE config = ? AND split = ?"
_LENGTHS = "SELECT chars, count(*) FROM texts WHERE config = ? GROUP BY chars"
_PER_QUERY = f"""
SELECT positives, count(*) FROM (
    SELECT count(*) AS positives FROM judged {_OF_SPLIT} AND score > 0 GROUP BY query_id
) GROUP BY positives
"""
# A passage counts once for each query that it answers. An id that the corpus has twice, which is a fault, counts once.
_POSITIVE_LENGTHS = f"""
WITH positive AS (SELECT docid FROM judged {_OF_SPLIT} AND score > 0),
     passage AS (SELECT id, any_value(chars) AS chars FROM texts
                 WHERE config = ? AND id IN (SELECT docid FROM positive) GROUP BY id)
SELECT chars, count(*) FROM positive JOIN passage ON id = docid GROUP BY chars
"""


@dataclass
class ReleaseFigures:
    """The statistics of a release.

    Attributes:
        stats: the keys ``table3``, ``collections`` and ``positives_per_query``, and ``english``, ``stress`` and
            ``relabelled`` if the release has such rows, in the format of ``stats.json``.
            :func:`.release_report.run_check` adds ``table2``, ``answers`` and ``label_overlap``.
        lengths: corpus config -> the number of passages of each length in characters.
        positives: labelled column of Table 3 -> the number of queries with each number of positive passages. Queries
            without a positive passage are not counted.
    """

    stats: dict[str, Any]
    lengths: dict[str, LengthCounter]
    positives: dict[str, LengthCounter]


def count_survey(survey_tables: Survey) -> ReleaseFigures:
    """Compute the statistics of the release whose rows are in ``survey_tables``."""
    # Several sets share a corpus, which is counted once.
    corpus_configs = dict.fromkeys(dataset_set.corpus for dataset_set in SETS.values())
    lengths = {}
    for config in corpus_configs:
        if survey_tables.splits(config):
            lengths[config] = _count_lengths(survey_tables, _LENGTHS, config)
    table3, positives = _count_table3(survey_tables)
    collections = {config: counter.summary() for config, counter in lengths.items()}
    histograms = {column: counter.histogram(POSITIVES_EDGES) for column, counter in positives.items()}
    stats: dict[str, Any] = {"table3": table3, "collections": collections, "positives_per_query": histograms}
    english = _count_english(survey_tables)
    if english:
        stats["english"] = english
    perturbed = _count_perturbed(survey_tables)
    if perturbed:
        stats["stress"] = perturbed
    corrections = _count_corrections(survey_tables)
    if corrections:
        stats["relabelled"] = corrections
    return ReleaseFigures(stats, lengths, positives)


def _count_table3(survey_tables: Survey) -> tuple[dict[str, Any], dict[str, LengthCounter]]:
    """Return the columns of Table 3, and :attr:`ReleaseFigures.positives`."""
    table3 = {}
    positives = {}
    for dataset_set in SETS.values():
        for column, split in dataset_set.table3.items():
            if split not in survey_tables.splits(dataset_set.queries):
                continue
            query_counts = f"SELECT count(*), sum(chars)::BIGINT FROM texts {_OF_SPLIT}"
            ((query_count, query_chars),) = survey_tables.rows(query_counts, dataset_set.queries, split)
            # Table 3 counts only positive passages. Other judgments may be negative.
            judgment_counts = f"SELECT count(*) FROM judged {_OF_SPLIT} AND score > 0"
            ((positive_count,),) = survey_tables.rows(judgment_counts, dataset_set.qrels, split)
            passage_lengths = _count_lengths(
                survey_tables, _POSITIVE_LENGTHS, dataset_set.qrels, split, dataset_set.corpus
            )
            query_chars = query_chars or 0  # NULL without queries
            table3[column] = table3_column(query_count, query_chars, positive_count, passage_lengths)
            if positive_count:
                positives[column] = _count_lengths(survey_tables, _PER_QUERY, dataset_set.qrels, split)
    return table3, positives


def _count_english(survey_tables: Survey) -> dict[str, Any]:
    """Return ``{split: {"queries", "words_per_query"}}`` of the translated queries: their number and mean words."""
    english = {}
    sql = f"SELECT count(*), avg(words) FROM texts {_OF_SPLIT}"
    for dataset_set in SETS.values():
        # Only English queries have words between blanks.
        if not dataset_set.translated:
            continue
        for split in survey_tables.splits(dataset_set.queries):
            ((query_count, mean_words),) = survey_tables.rows(sql, dataset_set.queries, split)
            english[split] = {"queries": query_count, "words_per_query": round_stat(mean_words)}
    return english


def _count_perturbed(survey_tables: Survey) -> dict[str, Any]:
    """Return ``{part: {"queries": number}}`` of the perturbed queries. A part is ``SET_SPLIT`` (:func:`.part_id`)."""
    release = survey_tables.release
    counts = {}
    for kind in STRESS_KINDS:
        set_name = f"{STRESS}{kind}"
        config = SETS[set_name].queries
        for split in survey_tables.splits(config):
            counts[part_id(set_name, split)] = {"queries": release.rows(config, split)}
    return counts


def _count_corrections(survey_tables: Survey) -> dict[str, Any]:
    """Compare the judgments of people with the judgments before. Return :func:`.count_relabelled` by split."""
    release = survey_tables.release
    corrections = {}
    for split in survey_tables.splits(BEFORE):
        if ("queries", split) in survey_tables.loaded and ("qrels", split) in survey_tables.loaded:
            # Queries without a judgment count, too.
            query_ids = release.table("queries", split, ["_id"])["_id"].to_pylist()
            old_judged = read_judged(release, BEFORE, split)
            new_judged = read_judged(release, "qrels", split)
            corrections[split] = count_relabelled(query_ids, old_judged, new_judged)
    return corrections


def _count_lengths(survey_tables: Survey, sql: str, *parameters: str) -> LengthCounter:
    """Run SQL that returns rows (length, number of texts), and count the texts by length.

    ``parameters`` replace the ``?`` of the SQL in order. For positive passages per query, a length is the number of
    positives, and the texts are queries.
    """
    counter = LengthCounter()
    lengths, text_counts = survey_tables.con.execute(sql, list(parameters)).fetchnumpy().values()
    if len(lengths):
        counter.add(lengths, text_counts)
    return counter
