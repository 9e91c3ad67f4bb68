"""The tests of ``check`` on rows: texts, ids, judgments, and how the configs refer to one another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from builders.check.findings import EXAMPLES, INFO, LONGEST_PASSAGE, LONGEST_QUERY, WARNING, Finding
from builders.stats.paper import published
from builders.stats.survey import Survey
from builders.store.layout import JOINED, QRELS, SETS, schema_of

_IS_PASSAGE = "config LIKE '%corpus'"


def check_rows(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """All tests on the rows that were read; ``figures`` are those of :func:`builders.stats.count_survey`."""
    for config, split, reason in tables.failures:
        yield Finding("manifest", f"{config}/{split}", 1, f"cannot be read ({reason})")
    yield from _texts(tables)
    for config, split in tables.loaded:
        schema = schema_of(config)
        if schema is QRELS:
            yield from _qrels(tables, config, split)
        elif "query_id" in schema.names:
            yield from _joined(tables, config, split, schema is JOINED)
        elif "zh_id" in schema.names:
            yield from _places(
                tables,
                "dangling-ids",
                f"{config}/{split}",
                "whose zh_id is no query of this split",
                f"""
                SELECT id || ' (' || zh_id || ')' AS example
                FROM (SELECT id, zh_id FROM texts WHERE config = '{config}' AND split = '{split}')
                {_absent("zh_id", "queries", split)}
                """,
                needs=("queries", split),
            )
    yield from _shared(tables)
    yield from _sizes(tables, figures)
    yield from _stats(tables, figures)


def _texts(tables: Survey) -> Iterator[Finding]:
    """The tests that look at one text at a time, and at texts of one split together."""
    bound = f"CASE WHEN {_IS_PASSAGE} THEN {LONGEST_PASSAGE} ELSE {LONGEST_QUERY} END"
    for test, what, condition, example in (
        ("ids-not-md5", "ids", "NOT id_ok", "coalesce(id, 'null')"),
        ("empty-texts", "texts", "blank", "id"),
        ("long-texts", "texts", f"chars > {bound}", "id || ' (' || chars || ' characters)'"),
        ("control-characters", "texts", "control IS NOT NULL", "id || ' (U+' || printf('%04X', ord(control)) || ')'"),
        ("replacement-characters", "texts", "replaced", "id"),
    ):
        yield from _grouped(
            tables, test, what, f"SELECT config, split, {example} AS example FROM texts WHERE {condition}"
        )
    yield from _grouped(
        tables,
        "one-id-two-texts",
        "ids",
        """
        SELECT config, split, id AS example FROM texts
        WHERE id IN (SELECT id FROM texts WHERE NOT id_ok)
        GROUP BY config, split, id HAVING count(DISTINCT key) > 1
        """,
    )
    yield from _grouped(
        tables,
        "duplicate-texts",
        "texts that come more than once",
        """
        WITH again AS (  -- several Chinese queries may have one translation: a row each
            SELECT config, split, key, zh_id FROM texts WHERE NOT blank
            GROUP BY config, split, key, zh_id HAVING count(*) > 1
        )
        SELECT config, split, min(id) || CASE WHEN min(id) = max(id) THEN '' ELSE ' and ' || max(id) END AS example
        FROM texts JOIN again USING (config, split, key) WHERE texts.zh_id IS NOT DISTINCT FROM again.zh_id
        GROUP BY config, split, key, texts.zh_id
        """,
    )


def _qrels(tables: Survey, config: str, split: str) -> Iterator[Finding]:
    prefix = config.removesuffix("qrels") if config.endswith("qrels") else ""
    queries, corpus, where = f"{prefix}queries", f"{prefix}corpus", f"{config}/{split}"
    # restrain-* and resttest-* draw their queries from several splits.
    query_split = split if config.endswith("qrels") else None
    rows = f"FROM (SELECT * FROM judged WHERE config = '{config}' AND split = '{split}')"
    yield from _places(
        tables,
        "dangling-ids",
        where,
        f"judgments of a query that is not in {queries}",
        f"SELECT query_id AS example {rows} {_absent('query_id', queries, query_split)}",
        needs=(queries, query_split),
    )
    yield from _places(
        tables,
        "dangling-ids",
        where,
        f"judgments of a passage that is not in {corpus}",
        f"SELECT query_id || ' ' || docid AS example {rows} {_absent('docid', corpus)}",
        needs=(corpus, None),
    )
    yield from _places(
        tables,
        "duplicate-judgments",
        where,
        "pairs",
        f"SELECT query_id || ' ' || docid AS example {rows} GROUP BY query_id, docid HAVING count(*) > 1",
    )
    if query_split:
        yield from _places(
            tables,
            "queries-without-positives",
            where,
            "queries",
            f"""
            SELECT id AS example FROM texts WHERE config = '{queries}' AND split = '{split}'
            AND NOT EXISTS (SELECT 1 {rows} WHERE query_id = id AND score > 0)
            """,
        )
    else:
        yield from _places(
            tables,
            "queries-without-positives",
            where,
            "queries",
            f"SELECT query_id AS example {rows} GROUP BY query_id HAVING max(score) <= 0",
        )


def _joined(tables: Survey, config: str, split: str, chinese: bool) -> Iterator[Finding]:
    queries, where = "queries" if chinese else "crosslingual-queries", f"{config}/{split}"
    of = f"config = '{config}' AND split = '{split}'"
    rows, passages = (f"FROM (SELECT * FROM {table} WHERE {of})" for table in ("joined", "joined_passages"))
    yield from _places(
        tables, "ids-not-md5", where, "query ids", f"SELECT query_id AS example {rows} WHERE NOT coalesce(id_ok, false)"
    )
    yield from _places(
        tables,
        "ids-not-md5",
        where,
        "passage ids",
        f"SELECT coalesce(docid, 'null') AS example {passages} WHERE NOT id_ok",
    )
    yield from _places(
        tables,
        "dangling-ids",
        where,
        f"rows of a query that is not in {queries}",
        f"SELECT query_id AS example {rows} {_absent('query_id', queries, split)}",
        needs=(queries, split),
    )
    yield from _places(
        tables,
        "dangling-ids",
        where,
        "passages that are not in corpus",
        f"SELECT query_id || ' ' || docid AS example {passages} {_absent('docid', 'corpus')}",
        needs=("corpus", None),
    )
    yield from _places(
        tables,
        "joined-rows",
        where,
        "passages that are both positive and negative",
        f"""
        SELECT query_id || ' ' || docid AS example {passages}
        GROUP BY query_id, docid HAVING count(DISTINCT positive) > 1
        """,
    )
    if chinese:
        yield from _places(
            tables,
            "joined-rows",
            where,
            f"queries of queries/{split} without a row, or with several",
            f"""
            SELECT id AS example FROM texts LEFT JOIN (SELECT query_id {rows}) ON query_id = id
            WHERE config = 'queries' AND texts.split = '{split}'
            GROUP BY id HAVING count(query_id) <> 1
            """,
        )
    # Qrels that are there, but could not be read, would make every passage a finding.
    if chinese and (("qrels", split) in tables.loaded or ("qrels", split) not in tables.release.splits()):
        judged = f"FROM judged WHERE config = 'qrels' AND split = '{split}' AND score > 0"
        yield from _places(
            tables,
            "joined-rows",
            where,
            f"judgments in only one of {where} and qrels/{split}",
            f"""
            SELECT query_id || ' ' || docid AS example FROM (
                (SELECT query_id, docid {judged} EXCEPT SELECT query_id, docid {passages} WHERE positive)
                UNION ALL
                (SELECT query_id, docid {passages} WHERE positive EXCEPT SELECT query_id, docid {judged})
            )
            """,
        )


def _shared(tables: Survey) -> Iterator[Finding]:
    for config in sorted({config for config, _ in tables.loaded if config.endswith("queries")}):
        splits = tables.splits(config)
        for place, first in enumerate(splits):
            for second in splits[place + 1 :]:
                sql = "SELECT id AS example FROM texts WHERE config = '{}' AND split = '{}' AND key IN ({})"
                keys = f"SELECT key FROM texts WHERE config = '{config}' AND split = '{first}'"
                yield from _places(
                    tables,
                    "shared-queries",
                    config,
                    f"queries of {second} that are queries of {first}, too",
                    sql.format(config, second, keys),
                )


def _sizes(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """Sizes against Table 3.

    What came from the official archives or the paper's other sources should have the paper's sizes (a warning); what
    was built from raw data cannot have them (info).
    """
    paper = published()
    verbs = {build.verb for build in tables.release.manifest.builds}

    def differs(where: str, mine: dict[str, Any], theirs: dict[str, Any], level: str) -> Iterator[Finding]:
        for key in ("queries", "positive_passages", "passages"):
            if mine.get(key) is not None and key in theirs and mine[key] != theirs[key]:
                words = f"{mine[key]:,} {key.replace('_', ' ')} where the paper has {theirs[key]:,}"
                yield Finding("split-sizes", where, 1, words, level=level)

    ours = WARNING if "official" in verbs else INFO
    for column, mine in figures["table3"].items():
        yield from differs(column, mine, paper["table3"][column], ours if column in SETS["main"].table3 else WARNING)
    for split, mine in figures.get("english", {}).items():
        yield from differs(f"crosslingual {split}", mine, paper["english"].get(split, {}), WARNING)
    for config, mine in figures["collections"].items():
        yield from differs(config, mine, paper["collections"].get(config, {}), ours)


def _stats(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    path = tables.release.path / "stats.json"
    if not path.is_file() or tables.failures:
        return
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        for part in ("table3", "collections"):
            for name, counted in figures[part].items():
                said = written.get(part, {}).get(name, {})
                wrong = [
                    f"{key} {said[key]} (the rows: {counted.get(key)})"
                    for key in said
                    if key in counted and not _equal(said[key], counted[key])
                ]
                if wrong:
                    yield Finding("stats", f"stats.json: {part}.{name}", len(wrong), "other figures", wrong[:EXAMPLES])
    except (ValueError, AttributeError) as error:
        yield Finding("stats", "stats.json", 1, f"not the figures of a release ({error})")


def _equal(said: Any, counted: Any) -> bool:
    if isinstance(said, float) and isinstance(counted, (int, float)):
        return abs(said - counted) < 1e-3  # the order of a sum decides its last digits
    return bool(said == counted)


def _absent(column: str, config: str, split: str | None = None) -> str:
    """SQL after a FROM: of the rows before it those whose ``column`` is no id of ``config``."""
    where = f"config = '{config}'" + (f" AND split = '{split}'" if split else "")
    return f"ANTI JOIN (SELECT id AS present FROM texts WHERE {where}) ON present = {column}"


def _places(
    tables: Survey, test: str, where: str, what: str, sql: str, needs: tuple[str, str | None] | None = None
) -> Iterator[Finding]:
    """A finding where ``sql`` (which has a column ``example``) gives rows; ``needs``: a config that must be there."""
    if needs and not any(config == needs[0] and needs[1] in (None, split) for config, split in tables.loaded):
        missing = "/".join(filter(None, needs))
        yield Finding("not-tested", where, 1, f"{test}: needs {missing}, which was not read")
        return
    ((number, examples),) = tables.rows(f"SELECT count(*), min(example, {EXAMPLES}) FROM ({sql})")
    if number:
        yield Finding(test, where, number, f"{number:,} {what}", examples or [])


def _grouped(tables: Survey, test: str, what: str, sql: str) -> Iterator[Finding]:
    """A finding for each config/split of which ``sql`` (columns config, split, example) gives rows."""
    found = tables.rows(
        f"SELECT config, split, count(*), min(example, {EXAMPLES}) FROM ({sql}) GROUP BY config, split ORDER BY 1, 2"
    )
    for config, split, number, examples in found:
        yield Finding(test, f"{config}/{split}", number, f"{number:,} {what}", examples or [])
