"""The tests of ``check`` on figures: against the paper's Table 3, and ``stats.json`` against the rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builders.check.findings import EXAMPLES, INFO, WARNING, Finding
from builders.common.command import InputError
from builders.stats.paper import published
from builders.stats.survey import Survey
from builders.store.layout import SETS
from builders.store.manifest import STATS, read_stats


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
