"""A release's rows in the order of the official files, for writing these again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.common.command import InputError
from builders.official.layout import TEXTS, TEXTS_SCHEMA, Entry, columns_of, read_columns
from builders.official.numbered import NumberedIds, NumberedTexts, Numbers, as_keys
from builders.store.ids import text_id
from builders.store.reader import Release

_BATCH = 4_096


class OfficialRows:
    """The rows of the official files, out of a release; ``work``: a folder for what has to be read at any place."""

    def __init__(self, release: Release, work: Path) -> None:
        self.release, self._work = release, work
        self._next_row, self._ahead = 0, self._corpus_rows()
        self._corpus: NumberedTexts | None = None
        self._corpus_ids: list[str] = []
        self._texts: NumberedTexts | None = None
        self._numbers = np.empty(0, np.int32)

    def close(self) -> None:
        for opened in (self._texts, self._corpus):
            if opened is not None:
                opened.close()

    def columns(self, entry: Entry) -> pa.Table:
        """The columns that the release keeps for a file; a table without any where it keeps none."""
        if entry.columns is None:
            return pa.table({})
        return read_columns(self.release, entry.columns, columns_of(entry.role))

    def passages(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """(id, text) of a collection file's rows."""
        columns = self.columns(entry)
        if "row" in columns.column_names:
            return self._chosen_passages(self._rows(columns, "corpus", "corpus"))
        # The parts follow one another: the next one goes on where the last one ended.
        if self._next_row != entry.start:
            self._ahead = itertools.islice(self._corpus_rows(), entry.start, None)
        self._next_row = entry.start + entry.rows
        return itertools.islice(self._ahead, entry.rows)

    def _corpus_rows(self) -> Iterator[tuple[str, str]]:
        for batch in self.release.batches("corpus", "corpus", ["_id", "text"]):
            yield from zip(batch["_id"].to_pylist(), batch["text"].to_pylist(), strict=True)

    def _chosen_passages(self, rows: Numbers) -> Iterator[tuple[str, str]]:
        """Passages in another order than the release's: its whole corpus goes into a file that is read at any place."""
        if self._corpus is None:
            self._corpus = NumberedTexts(self._work / "corpus")
            for batch in self.release.batches("corpus", "corpus", ["_id", "text"]):
                numbers = np.zeros((batch.num_rows, 2), np.uint64)  # told apart by row: ids need not be texts' MD5
                numbers[:, 0] = np.arange(len(self._corpus), len(self._corpus) + batch.num_rows)
                self._corpus.add(batch["text"], numbers)
                self._corpus_ids += batch["_id"].to_pylist()
        for start in range(0, len(rows), _BATCH):
            batch_rows = rows[start : start + _BATCH]
            ids = [self._corpus_ids[row] for row in batch_rows.tolist()]
            yield from zip(ids, self._corpus.get(batch_rows), strict=True)

    def ids(self, entry: Entry) -> Iterator[str]:
        """The passage ids of the map, by line."""
        columns = self.columns(entry)
        if "id" in columns.column_names:
            return (value.hex() for value in columns["id"].to_pylist())
        every = self.release.batches("corpus", "corpus", ["_id"])
        return itertools.islice((value for batch in every for value in batch["_id"].to_pylist()), entry.rows)

    def questions(self, entry: Entry) -> Iterator[dict[str, Any]]:
        """The joined rows of a file of questions."""
        columns, split = self.columns(entry), entry.role
        names = ["query_id", "query", "positive_passages"]
        if "row" in columns.column_names:
            yield from self.release.table(split, split, names).take(self._rows(columns, split, split)).to_pylist()
            return
        rows = (row for batch in self.release.batches(split, split, names, 1_024) for row in batch.to_pylist())
        yield from itertools.islice(itertools.islice(rows, entry.start, None), entry.rows)

    def _rows(self, columns: pa.Table, config: str, split: str) -> Numbers:
        """The rows of a config in the order of a file; :class:`InputError` for one that it has not."""
        rows: Numbers = columns["row"].to_numpy()
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.release.rows(config, split):
            raise InputError(f"names rows that {config}/{split} lacks; build the release again", path=self.release.path)
        return rows

    def texts(self, numbers: Numbers) -> list[str]:
        """Texts by their row in ``texts.arrow``."""
        if self._texts is None:
            self._texts = self._gather()
        here = len(numbers) == 0 or 0 <= numbers.min() <= numbers.max() < len(self._numbers)
        found = self._numbers[numbers] if here else np.full(1, -1)
        if (found < 0).any():
            raise InputError("lacks texts that its official files need", path=self.release.path)
        return self._texts.get(found)

    def _gather(self) -> NumberedTexts:
        """The texts of ``texts.arrow``, from there or from whichever config has them, in a file."""
        table = read_columns(self.release, TEXTS, TEXTS_SCHEMA)
        digests = as_keys(b"".join(table["md5"].to_pylist()))
        needed, found = NumberedIds(), NumberedTexts(self._work / "texts")
        needed.add(digests)
        for texts in (table["text"].drop_null(), *self._joined_texts()):
            _add_needed(found, needed, texts)
        if len(found) < len(digests):
            for texts in self._corpus_texts():
                _add_needed(found, needed, texts)
        self._numbers = found.find(digests)
        return found

    def _joined_texts(self) -> Iterator[pa.Array]:
        splits = self.release.splits()
        for split in ("train", "dev", "test"):
            if (split, split) in splits:
                for batch in self.release.batches(split, split, rows=2_048):
                    yield batch["query"]
                    yield batch["positive_passages"].flatten().field("text")
                    yield batch["negative_passages"].flatten().field("text")

    def _corpus_texts(self) -> Iterator[pa.Array]:
        if ("corpus", "corpus") in self.release.splits():
            for batch in self.release.batches("corpus", "corpus", ["text"]):
                yield batch["text"]


def _add_needed(found: NumberedTexts, needed: NumberedIds, texts: pa.Array) -> None:
    """Add those of the texts whose MD5 is needed."""
    digests = as_keys(bytes.fromhex("".join([text_id(text) for text in texts.to_pylist()])))
    wanted = needed.find(digests) >= 0
    kept = texts.filter(pa.array(wanted))
    found.add(kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept, digests[wanted])
