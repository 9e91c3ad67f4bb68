"""Judgments of a split, files of hard negatives, and the label overlap of test and training queries."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.results import Table
from builders.core.tables import aligned
from builders.core.typed import json_lines
from builders.store.layout import QRELS, SETS
from builders.store.reader import Release

Judged = Mapping[str, Mapping[str, int]]  # query id -> passage id -> score; a score above 0 means positive


def read_judged(release: Release, config: str, split: str) -> dict[str, dict[str, int]]:
    """Return a split's judgments from a qrels config, in file order. Empty if the release lacks the split."""
    judged: dict[str, dict[str, int]] = {}
    if (config, split) in release.splits():
        for batch in release.batches(config, split):
            columns = (batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score"))
            for query, passage, score in zip(*columns, strict=True):
                judged.setdefault(query, {})[passage] = score
    return judged


def texts_of_judged(release: Release, judged: Judged) -> dict[str, str]:
    """Return the texts of all judged passages by id. Raise :class:`InputError` if the corpus lacks a passage."""
    wanted = {passage for scores in judged.values() for passage in scores}
    texts = release.texts("corpus", "corpus", wanted)
    if missing := wanted - texts.keys():
        raise InputError(f"the corpus lacks passage {min(missing)!r}, which has a judgment", path=release.path)
    return texts


def joined_row(query_id: str, query: str, scores: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return a joined row: a query with its judged passages. ``texts`` maps passage ids to texts."""
    passages = [{"docid": docid, "title": "", "text": texts[docid]} for docid in scores]  # the benchmark drops titles
    return {
        "query_id": query_id,
        "query": query,
        "positive_passages": [passage for passage in passages if scores[passage["docid"]] > 0],
        "negative_passages": [passage for passage in passages if scores[passage["docid"]] <= 0],
    }


def qrels_table(judged: Judged) -> pa.Table:
    """Return judgments as rows of a qrels config."""
    rows = [(query, passage, score) for query, scores in judged.items() for passage, score in scores.items()]
    return pa.table([pa.array([row[n] for row in rows], kind) for n, kind in enumerate(QRELS.types)], schema=QRELS)


class _Negatives(msgspec.Struct):
    query: str = msgspec.field(name="query-id")
    negatives: list[str] = msgspec.field(name="negative-ids")


def read_negative_ids(path: Path) -> list[tuple[str, list[str], int]]:
    """Read hard negatives from a file of `baselines mine`.

    Returns (query id, ids of the query's negatives, line number) for every line. Raises :class:`InputError` with the
    number of the first invalid line.
    """
    remedy = 'expected {"query-id": ID, "negative-ids": [ID, ...]}'
    negatives = [(row.query, row.negatives, number) for number, row in json_lines(path, _Negatives, remedy)]
    if not negatives:
        raise InputError("is empty; expected JSON lines with hard negatives from `baselines mine`", path=path)
    return negatives


def label_overlap(train: pa.Table, test: pa.Table | None) -> dict[str, Any]:
    """Return the number and share of test queries that share a positive passage with a training query.

    A model has already seen the answers of such queries (Zhan et al., arXiv 2204.11447). One shared passage suffices.
    The published script (compute_label_overlap.py) requires two shared passages.
    """
    if test is None:
        return {"overlapping": None, "overlapping_share": None}
    positives = test.filter(pc.greater(test["score"], 0))
    seen = pc.unique(train.filter(pc.greater(train["score"], 0))["corpus-id"])
    shared = pc.count_distinct(positives.filter(pc.is_in(positives["corpus-id"], seen))["query-id"]).as_py()
    total = pc.count_distinct(positives["query-id"]).as_py()
    return {"overlapping": shared, "overlapping_share": round(shared / total, 6) if total else None}


def overlaps_with_train(
    splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]
) -> dict[str, dict[str, Any]]:
    """Return the label overlap of every dev or test split with its training split, by ``CONFIG/SPLIT``.

    ``splits`` are the (config, split) pairs of the release, and ``read`` returns the rows of a pair.
    """
    overlaps: dict[str, dict[str, Any]] = {}
    for config in dict.fromkeys(part.qrels for part in SETS.values()):
        tests = [split for split in ("dev", "test") if {(config, split), (config, "train")} <= set(splits)]
        train = read(config, "train") if tests else None
        for split in tests:
            test = read(config, split)
            overlaps[f"{config}/{split}"] = {"test_queries": len(labelled(test)), **label_overlap(train, test)}
    return overlaps


def drawn_overlaps(splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]) -> list[dict[str, Any]]:
    """Return the label overlap of each drawn training set with each of its test splits, as rows.

    The arguments are those of :func:`overlaps_with_train`.
    """
    tests = [split for split in ("dev", "test") if ("qrels", split) in splits]
    pairs = []
    for config, split in splits:
        if config.startswith("restrain-"):
            pairs += [(config, "qrels", test) for test in tests]
        elif config.startswith("resttest-") and split != "train" and (config, "train") in splits:
            pairs.append((config, config, split))
    rows = []
    for config, tested, split in pairs:
        train, test = read(config, "train"), read(tested, split)
        counts = {"train_queries": len(labelled(train)), "test_queries": len(labelled(test))}
        rows.append({"config": config, "test": split, **counts, **label_overlap(train, test)})
    return rows


def labelled(qrels: pa.Table) -> list[str]:
    """Return the ids of the queries that have a positive passage, sorted."""
    return sorted(pc.unique(qrels.filter(pc.greater(qrels["score"], 0))["query-id"]).to_pylist())


def overlap_columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names of the values that any of the rows has, in order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def overlap_report_table(rows: list[dict[str, Any]]) -> Table:
    """Return the rows of :func:`drawn_overlaps` as a table of a report."""
    names = overlap_columns(rows)
    shares = [name for name in names if name.endswith("share")]
    cells = [[row.get(name) for name in names] for row in rows]
    return Table(names, cells, percent_columns=shares, text_columns=2)


def overlap_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows of :func:`drawn_overlaps` as an aligned table."""
    names = overlap_columns(rows)
    cells = [[_cell(name, row.get(name)) for name in names] for row in rows]
    return "\n".join(aligned([[name.replace("_", " ") for name in names], *cells], left=2, gap="  "))


def _cell(name: str, value: Any) -> str:
    if name.endswith("share") and value is not None:
        return f"{100 * value:.2f}%"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
