"""The corpus of a release: every passage of the shards once, at its first place, in the order of the input.

Which rows are repeats is decided once, for all; each Parquet file of the corpus is then a task of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders import store
from builders.command import InputError, progress
from builders.draft import Draft
from builders.processes import in_order, process_pool
from builders.stats import LengthCounter

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Piece:
    """Some rows of one shard: all but the repeated ones, and of these from ``start`` up to ``end``."""

    path: Path
    repeats: Ints  # places of rows in the shard
    start: int
    end: int


@dataclass(frozen=True)
class _File:
    path: Path
    pieces: list[_Piece]


def write_corpus(con: duckdb.DuckDBPyConnection, work: Path, draft: Draft, workers: int) -> dict[str, Any]:
    """Write the config ``corpus`` of ``draft``; returns its figures. :class:`InputError` where there is no passage.

    Expects the table ``repeats`` (seq of every passage that has come before).
    """
    writer = draft.writer("corpus", "corpus")
    files: list[_File] = []
    room = 0
    for shard in sorted(work.glob("[0-9]*/passages.parquet")):
        low = int(shard.parent.name) << 32
        found = con.execute(
            "SELECT seq FROM repeats WHERE seq BETWEEN ? AND ?", [low, low + (1 << 32) - 1]
        ).fetchnumpy()
        repeats = np.sort(np.asarray(found["seq"], np.int64)) - low
        start, rows = 0, pq.read_metadata(shard).num_rows - repeats.size
        while start < rows:
            if not room:
                files.append(_File(writer.next_path(), []))
                room = store.ROWS_PER_SHARD
            taken = min(room, rows - start)
            files[-1].pieces.append(_Piece(shard, repeats, start, start + taken))
            start, room = start + taken, room - taken
    if not files:
        raise InputError("the input holds no passage: every document is empty")
    lengths = LengthCounter()
    with progress(total=len(files), unit="file", label="corpus") as bar, process_pool(min(workers, len(files))) as pool:
        for file, (counts, entry) in zip(files, in_order(pool, _write_file, files, len(files) + 1), strict=True):
            lengths.add(np.arange(counts.size), counts)
            writer.adopt(file.path, entry)
            bar.update()
    return lengths.summary()


def _write_file(file: _File) -> tuple[Ints, dict[str, Any]]:
    """Write one Parquet file; returns how many passages have each length, and the file's manifest entry."""
    counts = np.zeros(0, np.int64)
    out = store.ParquetFile(file.path, store.CORPUS)
    for piece in file.pieces:
        table = pq.read_table(piece.path, columns=["docid", "text"])
        if piece.repeats.size:
            table = table.take(pa.array(np.delete(np.arange(table.num_rows), piece.repeats)))
        table = table.slice(piece.start, piece.end - piece.start)
        found = np.bincount(pc.utf8_length(table["text"]).to_numpy(), minlength=counts.size)
        found[: counts.size] += counts
        counts = found
        titles = pa.repeat(pa.scalar(""), table.num_rows)
        out.write(pa.table([table["docid"], titles, table["text"]], schema=store.CORPUS))
    return counts, out.close()
