"""Write the Parquet files of a release from the selected rows (see :mod:`.select`). Each file is one task.

A task's result is a folder with the file and its manifest entry. The folder gets its name when both files are complete.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.core.folders import task_folder
from builders.release.label import Places, rows_at
from builders.release.select import Selection, SplitSelection
from builders.store import layout
from builders.store.draft import ParquetFile
from builders.store.layout import CORPUS, JOINED, PASSAGES, QRELS, QUERIES, schema_of

_FILE, _ENTRY = "rows.parquet", "entry.json"
_QUERIES_AT_A_TIME = 8_192  # joined rows per batch
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file to write, with the places of its queries and passages.

    Files of ``corpus`` have only passages. Files of ``queries`` have only queries. Row i of ``qrels`` has
    ``queries[i]`` and ``passages[i]``. Joined row i has ``queries[i]`` and ``passages[ends[i - 1] : ends[i]]``.
    """

    config: str
    split: str
    number: int
    queries: Places
    passages: Places
    ends: Places


def configs_of(split: str, rows: SplitSelection) -> list[str]:
    """Return the configs of a split: joined rows, queries, and, if the split has labels, qrels."""
    return [split, "queries", "qrels"] if rows.passages.size else [split, "queries"]


def files_of(selection: Selection) -> Iterator[NewFile]:
    """Yield all files of the release."""
    yield from _shards("corpus", "corpus", _NONE, selection.corpus)
    for split, rows in selection.splits.items():
        ends = np.searchsorted(rows.judged, np.arange(rows.queries.size), side="right")
        places = {
            split: (rows.queries, rows.passages, ends),
            "queries": (rows.queries,),
            "qrels": (rows.queries[rows.judged], rows.passages),
        }
        for config in configs_of(split, rows):
            yield from _shards(config, split, *places[config])


def _shards(
    config: str, split: str, queries: Places, passages: Places = _NONE, ends: Places = _NONE
) -> Iterator[NewFile]:
    """Divide the rows of one split into files. The layout sets the number of rows per file."""
    size = layout.rows_per_shard(schema_of(config))
    for number, start in enumerate(range(0, queries.size or passages.size, size)):
        rows = slice(start, start + size)
        if ends.size:
            first, own = (ends[start - 1] if start else 0), ends[rows]
            yield NewFile(config, split, number, queries[rows], passages[first : own[-1]], own - first)
        else:
            yield NewFile(config, split, number, queries[rows], passages[rows], ends)


def write_file(file: NewFile, work: Path) -> tuple[Path, dict[str, Any]]:
    """Write one file, unless a killed build finished it. Return its path and its manifest entry."""
    folder = work / "files" / f"{file.config}-{file.split}-{file.number:05d}"
    if not folder.exists():
        with task_folder(folder) as half:
            out = ParquetFile(half / _FILE, schema_of(file.config))
            for table in _tables(file, work):
                out.write(table)
            (half / _ENTRY).write_text(json.dumps(out.close()), encoding="utf-8")
    return folder / _FILE, json.loads((folder / _ENTRY).read_text(encoding="utf-8"))


def _tables(file: NewFile, work: Path) -> Iterator[pa.Table]:
    count = file.queries.size or file.passages.size
    size = _QUERIES_AT_A_TIME if file.ends.size else layout.ROWS_PER_GROUP
    for start in range(0, count, size):
        rows = slice(start, min(start + size, count))
        if file.config == "corpus":
            yield _passages(file.passages[rows], work).rename_columns(CORPUS.names)  # docid becomes _id
        elif file.config == "queries":
            yield _queries(file.queries[rows], work)
        elif file.config == "qrels":
            queries = rows_at(file.queries[rows], work, "questions", ["query_id"])["query_id"]
            passages = rows_at(file.passages[rows], work, "passages", ["docid"])["docid"]
            yield _table(QRELS, queries, passages, [1] * len(passages))
        else:
            yield _joined(file, rows, work)


def _table(schema: pa.Schema, *columns: Any) -> pa.Table:
    return pa.table(dict(zip(schema.names, columns, strict=True)), schema=schema)


def _queries(places: Places, work: Path) -> pa.Table:
    questions = rows_at(places, work, "questions", ["query_id", "text"])
    return _table(QUERIES, questions["query_id"], questions["text"])


def _passages(places: Places, work: Path) -> pa.Table:
    passages = rows_at(places, work, "passages", ["docid", "text"])
    return _table(pa.schema(list(PASSAGES.value_type)), passages["docid"], [""] * len(passages), passages["text"])


def _joined(file: NewFile, rows: slice, work: Path) -> pa.Table:
    """Return queries with their positive passages. A release from raw rows has no negative passages."""
    queries = _queries(file.queries[rows], work)
    starts = np.concatenate([[0], file.ends])[rows.start : rows.stop + 1]
    passages = _passages(file.passages[starts[0] : starts[-1]], work).to_struct_array().combine_chunks()
    positive = pa.ListArray.from_arrays(pa.array(starts - starts[0], pa.int32()), passages, type=PASSAGES)
    return _table(JOINED, queries["_id"], queries["text"], positive, pa.array([[]] * len(queries), PASSAGES))
