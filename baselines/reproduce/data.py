"""Table 3: what a release holds, beside what the paper prints of its data. Counts: they have no intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baselines.reproduce.marks import mark, nearness_of_count
from baselines.reproduce.matrix import Counted, Matrix
from builders.check.paper import published
from builders.core.errors import log
from builders.store.layout import SETS
from builders.store.manifest import STATS, read_stats
from builders.store.reader import Release

TITLES = {
    "queries": "queries",
    "positive_passages": "positive passages",
    "passages_per_query": "passages a query",
    "chars_per_query": "characters a query",
    "chars_per_passage": "characters a passage",
    "words_per_query": "words a query",
    "passages": "passages",
    "mean_chars": "mean characters",
    "median_chars": "median characters",
}
_UNLABELLED = {"mark": None, "why": ["the release has no labels of this split"]}


def data_figures(matrix: Matrix, counts: Sequence[Counted], release: Release) -> list[dict[str, Any]]:
    """A figure each of ``counts``' columns and each measure that the paper prints of it, from the release's stats.json.

    ``builders check`` counts the same from the rows and compares the two. Columns of what the release
    lacks are left out, and said.
    """
    if not counts:
        return []
    if any(entry.path == STATS for entry in release.manifest.files):
        release.named(STATS)  # as the manifest says it is
    stats, paper = read_stats(release.path), published()
    found, lacking = [], []
    for each in counts:
        group, _, column = each.of.partition(".")
        ours, theirs = (content.get(group, {}).get(column) for content in (stats, paper))
        if not ours or not theirs:
            lacking.append(each.title)
            continue
        why = _other_data(group, column, ours, theirs, stats, paper)
        for measure, value in theirs.items():
            own = ours.get(measure)
            judged = mark(why, nearness_of_count(own, value)) if own is not None else _UNLABELLED
            found.append(
                {
                    "table": each.table,
                    "row": each.name,
                    "title": each.title,
                    "metric": measure,
                    "ours": own,
                    "interval": None,
                    "published": value,
                    "published_by": "paper",
                    **judged,
                    "command": command(matrix, release),
                }
            )
    if lacking:
        log.info("Table %d: %s has no %s; left out", counts[0].table, release.path, ", ".join(lacking))
    return found


def command(matrix: Matrix, release: Release) -> str:
    """The command that counts the same from the release's rows."""
    return f"python -m {matrix.made_by['count'].format(release=release.path)}"


def _other_data(
    group: str, column: str, ours: dict[str, Any], theirs: dict[str, Any], stats: dict[str, Any], paper: dict[str, Any]
) -> list[str]:
    """Why a column is of other data: another size of the collection or, where that is not printed, of the set."""
    main = group == "collections" or column in SETS["main"].table3
    if main:
        own = stats.get("collections", {}).get("corpus", {}).get("passages", 0)
        their = paper["collections"]["corpus"]["passages"]
        return [f"{own:,} passages, not {their:,}"] if own != their else []
    own, their = ours["queries"], theirs["queries"]
    return [f"{own:,} queries, not {their:,}"] if own != their else []
