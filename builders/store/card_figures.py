"""The sections of a release's card that its figures (``stats.json``) make, in English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from builders.core.tables import as_code, as_text
from builders.store.table3 import TABLE3_ROWS, bar_name


def lines_of(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def figures(stats: dict[str, Any]) -> str:
    columns = list(stats["table3"])
    table = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for key, title in TABLE3_ROWS:
        cells = (cell(stats["table3"][column].get(key)) for column in columns)
        table.append(f"| {title} | {' | '.join(cells)} |")
    collections = [
        f"`{name}` holds {cell(figures['passages'])} passages of {cell(figures['mean_chars'])} characters on average"
        f" (median {cell(figures['median_chars'])})."
        for name, figures in stats["collections"].items()
    ]
    english = [
        f"`crosslingual` {split} has {cell(found['queries'])} English queries;"
        f" words per query: {cell(found['words_per_query'])}."
        for split, found in stats.get("english", {}).items()
    ]
    judged = [
        f"`qrels` {split} was judged by people: {found['per_query_before']:.2f} positive passages a query before"
        f" (`qrels-before`), {found['per_query_after']:.2f} after; {found['share_with_false_negatives']:.2%} of"
        f" {cell(found['queries'])} queries had a false negative, {found['share_with_false_positives']:.2%} a false"
        " positive. Pairs judged not to answer have the score 0."
        for split, found in stats.get("relabelled", {}).items()
    ]
    return lines_of(["", "## Figures", "", *(table if columns else []), "", *collections, *english, *judged])


def cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,}"


def similar(found: dict[str, Any] | None) -> str:
    """What was removed because it is similar to a development or test question; the paper's counts (Section 2.3)."""
    if not found:
        return ""
    paper = found["paper"]
    ways = ", ".join(f"{number:,} {how}" for how, number in found["by"].items())
    return f"""
## Similar training questions

Removed: {found["removed"]:,} training questions ({ways}), similar to {found["duplicated"]:,} of the
{found["queries"]:,} development and test questions ({found["share"] or 0:.2%}). The paper removed
{paper["removed"]:,}, similar to {paper["duplicated"]:,} ({paper["share"]:.2%}). `train-similar` keeps them with their
passages; `duplicated` and `others` tell the development and test questions apart.
"""


def overlap(stats: dict[str, Any]) -> str:
    """Label overlap of training and test queries, and the sets that are drawn to look beside it."""
    lines = [
        f"- {as_code(split)}: {cell(found['overlapping'])} of {cell(found['test_queries'])} queries"
        f" ({found['overlapping_share'] or 0:.2%})"
        for split, found in stats.get("label_overlap", {}).items()
    ]
    if lines:
        words = "Queries with a positive passage that is a positive of a training query, too (Zhan et al., 2022):"
        lines = ["", "## Label overlap with `train`", "", words, "", *lines]
    if found := stats.get("extrapolation"):
        names = ("train_queries", "test_queries", "nearest_cosine", "overlapping")
        lines += [
            "",
            "## Interpolation and extrapolation",
            "",
            f"| config | test | {' | '.join(names)} |".replace("_", " "),
        ]
        lines += [f"|---|---{'|---:' * len(names)}|"]
        for rows in found.values():
            for row in rows if isinstance(rows, list) else [rows]:
                cells = " | ".join(cell(row[name]) for name in names)
                lines.append(f"| {as_code(row['config'])} | {as_text(row['test'])} | {cells} |")
    return lines_of(lines)


def samples(found: dict[str, Any] | None) -> str:
    """The samples of the collection: what a figure on one of them is a figure of."""
    if not found:
        return ""
    lines = []
    for name, row in found.items():
        hard = f", {cell(row['hard'])} that runs rank high" if row["hard"] is not None else ""
        of = as_text("+".join(row["split"]))
        lines.append(
            f"- {as_code(name)}: {cell(row['passages'])} passages, {cell(row['positives'])} positives of {of}{hard}"
        )
    words = "Ids of passages, nested. Figures on a sample are higher than on the whole collection, and not comparable:"
    return lines_of(["", "## Samples of the collection", "", words, "", *lines])


def histograms(stats: dict[str, Any], images: Sequence[str]) -> str:
    lengths = {name: found.get("histogram") for name, found in stats["collections"].items()}
    positives = {name: found for name, found in stats.get("positives_per_query", {}).items() if found}
    parts = [f"![{image.rsplit('/', 1)[-1].removesuffix('.png').replace('-', ' ')}]({image})\n" for image in images]
    parts += _bars("characters a passage", {name: bars for name, bars in lengths.items() if bars})
    parts += _bars("positive passages a query", positives)
    return lines_of(["", "## Histograms", "", *parts]) if parts else ""


def _bars(title: str, columns: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table: a row a bar, a column a collection or split, with counts and shares."""
    if not columns:
        return []
    bars = {bar["from"]: bar for found in columns.values() for bar in found}
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---:{'|---:' * len(columns)}|"]
    for low in sorted(bars):
        cells = []
        for found in columns.values():
            count = next((bar["count"] for bar in found if bar["from"] == low), 0)
            cells.append(f"{count:,} ({count / max(1, sum(bar['count'] for bar in found)):.1%})")
        lines.append(f"| {bar_name(bars[low])} | {' | '.join(cells)} |")
    return [*lines, ""]
