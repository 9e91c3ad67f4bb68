"""Compare a release's statistics with the figures that the paper prints."""

from collections.abc import Sequence
from typing import Any

from builders.core.tables import aligned, round_stat
from builders.store.judgments import Judged
from builders.store.layout import SPLITS
from builders.store.published import published
from builders.store.stored_answers import answers_text
from builders.store.table3 import TABLE3_ROWS


def side_by_side(stats: dict[str, Any]) -> str:
    """Format Table 3 of the release and of the paper, the collections and the label overlap as aligned text."""
    paper, table3 = published(), stats["table3"]
    theirs = {column: paper["table3"].get(column, {}) for column in table3}
    table = [["Table 3", *(cell for column in table3 for cell in ("", column))], ["", *["ours", "paper"] * len(table3)]]
    for key, title in TABLE3_ROWS:
        cells = (_cell(found) for column in table3 for found in (table3[column][key], theirs[column].get(key)))
        table.append([title, *cells])
    lines = aligned(table, widths=(24, 11))
    for split, mine in stats.get("english", {}).items():
        here, there = (
            f"{_cell(found.get('queries'))}{word} of {_cell(found.get('words_per_query'))}"
            for found, word in ((mine, " queries"), (paper["english"].get(split, {}), ""))
        )
        lines.append(f"English {split}: {here} words (paper: {there})")
    for config, mine in stats["collections"].items():
        here = f"{config}: {_cell(mine['passages'])} passages; characters: mean {_cell(mine['mean_chars'])}, median"
        lines += ["", f"{here} {_cell(mine['median_chars'])}, {_cell(mine['min_chars'])} to {_cell(mine['max_chars'])}"]
        if other := paper["collections"].get(config):
            there = ", ".join(f"{name} {_cell(other[f'{name}_chars'])}" for name in ("mean", "median"))
            lines.append(f"  (the paper: {_cell(other['passages'])} passages; {there})")
            if other["median_chars"] > other["mean_chars"]:
                # A few long passages raise the mean above the median, in every collection that was counted.
                lines.append("  (the paper's median is above its mean: the two numbers look swapped)")
    if judged := stats.get("relabelled"):
        lines += ["", relabelled_text(judged, paper["relabelled"])]
    if counted := stats.get("table2"):
        lines += ["", *_table2(paper["table2"], counted)]
    if answers := stats.get("answers"):
        lines += ["", answers_text(answers)]
    for split, mine in stats.get("label_overlap", {}).items():
        queries = f"{_cell(mine['overlapping'])} of {_cell(mine['test_queries'])} queries"
        share = f"{mine['overlapping_share'] or 0:.2%}"
        lines += ["", f"{split}: {queries} ({share}) share a positive passage with a training query"]
    return "\n".join(lines)


def _table2(paper: Sequence[dict[str, Any]], counted: dict[str, dict[str, int]]) -> list[str]:
    """Return Table 2 with the release's own counts below the paper's row of the set, and what Table 3 has instead."""
    rows = [("Table 2", "lang.", "queries", "passages", "source of queries", "source of passages", "annotation")]
    for row in paper:
        rows.append((row["dataset"], *row["values"]))
        if own := counted.get(row.get("set", "")):
            rows.append(("  here", row["values"][0], f"{own['queries']:,}", f"{own['passages']:,}", "", "", ""))
    table3 = published()["table3"]
    queries = sum(table3[split]["queries"] for split in SPLITS)
    passages = published()["collections"]["corpus"]["passages"]
    remark = f"(DuReader-retrieval in the paper's Table 3: {queries:,} queries and {passages:,} passages)"
    return [*aligned(rows, left=2, gap="  "), remark]


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def relabelled(queries: Sequence[str], before: Judged, after: Judged) -> dict[str, Any]:
    """Count the differences between two judgments of the same ``queries`` (ids). Return JSON values.

    Section 2.3: "the average positive paragraph per query has increased from 2.43 to 4.91. There are 71.53% of queries
    that have at least one false negative relabeled". ``false_negatives`` are pairs that became positive, and
    ``false_positives`` are pairs that are no longer positive. ``without_positives`` counts queries that lost all
    positives.
    """
    old, new = (
        {(query, passage) for query in queries for passage, score in judged.get(query, {}).items() if score > 0}
        for judged in (before, after)
    )
    count, added, refuted = max(1, len(queries)), new - old, old - new
    return {
        "queries": len(queries),
        "positives_before": len(old),
        "positives_after": len(new),
        "per_query_before": round_stat(len(old) / count),
        "per_query_after": round_stat(len(new) / count),
        "false_negatives": len(added),
        "false_positives": len(refuted),
        "share_with_false_negatives": round_stat(len({query for query, _ in added}) / count),
        "share_with_false_positives": round_stat(len({query for query, _ in refuted}) / count),
        "without_positives": len({query for query, _ in old} - {query for query, _ in new}),
    }


_RELABELLED = (
    ("per_query_before", "positives a query before", ".2f"),
    ("per_query_after", "positives a query after", ".2f"),
    ("share_with_false_negatives", "queries with a false negative", ".2%"),
    ("share_with_false_positives", "queries with a false positive", ".2%"),
)


def relabelled_text(stats: dict[str, dict[str, Any]], paper: dict[str, Any]) -> str:
    """Format the results of :func:`relabelled` for every split, and the paper's values, as aligned text."""
    table = [["judged by people", *stats, "paper"]]
    for key, title, form in _RELABELLED:
        values = [*(found[key] for found in stats.values()), paper.get(key)]
        table.append([title, *("-" if value is None else format(value, form) for value in values)])
    lines = aligned(table, widths=(32, 11))
    for split, found in stats.items():
        pairs = f"{found['false_negatives']:,} pairs became positive, {found['false_positives']:,} became negative"
        lines.append(
            f"{split}: {pairs}; {found['without_positives']:,} of {found['queries']:,} queries lost all positives"
        )
    return "\n".join(lines)
