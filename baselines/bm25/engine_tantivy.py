"""The ``tantivy`` engine: Lucene's BM25 at k1 = 1.2 and b = 0.75, with passage lengths rounded to one byte.

Its scores are Lucene's times k1 + 1, which changes no order.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tantivy

from baselines.bm25.index import K1, B, KeptIndex
from baselines.bm25.ties import end_of_ties, settle
from builders.common.command import InputError

_HEAP = 256 << 20  # bytes that the writer holds before it starts another segment


class TantivyIndex(KeptIndex):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        index = tantivy.Index.open(str(folder))
        index.reload()
        self._schema, self._searcher = index.schema, index.searcher()
        self.passages = self._searcher.num_docs

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        if not words:
            return []
        should = tantivy.Occur.Should
        query = tantivy.Query.boolean_query(
            [(should, tantivy.Query.term_query(self._schema, "text", word, "freq")) for word in words]
        )
        # The engine breaks ties by where a passage lies in the index, so take all that tie with the last place.
        limit = top_k + 10
        while True:
            found = self._searcher.search(query, limit, count=False).hits
            end = end_of_ties([score for score, _ in found], top_k)
            if end is not None or len(found) < limit:
                break
            limit *= 4
        found = found[:end]
        rows = self._searcher.fast_field_values("row", [address for _, address in found])
        ids = self.ids_of(np.array(rows, np.int64))
        return settle([(corpus_id, score) for corpus_id, (score, _) in zip(ids, found, strict=True)], top_k)


def engine_version() -> str:
    return f"tantivy {version('tantivy')}"


def write_index(folder: Path, texts: Iterator[str], threads: int) -> None:
    """Write the index of token strings, one of each row. One writing thread keeps the passages in order."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, tokenizer_name="whitespace", index_option="freq")
    builder.add_integer_field("row", fast=True)
    writer = tantivy.Index(builder.build(), str(folder)).writer(_HEAP, 1)
    for row, text in enumerate(texts):
        document = tantivy.Document()
        document.add_integer("row", row)
        document.add_text("text", text)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    for lock in folder.glob(".*.lock"):
        lock.unlink()


def prepare(k1: float, b: float) -> None:
    """Raises :class:`InputError` for another k1 and b than tantivy's."""
    if (k1, b) != (K1, B):
        raise InputError(f"tantivy's BM25 has k1 = {K1} and b = {B} and no other; --engine numba takes any")


def open_folder(folder: Path, k1: float, b: float, threads: int) -> TantivyIndex:
    return TantivyIndex(folder)
