"""The evaluation sets of a release: the benchmark itself, and what stands beside it (Sections 2.4 and 2.5)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from builders.store.reader import Release


@dataclass(frozen=True)
class EvaluationSet:
    """The configs that one set's passages, queries and judgments lie in."""

    corpus: str
    queries: str
    qrels: str

    def judgments(self, release: Release, split: str) -> dict[str, dict[str, int]]:
        """Every query of a split and its judged passages with their scores; a query without any has an empty dict."""
        every: dict[str, dict[str, int]] = {}
        chinese: dict[str, list[str]] = {}  # Chinese query -> the queries that have its judgments
        if (self.queries, split) in release.splits():
            for row in release.table(self.queries, split).to_pylist():
                every[row["_id"]] = {}
                chinese.setdefault(row.get("zh_id", row["_id"]), []).append(row["_id"])
        elif self.queries != "queries":
            release.shards(self.queries, split)  # raises: the set is not there
        for batch in release.batches(self.qrels, split):
            rows = zip(*(batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score")), strict=True)
            for query, corpus, score in rows:
                # A Chinese query that nobody translated is none of the cross-lingual set's.
                targets = chinese.get(query, []) if self.queries == "crosslingual-queries" else [query]
                for target in targets:
                    every.setdefault(target, {})[corpus] = score
        return every


SETS = {
    "main": EvaluationSet("corpus", "queries", "qrels"),
    "cmedqa": EvaluationSet("cmedqa-corpus", "cmedqa-queries", "cmedqa-qrels"),
    "ccovid": EvaluationSet("ccovid-corpus", "ccovid-queries", "ccovid-qrels"),
    "crosslingual": EvaluationSet("corpus", "crosslingual-queries", "qrels"),  # English queries, Chinese judgments
}


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """(id, text) of every query of a split, in the release's order."""
    found: list[tuple[str, str]] = []
    for batch in release.batches(config, split, ["_id", "text"]):
        found += zip(batch.column("_id").to_pylist(), batch.column("text").to_pylist(), strict=True)
    return found


def add_set(parser: argparse.ArgumentParser) -> None:
    """``--set``, for every command that reads queries, passages or judgments of a release."""
    parser.add_argument("--set", choices=list(SETS), default="main", help="whose queries and passages (default: main)")
