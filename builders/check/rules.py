"""The rules of ``check`` for the rows of a release.

A rule is an SQL query on the tables of :mod:`builders.check.survey`. The query returns one row for each fault.
"""

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from builders.check.findings import EXAMPLES, INFO, LONGEST_PASSAGE, LONGEST_QUERY, WARNING, Finding
from builders.check.survey import Survey
from builders.core.errors import InputError
from builders.store.layout import ANSWERS, IDS, QRELS, QUESTION_TYPES, REMOVED, SETS, TOLD_APART, config_of
from builders.store.manifest import STATS, read_stats
from builders.store.published import published


class Rule(NamedTuple):
    """A rule.

    Attributes:
        kind: the kind of rows to test, from :func:`_places`.
        test: a test of :data:`builders.check.findings.TESTS`.
        what: a description of the fault, with parameters in braces.
        example: the SQL expression of an example.
        rows: the SQL after FROM, with a row for each fault. ``$config`` and ``$split`` are the tested split.
            ``$queries``, ``$corpus`` and ``$qrels`` are the configs of its set. ``$query_split`` is the split with the
            rows' queries, or NULL for queries of several splits. Names of ``_PARTS`` may be used as tables.
    """

    kind: str
    test: str
    what: str
    example: str
    rows: str


_HERE = "WHERE config = $config AND split = $split"
_PARTS = {
    "judgments": f"SELECT * FROM judged {_HERE}",
    "joined_rows": f"SELECT * FROM joined {_HERE}",
    "answers_here": f"SELECT * FROM answered {_HERE}",
    "all_judged": "SELECT query_id, docid FROM judged WHERE config = $qrels AND split = $split",
    "passages": f"SELECT * FROM joined_passages {_HERE}",
    "corpus_ids": "SELECT id FROM texts WHERE config = $corpus",
    "query_ids": "SELECT id FROM texts WHERE config = $queries AND split = coalesce($query_split, split)",
    "known_before": "SELECT query_id AS before FROM judged WHERE config = 'qrels-before' AND split = $split",
}
_NEEDS = {"corpus_ids": "corpus", "query_ids": "queries"}  # part -> the parameter that names the required config
_LONG = f"chars > CASE WHEN config LIKE '%corpus' THEN {LONGEST_PASSAGE} ELSE {LONGEST_QUERY} END"
# Several Chinese queries may share a translation, so zh_id is part of GROUP BY. Ids are read only for repeated texts.
_AGAIN = """(
    WITH again AS (
        SELECT config, split, key, zh_id FROM texts WHERE NOT blank
        GROUP BY config, split, key, zh_id HAVING count(*) > 1
    )
    SELECT config, split, array_to_string(list(DISTINCT id ORDER BY id)[:2], ' and ') AS ids
    FROM texts JOIN again USING (config, split, key) WHERE texts.zh_id IS NOT DISTINCT FROM again.zh_id
    GROUP BY config, split, key, texts.zh_id
)"""
_TWO_TEXTS = """(
    SELECT config, split, id FROM texts WHERE id IN (SELECT id FROM texts WHERE NOT id_ok)
    GROUP BY config, split, id HAVING count(DISTINCT key) > 1
)"""
_CONTROL = "id || ' (U+' || printf('%04X', ord(control)) || ')'"
_NO_QUERY, _NO_PASSAGE = "ANTI JOIN query_ids ON id = query_id", "ANTI JOIN corpus_ids ON id = docid"
_PAIR, _BY_PAIR = "query_id || ' ' || docid", "GROUP BY query_id, docid HAVING count"
_POSITIVE = "(FROM judgments WHERE score > 0)"
_TRANSLATED = (
    f"(SELECT id, zh_id FROM texts {_HERE}) ANTI JOIN (SELECT id AS present FROM query_ids) ON present = zh_id"
)
_OTHERWISE = """(
    WITH known AS (SELECT query_id, docid FROM judged WHERE config = $qrels AND split = $split AND score > 0),
         positives AS (SELECT query_id, docid FROM passages WHERE positive)
    (FROM known EXCEPT FROM positives) UNION ALL (FROM positives EXCEPT FROM known)
)"""
_TOLD = """(
    SELECT id, 1 AS asked, 0 AS told FROM query_ids
    UNION ALL
    SELECT id, 0, 1 FROM texts WHERE config IN ('duplicated', 'others') AND split = $split
) GROUP BY id HAVING max(asked) = 0 OR sum(told) <> 1"""
_SHARED = f"texts WHERE config = $config AND split = $second AND key IN (SELECT key FROM texts {_HERE})"
_LISTED = "listed WHERE config = $config"
RULES = (
    # Rules for texts (queries and passages). They give a finding for each config and split.
    Rule("text", "ids-not-md5", "ids", "coalesce(id, 'null')", "texts WHERE NOT id_ok"),
    Rule("text", "empty-texts", "texts", "id", "texts WHERE blank"),
    Rule("text", "long-texts", "texts", "id || ' (' || chars || ' characters)'", f"texts WHERE {_LONG}"),
    Rule("text", "control-characters", "texts", _CONTROL, "texts WHERE control IS NOT NULL"),
    Rule("text", "replacement-characters", "texts", "id", "texts WHERE replaced"),
    Rule("text", "one-id-two-texts", "ids", "id", _TWO_TEXTS),
    Rule("text", "duplicate-texts", "repeated texts", "ids", _AGAIN),
    Rule(
        "listed", "samples", "ids not in {corpus}", "coalesce(id, 'null')", f"{_LISTED} AND id NOT IN (FROM corpus_ids)"
    ),
    Rule("listed", "samples", "ids listed more than once", "id", f"{_LISTED} GROUP BY id HAVING count(*) > 1"),
    Rule("judged", "dangling-ids", "judgments of a query that {queries} lacks", "query_id", f"judgments {_NO_QUERY}"),
    Rule("judged", "dangling-ids", "judgments of a passage that {corpus} lacks", _PAIR, f"judgments {_NO_PASSAGE}"),
    Rule("judged", "duplicate-judgments", "pairs", _PAIR, f"judgments {_BY_PAIR}(*) > 1"),
    # Every query of a labelled split needs a positive passage. In restrain-* and resttest-*, judged queries need one.
    Rule(
        *("sampled", "queries-without-positives", "queries", "query_id"),
        "judgments GROUP BY query_id HAVING max(score) <= 0",
    ),
    Rule(
        *("labelled", "queries-without-positives", "queries", "id"),
        f"query_ids ANTI JOIN {_POSITIVE} ON query_id = id ANTI JOIN known_before ON before = id",
    ),
    # A query may lose its last positive when people correct the judgments.
    Rule(
        *("corrected", "no-positives-left", "queries", "DISTINCT before"),
        f"known_before WHERE before NOT IN (SELECT query_id FROM {_POSITIVE})",
    ),
    Rule("translated", "dangling-ids", "zh_ids that {queries} lacks", "id || ' (' || zh_id || ')'", _TRANSLATED),
    Rule("joined", "ids-not-md5", "query ids", "query_id", "joined_rows WHERE NOT coalesce(id_ok, false)"),
    Rule("joined", "ids-not-md5", "passage ids", "coalesce(docid, 'null')", "passages WHERE NOT id_ok"),
    Rule("joined", "dangling-ids", "passages that {corpus} lacks", _PAIR, f"passages {_NO_PASSAGE}"),
    Rule("joined", "joined-rows", "passages with both labels", _PAIR, f"passages {_BY_PAIR}(DISTINCT positive) > 1"),
    Rule("answered", "dangling-ids", "with answers that {queries} lacks", "query_id", f"answers_here {_NO_QUERY}"),
    Rule("answered", "answers", "repeated", "query_id", "answers_here GROUP BY query_id HAVING count(*) > 1"),
    Rule("answered", "answers", "with lists of different lengths", "query_id", "answers_here WHERE NOT fits"),
    Rule(
        *("answered", "answers", "of unknown type", "query_id || ' (' || question_type || ')'"),
        f"answers_here WHERE question_type NOT IN {('', *QUESTION_TYPES)}",
    ),
    Rule(
        *("answered", "answers", "with an unjudged passage", _PAIR),
        "(SELECT query_id, unnest(docids) AS docid FROM answers_here) ANTI JOIN all_judged USING (query_id, docid)",
    ),
    # Section 2.3: similar questions are removed from the training questions.
    Rule(
        *("removed", "similar-queries", "removed queries that are still in {queries}/{split}", "query_id"),
        "joined_rows SEMI JOIN query_ids ON id = query_id",
    ),
    Rule("asked", "dangling-ids", "rows of a query that {queries} lacks", "query_id", f"joined_rows {_NO_QUERY}"),
    # The benchmark's joined rows contain every query once, and every judgment.
    Rule(
        *("benchmark", "joined-rows", "queries of {queries}/{split} without a row, or with more than one row", "id"),
        "query_ids LEFT JOIN joined_rows ON query_id = id GROUP BY id HAVING count(query_id) <> 1",
    ),
    Rule("benchmark-judged", "joined-rows", "pairs that differ from {qrels}/{split}", _PAIR, _OTHERWISE),
    # Section 3.4: every query of a split is either in duplicated or in others.
    Rule("told apart", "similar-queries", "queries that are not in exactly one of duplicated and others", "id", _TOLD),
    Rule("two splits", "shared-queries", "queries that are in {second} and in {split}", "id", _SHARED),
)


