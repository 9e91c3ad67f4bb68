"""BM25 for any engine: the texts to index, the interface of an index, and the search by many queries."""

import abc
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import pyarrow as pa

from baselines.bm25.tokens import WORDS, Analyzer
from baselines.core.passages import PassageCache, Rows, expect_ids_once, sample_rows, take_rows
from builders.core.errors import InputError, log
from builders.core.jobs import in_order, in_threads, process_pool
from builders.core.progress import show_progress
from builders.store.layout import ROWS_PER_GROUP
from builders.store.reader import Release
from builders.store.runs import Hit, RunColumns

_FORMAT = 4  # increase the number when other texts or tokens are indexed
INDEXES = PassageCache("bm25")
_QUERIES_PER_TASK = 32
_TEXTS_PER_TASK = 256
# Fewer passages are segmented in less time than worker processes need to start.
_FEW_PASSAGES = 10_000
# Passages with which a user's tokenizer is checked, and told apart from the same function with other data.
_PROBE_PASSAGES = 64


@dataclass(frozen=True)
class IndexedTexts:
    """The texts to index: any config of a release with ``_id`` and ``text``.

    ``max_chars`` is the number of characters to read from each text (None: the whole text). ``sample`` is the config of
    a sample, to read only the passages of the sample (None: all passages).
    """

    release: Release
    config: str = "corpus"
    split: str = "corpus"
    analyzer: Analyzer = WORDS
    max_chars: int | None = None
    sample: str | None = None

    def key(self, engine: str) -> dict[str, Any]:
        """Return everything that an index of the texts depends on, as JSON values.

        ``engine`` is the name and version of the engine's index format, for example "numba 3".
        """
        key: dict[str, Any] = {}
        if self.max_chars is not None:
            key["max_chars"] = self.max_chars
        if self.sample is not None:
            key["sample"] = self.release.fingerprint(self.sample, self.split)
        key["format"] = _FORMAT
        key["corpus"] = self.release.fingerprint(self.config, self.split)
        key["segmenter"] = self.analyzer.version
        if self.analyzer.tokenizer:
            key["probe"] = self.probe()
        key["engine"] = engine
        return key

    def probe(self) -> str:
        """Return a hash of the tokens of the first passages.

        A user's tokenizer may depend on data that its source does not show, for example on the file of a model.
        """
        # Sorted, because BM25 does not depend on the order of tokens.
        token_lists = [sorted(self.analyzer(text)) for text in self._first_texts()]
        return hashlib.sha256(json.dumps(token_lists).encode()).hexdigest()

    @cached_property
    def rows(self) -> Rows | None:
        """The rows of the sample, or None for all rows."""
        return None if self.sample is None else sample_rows(self.release, self.config, self.sample)

    def column(self, name: str, batch_rows: int = ROWS_PER_GROUP) -> Iterator[pa.Array]:
        """Yield the column ``_id`` or ``text`` of the indexed rows, in order, at most ``batch_rows`` values at a time.

        The values of ``text`` are whole texts: ``max_chars`` is not applied.
        """
        batches = self.release.batches(self.config, self.split, [name], batch_rows)
        for batch in take_rows(batches, self.rows):
            yield batch.column(name)

    def tokens(self, workers: int) -> Iterator[str]:
        """Yield the tokens of every text, joined by spaces, in order. ``workers`` processes segment the texts.

        Raises :class:`InputError` if there are no texts or an id occurs twice. Raises it also if a user's tokenizer
        returns other tokens at a second call, or finds no token in any text.
        """
        # Check the passages before the long work.
        expect_ids_once(self.release, self.config, self.split)
        text_count = self.release.rows(self.config, self.split)
        if self.rows is not None:
            text_count = len(self.rows)
        if text_count == 0:
            raise InputError(f"has no passages in {self.config}/{self.split}", path=self.release.path)
        # One worker means that this process segments the texts.
        if text_count < _FEW_PASSAGES:
            workers = 1
        tokenizer = self.analyzer.tokenizer
        if tokenizer and not tokenizer.can_use_workers(self._first_texts()):
            workers = 1
        has_tokens = False
        with show_progress(total=text_count, unit="passage", label="index") as bar:
            for token_batch in segment_batches(self._text_batches(), workers, self.analyzer):
                has_tokens = has_tokens or any(token_batch)
                yield from token_batch
                bar.update(len(token_batch))
        if tokenizer and not has_tokens:
            raise tokenizer.no_tokens(self._first_texts()[0])

    def _first_texts(self) -> list[str]:
        """Return the first texts to index, at most :data:`_PROBE_PASSAGES`."""
        texts: list[str] = []
        for batch in self._text_batches():
            texts += batch
            if len(texts) >= _PROBE_PASSAGES:
                break
        return texts[:_PROBE_PASSAGES]

    def _text_batches(self) -> Iterator[list[str]]:
        for texts in self.column("text", batch_rows=_TEXTS_PER_TASK):
            yield [text[: self.max_chars] for text in texts.to_pylist()]


