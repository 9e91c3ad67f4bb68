"""The rules of ``check`` on rows, each as SQL that gives what breaks it, in a column ``example``.

The tables are those of :mod:`builders.check.survey`. Parameters name what is tested and what it refers to: ``$config``
and ``$split``; ``$queries``, ``$corpus`` and ``$qrels``, the configs of its set; ``$query_split``, the split of its
queries, NULL where they come from several.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        test: the name of its test, of :data:`builders.check.findings.TESTS`.
        what: what breaks it, in words; parameters stand in braces.
        sql: gives a row for each that breaks it.
        needs: the parameters whose configs must be there.
    """

    test: str
    what: str
    sql: str
    needs: tuple[str, ...] = ()


# Of texts, queries and passages alike: a finding for each config and split.
TEXTS = (
    Rule("ids-not-md5", "ids", "SELECT config, split, coalesce(id, 'null') AS example FROM texts WHERE NOT id_ok"),
    Rule("empty-texts", "texts", "SELECT config, split, id AS example FROM texts WHERE blank"),
    Rule(
        "long-texts",
        "texts",
        """
        SELECT config, split, id || ' (' || chars || ' characters)' AS example FROM texts
        WHERE chars > CASE WHEN config LIKE '%corpus' THEN $longest_passage ELSE $longest_query END
        """,
    ),
    Rule(
        "control-characters",
        "texts",
        """
        SELECT config, split, id || ' (U+' || printf('%04X', ord(control)) || ')' AS example FROM texts
        WHERE control IS NOT NULL
        """,
    ),
    Rule("replacement-characters", "texts", "SELECT config, split, id AS example FROM texts WHERE replaced"),
    Rule(
        "one-id-two-texts",
        "ids",
        """
        SELECT config, split, id AS example FROM texts
        WHERE id IN (SELECT id FROM texts WHERE NOT id_ok)
        GROUP BY config, split, id HAVING count(DISTINCT key) > 1
        """,
    ),
    # Several Chinese queries may have one translation: a row each. Ids are looked at where a text comes again only.
    Rule(
        "duplicate-texts",
        "texts that come more than once",
        """
        WITH again AS (
            SELECT config, split, key, zh_id FROM texts WHERE NOT blank
            GROUP BY config, split, key, zh_id HAVING count(*) > 1
        )
        SELECT config, split, min(id) || CASE WHEN min(id) = max(id) THEN '' ELSE ' and ' || max(id) END AS example
        FROM texts JOIN again USING (config, split, key) WHERE texts.zh_id IS NOT DISTINCT FROM again.zh_id
        GROUP BY config, split, key, texts.zh_id
        """,
    ),
)

# Of the passages that a sample of the collection lists.
LISTED = (
    Rule(
        "samples",
        "passages that are not in {corpus}",
        """
        SELECT coalesce(id, 'null') AS example FROM listed
        WHERE config = $config AND id NOT IN (SELECT id FROM texts WHERE config = $corpus)
        """,
        ("corpus",),
    ),
    Rule(
        "samples",
        "ids that are listed more than once",
        "SELECT id AS example FROM listed WHERE config = $config GROUP BY id HAVING count(*) > 1",
    ),
)

# Of the judgments of one split.
JUDGMENTS = (
    Rule(
        "dangling-ids",
        "judgments of a query that is not in {queries}",
        """
        SELECT query_id AS example FROM (SELECT * FROM judged WHERE config = $config AND split = $split)
        ANTI JOIN (SELECT id FROM texts WHERE config = $queries AND split = coalesce($query_split, split))
        ON id = query_id
        """,
        needs=("queries",),
    ),
    Rule(
        "dangling-ids",
        "judgments of a passage that is not in {corpus}",
        """
        SELECT query_id || ' ' || docid AS example FROM (SELECT * FROM judged WHERE config = $config AND split = $split)
        ANTI JOIN (SELECT id FROM texts WHERE config = $corpus) ON id = docid
        """,
        needs=("corpus",),
    ),
    Rule(
        "duplicate-judgments",
        "pairs",
        """
        SELECT query_id || ' ' || docid AS example FROM judged WHERE config = $config AND split = $split
        GROUP BY query_id, docid HAVING count(*) > 1
        """,
    ),
)
# In a labelled split every query has a positive passage; in a sample of the judgments, every query of the sample.
EVERY_QUERY_HAS_A_POSITIVE = Rule(
    "queries-without-positives",
    "queries",
    """
    SELECT id AS example FROM (SELECT * FROM texts WHERE config = $queries AND split = $split)
    ANTI JOIN (SELECT query_id FROM judged WHERE config = $config AND split = $split AND score > 0) ON query_id = id
    ANTI JOIN (SELECT query_id AS known FROM judged WHERE config = 'qrels-before' AND split = $split) ON known = id
    """,
)
# Where people corrected the judgments, a query may have lost its last.
NO_POSITIVES_LEFT = Rule(
    "no-positives-left",
    "queries",
    """
    SELECT DISTINCT query_id AS example FROM judged
    WHERE config = 'qrels-before' AND split = $split AND query_id NOT IN (
        SELECT query_id FROM judged WHERE config = $config AND split = $split AND score > 0
    )
    """,
)
EVERY_SAMPLED_QUERY_HAS_A_POSITIVE = Rule(
    "queries-without-positives",
    "queries",
    """
    SELECT query_id AS example FROM judged WHERE config = $config AND split = $split
    GROUP BY query_id HAVING max(score) <= 0
    """,
)

