"""The tests of ``check`` on rows: the rules of :mod:`builders.check.rules`, and the figures that the rows give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from builders.check import rules
from builders.check.findings import EXAMPLES, INFO, LONGEST_PASSAGE, LONGEST_QUERY, WARNING, Finding
from builders.check.paper import published
from builders.check.rules import Rule
from builders.check.survey import Survey
from builders.core.errors import InputError
from builders.store.layout import IDS, QRELS, REMOVED, SETS, TOLD_APART, config_of
from builders.store.manifest import STATS, read_stats

Values = dict[str, str | None]


def check_rows(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """All tests on the rows that were read; ``figures`` are those of :func:`builders.check.count.count_survey`."""
    for config, split, reason in tables.failures:
        yield Finding("manifest", f"{config}/{split}", 1, f"cannot be read ({reason})")
    for rule in rules.TEXTS:
        yield from _everywhere(tables, rule)
    for config, split in tables.loaded:
        columns = config_of(config).columns
        if columns is QRELS:
            yield from _judgments(tables, config, split)
        elif columns is IDS:
            yield from _all(tables, rules.LISTED, {"config": config, "split": split, "corpus": SETS["main"].corpus})
        elif "query_id" in columns.names:
            yield from _joined(tables, config, split)
        elif "zh_id" in columns.names:
            values: Values = {"config": config, "split": split, "queries": SETS["main"].queries, "query_split": split}
            yield from _all(tables, rules.TRANSLATIONS, values)
    for split in sorted({split for name in TOLD_APART for split in tables.splits(name)}):
        told: Values = {"config": TOLD_APART[0], "split": split, "queries": SETS["main"].queries, "query_split": split}
        yield from _all(tables, (rules.TOLD_APART,), told)
    for config in sorted({found.queries for found in SETS.values()}):
        for first, second in combinations(tables.splits(config), 2):
            shared: Values = {"config": config, "first": first, "second": second}
            yield from _apply(tables, rules.NO_QUERY_IN_TWO_SPLITS, shared, config)
    yield from check_sizes(tables, figures)
    yield from check_stats(tables, figures)


def _judgments(tables: Survey, config: str, split: str) -> Iterator[Finding]:
    found = SETS[config_of(config).set]
    sample = config != found.qrels  # restrain-* and resttest-* draw their queries from several splits
    values: Values = {
        **{"config": config, "split": split, "queries": found.queries, "corpus": found.corpus},
        "query_split": None if sample else split,
    }
    positive = rules.EVERY_SAMPLED_QUERY_HAS_A_POSITIVE if sample else rules.EVERY_QUERY_HAS_A_POSITIVE
    yield from _all(tables, (*rules.JUDGMENTS, positive), values)
    if found is SETS["main"] and not sample:
        yield from _all(tables, (rules.NO_POSITIVES_LEFT,), values)


def _joined(tables: Survey, config: str, split: str) -> Iterator[Finding]:
    found = SETS[config_of(config).set]
    values: Values = {
        **{"config": config, "split": split, "queries": found.queries, "corpus": found.corpus, "qrels": found.qrels},
        "query_split": split,
    }
    yield from _all(tables, rules.JOINED_ROWS, values)
    if config == REMOVED:
        yield from _all(tables, (rules.QUERIES_ARE_REMOVED,), values)
        return
    yield from _all(tables, (rules.QUERIES_ARE_IN_THE_SPLIT,), values)
    if found is SETS["main"]:
        yield from _all(tables, (rules.EVERY_QUERY_HAS_ONE_ROW,), values)
        # Qrels that are there, but could not be read, would make every passage a finding.
        if (found.qrels, split) in tables.loaded or (found.qrels, split) not in tables.release.splits():
            yield from _all(tables, (rules.ROWS_HOLD_THE_JUDGMENTS,), values)


def _all(tables: Survey, every: tuple[Rule, ...], values: Values) -> Iterator[Finding]:
    """The findings of rules on one config and split."""
    where = f"{values['config']}/{values['split']}"
    for rule in every:
        missing = next(filter(None, (_missing(tables, values, need) for need in rule.needs)), None)
        if missing:
            yield Finding("not-tested", where, 1, f"{rule.test}: needs {missing}, which was not read")
        else:
            yield from _apply(tables, rule, values, where)


def _missing(tables: Survey, values: Values, need: str) -> str | None:
    """The config, or the split of it, that a rule needs and that was not read; None where it was."""
    config, split = values[need], values["query_split"] if need == "queries" else None
    if any(config == name and split in (None, each) for name, each in tables.loaded):
        return None
    return f"{config}/{split}" if split else config


def _apply(tables: Survey, rule: Rule, values: Values, where: str) -> Iterator[Finding]:
    """A finding where the rule's SQL gives rows."""
    sql = f"SELECT count(*), min(example, {EXAMPLES}) FROM ({rule.sql})"
    ((number, examples),) = tables.rows(sql, **_used(rule, values))
    if number:
        yield Finding(rule.test, where, number, f"{number:,} {rule.what.format(**values)}", examples or [])


def _everywhere(tables: Survey, rule: Rule) -> Iterator[Finding]:
    """A finding for each config and split of which the rule's SQL gives rows."""
    values = {"longest_passage": LONGEST_PASSAGE, "longest_query": LONGEST_QUERY}
    sql = f"SELECT config, split, count(*), min(example, {EXAMPLES}) FROM ({rule.sql}) GROUP BY ALL ORDER BY ALL"
    for config, split, number, examples in tables.rows(sql, **_used(rule, values)):
        yield Finding(rule.test, f"{config}/{split}", number, f"{number:,} {rule.what}", examples or [])


def _used(rule: Rule, values: dict[str, Any]) -> dict[str, Any]:
    """The parameters that the rule names: the database takes no others."""
    return {name: values[name] for name in set(re.findall(r"\$(\w+)", rule.sql))}


def check_sizes(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
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
        theirs = paper["table3"].get(column, {})
        yield from differs(column, mine, theirs, ours if column in SETS["main"].table3 else WARNING)
    for split, mine in figures.get("english", {}).items():
        yield from differs(f"crosslingual {split}", mine, paper["english"].get(split, {}), WARNING)
    for config, mine in figures["collections"].items():
        yield from differs(config, mine, paper["collections"].get(config, {}), ours)


def check_stats(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """The figures of ``stats.json`` against those of the rows."""
    if tables.failures:
        return
    try:
        written = read_stats(tables.release.path)
    except InputError as error:
        yield Finding("stats", STATS, 1, f"not the figures of a release ({error})")
        return
    for part in ("table3", "collections"):
        for name, counted in figures[part].items():
            said = written.get(part, {}).get(name, {})
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
