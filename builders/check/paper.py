"""The paper's own figures of its data, and ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builders.core.files import read_toml
from builders.store.table3 import TABLE3_ROWS, bar_name


def published() -> dict[str, Any]:
    """The paper's own figures (``published.toml``): ``table3``, ``english``, ``collections``, ``relabelled`` ..."""
    return read_toml(Path(__file__).with_name("published.toml"))


def side_by_side(stats: dict[str, Any]) -> str:
    """Table 3, ours and the paper's, and the collections and histograms, as aligned text."""
    paper = published()
    lines = [f"{'Table 3':<24}" + "".join(f"{column:>22}" for column in stats["table3"])]
    lines.append(f"{'':<24}" + f"{'ours':>11}{'paper':>11}" * len(stats["table3"]))
    for key, title in TABLE3_ROWS:
        cells = (
            f"{_cell(mine[key]):>11}{_cell(paper['table3'].get(column, {}).get(key)):>11}"
            for column, mine in _items(stats)
        )
        lines.append(f"{title:<24}" + "".join(cells))
    for split, mine in stats.get("english", {}).items():
        theirs = paper["english"].get(split, {})
        lines.append(
            f"English {split}: {_cell(mine['queries'])} queries of {_cell(mine['words_per_query'])} words"
            f" (paper: {_cell(theirs.get('queries'))} of {_cell(theirs.get('words_per_query'))})"
        )
    for config, mine in stats["collections"].items():
        theirs = paper["collections"].get(config)
        lines.append("")
        lines.append(
            f"{config}: {_cell(mine['passages'])} passages; characters: mean {_cell(mine['mean_chars'])},"
            f" median {_cell(mine['median_chars'])}, {_cell(mine['min_chars'])} to {_cell(mine['max_chars'])}"
        )
        if theirs:
            lines.append(
                f"  (the paper: {_cell(theirs['passages'])} passages;"
                f" mean {_cell(theirs['mean_chars'])}, median {_cell(theirs['median_chars'])})"
            )
        lines += _bars(mine["histogram"])
    if judged := relabelled_text(stats.get("relabelled", {}), paper["relabelled"]):
        lines += ["", judged]
    for split, mine in stats.get("label_overlap", {}).items():
        share = f"{mine['overlapping_share'] or 0:.2%}"
        queries = f"{_cell(mine['overlapping'])} of {_cell(mine['test_queries'])} queries ({share})"
        lines += ["", f"{split}: {queries} share a positive passage with a training query"]
    for column, bars in stats["positives_per_query"].items():
        lines += ["", f"{column}: positive passages a query", *_bars(bars)]
    return "\n".join(lines)


def _items(stats: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(stats["table3"].items())


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
    ("per_query_before", "positives a query before"),
    ("per_query_after", "positives a query after"),
    ("share_with_false_negatives", "queries with a false negative"),
    ("share_with_false_positives", "queries with a false positive"),
)


def relabelled_text(stats: dict[str, dict[str, Any]], paper: dict[str, Any]) -> str:
    """The figures of every split, and the paper's beside them, as aligned text."""
    if not stats:
        return ""
    lines = [f"{'judged by people':<32}" + "".join(f"{split:>11}" for split in stats) + f"{'paper':>11}"]
    for key, title in _RELABELLED:
        values = [*(found[key] for found in stats.values()), paper.get(key)]
        lines.append(f"{title:<32}" + "".join(f"{_share(key, value):>11}" for value in values))
    for split, found in stats.items():
        lines.append(
            f"{split}: of {found['queries']:,} queries, {found['false_negatives']:,} pairs became positive,"
            f" {found['false_positives']:,} no longer are; {found['without_positives']:,} queries have no positive left"
        )
    return "\n".join(lines)


def _share(key: str, value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}" if key.startswith("share") else f"{value:.2f}"
