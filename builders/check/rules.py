"""The rules of ``check`` for the rows of a release.

A rule is an SQL query on the tables of :mod:`builders.check.survey`. The query returns one row for each fault.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from builders.check.findings import EXAMPLES, INFO, LONGEST_PASSAGE, LONGEST_QUERY, WARNING, Finding
from builders.check.survey import Survey
from builders.core.errors import InputError
from builders.core.progress import show_progress
from builders.store.layout import (
    ANSWERS,
    BEFORE,
    IDS,
    ORIGINAL_IDS,
    QRELS,
    QUESTION_TYPES,
    REMOVED,
    SETS,
    TOLD_APART,
    config_of,
)
from builders.store.manifest import STATS, read_stats
from builders.store.published import published_figures


class CheckRule(NamedTuple):
    """An SQL query that finds faults in rows of one kind.

    Attributes:
        row_kind: ``text`` for a rule that tests all texts at once, otherwise a kind of rows of :func:`_tested_splits`.
        test: a test of :data:`builders.check.findings.TESTS`.
        what: a description of the faults, which follows their number. Parameters are in braces.
        example: the SQL expression of an example.
        rows: the SQL after FROM, with a row for each fault. ``$config`` and ``$split`` are the tested split.
            ``$queries``, ``$corpus`` and ``$qrels`` are the configs of its set. ``$before``, ``$removed``,
            ``$duplicated`` and ``$others`` are configs of the main set. ``$query_split`` is the split with the rows'
            queries, or NULL for queries of several splits. ``$second`` is the other split of a rule for two splits.
            Names of ``_ROW_SETS`` may be used as tables. A rule for texts uses none of these parameters and names, and
            its rows have the columns ``config`` and ``split``.
    """

    row_kind: str
    test: str
    what: str
    example: str
    rows: str


_TOLERANCE = 1e-3  # of means in stats.json, whose last digits depend on the order of the sum
_OF_SPLIT = "WHERE config = $config AND split = $split"
# Tables that rules may use. A rule's query begins with the definitions of the names that occur in the rule.
_ROW_SETS = {
    "judgments": f"SELECT * FROM judged {_OF_SPLIT}",
    "joined_rows": f"SELECT * FROM joined {_OF_SPLIT}",
    "original_here": f"SELECT original_id, text_id FROM original {_OF_SPLIT}",
    "answers_here": f"SELECT * FROM answered {_OF_SPLIT}",
    "all_judged": "SELECT query_id, docid, score FROM judged WHERE config = $qrels AND split = $split",
    "passages": f"SELECT * FROM joined_passages {_OF_SPLIT}",
    "corpus_ids": "SELECT id FROM texts WHERE config = $corpus",
    "query_ids": "SELECT id FROM texts WHERE config = $queries AND split = coalesce($query_split, split)",
    "known_before": "SELECT query_id AS before FROM judged WHERE config = $before AND split = $split",
    # Queries that `similar` removed keep their original ids.
    "removed_queries": "SELECT query_id FROM joined WHERE config = $removed",
    "told_apart": "SELECT id FROM texts WHERE config IN ($duplicated, $others) AND split = $split",
}
# Table of _ROW_SETS -> parameter of its config. If this config was not read, a rule that uses the table is skipped,
# because the rule would report every row.
_REQUIRED_CONFIGS = {"corpus_ids": "corpus", "query_ids": "queries"}
# Table of _ROW_SETS -> parameters of its configs, which a release may lack. If the release has such a config with the
# split of the rows, but this split was not read, a rule that uses the table is skipped, because the rule would report
# sound rows.
_OPTIONAL_CONFIGS = {
    "all_judged": ["qrels"],
    "known_before": ["before"],
    "removed_queries": ["removed"],
    "told_apart": ["duplicated", "others"],
}
_ALL_SPLITS = {"removed_queries"}  # tables of _OPTIONAL_CONFIGS with the rows of every split
_TOO_LONG = f"chars > CASE WHEN config LIKE '%corpus' THEN {LONGEST_PASSAGE} ELSE {LONGEST_QUERY} END"
# Several Chinese queries may share a translation, so zh_id is part of GROUP BY. Ids are read only for repeated texts.
_REPEATED_TEXTS = """(
    WITH again AS (
        SELECT config, split, key, zh_id FROM texts WHERE NOT blank
        GROUP BY config, split, key, zh_id HAVING count(*) > 1
    )
    SELECT config, split, array_to_string(list(DISTINCT id ORDER BY id)[:2], ' and ') AS ids
    FROM texts JOIN again USING (config, split, key) WHERE texts.zh_id IS NOT DISTINCT FROM again.zh_id
    GROUP BY config, split, key, texts.zh_id
)"""
# Of two texts with the same id, at least one has an id that is not its MD5. So only such ids are grouped.
_TWO_TEXTS = """(
    SELECT config, split, id FROM texts WHERE id IN (SELECT id FROM texts WHERE NOT id_ok)
    GROUP BY config, split, id HAVING count(DISTINCT key) > 1
)"""
_CONTROL_EXAMPLE = "id || ' (U+' || printf('%04X', ord(control)) || ')'"
_NO_QUERY = "ANTI JOIN query_ids ON id = query_id"
_NO_PASSAGE = "ANTI JOIN corpus_ids ON id = docid"
_PAIR_EXAMPLE = "query_id || ' ' || docid"
_BY_PAIR = "GROUP BY query_id, docid HAVING count"
_POSITIVE_PAIRS = "(FROM judgments WHERE score > 0)"
_UNKNOWN_ZH_IDS = (
    f"(SELECT id, zh_id FROM texts {_OF_SPLIT}) ANTI JOIN (SELECT id AS present FROM query_ids) ON present = zh_id"
)
_UNKNOWN_ORIGINALS = (
    f"(SELECT id, original_id FROM texts {_OF_SPLIT}) "
    "ANTI JOIN (SELECT id AS present FROM query_ids) ON present = original_id"
)
# A perturbed query must not be the original, or another query, of any split.
_KNOWN_QUERIES = f"texts {_OF_SPLIT} AND key IN (SELECT key FROM texts WHERE config = $queries)"
_REPEATED_ORIGINALS = f"texts {_OF_SPLIT} GROUP BY original_id HAVING count(*) > 1"
_DIFFERENT_PAIRS = """(
    WITH known AS (SELECT query_id, docid FROM all_judged WHERE score > 0),
         positives AS (SELECT query_id, docid FROM passages WHERE positive)
    (FROM known EXCEPT FROM positives) UNION ALL (FROM positives EXCEPT FROM known)
)"""
# asked: a query of the split. told: a row of duplicated or others. Every query must be told once, and nothing else.
_NOT_IN_ONE = """(
    SELECT id, 1 AS asked, 0 AS told FROM query_ids
    UNION ALL
    SELECT id, 0, 1 FROM told_apart
) GROUP BY id HAVING max(asked) = 0 OR sum(told) <> 1"""
_SHARED_QUERIES = f"texts WHERE config = $config AND split = $second AND key IN (SELECT key FROM texts {_OF_SPLIT})"
_ANSWER_PASSAGES = "(SELECT query_id, unnest(docids) AS docid FROM answers_here)"
_LISTED_IDS = "listed WHERE config = $config"
RULES = (
    # Rules for texts (queries and passages). They give a finding for each config and split.
    CheckRule(
        row_kind="text",
        test="ids-not-md5",
        what="ids",
        example="coalesce(id, 'null')",
        rows="texts WHERE NOT id_ok",
    ),
    CheckRule(
        row_kind="text",
        test="empty-texts",
        what="texts",
        example="id",
        rows="texts WHERE blank",
    ),
    CheckRule(
        row_kind="text",
        test="long-texts",
        what="texts",
        example="id || ' (' || chars || ' characters)'",
        rows=f"texts WHERE {_TOO_LONG}",
    ),
    CheckRule(
        row_kind="text",
        test="control-characters",
        what="texts",
        example=_CONTROL_EXAMPLE,
        rows="texts WHERE control IS NOT NULL",
    ),
    CheckRule(
        row_kind="text",
        test="replacement-characters",
        what="texts",
        example="id",
        rows="texts WHERE replaced",
    ),
    CheckRule(
        row_kind="text",
        test="one-id-two-texts",
        what="ids",
        example="id",
        rows=_TWO_TEXTS,
    ),
    CheckRule(
        row_kind="text",
        test="duplicate-texts",
        what="repeated texts",
        example="ids",
        rows=_REPEATED_TEXTS,
    ),
    CheckRule(
        row_kind="listed",
        test="samples",
        what="ids not in {corpus}",
        example="coalesce(id, 'null')",
        rows=f"{_LISTED_IDS} AND id NOT IN (FROM corpus_ids)",
    ),
    CheckRule(
        row_kind="listed",
        test="samples",
        what="ids listed more than once",
        example="id",
        rows=f"{_LISTED_IDS} GROUP BY id HAVING count(*) > 1",
    ),
    CheckRule(
        row_kind="original passages",
        test="dangling-ids",
        what="original ids of a passage that {corpus} lacks",
        example="original_id || ' (' || text_id || ')'",
        rows="original_here ANTI JOIN corpus_ids ON id = text_id",
    ),
    CheckRule(
        row_kind="original queries",
        test="dangling-ids",
        what="original ids of a query that {queries} lacks",
        example="original_id || ' (' || text_id || ')'",
        rows="original_here ANTI JOIN query_ids ON id = text_id WHERE text_id NOT IN (FROM removed_queries)",
    ),
    CheckRule(
        row_kind="original",
        test="original-ids",
        what="original ids listed more than once",
        example="original_id",
        rows="original_here GROUP BY original_id HAVING count(*) > 1",
    ),
    CheckRule(
        row_kind="judged",
        test="dangling-ids",
        what="judgments of a query that {queries} lacks",
        example="query_id",
        rows=f"judgments {_NO_QUERY}",
    ),
    CheckRule(
        row_kind="judged",
        test="dangling-ids",
        what="judgments of a passage that {corpus} lacks",
        example=_PAIR_EXAMPLE,
        rows=f"judgments {_NO_PASSAGE}",
    ),
    CheckRule(
        row_kind="judged",
        test="duplicate-judgments",
        what="pairs",
        example=_PAIR_EXAMPLE,
        rows=f"judgments {_BY_PAIR}(*) > 1",
    ),
    # Every query of a labelled split needs a positive passage. In other judgments (qrels-before, restrain-* and
    # resttest-*), only the judged queries need one.
    CheckRule(
        row_kind="sampled",
        test="queries-without-positives",
        what="queries",
        example="query_id",
        rows="judgments GROUP BY query_id HAVING max(score) <= 0",
    ),
    CheckRule(
        row_kind="labelled",
        test="queries-without-positives",
        what="queries",
        example="id",
        rows=f"query_ids ANTI JOIN {_POSITIVE_PAIRS} ON query_id = id ANTI JOIN known_before ON before = id",
    ),
    # A query may lose its last positive when people correct the judgments.
    CheckRule(
        row_kind="corrected",
        test="no-positives-left",
        what="queries",
        example="DISTINCT before",
        rows=f"known_before WHERE before NOT IN (SELECT query_id FROM {_POSITIVE_PAIRS})",
    ),
    CheckRule(
        row_kind="translated",
        test="dangling-ids",
        what="zh_ids that {queries} lacks",
        example="id || ' (' || zh_id || ')'",
        rows=_UNKNOWN_ZH_IDS,
    ),
    CheckRule(
        row_kind="perturbed",
        test="dangling-ids",
        what="original_ids that {queries} lacks",
        example="id || ' (' || original_id || ')'",
        rows=_UNKNOWN_ORIGINALS,
    ),
    CheckRule(
        row_kind="perturbed",
        test="perturbed-queries",
        what="texts of a query of {queries}",
        example="id",
        rows=_KNOWN_QUERIES,
    ),
    CheckRule(
        row_kind="perturbed",
        test="perturbed-queries",
        what="original_ids listed more than once",
        example="original_id",
        rows=_REPEATED_ORIGINALS,
    ),
    CheckRule(
        row_kind="joined",
        test="ids-not-md5",
        what="query ids",
        example="query_id",
        rows="joined_rows WHERE NOT coalesce(id_ok, false)",
    ),
    CheckRule(
        row_kind="joined",
        test="ids-not-md5",
        what="passage ids",
        example="coalesce(docid, 'null')",
        rows="passages WHERE NOT id_ok",
    ),
    CheckRule(
        row_kind="joined",
        test="dangling-ids",
        what="passages that {corpus} lacks",
        example=_PAIR_EXAMPLE,
        rows=f"passages {_NO_PASSAGE}",
    ),
    CheckRule(
        row_kind="joined",
        test="joined-rows",
        what="passages with both labels",
        example=_PAIR_EXAMPLE,
        rows=f"passages {_BY_PAIR}(DISTINCT positive) > 1",
    ),
    CheckRule(
        row_kind="answered",
        test="dangling-ids",
        what="with answers that {queries} lacks",
        example="query_id",
        rows=f"answers_here {_NO_QUERY}",
    ),
    CheckRule(
        row_kind="answered",
        test="answers",
        what="repeated",
        example="query_id",
        rows="answers_here GROUP BY query_id HAVING count(*) > 1",
    ),
    CheckRule(
        row_kind="answered",
        test="answers",
        what="with lists of different lengths",
        example="query_id",
        rows="answers_here WHERE NOT fits",
    ),
    CheckRule(
        row_kind="answered",
        test="answers",
        what="of unknown type",
        example="query_id || ' (' || question_type || ')'",
        rows=f"answers_here WHERE question_type NOT IN {('', *QUESTION_TYPES)}",
    ),
    CheckRule(
        row_kind="answered",
        test="answers",
        what="with an unjudged passage",
        example=_PAIR_EXAMPLE,
        rows=f"{_ANSWER_PASSAGES} ANTI JOIN all_judged USING (query_id, docid)",
    ),
    # Section 2.3: similar questions are removed from the training questions.
    CheckRule(
        row_kind="removed",
        test="similar-queries",
        what="removed queries that are still in {queries}/{split}",
        example="query_id",
        rows="joined_rows SEMI JOIN query_ids ON id = query_id",
    ),
    CheckRule(
        row_kind="asked",
        test="dangling-ids",
        what="rows of a query that {queries} lacks",
        example="query_id",
        rows=f"joined_rows {_NO_QUERY}",
    ),
    # The benchmark's joined rows contain every query once, and every judgment.
    CheckRule(
        row_kind="benchmark",
        test="joined-rows",
        what="queries of {queries}/{split} without a row, or with more than one row",
        example="id",
        rows="query_ids LEFT JOIN joined_rows ON query_id = id GROUP BY id HAVING count(query_id) <> 1",
    ),
    CheckRule(
        row_kind="benchmark",
        test="joined-rows",
        what="pairs that differ from {qrels}/{split}",
        example=_PAIR_EXAMPLE,
        rows=_DIFFERENT_PAIRS,
    ),
    # Section 3.4: every query of a split is either in duplicated or in others.
    CheckRule(
        row_kind="told apart",
        test="similar-queries",
        what="queries that are not in exactly one of duplicated and others",
        example="id",
        rows=_NOT_IN_ONE,
    ),
    CheckRule(
        row_kind="two splits",
        test="shared-queries",
        what="queries that are in {second} and in {split}",
        example="id",
        rows=_SHARED_QUERIES,
    ),
)


def check_rows(survey_tables: Survey, counted_stats: dict[str, Any]) -> Iterator[Finding]:
    """Apply every rule to the rows. Then compare sizes with Table 3, and ``stats.json`` with ``counted_stats``.

    ``counted_stats`` is :attr:`.ReleaseFigures.stats`, with the key ``answers`` if the release has answers.
    """
    for config, split, reason in survey_tables.failures:
        yield Finding("manifest", f"{config}/{split}", 1, f"cannot be read ({reason})")
    text_rules = [rule for rule in RULES if rule.row_kind == "text"]
    # List all tests first, so that the bar has a total.
    row_tests = []
    for tested_rows in _tested_splits(survey_tables):
        for rule in RULES:
            if rule.row_kind in tested_rows.kinds:
                row_tests.append((rule, tested_rows))
    with show_progress(total=len(text_rules) + len(row_tests), unit="test", label="rules") as bar:
        for rule in text_rules:
            yield from _test_texts(survey_tables, rule)
            bar.update(1)
        for rule, tested_rows in row_tests:
            yield from _test_rows(survey_tables, rule, tested_rows)
            bar.update(1)
    unread_configs = sorted({config for config, _ in survey_tables.unread_splits()})
    if unread_configs:
        # The counts lack the rows of these configs.
        what = f"needs the rows of all configs; not read: {', '.join(unread_configs)}"
        for test in ("split-sizes", "stats"):
            yield Finding("not-tested", str(survey_tables.release.path), 1, f"{test}: {what}")
        return
    yield from check_sizes(survey_tables, counted_stats)
    yield from check_stats(survey_tables, counted_stats)


class _TestedRows(NamedTuple):
    """A split, or a group of splits, to test.

    Attributes:
        name: the place in findings.
        kinds: the kinds of its rows. The rules with these values of :attr:`CheckRule.row_kind` apply.
        parameters: the values of the parameters of :attr:`CheckRule.rows`, without the dollar sign in their names.
    """

    name: str
    kinds: set[str]
    parameters: Mapping[str, str | None]


def _tested_splits(survey_tables: Survey) -> Iterator[_TestedRows]:
    """Yield every split to test, then the groups of splits for the rules about several splits."""
    for config, split in survey_tables.loaded:
        yield _tested_split(survey_tables, config, split)
    main = SETS["main"]
    duplicated, others = TOLD_APART
    # Rules about both configs apply to a split that only one of the configs has.
    told_apart_splits: set[str] = set()
    for config in TOLD_APART:
        told_apart_splits.update(survey_tables.splits(config))
    for split in sorted(told_apart_splits):
        parameters = {
            "config": duplicated,
            "split": split,
            "query_split": split,
            "queries": main.queries,
            "duplicated": duplicated,
            "others": others,
        }
        yield _TestedRows(f"{duplicated}/{split}", {"told apart"}, parameters)
    query_configs = {dataset_set.queries for dataset_set in SETS.values()}
    for config in sorted(query_configs):
        # A query in two splits is a leak, for example from train to dev.
        for first_split, second_split in combinations(survey_tables.splits(config), 2):
            parameters = {"config": config, "split": first_split, "second": second_split}
            yield _TestedRows(config, {"two splits"}, parameters)


def _tested_split(survey_tables: Survey, config: str, split: str) -> _TestedRows:
    """Return the kinds of rows of a split, and the parameters of the rules for it."""
    main = SETS["main"]
    columns = config_of(config).columns
    dataset_set = SETS[config_of(config).set]
    parameters: dict[str, str | None] = {
        "config": config,
        "split": split,
        "query_split": split,
        "queries": dataset_set.queries,
        "corpus": dataset_set.corpus,
        "qrels": dataset_set.qrels,
        "before": BEFORE if dataset_set is main else None,
        "removed": REMOVED,
    }
    # Stays empty for passages and plain queries, which only the rules for texts test.
    kinds: set[str] = set()
    if columns is QRELS and config == dataset_set.qrels:
        kinds = {"judged", "labelled"}
        if dataset_set is main:
            kinds.add("corrected")
    elif columns is QRELS:  # qrels-before, restrain-* and resttest-*; the drawn sets have queries of several splits
        kinds = {"judged", "sampled"}
        parameters["query_split"] = None
    elif columns is IDS:
        kinds = {"listed"}
    elif columns is ORIGINAL_IDS:
        kinds = {"original", "original passages" if split == "corpus" else "original queries"}
        parameters["query_split"] = None
    elif columns is ANSWERS:
        kinds = {"answered"}
    elif config == REMOVED:
        kinds = {"joined", "removed"}
    elif "query_id" in columns.names:
        kinds = {"joined", "asked"}
        if dataset_set is main:
            kinds.add("benchmark")
    elif "zh_id" in columns.names:
        kinds = {"translated"}
        parameters["queries"] = main.queries
    elif "original_id" in columns.names:
        kinds = {"perturbed"}
        parameters["queries"] = main.queries
    return _TestedRows(f"{config}/{split}", kinds, parameters)


def _test_texts(survey_tables: Survey, rule: CheckRule) -> Iterator[Finding]:
    """Apply a rule for texts to all splits at once."""
    # In DuckDB, min with a number returns a list of the smallest values.
    faults = f"SELECT config, split, {rule.example} AS example FROM {rule.rows}"
    sql = f"SELECT config, split, count(*), min(example, {EXAMPLES}) FROM ({faults}) GROUP BY ALL ORDER BY ALL"
    for config, split, fault_count, examples in survey_tables.rows(sql):
        what = f"{fault_count:,} {rule.what}"
        yield Finding(rule.test, f"{config}/{split}", fault_count, what, examples or [])


def _test_rows(survey_tables: Survey, rule: CheckRule, tested_rows: _TestedRows) -> Iterator[Finding]:
    """Apply a rule to a split, or to a group of splits."""
    # A definition too many, for a name that only occurs inside another word, would not change the rows.
    row_sets = {name: sql for name, sql in _ROW_SETS.items() if name in rule.rows}
    unread = _unread_config(survey_tables, row_sets, tested_rows.parameters)
    if unread:
        yield Finding("not-tested", tested_rows.name, 1, f"{rule.test}: needs {unread}, which was not read")
        return
    with_clause = ""
    if row_sets:
        # Without NOT MATERIALIZED, DuckDB would store a copy of the rows, for example of all ids of a corpus.
        definitions = [f"{name} AS NOT MATERIALIZED ({sql})" for name, sql in row_sets.items()]
        with_clause = f"WITH {', '.join(definitions)} "
    faults = f"{with_clause}SELECT {rule.example} AS example FROM {rule.rows}"
    sql = f"SELECT count(*), min(example, {EXAMPLES}) FROM ({faults})"
    # DuckDB refuses parameters that the query does not use.
    used_names = set(re.findall(r"\$(\w+)", sql))
    used_parameters = {name: tested_rows.parameters[name] for name in used_names}
    ((fault_count, examples),) = survey_tables.rows(sql, **used_parameters)
    if fault_count:
        what = f"{fault_count:,} {rule.what.format(**tested_rows.parameters)}"
        yield Finding(rule.test, tested_rows.name, fault_count, what, examples or [])


def _unread_config(survey_tables: Survey, row_sets: Collection[str], parameters: Mapping[str, str | None]) -> str:
    """Return the config, or config/split, that the rows of a rule need and the survey lacks; empty if none."""
    for row_set, config_parameter in _REQUIRED_CONFIGS.items():
        if row_set not in row_sets:
            continue
        config = parameters[config_parameter]
        split = parameters["query_split"] if row_set == "query_ids" else None  # None: any split
        loaded_splits = [
            loaded_split for loaded_config, loaded_split in survey_tables.loaded if loaded_config == config
        ]
        if not loaded_splits or (split is not None and split not in loaded_splits):
            return f"{config}/{split}" if split else f"{config}"
    for row_set, config_parameters in _OPTIONAL_CONFIGS.items():
        if row_set not in row_sets:
            continue
        needed_configs = {parameters[config_parameter] for config_parameter in config_parameters}
        for config, split in survey_tables.unread_splits():
            if config in needed_configs and (split == parameters["split"] or row_set in _ALL_SPLITS):
                return f"{config}/{split}"
    return ""


def check_sizes(survey_tables: Survey, counted_stats: dict[str, Any]) -> Iterator[Finding]:
    """Compare sizes with Table 3.

    A difference is a warning for data from the official archives or the paper's other sources. For data from raw
    DuReader, a difference is an info, because raw DuReader cannot give the paper's sizes.
    """
    paper = published_figures()
    verbs = {build.verb for build in survey_tables.release.manifest.builds}
    main_level = WARNING if "official" in verbs else INFO
    # Out-of-domain sets and translations have the paper's sources, so a difference is unexpected.
    for column, sizes in counted_stats["table3"].items():
        level = main_level if column in SETS["main"].table3 else WARNING
        yield from _compare_sizes(column, sizes, paper["table3"].get(column, {}), level)
    for split, sizes in counted_stats.get("english", {}).items():
        yield from _compare_sizes(f"crosslingual {split}", sizes, paper["english"].get(split, {}), WARNING)
    for config, sizes in counted_stats["collections"].items():
        yield from _compare_sizes(config, sizes, paper["collections"].get(config, {}), main_level)


def _compare_sizes(
    where: str, sizes: Mapping[str, Any], paper_sizes: Mapping[str, Any], level: str
) -> Iterator[Finding]:
    """Yield a finding for each size that differs from the paper's. Sizes that the paper lacks are not compared."""
    for key in ("queries", "positive_passages", "passages"):
        size = sizes.get(key)
        if size is not None and key in paper_sizes and size != paper_sizes[key]:
            what = f"{size:,} {key.replace('_', ' ')}; the paper has {paper_sizes[key]:,}"
            yield Finding("split-sizes", where, count=1, what=what, level=level)


def check_stats(survey_tables: Survey, counted_stats: dict[str, Any]) -> Iterator[Finding]:
    """Compare the values of ``stats.json`` with counts of the rows."""
    try:
        written_stats = read_stats(survey_tables.release.path)
    except InputError as error:
        yield Finding("stats", STATS, 1, f"is not a valid stats.json ({error})")
        return
    # Only values that both have are compared, because a release of another version may have further values.
    for part in ("table3", "collections", "answers", "stress"):
        for name, counted in counted_stats.get(part, {}).items():
            written = written_stats.get(part, {}).get(name, {})
            differences = []
            for key, value in written.items():
                if key in counted and not _is_equal(value, counted[key]):
                    differences.append(f"{key} {value} (the rows: {counted[key]})")
            if differences:
                where = f"{STATS}: {part}.{name}"
                yield Finding("stats", where, len(differences), "differs from the rows", differences[:EXAMPLES])


def _is_equal(written: Any, counted: Any) -> bool:
    if isinstance(written, float) and isinstance(counted, (int, float)):
        return abs(written - counted) < _TOLERANCE
    return bool(written == counted)
