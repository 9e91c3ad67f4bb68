"""What every command reads of a release's set: its queries, and which passages answer them."""

from __future__ import annotations

import argparse

from builders.store.layout import SETS, Set
from builders.store.reader import Release


def read_judgments(release: Release, configs: Set, split: str) -> dict[str, dict[str, int]]:
    """Every query of a split and its judged passages with their scores; a query without any has an empty dict."""
    every: dict[str, dict[str, int]] = {}
    judged: dict[str, list[str]] = {}  # the query that qrels name -> itself, or its translations
    if (configs.queries, split) in release.splits():
        for row in release.table(configs.queries, split).to_pylist():
            every[row["_id"]] = {}
            judged.setdefault(row["zh_id"] if configs.translated else row["_id"], []).append(row["_id"])
    elif configs is not SETS["main"]:
        release.shards(configs.queries, split)  # raises: the set is not there
    for batch in release.batches(configs.qrels, split):
        rows = zip(*(batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score")), strict=True)
        for query, corpus, score in rows:
            # A query that nobody translated is none of the cross-lingual set's.
            for target in judged.get(query, []) if configs.translated else [query]:
                every.setdefault(target, {})[corpus] = score
    return every


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """(id, text) of every query of a split, in the release's order."""
    found: list[tuple[str, str]] = []
    for batch in release.batches(config, split, ["_id", "text"]):
        found += zip(batch.column("_id").to_pylist(), batch.column("text").to_pylist(), strict=True)
    return found


def add_set(parser: argparse.ArgumentParser) -> None:
    """``--set``, for every command that reads queries, passages or judgments of a release."""
    parser.add_argument("--set", choices=list(SETS), default="main", help="whose queries and passages (default: main)")
