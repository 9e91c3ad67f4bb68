"""The Parquet files of a release, each a task of its own: its rows are decided (see :mod:`.select`), and fetched here.

A finished file lies in a folder of its own with its entry for the manifest; the folder is there when both are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.core.folders import task_folder
from builders.release.label_files import Places, rows_at
from builders.release.select import Selection, SplitSelection
from builders.store import layout
from builders.store.layout import CORPUS, JOINED, PASSAGES, QRELS, QUERIES, schema_of
from builders.store.writer import ParquetFile

_FILE, _ENTRY = "rows.parquet", "entry.json"
_QUERIES_AT_A_TIME = 8_192  # of joined rows
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file to be written: the places of its rows' queries and passages.

    corpus: ``passages``; queries: ``queries``; qrels: a query and a passage a row; joined rows: the query of row i has
    ``passages[ends[i - 1] : ends[i]]``.
    """

    config: str
    split: str
    number: int
    queries: Places
    passages: Places
    ends: Places

    def folder(self, work: Path) -> Path:
        return work / "files" / f"{self.config}-{self.split}-{self.number:05d}"


def configs_of(split: str, rows: SplitSelection) -> list[str]:
    """The configs of a split: its joined rows, its queries, and its qrels where it carries labels."""
    return [split, "queries", "qrels"] if rows.passages.size else [split, "queries"]


def files_of(selection: Selection) -> Iterator[NewFile]:
    """All files of the release."""
    yield from _shards("corpus", "corpus", _NONE, selection.corpus, _NONE)
    for split, rows in selection.splits.items():
        for config in configs_of(split, rows):
            if config == "queries":
                yield from _shards(config, split, rows.queries, _NONE, _NONE)
            elif config == "qrels":
                yield from _shards(config, split, rows.queries[rows.judged], rows.passages, _NONE)
            else:
                yield from _shards(config, split, rows.queries, rows.passages, _ends(rows))


def _ends(rows: SplitSelection) -> Places:
    """Where the judgments of each query end."""
    return np.searchsorted(rows.judged, np.arange(rows.queries.size), side="right")


def _shards(config: str, split: str, queries: Places, passages: Places, ends: Places) -> Iterator[NewFile]:
    """One split's rows as files of as many rows as the release's layout says."""
    count = queries.size or passages.size
    size = layout.rows_per_shard(schema_of(config))
    for number, start in enumerate(range(0, count, size)):
        rows = slice(start, start + size)
        if not ends.size:
            yield NewFile(config, split, number, queries[rows], passages[rows], ends)
            continue
        first = ends[start - 1] if start else 0
        own = ends[rows]
        yield NewFile(config, split, number, queries[rows], passages[first : own[-1]], own - first)


def write_file(file: NewFile, work: Path) -> tuple[Path, dict[str, Any]]:
    """Write one file, unless a killed build has left it; returns where it is and its entry in the manifest.

    The same rows give the same bytes.
    """
    folder = file.folder(work)
    if not folder.exists():
        with task_folder(folder) as half:
            out = ParquetFile(half / _FILE, schema_of(file.config))
            for table in _tables(file, work):
                out.write(table)
            (half / _ENTRY).write_text(json.dumps(out.close()), encoding="utf-8")
    return folder / _FILE, json.loads((folder / _ENTRY).read_text(encoding="utf-8"))


def _tables(file: NewFile, work: Path) -> Iterator[pa.Table]:
    if file.config == "corpus":
        for rows in _slices(file.passages.size, layout.ROWS_PER_GROUP):
            yield _passages(file.passages[rows], work).rename_columns(CORPUS.names)  # docid is _id there
    elif file.config == "queries":
        for rows in _slices(file.queries.size, layout.ROWS_PER_GROUP):
            yield _queries(file.queries[rows], work)
    elif file.config == "qrels":
        for rows in _slices(file.queries.size, layout.ROWS_PER_GROUP):
            queries = rows_at(file.queries[rows], work, "questions", ["query_id"])["query_id"]
            passages = rows_at(file.passages[rows], work, "passages", ["docid"])["docid"]
            yield _table(QRELS, queries, passages, [1] * len(passages))
    else:
        for rows in _slices(file.queries.size, _QUERIES_AT_A_TIME):
            yield _joined(file, rows, work)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _table(schema: pa.Schema, *columns: Any) -> pa.Table:
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _queries(places: Places, work: Path) -> pa.Table:
    questions = rows_at(places, work, "questions", ["query_id", "text"])
    return _table(QUERIES, questions["query_id"], questions["text"])


def _passages(places: Places, work: Path) -> pa.Table:
    passages = rows_at(places, work, "passages", ["docid", "text"])
    schema = pa.schema(list(PASSAGES.value_type))
    return _table(schema, passages["docid"], [""] * len(passages), passages["text"])


def _joined(file: NewFile, rows: slice, work: Path) -> pa.Table:
    """Queries with their positive passages; a release from raw rows has no negative ones."""
    queries = _queries(file.queries[rows], work)
    starts = np.concatenate([[0], file.ends])[rows.start : rows.stop + 1]
    passages = _passages(file.passages[starts[0] : starts[-1]], work).to_struct_array().combine_chunks()
    positive = pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), passages, type=PASSAGES)
    negative = pa.array([[]] * len(queries), PASSAGES)
    return _table(JOINED, queries["_id"], queries["text"], positive, negative)