def _segment_texts(analyzer: Analyzer, texts: list[str]) -> list[str]:
    return [" ".join(analyzer(text)) for text in texts]


def segment_batches(batches: Iterable[list[str]], workers: int, analyzer: Analyzer) -> Iterator[list[str]]:
    """Yield a list for each batch of texts. It has one string for each text: the tokens, joined by spaces.

    At most ``workers`` processes are used. The result does not depend on ``workers``. Memory holds a few batches per
    process. Raises :class:`InputError` if a process dies.
    """
    tokenizer = analyzer.tokenizer
    if workers > 1 and tokenizer and not tokenizer.can_be_sent():
        workers = 1
    with process_pool(workers) as pool:
        # Four batches per process are read ahead, so that no process waits for the reader.
        yield from in_order(pool, partial(_segment_texts, analyzer), batches, 4 * workers)


class InvertedIndex(abc.ABC):
    """An index opened for searching. Threads can share it."""

    passages: int
    analyzer: Analyzer = WORDS  # queries must use the analyzer of the passages

    @abc.abstractmethod
    def search_columns(self, query_ids: Sequence[str], queries: list[list[str]], top_k: int) -> RunColumns:
        """Return each query's ``top_k`` best passages, by falling score, then by id. All scores exceed 0.

        ``query_ids`` are the ids of the queries, and ``queries`` the tokens. Every passage with a token of the query is
        a candidate. A token that occurs twice in the query counts twice, as in a match query of Elasticsearch.
        """

    def search(self, words: list[str], top_k: int) -> list[Hit]:
        """Return the (corpus id, score) pairs of the best passages, best first. ``words`` are the query's tokens."""
        query_id = ""  # the query needs any id, by which its hits are found in the result
        return self.search_columns([query_id], [words], min(top_k, self.passages)).hits()[query_id]


def search_columns(
    index: InvertedIndex, queries: Sequence[tuple[str, str]], top_k: int, threads: int
) -> Iterator[RunColumns]:
    """Yield the hits of (query id, text) pairs in order, in blocks. The number of threads does not change the hits.

    A query has at most ``top_k`` hits, by falling score, then by corpus id. A query has no hit if the corpus has none
    of the query's tokens. A warning counts the queries without any token.
    """
    # Engines reserve memory for every hit, or limit the hits of a search.
    top_k = min(top_k, index.passages)
    batches = (queries[start : start + _QUERIES_PER_TASK] for start in range(0, len(queries), _QUERIES_PER_TASK))

    def search_batch(batch: Sequence[tuple[str, str]]) -> tuple[RunColumns, int]:
        """Return the hits of a batch, and the number of queries without a token."""
        query_ids = [query_id for query_id, _ in batch]
        token_lists = [index.analyzer(text) for _, text in batch]
        return index.search_columns(query_ids, token_lists, top_k), token_lists.count([])

    empty_count = 0
    for hits, batch_empty_count in in_threads(search_batch, batches, threads):
        empty_count += batch_empty_count
        yield hits
    if empty_count:
        log.warning("%d of %d queries have no token (%s), so no hit", empty_count, len(queries), index.analyzer.version)
