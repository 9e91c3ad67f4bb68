"""The rules of ``check`` on the rows of a release.

A rule is SQL over the tables of :mod:`builders.check.survey` that gives a row for each fault, with an example of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from builders.check.findings import EXAMPLES, INFO, LONGEST_PASSAGE, LONGEST_QUERY, WARNING, Finding
from builders.check.paper import published
from builders.check.survey import Survey
from builders.core.errors import InputError
from builders.store.layout import IDS, QRELS, REMOVED, SETS, TOLD_APART, config_of
from builders.store.manifest import STATS, read_stats


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        rows: the kind of rows that it is for: one of those that :func:`_places` gives.
        test: the name of its test, of :data:`builders.check.findings.TESTS`.
        what: the fault in words; parameters stand in braces.
        sql: gives a row for each fault, in a column ``example``. ``$config`` and ``$split`` are what is tested;
            ``$queries``, ``$corpus`` and ``$qrels`` the configs of its set; ``$query_split`` the split of its queries,
            NULL where they come from several. Names of ``_PARTS`` may be used as tables.
        needs: the parameter whose config must be there.
    """

    rows: str
    test: str
    what: str
    sql: str
    needs: str = ""


_HERE = "WHERE config = $config AND split = $split"
_PARTS = {
    "judgments_here": f"SELECT * FROM judged {_HERE}",
    "joined_here": f"SELECT * FROM joined {_HERE}",
    "passages_here": f"SELECT * FROM joined_passages {_HERE}",
    "corpus_ids": "SELECT id FROM texts WHERE config = $corpus",
    "query_ids": "SELECT id FROM texts WHERE config = $queries AND split = coalesce($query_split, split)",
    "known_before": "SELECT query_id AS before FROM judged WHERE config = 'qrels-before' AND split = $split",
}
# Of texts, queries and passages alike: a finding for each config and split.
_TEXTS = (
    Rule("", "ids-not-md5", "ids", "SELECT config, split, coalesce(id, 'null') AS example FROM texts WHERE NOT id_ok"),
    Rule("", "empty-texts", "texts", "SELECT config, split, id AS example FROM texts WHERE blank"),
    Rule(
        *("", "long-texts", "texts"),
        f"""
        SELECT config, split, id || ' (' || chars || ' characters)' AS example FROM texts
        WHERE chars > CASE WHEN config LIKE '%corpus' THEN {LONGEST_PASSAGE} ELSE {LONGEST_QUERY} END
        """,
    ),
    Rule(
        *("", "control-characters", "texts"),
        """
        SELECT config, split, id || ' (U+' || printf('%04X', ord(control)) || ')' AS example FROM texts
        WHERE control IS NOT NULL
        """,
    ),
    Rule("", "replacement-characters", "texts", "SELECT config, split, id AS example FROM texts WHERE replaced"),
    Rule(
        *("", "one-id-two-texts", "ids"),
        """
        SELECT config, split, id AS example FROM texts WHERE id IN (SELECT id FROM texts WHERE NOT id_ok)
        GROUP BY config, split, id HAVING count(DISTINCT key) > 1
        """,
    ),
    # Several Chinese queries may have one translation: a row each. Ids are looked at where a text comes again only.
    Rule(
        *("", "duplicate-texts", "texts that come more than once"),
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
RULES = (
    Rule(
        *("listed", "samples", "passages that are not in {corpus}"),
        "SELECT coalesce(id, 'null') AS example FROM listed WHERE config = $config AND id NOT IN (FROM corpus_ids)",
        "corpus",
    ),
    Rule(
        *("listed", "samples", "ids that are listed more than once"),
        "SELECT id AS example FROM listed WHERE config = $config GROUP BY id HAVING count(*) > 1",
    ),
    Rule(
        *("judged", "dangling-ids", "judgments of a query that is not in {queries}"),
        "SELECT query_id AS example FROM judgments_here ANTI JOIN query_ids ON id = query_id",
        "queries",
    ),
    Rule(
        *("judged", "dangling-ids", "judgments of a passage that is not in {corpus}"),
        "SELECT query_id || ' ' || docid AS example FROM judgments_here ANTI JOIN corpus_ids ON id = docid",
        "corpus",
    ),
    Rule(
        *("judged", "duplicate-judgments", "pairs"),
        "SELECT query_id || ' ' || docid AS example FROM judgments_here GROUP BY query_id, docid HAVING count(*) > 1",
    ),
    # In a labelled split every query has a positive passage; in a sample of the judgments, every query of the sample.
    Rule(
        *("sampled", "queries-without-positives", "queries"),
        "SELECT query_id AS example FROM judgments_here GROUP BY query_id HAVING max(score) <= 0",
    ),
    Rule(
        *("labelled", "queries-without-positives", "queries"),
        """
        SELECT id AS example FROM query_ids
        ANTI JOIN (FROM judgments_here WHERE score > 0) ON query_id = id ANTI JOIN known_before ON before = id
        """,
    ),
    # Where people corrected the judgments, a query may have lost its last.
    Rule(
        *("corrected", "no-positives-left", "queries"),
        """
        SELECT DISTINCT before AS example FROM known_before
        WHERE before NOT IN (SELECT query_id FROM judgments_here WHERE score > 0)
        """,
    ),
    Rule(
        *("translated", "dangling-ids", "whose zh_id is no query of this split"),
        f"""
        SELECT id || ' (' || zh_id || ')' AS example FROM (SELECT id, zh_id FROM texts {_HERE})
        ANTI JOIN (SELECT id AS present FROM query_ids) ON present = zh_id
        """,
        "queries",
    ),
    Rule(
        *("joined", "ids-not-md5", "query ids"),
        "SELECT query_id AS example FROM joined_here WHERE NOT coalesce(id_ok, false)",
    ),
    Rule(
        *("joined", "ids-not-md5", "passage ids"),
        "SELECT coalesce(docid, 'null') AS example FROM passages_here WHERE NOT id_ok",
    ),
    Rule(
        *("joined", "dangling-ids", "passages that are not in {corpus}"),
        "SELECT query_id || ' ' || docid AS example FROM passages_here ANTI JOIN corpus_ids ON id = docid",
        "corpus",
    ),
    Rule(
        *("joined", "joined-rows", "passages that are both positive and negative"),
        """
        SELECT query_id || ' ' || docid AS example FROM passages_here
        GROUP BY query_id, docid HAVING count(DISTINCT positive) > 1
        """,
    ),
    # Section 2.3: what was similar is removed from the training questions.
    Rule(
        *("removed", "similar-queries", "removed queries that are still in {queries}/{split}"),
        "SELECT query_id AS example FROM joined_here SEMI JOIN query_ids ON id = query_id",
        "queries",
    ),
    Rule(
        *("asked", "dangling-ids", "rows of a query that is not in {queries}"),
        "SELECT query_id AS example FROM joined_here ANTI JOIN query_ids ON id = query_id",
        "queries",
    ),
    # The benchmark's own joined rows hold every query once, and every judgment.
    Rule(
        *("benchmark", "joined-rows", "queries of {queries}/{split} without a row, or with several"),
        """
        SELECT id AS example FROM query_ids LEFT JOIN joined_here ON query_id = id
        GROUP BY id HAVING count(query_id) <> 1
        """,
    ),
    Rule(
        *("benchmark-judged", "joined-rows", "judgments in only one of {config}/{split} and {qrels}/{split}"),
        """
        WITH judgments AS (
            SELECT query_id, docid FROM judged WHERE config = $qrels AND split = $split AND score > 0
        ), positives AS (SELECT query_id, docid FROM passages_here WHERE positive)
        SELECT query_id || ' ' || docid AS example FROM (
            (FROM judgments EXCEPT FROM positives) UNION ALL (FROM positives EXCEPT FROM judgments)
        )
        """,
    ),
    # Section 3.4: the queries of a split are told apart into duplicated and others.
    Rule(
        "told apart",
        "similar-queries",
        "queries of {queries}/{split} that are not once in duplicated and others, or the other way round",
        """
        SELECT id AS example FROM (
            SELECT id, 1 AS asked, 0 AS told FROM query_ids
            UNION ALL
            SELECT id, 0, 1 FROM texts WHERE config IN ('duplicated', 'others') AND split = $split
        )
        GROUP BY id HAVING max(asked) = 0 OR sum(told) <> 1
        """,
        "queries",
    ),
    Rule(
        *("two splits", "shared-queries", "queries of {second} that are queries of {split}, too"),
        """
        SELECT id AS example FROM texts WHERE config = $config AND split = $second
        AND key IN (SELECT key FROM texts WHERE config = $config AND split = $split)
        """,
    ),
)


def check_rows(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """All tests on the rows that were read; ``figures`` are those of :func:`builders.check.count.count_survey`."""
    for config, split, reason in tables.failures:
        yield Finding("manifest", f"{config}/{split}", 1, f"cannot be read ({reason})")
    for rule in _TEXTS:
        sql = f"SELECT config, split, count(*), min(example, {EXAMPLES}) FROM ({rule.sql}) GROUP BY ALL ORDER BY ALL"
        for config, split, number, examples in tables.rows(sql):
            yield Finding(rule.test, f"{config}/{split}", number, f"{number:,} {rule.what}", examples or [])
    for where, kinds, values in _places(tables):
        for rule in RULES:
            if rule.rows in kinds:
                yield from _apply(tables, rule, where, values)
    yield from check_sizes(tables, figures)
    yield from check_stats(tables, figures)


def _places(tables: Survey) -> Iterator[tuple[str, set[str], dict[str, str | None]]]:
    """(where, the kinds of rows there, the parameters of their rules) of all that was read."""
    main = SETS["main"]
    for config, split in tables.loaded:
        columns, found = config_of(config).columns, SETS[config_of(config).set]
        values: dict[str, str | None] = {"config": config, "split": split, "query_split": split}
        values |= {"queries": found.queries, "corpus": found.corpus, "qrels": found.qrels}
        kinds = set()
        if columns is QRELS:
            kinds = {"judged", "labelled", "corrected"} if found is main else {"judged", "labelled"}
            if config != found.qrels:  # restrain-* and resttest-* draw their queries from several splits
                kinds, values["query_split"] = {"judged", "sampled"}, None
        elif columns is IDS:
            kinds = {"listed"}
        elif config == REMOVED:
            kinds = {"joined", "removed"}
        elif "query_id" in columns.names:
            kinds = {"joined", "asked", "benchmark"} if found is main else {"joined", "asked"}
            # Qrels that are there, but could not be read, would make every passage a finding.
            if found is main and (
                (main.qrels, split) not in tables.release.splits() or split in tables.splits("qrels")
            ):
                kinds.add("benchmark-judged")
        elif "zh_id" in columns.names:
            kinds, values["queries"] = {"translated"}, main.queries
        yield f"{config}/{split}", kinds, values
    for split in sorted({split for name in TOLD_APART for split in tables.splits(name)}):
        values = {"config": TOLD_APART[0], "split": split, "queries": main.queries, "query_split": split}
        yield f"{TOLD_APART[0]}/{split}", {"told apart"}, values
    for config in sorted({found.queries for found in SETS.values()}):
        for first, second in combinations(tables.splits(config), 2):
            yield config, {"two splits"}, {"config": config, "split": first, "second": second}


def _apply(tables: Survey, rule: Rule, where: str, values: dict[str, str | None]) -> Iterator[Finding]:
    """A finding where the rule's SQL gives rows, or where the config that it needs was not read."""
    if rule.needs:
        config, split = values[rule.needs], values["query_split"] if rule.needs == "queries" else None
        if not any(config == name and split in (None, each) for name, each in tables.loaded):
            missing = f"{config}/{split}" if split else config
            yield Finding("not-tested", where, 1, f"{rule.test}: needs {missing}, which was not read")
            return
    sql = f"SELECT count(*), min(example, {EXAMPLES}) FROM ({rule.sql})"
    parts = [f"{name} AS NOT MATERIALIZED ({part})" for name, part in _PARTS.items() if name in sql]
    sql = f"WITH {', '.join(parts)} {sql}" if parts else sql
    # The database takes no parameters but those that are named.
    ((number, examples),) = tables.rows(sql, **{name: values[name] for name in set(re.findall(r"\$(\w+)", sql))})
    if number:
        yield Finding(rule.test, where, number, f"{number:,} {rule.what.format(**values)}", examples or [])


def check_sizes(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """Sizes against Table 3.

    What came from the official archives or the paper's other sources should have the paper's sizes (a warning); what
    was built from raw data cannot have them (info).
    """
    paper, main = published(), SETS["main"].table3
    ours = WARNING if "official" in {build.verb for build in tables.release.manifest.builds} else INFO
    compared = [
        *((column, "table3", column, ours if column in main else WARNING) for column in figures["table3"]),
        *((f"crosslingual {split}", "english", split, WARNING) for split in figures.get("english", {})),
        *((config, "collections", config, ours) for config in figures["collections"]),
    ]
    for where, part, name, level in compared:
        mine, theirs = figures[part][name], paper[part].get(name, {})
        for key in ("queries", "positive_passages", "passages"):
            if mine.get(key) is not None and key in theirs and mine[key] != theirs[key]:
                words = f"{mine[key]:,} {key.replace('_', ' ')} where the paper has {theirs[key]:,}"
                yield Finding("split-sizes", where, 1, words, level=level)


def check_stats(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """The figures of ``stats.json`` against those of the rows."""
    if tables.failures:
        return
    try:
        written = read_stats(tables.release.path)
    except InputError as error:
        yield Finding("stats", STATS, 1, f"not the figures of a release ({error})")
        return
    both = [(part, name) for part in ("table3", "collections") for name in figures[part]]
    for part, name in both:
        said, counted = written.get(part, {}).get(name, {}), figures[part][name]
        wrong = [
            f"{key} {said[key]} (the rows: {counted[key]})"
            for key in said
            if key in counted and not _equal(said[key], counted[key])
        ]
        if wrong:
            yield Finding("stats", f"{STATS}: {part}.{name}", len(wrong), "other figures", wrong[:EXAMPLES])


def _equal(said: Any, counted: Any) -> bool:
    if isinstance(said, float) and isinstance(counted, (int, float)):
        return abs(said - counted) < 1e-3  # the order of a sum decides its last digits
    return bool(said == counted)
