"""The tests of ``check`` on rows: each rule of :mod:`builders.check.rules` on every config and split that it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from builders.check import rules
from builders.check.figures import check_sizes, check_stats
from builders.check.findings import EXAMPLES, LONGEST_PASSAGE, LONGEST_QUERY, Finding
from builders.check.rules import Rule
from builders.stats.survey import Survey
from builders.store.layout import IDS, QRELS, REMOVED, SETS, TOLD_APART, config_of

Values = dict[str, str | None]


def check_rows(tables: Survey, figures: dict[str, Any]) -> Iterator[Finding]:
    """All tests on the rows that were read; ``figures`` are those of :func:`builders.stats.count.count_survey`."""
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
