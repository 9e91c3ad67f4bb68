"""The paper's figures of its data, and a release's beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.core.files import read_toml
from builders.core.tables import aligned
from builders.store.table3 import TABLE3_ROWS, bar_name


def published() -> dict[str, Any]:
    """Return the paper's figures (``published.toml``): ``table3``, ``english``, ``collections``, ``relabelled`` ..."""
    return read_toml(Path(__file__).with_name("published.toml"))


def side_by_side(stats: dict[str, Any]) -> str:
    """Table 3, the release's and the paper's, and the collections and histograms, as aligned text."""
    paper, table3 = published(), stats["table3"]
    theirs = {column: paper["table3"].get(column, {}) for column in table3}
    table = [["Table 3", *(cell for column in table3 for cell in ("", column))], ["", *["ours", "paper"] * len(table3)]]
    for key, title in TABLE3_ROWS:
        cells = (_cell(found) for column in table3 for found in (table3[column][key], theirs[column].get(key)))
        table.append([title, *cells])
    lines = aligned(table, widths=(24, 11))
    for split, mine in stats.get("english", {}).items():
        other = paper["english"].get(split, {})
        lines.append(
            f"English {split}: {_cell(mine['queries'])} queries of {_cell(mine['words_per_query'])} words"
            f" (paper: {_cell(other.get('queries'))} of {_cell(other.get('words_per_query'))})"
        )
    for config, mine in stats["collections"].items():
        lines += [
            "",
            f"{config}: {_cell(mine['passages'])} passages; characters: mean {_cell(mine['mean_chars'])},"
            f" median {_cell(mine['median_chars'])}, {_cell(mine['min_chars'])} to {_cell(mine['max_chars'])}",
        ]
        if other := paper["collections"].get(config):
            lines.append(
                f"  (the paper: {_cell(other['passages'])} passages;"
                f" mean {_cell(other['mean_chars'])}, median {_cell(other['median_chars'])})"
            )
        lines += _bars(mine["histogram"])
    if judged := relabelled_text(stats.get("relabelled", {}), paper["relabelled"]):
        lines += ["", judged]
    for split, mine in stats.get("label_overlap", {}).items():
        queries = f"{_cell(mine['overlapping'])} of {_cell(mine['test_queries'])} queries"
        share = f"{mine['overlapping_share'] or 0:.2%}"
        lines += ["", f"{split}: {queries} ({share}) share a positive passage with a training query"]
    for column, bars in stats["positives_per_query"].items():
        lines += ["", f"{column}: positive passages a query", *_bars(bars)]
    return "\n".join(lines)


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _bars(bars: list[dict[str, Any]]) -> list[str]:
    most, total = max((bar["count"] for bar in bars), default=1), sum(bar["count"] for bar in bars)
    width = max((len(bar_name(bar)) for bar in bars), default=0)
    return [
        f"  {bar_name(bar):>{width}}  {bar['count']:>11,}  {bar['count'] / total:>6.1%}  "
        + "#" * round(40 * bar["count"] / most)
        for bar in bars
    ]


_RELABELLED = (
    ("per_query_before", "positives a query before", ".2f"),
    ("per_query_after", "positives a query after", ".2f"),
    ("share_with_false_negatives", "queries with a false negative", ".2%"),
    ("share_with_false_positives", "queries with a false positive", ".2%"),
)


def relabelled_text(stats: dict[str, dict[str, Any]], paper: dict[str, Any]) -> str:
    """The figures of every split, and the paper's beside them, as aligned text."""
    if not stats:
        return ""
    table = [["judged by people", *stats, "paper"]]
    for key, title, form in _RELABELLED:
        values = [*(found[key] for found in stats.values()), paper.get(key)]
        table.append([title, *("-" if value is None else format(value, form) for value in values)])
    return "\n".join(
        [
            *aligned(table, widths=(32, 11)),
            *(
                f"{split}: of {found['queries']:,} queries, {found['false_negatives']:,} pairs became positive,"
                f" {found['false_positives']:,} no longer are; {found['without_positives']:,} queries have no positive"
                " left"
                for split, found in stats.items()
            ),
        ]
    )
