"""The kept BM25 index: the engine's files beside ``index.json``, one folder for each corpus and segmentation."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from baselines.bm25.tokens import WORDS, Analyzer, segment_batches
from baselines.retrieve.cache import Cache, Strings, StringsWriter
from baselines.retrieve.passages import expect_ids_once
from baselines.samples import Rows, sample_rows, taken
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.store.reader import Release
from builders.store.runs import Columns, columns_of

_FORMAT = 4
INDEXES = Cache("bm25", "index.json")
_IDS = "ids"  # corpus ids by row number: engines' own are slow in threads
_BATCH = 256  # passages that go to a segmentation process at a time
_FEW = 2_000  # passages below which starting processes takes longer than segmenting
K1, B = 1.2, 0.75  # Elasticsearch's and Lucene's defaults


class Index(abc.ABC):
    """An index opened for searching; safe to share between threads."""

    passages: int
    analyzer: Analyzer = WORDS  # that made its tokens; a query's must be made by the same

    @abc.abstractmethod
    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        """The ``top_k`` best passages (corpus id, score > 0): scores falling, ties by id, also where the list is cut.

        Every passage that holds one of ``words`` is a candidate; a word that comes twice counts twice, as in an
        Elasticsearch match query.
        """

    def search_many(self, queries: list[list[str]], top_k: int) -> list[list[tuple[str, float]]]:
        """:meth:`search` for several queries."""
        return [self.search(words, top_k) for words in queries]

    def search_columns(self, ids: Sequence[str], queries: list[list[str]], top_k: int) -> Columns:
        """:meth:`search_many` as columns; ``ids``: the queries' own."""
        return columns_of(list(zip(ids, self.search_many(queries, top_k), strict=True)))


class KeptIndex(Index):
    """An index in a folder, with the corpus ids of its rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ids = Strings(folder / _IDS)

    def ids_of(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The corpus ids of some rows."""
        return self._ids.at(rows)


def index_key(
    release: Release,
    corpus: str,
    engine: str,
    max_chars: int | None = None,
    split: str = "corpus",
    sample: str | None = None,
    analyzer: Analyzer = WORDS,
) -> dict[str, Any]:
    """What an index of a corpus config, or of a sample of it, depends on."""
    cut: dict[str, Any] = {} if max_chars is None else {"max_chars": max_chars}
    if sample is not None:
        cut["sample"] = release.fingerprint(sample, split)
    return {
        **cut,
        "format": _FORMAT,
        "corpus": release.fingerprint(corpus, split),
        "segmenter": analyzer.version,
        "engine": engine,
    }


def open_index(
    release: Release,
    keep: Path,
    workers: int,
    corpus: str = "corpus",
    k1: float = K1,
    b: float = B,
    max_chars: int | None = None,
    split: str = "corpus",
    sample: str | None = None,
    analyzer: Analyzer = WORDS,
) -> KeptIndex:
    """The index of a release's corpus config from the folder ``keep``, built where it is missing or damaged.

    Of queries, too (``split``): any config with ``_id`` and ``text``.
    ``workers`` processes segment, as many threads index. Of every passage, the first ``max_chars`` characters are read;
    None: all of it. ``sample``: of the passages of this config alone. The index is built beside its place and moved
    there when it is whole; a second process that wants the same index waits for the first.
    """
    from baselines.bm25 import engine_numba

    engine_numba.prepare()
    key = index_key(release, corpus, engine_numba.VERSION, max_chars, split, sample, analyzer)

    def build(new: Path) -> None:
        expect_ids_once(release, corpus, split)
        rows = None if sample is None else sample_rows(release, corpus, sample)
        engine_numba.write_index(
            new, token_strings(release, corpus, workers, max_chars, split, rows, analyzer), workers
        )
        batches = taken(release.batches(corpus, split, ["_id"]), rows)
        write_ids(new, (batch.column("_id") for batch in batches))

    folder, made = INDEXES.folder(keep, key, build)
    index = engine_numba.NumbaIndex(folder, k1, b, workers)
    index.analyzer = analyzer
    log.info("BM25 index %s: %s (%d passages)", "built" if made else "reused", folder, index.passages)
    return index


def reopened(index: Index, k1: float, b: float, threads: int) -> Index:
    """The same index of the ``numba`` engine with another k1 and b."""
    from baselines.bm25.engine_numba import NumbaIndex

    assert isinstance(index, KeptIndex)
    other = NumbaIndex(index.folder, k1, b, threads)
    other.analyzer = index.analyzer
    return other


def token_strings(
    release: Release,
    corpus: str,
    workers: int,
    max_chars: int | None = None,
    split: str = "corpus",
    rows: Rows | None = None,
    analyzer: Analyzer = WORDS,
) -> Iterator[str]:
    """The tokens of every passage (of its first ``max_chars`` characters), joined by spaces, in the release's order.

    ``workers`` processes segment. ``rows``: of these passages alone.
    """
    total = release.rows(corpus, split) if rows is None else len(rows)
    if total == 0:
        raise InputError("has no passages", path=release.path)
    passages = _passages(release, corpus, max_chars, split, rows)
    with progress(total=total, unit="passage", label="index") as bar:
        for count, texts in segment_batches(passages, workers if total >= _FEW else 1, analyzer):
            yield from texts
            bar.update(count)


def _passages(
    release: Release, corpus: str, max_chars: int | None, split: str, rows: Rows | None
) -> Iterator[tuple[int, list[str]]]:
    for batch in taken(release.batches(corpus, split, ["text"], rows=_BATCH), rows):
        yield batch.num_rows, [text[:max_chars] for text in batch.column("text").to_pylist()]


def write_ids(folder: Path, ids: Iterable[pa.Array]) -> None:
    """The corpus ids of all rows, in order."""
    with StringsWriter(folder / _IDS) as writer:
        for some in ids:
            writer.write(some)