# Of the English queries of one split.
TRANSLATIONS = (
    Rule(
        "dangling-ids",
        "whose zh_id is no query of this split",
        """
        SELECT id || ' (' || zh_id || ')' AS example
        FROM (SELECT id, zh_id FROM texts WHERE config = $config AND split = $split)
        ANTI JOIN (SELECT id AS present FROM texts WHERE config = $queries AND split = $split) ON present = zh_id
        """,
        needs=("queries",),
    ),
)

# Of the joined rows of one split.
QUERIES_ARE_IN_THE_SPLIT = Rule(
    "dangling-ids",
    "rows of a query that is not in {queries}",
    """
    SELECT query_id AS example FROM (SELECT * FROM joined WHERE config = $config AND split = $split)
    ANTI JOIN (SELECT id FROM texts WHERE config = $queries AND split = $split) ON id = query_id
    """,
    needs=("queries",),
)
# Section 2.3: what was similar is removed from the training questions.
QUERIES_ARE_REMOVED = Rule(
    "similar-queries",
    "removed queries that are still in {queries}/{split}",
    """
    SELECT query_id AS example FROM (SELECT * FROM joined WHERE config = $config AND split = $split)
    SEMI JOIN (SELECT id FROM texts WHERE config = $queries AND split = $split) ON id = query_id
    """,
    needs=("queries",),
)
JOINED_ROWS = (
    Rule(
        "ids-not-md5",
        "query ids",
        """
        SELECT query_id AS example FROM joined
        WHERE config = $config AND split = $split AND NOT coalesce(id_ok, false)
        """,
    ),
    Rule(
        "ids-not-md5",
        "passage ids",
        """
        SELECT coalesce(docid, 'null') AS example FROM joined_passages
        WHERE config = $config AND split = $split AND NOT id_ok
        """,
    ),
    Rule(
        "dangling-ids",
        "passages that are not in {corpus}",
        """
        SELECT query_id || ' ' || docid AS example
        FROM (SELECT * FROM joined_passages WHERE config = $config AND split = $split)
        ANTI JOIN (SELECT id FROM texts WHERE config = $corpus) ON id = docid
        """,
        needs=("corpus",),
    ),
    Rule(
        "joined-rows",
        "passages that are both positive and negative",
        """
        SELECT query_id || ' ' || docid AS example FROM joined_passages WHERE config = $config AND split = $split
        GROUP BY query_id, docid HAVING count(DISTINCT positive) > 1
        """,
    ),
)
# The benchmark's own joined rows hold every query once, and every judgment.
EVERY_QUERY_HAS_ONE_ROW = Rule(
    "joined-rows",
    "queries of {queries}/{split} without a row, or with several",
    """
    SELECT id AS example FROM (SELECT id FROM texts WHERE config = $queries AND split = $split)
    LEFT JOIN (SELECT query_id FROM joined WHERE config = $config AND split = $split) ON query_id = id
    GROUP BY id HAVING count(query_id) <> 1
    """,
)
ROWS_HOLD_THE_JUDGMENTS = Rule(
    "joined-rows",
    "judgments in only one of {config}/{split} and {qrels}/{split}",
    """
    WITH judgments AS (
        SELECT query_id, docid FROM judged WHERE config = $qrels AND split = $split AND score > 0
    ), positives AS (
        SELECT query_id, docid FROM joined_passages WHERE config = $config AND split = $split AND positive
    )
    SELECT query_id || ' ' || docid AS example FROM (
        (SELECT * FROM judgments EXCEPT SELECT * FROM positives)
        UNION ALL
        (SELECT * FROM positives EXCEPT SELECT * FROM judgments)
    )
    """,
)

# Of two splits of one config of queries.
NO_QUERY_IN_TWO_SPLITS = Rule(
    "shared-queries",
    "queries of {second} that are queries of {first}, too",
    """
    SELECT id AS example FROM texts WHERE config = $config AND split = $second
    AND key IN (SELECT key FROM texts WHERE config = $config AND split = $first)
    """,
)
# Section 3.4: the queries of a split are told apart into duplicated and others.
TOLD_APART = Rule(
    "similar-queries",
    "queries of {queries}/{split} that are not once in duplicated and others, or the other way round",
    """
    SELECT id AS example FROM (
        SELECT id, 1 AS asked, 0 AS told FROM texts WHERE config = $queries AND split = $split
        UNION ALL
        SELECT id, 0, 1 FROM texts WHERE config IN ('duplicated', 'others') AND split = $split
    )
    GROUP BY id HAVING max(asked) = 0 OR sum(told) <> 1
    """,
    needs=("queries",),
)
