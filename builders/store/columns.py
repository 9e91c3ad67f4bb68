"""Hits as columns: from an engine to a TREC run's file, and from the file to what measures, without an object a hit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Array = npt.NDArray[Any]
Hit = tuple[str, float]  # corpus id, score
# What str.split() takes for a blank, to the regular expressions of Arrow.
_BLANK = "[\\x09-\\x0d\\x1c-\\x20\\x{85}\\p{Z}]|^$"
_PLAIN = (1e-4, 1e10)  # numbers between these, with a fraction, Arrow prints as Python does


@dataclass(frozen=True)
class Columns:
    """The hits of some queries.

    Attributes:
        queries: the queries' ids, each once.
        counts: how many hits each query has.
        corpus_ids: Arrow strings: the hits of the first query, best first, then those of the second, and so on.
        scores: 64-bit floats, one a hit, in the same order.
    """

    queries: Sequence[str]
    counts: Array
    corpus_ids: pa.Array
    scores: Array

    def __len__(self) -> int:
        return len(self.scores)

    def rankings(self) -> dict[str, list[str]]:
        """Corpus ids alone, best first, by query id."""
        ids = self.corpus_ids.to_pylist()
        return {query: ids[begin:end] for query, begin, end in self._limits()}

    def hits(self) -> dict[str, list[Hit]]:
        """(corpus id, score), best first, by query id."""
        hits = list(zip(self.corpus_ids.to_pylist(), self.scores.tolist(), strict=True))
        return {query: hits[begin:end] for query, begin, end in self._limits()}

    def _limits(self) -> Iterator[tuple[str, int, int]]:
        ends = [0, *np.cumsum(self.counts).tolist()]
        return ((query, *limits) for query, limits in zip(self.queries, pairwise(ends), strict=True))

    def are_ordered(self) -> bool:
        """True if every query's hits stand in a run's order: scores falling, ties by corpus id."""
        if len(self) < 2:
            return True
        same = np.diff(self.numbers()) == 0
        above, below = self.scores[:-1], self.scores[1:]
        if (same & (above < below)).any():
            return False
        tied = np.flatnonzero(same & (above == below))
        one, other = self.corpus_ids.take(pa.array(tied)), self.corpus_ids.take(pa.array(tied + 1))
        return not pc.any(pc.greater(one, other), min_count=0).as_py()

    def numbers(self) -> Array:
        """The number of each hit's query, from 0."""
        return np.repeat(np.arange(len(self.queries)), self.counts)

    def first_unfit(self) -> tuple[str, str, float] | None:
        """The first (query id, corpus id, score) that a TREC run cannot hold: blanks in an id, no finite score."""
        queries = pa.array(self.queries, pa.string())
        bad = pc.match_substring_regex(queries, _BLANK).to_numpy(zero_copy_only=False)[self.numbers()]
        bad |= pc.match_substring_regex(self.corpus_ids, _BLANK).to_numpy(zero_copy_only=False)
        bad |= ~np.isfinite(self.scores)
        if not bad.any():
            return None
        row = int(bad.argmax())
        return self.queries[self.numbers()[row]], self.corpus_ids[row].as_py(), float(self.scores[row])

    def trec(self, tag: str) -> Any:
        """The bytes of the run's lines."""
        if not len(self):
            return b""
        text = pa.large_string()
        numbers = self.numbers()
        ranks = np.arange(1, len(self) + 1) - (np.cumsum(self.counts) - self.counts)[numbers]
        lines = pc.binary_join_element_wise(
            pa.array(self.queries, text).take(pa.array(numbers)),
            pa.scalar("Q0", text),
            self.corpus_ids.cast(text),
            pc.cast(pa.array(ranks), text),
            printed(self.scores).cast(text),
            pa.scalar(f"{tag}\n", text),
            pa.scalar(" ", text),
        )
        if isinstance(lines, pa.ChunkedArray):
            lines = lines.combine_chunks()
        _, ends, data = lines.buffers()  # one line after the other
        ends = np.frombuffer(ends, np.int64)
        return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


def printed(scores: Array) -> pa.Array:
    """Every number as Python prints it: the shortest digits that give it back."""
    text = pc.cast(pa.array(scores, pa.float64()), pa.string())
    size = np.abs(scores)
    odd = ~((size >= _PLAIN[0]) & (size < _PLAIN[1]) & (scores != np.floor(scores)))
    if odd.any():
        text = pc.replace_with_mask(text, pa.array(odd), pa.array([repr(each) for each in scores[odd].tolist()]))
    return text


def columns_of(hits: Sequence[tuple[str, Sequence[Hit]]]) -> Columns:
    """(query id, its hits, in order) as columns."""
    every = [hit for _, own in hits for hit in own]
    return Columns(
        [query for query, _ in hits],
        np.array([len(own) for _, own in hits], np.int64),
        pa.array([corpus for corpus, _ in every], pa.large_string()),
        np.array([score for _, score in every], np.float64),
    )