def check_rows(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """Run all tests on the rows. ``figures`` are the counts of :func:`builders.check.count.count_survey`."""
    for config, split, reason in tables.failures:
        yield Finding("manifest", f"{config}/{split}", 1, f"cannot be read ({reason})")
    for rule in (rule for rule in RULES if rule.kind == "text"):
        faults = f"SELECT config, split, {rule.example} AS example FROM {rule.rows}"
        sql = f"SELECT config, split, count(*), min(example, {EXAMPLES}) FROM ({faults}) GROUP BY ALL ORDER BY ALL"
        for config, split, number, examples in tables.rows(sql):
            yield Finding(rule.test, f"{config}/{split}", number, f"{number:,} {rule.what}", examples or [])
    for where, kinds, values in _places(tables):
        for rule in (rule for rule in RULES if rule.kind in kinds):
            yield from _apply(tables, rule, where, values)
    yield from check_sizes(tables, figures)
    yield from check_stats(tables, figures)


def _places(tables: Survey) -> Iterator[tuple[str, set[str], dict[str, str | None]]]:
    """Yield (place in findings, kinds of rows, parameters of rules) for every split or group of splits to test."""
    main = SETS["main"]
    for config, split in tables.loaded:
        columns, found = config_of(config).columns, SETS[config_of(config).set]
        values: dict[str, str | None] = {"config": config, "split": split, "query_split": split}
        values |= {"queries": found.queries, "corpus": found.corpus, "qrels": found.qrels}
        kinds = set()
        if columns is QRELS:
            kinds = {"judged", "labelled", "corrected"} if found is main else {"judged", "labelled"}
            if config != found.qrels:  # restrain-* and resttest-* have queries of several splits
                kinds, values["query_split"] = {"judged", "sampled"}, None
        elif columns is IDS:
            kinds = {"listed"}
        elif columns is ANSWERS:
            kinds = {"answered"}
        elif config == REMOVED:
            kinds = {"joined", "removed"}
        elif "query_id" in columns.names:
            kinds = {"joined", "asked", "benchmark"} if found is main else {"joined", "asked"}
            # The rule is skipped if the qrels exist but are unreadable, because it would report every passage.
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
    parts = {name: part for name, part in _PARTS.items() if name in rule.rows}
    for part in parts.keys() & _NEEDS.keys():
        config, split = values[_NEEDS[part]], values["query_split"] if part == "query_ids" else None
        if not any(config == name and split in (None, other) for name, other in tables.loaded):
            missing = f"{config}/{split}" if split else config
            yield Finding("not-tested", where, 1, f"{rule.test}: needs {missing}, which was not read")
            return
    named = ", ".join(f"{name} AS NOT MATERIALIZED ({part})" for name, part in parts.items())
    faults = f"{f'WITH {named} ' if named else ''}SELECT {rule.example} AS example FROM {rule.rows}"
    sql = f"SELECT count(*), min(example, {EXAMPLES}) FROM ({faults})"
    # DuckDB refuses parameters that the query does not use.
    ((number, examples),) = tables.rows(sql, **{name: values[name] for name in set(re.findall(r"\$(\w+)", sql))})
    if number:
        yield Finding(rule.test, where, number, f"{number:,} {rule.what.format(**values)}", examples or [])


def check_sizes(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """Compare sizes with Table 3.

    A difference is a warning for data from the official archives or the paper's other sources. For data from raw
    DuReader, a difference is an info, because raw DuReader cannot give the paper's sizes.
    """
    paper, main = published(), SETS["main"].table3
    main_level = WARNING if "official" in {build.verb for build in tables.release.manifest.builds} else INFO
    compared = [
        *((column, "table3", column, main_level if column in main else WARNING) for column in figures["table3"]),
        *((f"crosslingual {split}", "english", split, WARNING) for split in figures.get("english", {})),
        *((config, "collections", config, main_level) for config in figures["collections"]),
    ]
    for where, part, name, level in compared:
        mine, theirs = figures[part][name], paper[part].get(name, {})
        for key in ("queries", "positive_passages", "passages"):
            if mine.get(key) is not None and key in theirs and mine[key] != theirs[key]:
                words = f"{mine[key]:,} {key.replace('_', ' ')}; the paper has {theirs[key]:,}"
                yield Finding("split-sizes", where, 1, words, level=level)


def check_stats(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """Compare the values of ``stats.json`` with counts of the rows."""
    if tables.failures:
        return
    try:
        written = read_stats(tables.release.path)
    except InputError as error:
        yield Finding("stats", STATS, 1, f"is not a valid stats.json ({error})")
        return
    for part, name in ((kind, key) for kind in ("table3", "collections", "answers") for key in figures.get(kind, ())):
        listed, counted = written.get(part, {}).get(name, {}), figures[part][name]
        wrong = [
            f"{key} {listed[key]} (the rows: {counted[key]})"
            for key in listed
            if key in counted and not _equal(listed[key], counted[key])
        ]
        if wrong:
            yield Finding("stats", f"{STATS}: {part}.{name}", len(wrong), "differs from the rows", wrong[:EXAMPLES])


def _equal(listed: Any, counted: Any) -> bool:
    if isinstance(listed, float) and isinstance(counted, (int, float)):
        return abs(listed - counted) < 1e-3  # the last digits depend on the order of the sum
    return bool(listed == counted)
