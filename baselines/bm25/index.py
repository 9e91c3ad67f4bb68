"""BM25 over any engine: the texts behind an index, an opened index, and the search of many queries."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from baselines.bm25.tokens import WORDS, Analyzer
from baselines.retrieve.passages import Cache, Rows, expect_ids_once, sample_rows, taken
from builders.core.errors import InputError, log
from builders.core.jobs import in_order, in_threads, process_pool
from builders.core.progress import progress
from builders.store.layout import ROWS_PER_GROUP
from builders.store.reader import Release
from builders.store.runs import Columns, Hit

_FORMAT = 4
INDEXES = Cache("bm25")
_BATCH = 256  # passages that go to a segmentation process at a time
_FEW = 2_000  # passages below which starting processes takes longer than segmenting
_QUERIES_PER_TASK = 32


@dataclass(frozen=True)
class Texts:
    """The texts that an index is built from: any config of a release with ``_id`` and ``text``.

    Attributes:
        release, config, split: which config.
        analyzer: makes the tokens.
        max_chars: read the first characters of every text; None: all of it.
        sample: read the texts of this config alone; None: all of them.
    """

    release: Release
    config: str = "corpus"
    split: str = "corpus"
    analyzer: Analyzer = WORDS
    max_chars: int | None = None
    sample: str | None = None

    def key(self, engine: str) -> dict[str, Any]:
        """All that an index of the texts depends on, as JSON values."""
        cut: dict[str, Any] = {} if self.max_chars is None else {"max_chars": self.max_chars}
        if self.sample is not None:
            cut["sample"] = self.release.fingerprint(self.sample, self.split)
        corpus, segmenter = self.release.fingerprint(self.config, self.split), self.analyzer.version
        return {**cut, "format": _FORMAT, "corpus": corpus, "segmenter": segmenter, "engine": engine}

    @cached_property
    def rows(self) -> Rows | None:
        """The rows of the sample; None: all rows."""
        return None if self.sample is None else sample_rows(self.release, self.config, self.sample)

    def column(self, name: str, rows: int = ROWS_PER_GROUP) -> Iterator[pa.Array]:
        """A column of the texts, ``rows`` at a time."""
        for batch in taken(self.release.batches(self.config, self.split, [name], rows), self.rows):
            yield batch.column(name)

    def tokens(self, workers: int) -> Iterator[str]:
        """The tokens of every text, joined by spaces, in the release's order; ``workers`` processes segment."""
        expect_ids_once(self.release, self.config, self.split)
        total = self.release.rows(self.config, self.split) if self.rows is None else len(self.rows)
        if total == 0:
            raise InputError("has no passages", path=self.release.path)
        texts = ([text[: self.max_chars] for text in some.to_pylist()] for some in self.column("text", _BATCH))
        with progress(total=total, unit="passage", label="index") as bar:
            for found in segment_batches(texts, workers if total >= _FEW else 1, self.analyzer):
                yield from found
                bar.update(len(found))


def _segment(analyzer: Analyzer, texts: list[str]) -> list[str]:
    return [" ".join(analyzer(text)) for text in texts]


def segment_batches(batches: Iterable[list[str]], workers: int, analyzer: Analyzer) -> Iterator[list[str]]:
    """The tokens of each text of some batches, joined by spaces, in the same order.

    ``workers`` processes at most; no more than a few batches a worker are held at a time. The result does not depend
    on ``workers``. Raises :class:`InputError` where a worker process dies.
    """
    with process_pool(workers) as pool:
        yield from in_order(pool, partial(_segment, analyzer), batches, 4 * workers)


class Index(abc.ABC):
    """An index opened for searching; safe to share between threads."""

    passages: int
    analyzer: Analyzer = WORDS  # that made its tokens; a query's must be made by the same

    @abc.abstractmethod
    def search_columns(self, ids: Sequence[str], queries: list[list[str]], top_k: int) -> Columns:
        """The best passages of each query, one of ``ids``: scores > 0, falling, ties by id, also at the cut.

        Every passage that holds one of a query's words is a candidate. A word that comes twice counts twice, as in an
        Elasticsearch match query.
        """

    def search(self, words: list[str], top_k: int) -> list[Hit]:
        """(corpus id, score) of the best passages of one query."""
        return self.search_columns([""], [words], top_k).hits()[""]


def search_columns(index: Index, queries: Sequence[tuple[str, str]], top_k: int, threads: int) -> Iterator[Columns]:
    """The hits of (query id, text) pairs in their order, some queries at a time; the same for every number of threads.

    At most ``top_k`` hits a query: scores falling, ties by corpus id. A query none of whose tokens is in the corpus
    has no hit. Queries without any token are counted in a warning.
    """
    empty = 0
    batches = (queries[start : start + _QUERIES_PER_TASK] for start in range(0, len(queries), _QUERIES_PER_TASK))

    def search_batch(batch: Sequence[tuple[str, str]]) -> tuple[Columns, int]:
        words = [index.analyzer(text) for _, text in batch]
        return index.search_columns([query for query, _ in batch], words, top_k), sum(not have for have in words)

    for part, without in in_threads(search_batch, batches, threads):
        empty += without
        yield part
    if empty:
        how = index.analyzer.version
        log.warning("%d of %d queries have no token (%s); nothing is found for them", empty, len(queries), how)
