"""The kept BM25 index: tantivy's files beside ``index.json``, one folder for each corpus, segmentation and engine.

tantivy's BM25 is Lucene's, k1 = 1.2 and b = 0.75, with passage lengths rounded to one byte; its scores are Lucene's
times k1 + 1, which changes no order.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.segment import segment_batches, segmenter
from builders.command import InputError, log, progress
from builders.files import replace_directory, sha256_of, write_text
from builders.store import Release

_FORMAT = 2
_ABOUT = "index.json"  # written last: a folder without it is half an index
_IDS = "ids.arrow"  # corpus ids by row number, memory-mapped: the engine's stored documents are slow to read in threads
_IDS_BITS = 16  # 2 ** 16 ids in each of its record batches
_HEAP = 256 << 20  # bytes that the writer holds before it starts another segment
_BATCH = 256  # passages that go to a segmentation process at a time
_FEW = 2_000  # passages below which starting processes takes longer than segmenting
# Sums of float32 terms differ in their last bits with the order of the terms, which depends on the engine's version
# and on how its index is cut. Scores closer than this (relative) are ties, or those bits would order the passages.
_TIE = 1e-6


class Bm25Index:
    """An index opened for searching; safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        import tantivy

        self.folder = folder
        self._tantivy = tantivy
        index = tantivy.Index.open(str(folder))
        index.reload()
        self._schema, self._searcher = index.schema, index.searcher()
        self.passages: int = self._searcher.num_docs
        reader = pa.ipc.open_file(pa.memory_map(str(folder / _IDS)))
        self._ids = [reader.get_batch(number).column(0) for number in range(reader.num_record_batches)]

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        """The ``top_k`` best passages (corpus id, score > 0): scores falling, ties by id, also where the list is cut.

        Every passage that holds one of ``words`` is a candidate; a word that comes twice counts twice, as in an
        Elasticsearch match query.
        """
        if not words:
            return []
        should = self._tantivy.Occur.Should
        query = self._tantivy.Query.boolean_query(
            [(should, self._tantivy.Query.term_query(self._schema, "text", word, "freq")) for word in words]
        )
        # The engine breaks ties by where a passage lies in the index, so take all that tie with the last place.
        limit = top_k + 10
        while True:
            found = self._searcher.search(query, limit, count=False).hits
            end = _end_of_ties([score for score, _ in found], top_k)
            if end is not None or len(found) < limit:
                break
            limit *= 4
        found = found[:end]
        rows = self._searcher.fast_field_values("row", [address for _, address in found])
        hits: list[tuple[str, float]] = []
        previous = shown = 0.0
        for (score, _), row in zip(found, rows, strict=True):
            if not hits or _apart(previous, score):
                shown = float(str(np.float32(score)))  # the shortest digits that tell float32 numbers apart
            previous = score
            hits.append((self._ids[row >> _IDS_BITS][row & ((1 << _IDS_BITS) - 1)].as_py(), shown))
        return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]


def _apart(above: float, below: float) -> bool:
    return above - below > _TIE * above


def _end_of_ties(scores: list[float], top_k: int) -> int | None:
    """How many of the falling ``scores`` are needed for the best ``top_k``; None where more may tie below the last."""
    for place in range(top_k, len(scores)):
        if _apart(scores[place - 1], scores[place]):
            return place
    return None


def index_key(release: Release, corpus: str) -> dict[str, Any]:
    """What an index of a corpus config depends on."""
    return {
        "format": _FORMAT,
        "corpus": release.fingerprint(corpus, "corpus"),
        "segmenter": segmenter(),
        "engine": f"tantivy {version('tantivy')}",
    }


def open_index(release: Release, keep: Path, workers: int, corpus: str = "corpus") -> Bm25Index:
    """The index of a release's corpus config from the folder ``keep``, built where it is missing or damaged.

    ``workers`` processes segment. The index is built beside its place and moved there when it is whole; a second
    process that wants the same index waits for the first.
    """
    key = index_key(release, corpus)
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    keep.mkdir(parents=True, exist_ok=True)
    folder = keep / name
    with _locked(keep / f".{name}.lock"):
        index = _reuse(folder, key)
        if index is not None:
            log.info("BM25 index reused: %s (%d passages)", folder, index.passages)
            return index
        building = keep / f".{name}.building"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        try:
            _build(release, corpus, building, key, workers)
            replace_directory(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        index = Bm25Index(folder)
        log.info("BM25 index built: %s (%d passages)", folder, index.passages)
        return index


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that builds this index (%s)", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _reuse(folder: Path, key: dict[str, Any]) -> Bm25Index | None:
    """The index in ``folder`` if every file is as it was written."""
    if not folder.exists():
        return None
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if about["key"] != key:
            raise ValueError("another key")
        for name, digest in about["files"].items():
            if sha256_of(folder / name) != digest:
                raise ValueError(f"{name} has changed")
        index = Bm25Index(folder)
        if index.passages != about["passages"]:
            raise ValueError(f"{index.passages} passages where {about['passages']} were written")
        return index
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: damaged BM25 index (%s); it is built again", folder, error)
        return None


def _build(release: Release, corpus: str, folder: Path, key: dict[str, Any], workers: int) -> None:
    import tantivy

    rows = release.rows(corpus, "corpus")
    if rows == 0:
        raise InputError("has no passages", path=release.path)
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", stored=False, tokenizer_name="whitespace", index_option="freq")
    builder.add_integer_field("row", fast=True)
    index = tantivy.Index(builder.build(), str(folder))
    # One writing thread keeps up with many segmenting processes, and passages stay in the release's order.
    writer = index.writer(_HEAP, 1)
    row = 0
    with progress(total=rows, unit="passage", label="index") as bar:
        for count, texts in segment_batches(_passages(release, corpus), workers if rows >= _FEW else 1):
            for text in texts:
                document = tantivy.Document()
                document.add_integer("row", row)
                document.add_text("text", text)
                writer.add_document(document)
                row += 1
            bar.update(count)
    writer.commit()
    writer.wait_merging_threads()
    _write_ids(release, corpus, folder / _IDS)
    for lock in folder.glob(".*.lock"):
        lock.unlink()
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    about = {"key": key, "passages": rows, "files": files}
    write_text(folder / _ABOUT, json.dumps(about, indent=1, sort_keys=True) + "\n")


def _passages(release: Release, corpus: str) -> Iterator[tuple[int, list[str]]]:
    for batch in release.batches(corpus, "corpus", ["text"], rows=_BATCH):
        yield batch.num_rows, batch.column("text").to_pylist()


def _write_ids(release: Release, corpus: str, path: Path) -> None:
    """The corpus ids in batches of the same number of rows, wherever the release's shards and row groups end."""
    schema = pa.schema([("_id", pa.string())])
    size = 1 << _IDS_BITS
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        waiting = schema.empty_table()
        for batch in release.batches(corpus, "corpus", ["_id"], rows=size):
            waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch]).cast(schema)])
            while waiting.num_rows >= size:
                writer.write_table(waiting.slice(0, size).combine_chunks(), max_chunksize=size)
                waiting = waiting.slice(size)
        if waiting.num_rows:
            writer.write_table(waiting.combine_chunks(), max_chunksize=size)
