"""The Parquet files of a release, each a task of its own: what is in it is decided; here the rows are put together.

Texts are taken out of the finished shards. The other rows come from the plan, which :mod:`.assemble` writes:
for every split an Arrow file of its queries and one of its judgments, both in order.

A finished file lies in a folder of its own, with what the manifest says of it; the folder is there when both are whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.common.arrow_files import read_arrow
from builders.common.columns import numbers, repeated, strings, values_of
from builders.common.folders import is_finished, task_folder
from builders.release.shard_files import read_shard
from builders.store import layout
from builders.store.ids import hex_ids
from builders.store.layout import CORPUS, JOINED, PASSAGES, QRELS, QUERIES, schema_of
from builders.store.writer import ParquetFile

Ints = npt.NDArray[np.int64]
_FILE, _ABOUT = "rows.parquet", "about.json"
_BATCH = 8_192  # rows of a split with their passages at a time
PLANNED_QUERIES = pa.schema([("query_id", pa.string()), ("text", pa.string())])
# ``place``: the number of its query; ``passage``: (shard << 32) + the passage's number in the shard.
PLANNED_JUDGMENTS = pa.schema([("place", pa.int64()), ("passage", pa.int64())])


@dataclass(frozen=True)
class Slice:
    """Some passages of one shard: all but the ``repeats``, and of these from ``start`` up to ``end``."""

    shard: int
    repeats: Ints
    start: int
    end: int


@dataclass(frozen=True)
class CorpusFile:
    """A file of the config corpus, to be written to ``folder``."""

    folder: Path
    work: Path
    slices: list[Slice]


@dataclass(frozen=True)
class SplitFile:
    """A file of one split's queries, qrels or joined rows: ``start`` to ``end`` of the split's rows."""

    folder: Path
    work: Path
    config: str
    split: str
    start: int
    end: int


@dataclass(frozen=True)
class Written:
    """A finished file, its entry in the manifest, and how many of its passages have each length in characters."""

    path: Path
    entry: dict[str, Any]
    lengths: Ints


PLANNED = {"queries": PLANNED_QUERIES, "judgments": PLANNED_JUDGMENTS}


def plan_path(work: Path, split: str, name: str) -> Path:
    return work / f"{split}.{name}.arrow"


def read_plan(work: Path, split: str, name: str) -> pa.Table:
    return read_arrow(plan_path(work, split, name), PLANNED[name])


def write_file(task: CorpusFile | SplitFile) -> Written:
    """Write one Parquet file, unless a killed build has left it. The same task writes the same bytes again."""
    if not is_finished(task.folder):
        with task_folder(task.folder) as folder:
            entry, lengths = _write(task, folder / _FILE)
            found = np.flatnonzero(lengths)
            about = {"entry": entry, "lengths": [found.tolist(), lengths[found].tolist()]}
            (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
    about = json.loads((task.folder / _ABOUT).read_text(encoding="utf-8"))
    present, counts = (np.array(each, np.int64) for each in about["lengths"])
    lengths = np.zeros(present.max(initial=-1) + 1, np.int64)
    lengths[present] = counts
    return Written(task.folder / _FILE, about["entry"], lengths)


def _write(task: CorpusFile | SplitFile, path: Path) -> tuple[dict[str, Any], Ints]:
    if isinstance(task, CorpusFile):
        return _write_corpus(task, path)
    out = ParquetFile(path, schema_of(task.config))
    if task.config == "queries":
        rows = read_plan(task.work, task.split, "queries").slice(task.start, task.end - task.start)
        out.write(rows.rename_columns(QUERIES.names))
    elif task.config == "qrels":
        for start in range(task.start, task.end, layout.ROWS_PER_GROUP):
            out.write(_qrels(task, start, min(start + layout.ROWS_PER_GROUP, task.end)))
    else:
        return _write_joined(task, out)
    return out.close(), np.zeros(0, np.int64)


def _write_corpus(task: CorpusFile, path: Path) -> tuple[dict[str, Any], Ints]:
    lengths = np.zeros(0, np.int64)
    out = ParquetFile(path, CORPUS)
    for piece in task.slices:
        table = read_shard(task.work, piece.shard, "passages")
        if piece.repeats.size:
            table = table.take(numbers(np.delete(np.arange(table.num_rows), piece.repeats)))
        table = table.slice(piece.start, piece.end - piece.start)
        lengths = _add_lengths(lengths, table["text"])
        out.write(pa.table([hex_ids(table["id"]), repeated("", table.num_rows), table["text"]], schema=CORPUS))
    return out.close(), lengths


def _add_lengths(lengths: Ints, texts: pa.ChunkedArray) -> Ints:
    found = np.bincount(values_of(pc.utf8_length(texts)), minlength=lengths.size)
    found[: lengths.size] += lengths
    return found


def _passages(work: Path, wanted: Ints, columns: Sequence[str] | None = None) -> pa.Table:
    """The passages of these numbers, in this order."""
    order = np.argsort(wanted, kind="stable")
    shards, places = np.divmod(wanted[order], 1 << 32)
    found, starts = np.unique(shards, return_index=True)
    tables = [
        read_shard(work, number, "passages", columns).take(numbers(some))
        for number, some in zip(found.tolist(), np.split(places, starts[1:]), strict=True)
    ]
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return pa.concat_tables(tables).combine_chunks().take(numbers(back))


def _qrels(task: SplitFile, start: int, end: int) -> pa.Table:
    judgments = read_plan(task.work, task.split, "judgments").slice(start, end - start)
    queries = read_plan(task.work, task.split, "queries")["query_id"].take(judgments["place"])
    ids = hex_ids(_passages(task.work, values_of(judgments["passage"]), ["id"])["id"])
    return pa.table([queries, ids, numbers(np.ones(end - start, np.int64))], schema=QRELS)


def _write_joined(task: SplitFile, out: ParquetFile) -> tuple[dict[str, Any], Ints]:
    lengths = np.zeros(0, np.int64)
    queries, judgments = (read_plan(task.work, task.split, name) for name in ("queries", "judgments"))
    places, passages = values_of(judgments["place"]), values_of(judgments["passage"])
    for start in range(task.start, task.end, _BATCH):
        end = min(start + _BATCH, task.end)
        rows = queries.slice(start, end - start)
        # Where each query's passages begin is all that a list column needs.
        offsets = np.searchsorted(places, np.arange(start, end + 1))
        if offsets[0] < offsets[-1]:
            found = _passages(task.work, passages[offsets[0] : offsets[-1]])
            ids, texts = hex_ids(found["id"]), found["text"].combine_chunks()
            lengths = _add_lengths(lengths, texts)
        else:
            ids = texts = strings([])
        structs = pa.StructArray.from_arrays([ids, repeated("", len(ids)), texts], fields=list(PASSAGES.value_type))
        starts = numbers((offsets - offsets[0]).astype(np.int32))
        lists = pa.ListArray.from_arrays(starts, structs, type=PASSAGES)
        starts = numbers(np.zeros(rows.num_rows + 1, np.int32))
        none = pa.ListArray.from_arrays(starts, structs.slice(0, 0), type=PASSAGES)
        out.write(pa.table([rows["query_id"], rows["text"], lists, none], schema=JOINED))
    return out.close(), lengths
