"""A release's rows in the order of the official files, for writing these again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.common.command import InputError
from builders.official.layout import TEXTS, read_columns
from builders.official.text_pool import KeyTable, Numbers, TextPool, as_keys
from builders.store.ids import text_id
from builders.store.reader import Release


class OfficialRows:
    """The release's rows in the order of the official files."""

    def __init__(self, release: Release, work: Path) -> None:
        self.release, self._work = release, work
        self._texts: TextPool | None = None
        self._numbers = np.empty(0, np.int32)
        self._corpus: TextPool | None = None
        self._ids: list[str] = []
        self._parts: tuple[int, Iterator[tuple[str, str]]] | None = None

    def close(self) -> None:
        for pool in (self._texts, self._corpus):
            if pool is not None:
                pool.close()

    def columns(self, entry: dict[str, Any]) -> pa.Table | None:
        return read_columns(self.release.path, entry["columns"]) if "columns" in entry else None

    def passages(self, entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """(id, text) of a collection file's rows."""
        columns = self.columns(entry)
        if columns is not None and "row" in columns.column_names:
            return self._chosen(columns["row"].to_numpy())
        start = entry["start"]
        # The parts follow one another: the next one goes on where the last one ended.
        if self._parts is None or self._parts[0] != start:
            self._parts = (0, self._corpus_rows())
            for _ in itertools.islice(self._parts[1], start):
                pass
        rows = self._parts[1]
        self._parts = (start + entry["rows"], rows)
        return itertools.islice(rows, entry["rows"])

    def _corpus_rows(self) -> Iterator[tuple[str, str]]:
        for batch in self.release.batches("corpus", "corpus", ["_id", "text"]):
            yield from zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)

    def _chosen(self, rows: Numbers) -> Iterator[tuple[str, str]]:
        """Rows in another order than the release's: the whole corpus goes into a file that can be read at any place."""
        if self._corpus is None:
            self._corpus = TextPool(self._work / "corpus")
            count = 0
            for batch in self.release.batches("corpus", "corpus", ["_id", "text"]):
                places = np.zeros((batch.num_rows, 2), np.uint64)
                places[:, 0] = np.arange(count, count + batch.num_rows)  # numbered by place: ids need not be texts' MD5
                self._corpus.add(batch["text"], places)
                self._ids += batch["_id"].to_pylist()
                count += batch.num_rows
        for low in range(0, len(rows), 4_096):
            part = rows[low : low + 4_096]
            yield from zip([self._ids[n] for n in part.tolist()], self._corpus.get(part), strict=True)

    def ids(self, entry: dict[str, Any]) -> Iterator[str]:
        """The passage ids of the map, by line."""
        columns = self.columns(entry)
        if columns is not None:
            for value in columns["id"].to_pylist():
                yield value.hex()
            return
        every = self.release.batches("corpus", "corpus", ["_id"])
        yield from itertools.islice((value for batch in every for value in batch["_id"].to_pylist()), entry["rows"])

    def questions(self, entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The joined rows of a file of questions."""
        columns = self.columns(entry)
        split = entry["role"]
        names = ["query_id", "query", "positive_passages"]
        if columns is not None and "row" in columns.column_names:
            yield from self.release.table(split, split, names).take(columns["row"]).to_pylist()
            return
        rows = (row for batch in self.release.batches(split, split, names, 1_024) for row in batch.to_pylist())
        yield from itertools.islice(rows, entry["start"], entry["start"] + entry["rows"])

    def texts(self, numbers: Numbers) -> list[str]:
        """Texts by their row in texts.arrow."""
        if self._texts is None:
            self._texts = self._gather()
        found = self._numbers[numbers]
        if (found < 0).any():
            raise InputError("lacks texts that its official files need", path=self.release.path)
        return self._texts.get(found)

    def _gather(self) -> TextPool:
        """The texts that the columns speak of, from wherever the release has them, into a file."""
        table = read_columns(self.release.path, TEXTS)
        digests = as_keys(b"".join(table["md5"].to_pylist()))
        needed, pool = KeyTable(), TextPool(self._work / "texts")
        needed.add(digests)
        there = table["text"].is_valid()
        known = table.filter(there)
        pool.add(_one(known["text"]), as_keys(b"".join(known["md5"].to_pylist())))
        splits = self.release.splits()
        for split in ("train", "dev", "test"):
            if (split, split) in splits:
                for batch in self.release.batches(split, split, rows=2_048):
                    _add_needed(pool, needed, batch["query"])
                    for name in ("positive_passages", "negative_passages"):
                        _add_needed(pool, needed, batch[name].flatten().field("text"))
        if len(pool) < len(digests) and ("corpus", "corpus") in splits:
            for batch in self.release.batches("corpus", "corpus", ["text"]):
                _add_needed(pool, needed, batch["text"])
        self._numbers = pool.find(digests)
        return pool


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)


def _add_needed(pool: TextPool, needed: KeyTable, texts: pa.Array) -> None:
    keys = as_keys(bytes.fromhex("".join([text_id(text) for text in texts.to_pylist()])))
    mask = needed.find(keys) >= 0
    pool.add(texts.filter(pa.array(mask)), keys[mask])
