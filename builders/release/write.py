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
from builders.release.answer_records import answers_table, merged
from builders.release.label import Places, rows_at
from builders.release.select import Selection, SplitSelection
from builders.store import layout
from builders.store.draft import ParquetFile
from builders.store.layout import CORPUS, JOINED, PASSAGES, QRELS, QUERIES, schema_of
from builders.text.answer_spans import AT_ONCE
from builders.text.span_options import Options

_FILE, _ENTRY = "rows.parquet", "entry.json"
_QUERIES_AT_A_TIME = 8_192  # joined rows per batch
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class NewFile:
    """A Parquet file to write, with the places of its queries and passages.

    Files of ``corpus`` have only passages. Files of ``queries`` have only queries. Row i of ``qrels`` has
    ``queries[i]`` and ``passages[i]``. Joined row i has ``queries[i]`` and ``passages[ends[i - 1] : ends[i]]``. Row i
    of ``answers`` also has the raw rows ``rows[row_ends[i - 1] : row_ends[i]]``.
    """

    config: str
    split: str
    number: int
    queries: Places
    passages: Places
    ends: Places
    rows: Places
    row_ends: Places


def configs_of(split: str, rows: SplitSelection) -> list[str]:
    """Return the configs of a split: joined rows, queries, answers, and, if the split has labels, qrels."""
    return [split, "queries", "answers", *["qrels"] * bool(rows.passages.size)]


def files_of(selection: Selection) -> Iterator[NewFile]:
    """Yield all files of the release."""
    yield from _shards("corpus", "corpus", _NONE, selection.corpus)
    for split, rows in selection.splits.items():
        ends, row_ends = (
            np.searchsorted(of, np.arange(rows.queries.size), "right") for of in (rows.judged, rows.asked)
        )
        places = {
            split: (rows.queries, rows.passages, ends),
            "answers": (rows.queries, rows.passages, ends, rows.rows, row_ends),
            "queries": (rows.queries,),
            "qrels": (rows.queries[rows.judged], rows.passages),
        }
        for config in configs_of(split, rows):
            yield from _shards(config, split, *places[config])


def _shards(
    config: str,
    split: str,
    queries: Places,
    passages: Places = _NONE,
    ends: Places = _NONE,
    rows: Places = _NONE,
    row_ends: Places = _NONE,
) -> Iterator[NewFile]:
    """Divide the rows of one split into files. The layout sets the number of rows per file."""
    size = layout.rows_per_shard(schema_of(config))
    for number, start in enumerate(range(0, queries.size or passages.size, size)):
        own = slice(start, start + size)
        of_passages, of_rows = _part(passages, ends, own), _part(rows, row_ends, own)
        yield NewFile(config, split, number, queries[own], *of_passages, *of_rows)


def _part(values: Places, ends: Places, own: slice) -> tuple[Places, Places]:
    """Return the values of some rows, and their ends. Without ends, a row has one value."""
    if not ends.size:
        return values[own], ends
    first = ends[own.start - 1] if own.start else 0
    return values[first : ends[own][-1]], ends[own] - first


def write_file(file: NewFile, work: Path, options: Options) -> tuple[Path, dict[str, Any]]:
    """Write one file, unless an earlier, killed build finished it. Return its path and its manifest entry."""
    folder = work / "files" / f"{file.config}-{file.split}-{file.number:05d}"
    if not folder.exists():
        with task_folder(folder) as half:
            out = ParquetFile(half / _FILE, schema_of(file.config))
            for table in _tables(file, work, options):
                out.write(table)
            (half / _ENTRY).write_text(json.dumps(out.close()), encoding="utf-8")
    return folder / _FILE, json.loads((folder / _ENTRY).read_text(encoding="utf-8"))


def _tables(file: NewFile, work: Path, options: Options) -> Iterator[pa.Table]:
    count = file.queries.size or file.passages.size
    size = AT_ONCE if file.config == "answers" else _QUERIES_AT_A_TIME if file.ends.size else layout.ROWS_PER_GROUP
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
        elif file.config == "answers":
            yield _answers(file, rows, work, options)
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
    own, ends = _part(file.passages, file.ends, rows)
    passages = _passages(own, work).to_struct_array().combine_chunks()
    positive = pa.ListArray.from_arrays(pa.array([0, *ends], pa.int32()), passages, type=PASSAGES)
    return _table(JOINED, queries["_id"], queries["text"], positive, pa.array([[]] * len(queries), PASSAGES))


def _answers(file: NewFile, rows: slice, work: Path, options: Options) -> pa.Table:
    own, ends = _part(file.passages, file.ends, rows)
    raw, raw_ends = _part(file.rows, file.row_ends, rows)
    passages = [
        *zip(*(column.to_pylist() for column in rows_at(own, work, "passages", ["docid", "text"])), strict=True)
    ]
    records = rows_at(raw, work, "questions", ["record"])["record"].to_pylist()
    queries = rows_at(file.queries[rows], work, "questions", ["query_id"])["query_id"].to_pylist()
    parts = zip(
        queries, np.split(np.arange(len(raw)), raw_ends[:-1]), np.split(np.arange(len(own)), ends[:-1]), strict=True
    )
    found = [(q, merged([records[n] for n in of]), dict(passages[n] for n in those)) for q, of, those in parts]
    return answers_table(found, options)
