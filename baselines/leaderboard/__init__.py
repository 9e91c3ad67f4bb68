"""Published figures with their sources, own runs among them.

baselines/leaderboard.toml has a line for every published figure: where it is printed (document or repository, file,
commit, date), what was searched, the measure, and whether the model declares training on data of DuReader. What was
searched on the whole collection and on the sample of 100,001 passages (C-MTEB's DuRetrieval) never stands in one table.

Runs that are named are measured on the release's split and put among those of the same collection, with 95 % intervals;
on any other collection they have a table of their own. Percent.

examples:
  python -m baselines leaderboard --searched whole
  python -m baselines leaderboard --searched sample --top 10 --format markdown
  python -m baselines leaderboard --release build/sample --split dev build/runs/bm25.dev.run.gz
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from builders.core.command import whole_number
from builders.core.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="own runs (TREC or official predictions)")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release that the runs are of")
    parser.add_argument("--split", default="dev", help="its split (default: dev)")
    parser.add_argument(
        "--searched", choices=["whole", "sample"], help="the figures on this collection alone (default: all)"
    )
    parser.add_argument("--top", type=whole_number(1), metavar="N", help="the N best of each table, and all own runs")
    parser.add_argument(
        "--format", choices=["text", "json", "markdown"], default="text", help="how the tables are printed"
    )


def run(args: argparse.Namespace) -> None:
    from baselines.leaderboard.board import OTHER, board
    from baselines.leaderboard.printed import as_markdown, as_text
    from baselines.leaderboard.published import read_leaderboard

    if bool(args.runs) != bool(args.release):
        raise InputError("expected runs with the release that they are of: leaderboard --release DIR RUN...")
    published = read_leaderboard()
    tables = board(published, _own(args) if args.runs else ())
    if args.searched:
        tables = [table for table in tables if table["searched"] in (args.searched, OTHER)]
    tables = [_best(table, args.top) for table in tables]
    sources = _sources(published, tables)
    if args.format == "json":
        print(json.dumps({"unit": "percent", "tables": tables, "sources": sources}, ensure_ascii=False, indent=1))
    else:
        print((as_markdown if args.format == "markdown" else as_text)(tables, sources))


def _own(args: argparse.Namespace) -> list[Any]:
    from baselines.leaderboard.board import own_of
    from baselines.runs.evaluate import evaluate
    from baselines.runs.qrels import release_qrels
    from builders.store.reader import open_release
    from builders.store.runs import read_run

    release = open_release(args.release)
    qrels, passages = release_qrels(release, args.split, "main"), release.rows("corpus", "corpus")
    return [
        own_of(str(path), str(release.path), passages, args.split, evaluate(read_run(path), qrels))
        for path in args.runs
    ]


def _best(table: dict[str, Any], top: int | None) -> dict[str, Any]:
    """The best ``top`` models of a table, and own runs wherever they stand; ``of``: how many there are."""
    models = table["models"]
    kept = [each for place, each in enumerate(models) if top is None or place < top or "intervals" in each]
    return table | {"models": kept, "of": len(models)}


def _sources(published: Any, tables: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """The sources of what is shown, by the names that the tables give them."""
    named = {model["source"] for table in tables for model in table["models"]}
    return {
        name: {"title": source.title, "place": source.place, "date": source.date, "note": source.note}
        for name, source in published.sources.items()
        if name in named
    }
