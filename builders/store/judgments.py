"""Judgments of a split in memory, files of hard negatives, and the label overlap of test and training queries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.tables import aligned
from builders.core.typed import json_lines
from builders.store.layout import QRELS, SETS
from builders.store.reader import Release

Judged = Mapping[str, Mapping[str, int]]  # by query id, by passage id: the score; above 0 the passage is a positive


def read_judged(release: Release, config: str, split: str) -> dict[str, dict[str, int]]:
    """The judgments of one split of a config of qrels, in its order; none where the release has no such split."""
    found: dict[str, dict[str, int]] = {}
    if (config, split) in release.splits():
        for batch in release.batches(config, split):
            columns = (batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score"))
            for query, passage, score in zip(*columns, strict=True):
                found.setdefault(query, {})[passage] = score
    return found


def texts_of_judged(release: Release, judged: Judged) -> dict[str, str]:
    """The texts of all judged passages, by id; :class:`InputError` where the corpus lacks one."""
    wanted = {passage for scores in judged.values() for passage in scores}
    found = release.texts("corpus", "corpus", wanted)
    if missing := wanted - found.keys():
        raise InputError(f"has no passage {min(missing)!r}, which was judged", path=release.path)
    return found


def joined_passage(docid: str, texts: Mapping[str, str]) -> dict[str, str]:
    """A passage as joined rows have it; titles are empty, because the benchmark drops them."""
    return {"docid": docid, "title": "", "text": texts[docid]}


def joined_row(query_id: str, query: str, scores: Mapping[str, int], texts: Mapping[str, str]) -> dict[str, Any]:
    """A query with its judged passages as a joined row; ``texts``: of the passages, by id."""
    own = [(joined_passage(each, texts), score > 0) for each, score in scores.items()]
    positive, negative = ([passage for passage, right in own if right is wanted] for wanted in (True, False))
    return {"query_id": query_id, "query": query, "positive_passages": positive, "negative_passages": negative}


def qrels_table(judged: Judged) -> pa.Table:
    """Judgments as the rows of a config of qrels."""
    rows = [(query, passage, score) for query, scores in judged.items() for passage, score in scores.items()]
    return pa.table([pa.array([row[n] for row in rows], kind) for n, kind in enumerate(QRELS.types)], schema=QRELS)


class _Negatives(msgspec.Struct):
    query: str = msgspec.field(name="query-id")
    negatives: list[str] = msgspec.field(name="negative-ids")


def read_negative_ids(path: Path) -> list[tuple[str, list[str], int]]:
    """(query id, ids of its negatives, number of the line) of every line that `baselines mine` has written.

    Raises :class:`InputError` naming the line that is none of these.
    """
    rows = json_lines(path, _Negatives, 'expected {"query-id": ID, "negative-ids": [ID, ...]}')
    found = [(row.query, row.negatives, number) for number, row in rows]
    if not found:
        raise InputError("is empty; expected hard negatives, JSON lines as `baselines mine` writes them", path=path)
    return found


def label_overlap(train: pa.Table, test: pa.Table | None) -> dict[str, Any]:
    """Test queries that have a positive passage of a training query among their own: number and share.

    After Zhan et al. (arXiv 2204.11447): a model has seen the answers of such queries. One shared passage counts; the
    published script (compute_label_overlap.py) counts from two on.
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
    """Label overlap of every labelled test split with its set's training split, by ``CONFIG/SPLIT`` of the judgments.

    ``read`` gives the rows of a config's split; ``splits``: those that there are.
    """
    found: dict[str, dict[str, Any]] = {}
    for config in dict.fromkeys(each.qrels for each in SETS.values()):
        tests = [split for split in ("dev", "test") if {(config, split), (config, "train")} <= set(splits)]
        train = read(config, "train") if tests else None
        for split in tests:
            test = read(config, split)
            found[f"{config}/{split}"] = {"test_queries": len(labelled(test)), **label_overlap(train, test)}
    return found


def drawn_overlaps(splits: Collection[tuple[str, str]], read: Callable[[str, str], pa.Table]) -> list[dict[str, Any]]:
    """Label overlap of every set for interpolation and extrapolation with its test queries: a row of figures each.

    Arguments as of :func:`overlaps_with_train`.
    """
    tests = [split for split in ("dev", "test") if ("qrels", split) in splits]
    found = []
    for config, split in splits:
        if config.startswith("restrain-"):
            found += [(config, "qrels", test) for test in tests]
        elif config.startswith("resttest-") and split != "train" and (config, "train") in splits:
            found.append((config, config, split))
    rows = []
    for config, tested, split in found:
        train, test = read(config, "train"), read(tested, split)
        counts = {"train_queries": len(labelled(train)), "test_queries": len(labelled(test))}
        rows.append({"config": config, "test": split, **counts, **label_overlap(train, test)})
    return rows


def labelled(qrels: pa.Table) -> list[str]:
    """The queries with a positive passage, sorted: the lower row is the lower id."""
    return sorted(pc.unique(qrels.filter(pc.greater(qrels["score"], 0))["query-id"]).to_pylist())


def overlap_table(rows: list[dict[str, Any]]) -> str:
    """The figures as an aligned table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name.replace("_", " ") for name in names]]
    for row in rows:
        cells.append(["-" if row.get(name) is None else _cell(name, row[name]) for name in names])
    return "\n".join(aligned(cells, left=2, gap="  "))


def _cell(name: str, value: Any) -> str:
    if name.endswith("share"):
        return f"{100 * value:.2f}%"
    return f"{value:,}" if isinstance(value, int) else str(value)
