"""Count a release: Table 3 beside the paper's, and histograms.

The histograms are of passage length and of positives a query. Everything is counted from the rows, whatever stats.json
says. With --out the histograms are drawn, too (passage-length.png, positives-per-query.png), and the figures written as
stats.json.

example:
  python -m builders stats --release build/sample --out build/sample-figures
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.common.command import InputError, add_format, log
from builders.common.files import write_text
from builders.stats.histograms import draw_lengths, draw_positives
from builders.stats.survey import Survey, survey, survey_or_fail
from builders.store.reader import Release, open_release
from builders.store.table3 import POSITIVES_EDGES, TABLE3_ROWS, LengthCounter, bar_name, round_stat

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Table 3's column -> the prefix of its configs, and its split.
COLUMNS = {
    "train": ("", "train"),
    "dev": ("", "dev"),
    "test": ("", "test"),
    "cmedqa": ("cmedqa-", "test"),
    "ccovid": ("ccovid-", "test"),
}


@dataclass
class Figures:
    """What was counted.

    Attributes:
        stats: as in ``stats.json``: ``table3``, ``collections``, ``english``, ``positives_per_query``.
        lengths: characters a passage, by corpus config.
        positives: positive passages a query, by column of Table 3.
    """

    stats: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, LengthCounter] = field(default_factory=dict)
    positives: dict[str, LengthCounter] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to put the histograms as PNG, and stats.json")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    figures = count(open_release(args.release))
    if args.out:
        if args.out.exists() and not args.out.is_dir():
            raise InputError("exists and is no directory", path=args.out)
        args.out.mkdir(parents=True, exist_ok=True)
        for name, image in draw(figures).items():
            (args.out / name).write_bytes(image)
        write_text(args.out / "stats.json", json.dumps(figures.stats, ensure_ascii=False, indent=1) + "\n")
        log.info("wrote %s", args.out)
    if args.format == "json":
        print(json.dumps({"release": figures.stats, "paper": published()}, ensure_ascii=False, indent=1))
    else:
        print(side_by_side(figures.stats))


def published() -> dict[str, Any]:
    """The paper's own figures (``published.toml``): ``table3``, ``english``, ``collections``."""
    with open(Path(__file__).with_name("published.toml"), "rb") as file:
        return tomllib.load(file)


def count(release: Release) -> Figures:
    """Count a release from its rows. :class:`InputError` where a shard cannot be read."""
    # The joined rows repeat what the others hold.
    with survey(release, lambda config, _: config.endswith(("corpus", "queries", "qrels"))) as tables:
        return count_survey(survey_or_fail(tables))


def count_survey(tables: Survey) -> Figures:
    """The figures of a release whose rows are read already."""
    figures = Figures()
    for config in dict.fromkeys(f"{prefix}corpus" for prefix, _ in COLUMNS.values()):
        if tables.splits(config):
            sql = "SELECT chars, count(*) FROM texts WHERE config = ? GROUP BY chars"
            figures.lengths[config] = _counter(tables, sql, config)
    table3 = {}
    for column, (prefix, split) in COLUMNS.items():
        if split in tables.splits(f"{prefix}queries"):
            table3[column] = _column(tables, prefix, split)
            counter = _counter(
                tables,
                """
                SELECT positives, count(*) FROM (
                    SELECT count(*) AS positives FROM judged
                    WHERE config = ? AND split = ? AND score > 0 GROUP BY query_id
                ) GROUP BY positives
                """,
                f"{prefix}qrels",
                split,
            )
            if counter.count:
                figures.positives[column] = counter
    english = {
        split: {"queries": queries, "words_per_query": round_stat(words)}
        for split in tables.splits("crosslingual-queries")
        for queries, words in tables.rows(
            "SELECT count(*), avg(words) FROM texts WHERE config = 'crosslingual-queries' AND split = ?", split
        )
    }
    figures.stats = {
        "table3": table3,
        "collections": {config: lengths.summary() for config, lengths in figures.lengths.items()},
        "positives_per_query": {name: found.histogram(POSITIVES_EDGES) for name, found in figures.positives.items()},
    }
    if english:
        figures.stats["english"] = english
    return figures


def _counter(tables: Survey, sql: str, *values: str) -> LengthCounter:
    counter = LengthCounter()
    found = tables.con.execute(sql, list(values)).fetchnumpy()
    lengths, times = found.values()
    if len(lengths):
        counter.add(lengths, times)
    return counter


def _column(tables: Survey, prefix: str, split: str) -> dict[str, float | int | None]:
    ((queries, query_chars),) = tables.rows(
        "SELECT count(*), avg(chars) FROM texts WHERE config = ? AND split = ?", f"{prefix}queries", split
    )
    ((passages, chars),) = tables.rows(
        """
        SELECT count(*), avg(chars) FROM judged
        LEFT JOIN (SELECT id, any_value(chars) AS chars FROM texts
                   WHERE config = ? AND id IN (SELECT docid FROM judged WHERE config = ? AND split = ?) GROUP BY id)
        ON id = docid
        WHERE config = ? AND split = ? AND score > 0
        """,
        f"{prefix}corpus",
        *[f"{prefix}qrels", split] * 2,
    )
    return {
        "queries": queries,
        "positive_passages": passages or None,  # None: the split carries no labels
        "passages_per_query": round_stat(passages / queries) if passages and queries else None,
        "chars_per_query": round_stat(query_chars),
        "chars_per_passage": round_stat(chars) if passages else None,
    }


def draw(figures: Figures) -> dict[str, bytes]:
    """The histograms as PNG files: name to bytes."""
    images = {}
    if figures.lengths:
        images["passage-length.png"] = draw_lengths(figures.lengths)
    if figures.positives:
        images["positives-per-query.png"] = draw_positives(figures.positives)
    return images


def side_by_side(stats: dict[str, Any]) -> str:
    """Table 3, ours and the paper's, and the collections and histograms, as aligned text."""
    paper = published()
    lines = [f"{'Table 3':<24}" + "".join(f"{column:>22}" for column in stats["table3"])]
    lines.append(f"{'':<24}" + f"{'ours':>11}{'paper':>11}" * len(stats["table3"]))
    for key, title in TABLE3_ROWS:
        cells = (f"{_cell(mine[key]):>11}{_cell(paper['table3'][name][key]):>11}" for name, mine in _items(stats))
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
