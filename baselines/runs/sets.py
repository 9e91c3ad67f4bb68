"""What every command reads of a release's set: its queries, and which passages answer them."""

from __future__ import annotations

import argparse

from builders.core.errors import InputError
from builders.store.layout import BEFORE, JOINED, REMOVED, SETS, TOLD_APART, Set, schema_of
from builders.store.reader import Release

QUERIES = (*TOLD_APART, REMOVED)  # configs that hold some of main's questions
QRELS = (BEFORE,)  # configs that hold other judgments of main's questions


def read_judgments(
    release: Release, configs: Set, split: str, queries: str = "", qrels: str = ""
) -> dict[str, dict[str, int]]:
    """Every query of a split and its judged passages with their scores; a query without any has an empty dict.

    Args:
        release, configs, split: of which set.
        queries: one of ``QUERIES`` in the place of the set's queries. Rows with their passages are judged by those: the
            removed training questions are in no qrels (Section 2.3).
        qrels: one of ``QRELS`` in the place of the set's judgments.

    Raises:
        InputError: the release lacks one of these configs, or its split; an id or a judged pair comes twice.
    """
    if queries and schema_of(queries) == JOINED:
        columns = ["query_id", "positive_passages.list.element.docid"]
        rows = [row for batch in release.batches(queries, split, columns) for row in batch.to_pylist()]
        _expect_once(release, queries, split, [row["query_id"] for row in rows])
        return {row["query_id"]: {each["docid"]: 1 for each in row["positive_passages"]} for row in rows}
    every = _judgments(release, configs, split, qrels or configs.qrels)
    if not queries:
        return every
    return {query: every.get(query, {}) for query, _ in read_queries(release, split, queries)}


def _judgments(release: Release, configs: Set, split: str, qrels: str) -> dict[str, dict[str, int]]:
    every: dict[str, dict[str, int]] = {}
    judged: dict[str, list[str]] = {}  # the query that qrels name -> itself, or its translations
    if (configs.queries, split) in release.splits():
        rows = release.table(configs.queries, split).to_pylist()
        _expect_once(release, configs.queries, split, [row["_id"] for row in rows])
        for row in rows:
            every[row["_id"]] = {}
            judged.setdefault(row["zh_id"] if configs.translated else row["_id"], []).append(row["_id"])
    elif configs is not SETS["main"]:
        release.shards(configs.queries, split)  # raises: the set is not there
    names = ("query-id", "corpus-id", "score")
    batches = release.batches(qrels, split)
    pairs = (pair for batch in batches for pair in zip(*(batch[name].to_pylist() for name in names), strict=True))
    for row, (query, corpus, score) in enumerate(pairs):
        # A query that nobody translated is none of the cross-lingual set's.
        for target in judged.get(query, []) if configs.translated else [query]:
            scores = every.setdefault(target, {})
            if corpus in scores:
                said = judged_again(query, corpus, scores[corpus], score)
                raise InputError(said, path=release.place(qrels, split, row))
            scores[corpus] = score
    return every


def judged_again(query: str, corpus: str, before: int, score: int) -> str:
    """The error for a pair of a query and a passage that is judged twice."""
    scores = f"with {before}, then with {score}" if before != score else f"with {score} each time"
    return f"query {query!r} and passage {corpus!r} are judged again ({scores}); expected one judgment of each pair"


def _expect_once(release: Release, config: str, split: str, ids: list[str]) -> None:
    seen = set[str]()
    for row, each in enumerate(ids):
        if each in seen:
            raise InputError(f"the id {each!r} comes again; expected it once", path=release.place(config, split, row))
        seen.add(each)


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """(id, text) of every query of a split, in the release's order; :class:`InputError` for an id that comes twice."""
    found: list[tuple[str, str]] = []
    names = ["query_id", "query"] if schema_of(config) == JOINED else ["_id", "text"]
    for batch in release.batches(config, split, names):
        found += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    _expect_once(release, config, split, [query for query, _ in found])
    return found


def add_set(parser: argparse.ArgumentParser) -> None:
    """``--set``, for every command that reads queries, passages or judgments of a release."""
    parser.add_argument("--set", choices=list(SETS), default="main", help="whose queries and passages (default: main)")


def add_queries(parser: argparse.ArgumentParser) -> None:
    """``--queries``, for commands that may read some of main's questions alone (Section 2.3)."""
    parser.add_argument(
        "--queries",
        choices=QUERIES,
        metavar="CONFIG",
        help=f"the questions of this config alone: {', '.join(QUERIES)} (default: all of the set's)",
    )


def expect_main(args: argparse.Namespace, option: str, value: str | None) -> str:
    """The option's value, empty where it is not given; :class:`InputError` where another set than main is asked for."""
    if value and args.set != "main":
        raise InputError(f"{option} {value} is of the set main, not of --set {args.set}")
    return value or ""
