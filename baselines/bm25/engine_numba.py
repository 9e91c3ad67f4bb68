"""The ``numba`` engine: Lucene's BM25 with free k1 and b, computed from memory-mapped postings.

MaxScore (Turtle and Flood 1995) a chunk of rows at a time, as Lucene does it since version 9: the best contribution of
a term in a chunk bounds what a passage there can reach. Terms that cannot lift a passage over the last place, even
together, are looked up for the candidates of the others only; a chunk that cannot is skipped. Contributions are whole
numbers (a query's weights share out 2 ** 30), so sums do not depend on their order, and ties are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.bm25.index import KeptIndex
from baselines.bm25.postings import CHUNK, FILES, LENGTHS, hashes_of
from baselines.bm25.postings import write_index as write_index
from builders.core.compiled import compiled
from builders.core.errors import log
from builders.core.jobs import in_threads
from builders.store.runs import Columns

VERSION = "numba 2"  # raise it when the files change
_SHARE = 26  # bits after the point of a saturated count, tf / (tf + norm)
_BOUND = 11  # fewer in the bound of a list
_WEIGHTS = 1 << 30
_MOST = (1 << 31) - 1  # no sum reaches this
_LISTS = 1 << 20


class NumbaIndex(KeptIndex):
    def __init__(self, folder: Path, k1: float, b: float, threads: int) -> None:
        super().__init__(folder)
        self._names = self._ids.array()
        self._terms, self._lists, chunk, start, postings, pairs, tokens = (
            _mapped(folder / name, dtype) for name, dtype in FILES.items()
        )
        self.passages, self._holding, total = map(int, tokens)
        norms = k1 * (1 - b + b * LENGTHS * max(1, self._holding) / max(1, total))
        shares = np.rint((pairs >> 8) / ((pairs >> 8) + norms[pairs & 255]) * 2**_SHARE).astype(np.int32)
        rounded_up = (-(-shares >> _BOUND)).astype(np.uint16)
        bounds = np.empty(len(chunk), np.uint16)

        def bound(first: int) -> None:
            """The largest share in each of some lists."""
            starts = start[first : first + _LISTS + 1].astype(np.int64)
            each = rounded_up[postings[starts[0] : starts[-1]] & 0xFFFF]
            bounds[first : first + _LISTS] = np.maximum.reduceat(each, starts[:-1] - starts[0])

        for _ in in_threads(bound, range(0, len(chunk), _LISTS), threads):
            pass
        self._columns = (chunk, bounds, start, postings, shares)

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        return self.search_many([words], top_k)[0]

    def search_many(self, queries: list[list[str]], top_k: int) -> list[list[tuple[str, float]]]:
        return list(
            self.search_columns([str(number) for number in range(len(queries))], queries, top_k).hits().values()
        )

    def search_columns(self, ids: Sequence[str], queries: list[list[str]], top_k: int) -> Columns:
        times = [Counter(words) for words in queries]
        hashes = hashes_of(pa.array([word for each in times for word in each], pa.string()))
        terms = np.searchsorted(self._terms, hashes)
        known = terms < len(self._terms)
        known[known] = self._terms[terms[known]] == hashes[known]
        terms = terms[known]
        numbers = np.repeat(np.arange(len(times)), [len(each) for each in times])[known]  # of each term's query
        lists = np.stack([self._lists[terms], self._lists[terms + 1]], 1).astype(np.int64)
        holders = np.diff(self._columns[2][lists].astype(np.int64))[:, 0]
        counts = np.array([count for each in times for count in each.values()], np.int64)[known]
        weights = counts * np.log1p((self._holding - holders + 0.5) / (holders + 0.5))
        first = np.searchsorted(numbers, np.arange(len(times) + 1))
        # Each query's own sum, and not numpy's of several: the order of adding is in the last digits of the scores.
        sums = np.array([weights[begin:end].sum() or 1.0 for begin, end in pairwise(first.tolist())])
        scales = _WEIGHTS / sums
        order = np.lexsort((weights, numbers))
        whole = np.rint(weights[order] * scales[numbers]).astype(np.int64)
        sizes = CHUNK, self.passages, min(top_k, self.passages)
        rows, scores, found = _search_all(first, whole, lists[order], *self._columns, *self._ids.raw(), *sizes)
        taken = np.arange(rows.shape[1]) < found[:, None]
        # Eleven digits of the largest possible score tell any two of the sums apart.
        digits = 10 - np.floor(np.log10(sums)).astype(np.int64)
        shown = scores / scales[:, None]
        for number in np.unique(digits).tolist():
            shown[digits == number] = np.round(shown[digits == number], number)
        return Columns(ids, found, self._names.take(pa.array(rows[taken])), shown[taken])


def _mapped(path: Path, dtype: Any) -> Any:
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


def prepare() -> None:
    """Say what takes seconds where numba's cache has no compiled loops yet."""
    kept = _search_all.stats.cache_path  # None where numba can keep nothing
    if not kept or not any(Path(kept).glob(f"{__name__.rpartition('.')[2]}._search_all-*.nbi")):
        log.info("numba compiles the loops of the BM25 index and search: some seconds, once in this clone")


@compiled
def _added(weight, share):  # type: ignore[no-untyped-def]
    """What a term adds to a passage: never nothing."""
    return ((weight * share) >> _SHARE) + 1


@compiled
def _raise(best, score):  # type: ignore[no-untyped-def]
    """Put a score in the place of the lowest of ``best``, a heap that has it first."""
    place, size = 0, len(best)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and best[below + 1] < best[below]:
            below += 1
        if best[below] >= score:
            break
        best[place] = best[below]
        place = below
    best[place] = score


@compiled
def _before(row, other, ids, ends):  # type: ignore[no-untyped-def]
    """Whether a passage's id sorts before another's (bytes of UTF-8 sort as characters do)."""
    here, there = ends[row], ends[other]
    length, longer = ends[row + 1] - here, ends[other + 1] - there
    for byte in range(min(length, longer)):
        if ids[here + byte] != ids[there + byte]:
            return ids[here + byte] < ids[there + byte]
    return length < longer


@compiled
def _sink(rows, place, size, ids, ends):  # type: ignore[no-untyped-def]
    """Let one passage of a heap, which has the first id first, fall to its place."""
    row = rows[place]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(rows[below + 1], rows[below], ids, ends):
            below += 1
        if not _before(rows[below], row, ids, ends):
            break
        rows[place] = rows[below]
        place = below
    rows[place] = row


@compiled
def _in_order(rows, scores, ids, ends, hits, hit_scores):  # type: ignore[no-untyped-def]
    """Fill ``hits`` and ``hit_scores`` with the best, as a run has them: by score, ties by id. Returns how many."""
    keys = np.empty(len(rows), np.int64)
    for number in range(len(rows)):
        keys[number] = (np.int64(_MOST) - scores[number]) << 32 | number
    keys.sort()
    tied, count, begin = np.empty(len(rows), np.int32), 0, 0
    while begin < len(keys) and count < len(hits):
        size, score = 0, scores[keys[begin] & 0xFFFFFFFF]
        while begin < len(keys) and scores[keys[begin] & 0xFFFFFFFF] == score:
            tied[size] = rows[keys[begin] & 0xFFFFFFFF]
            size, begin = size + 1, begin + 1
        for place in range(size // 2 - 1, -1, -1):
            _sink(tied, place, size, ids, ends)
        while size and count < len(hits):
            hits[count], hit_scores[count] = tied[0], score
            count, size = count + 1, size - 1
            tied[0] = tied[size]
            _sink(tied, 0, size, ids, ends)
    return count


@compiled
def _search_all(first, weights, lists, chunk, bounds, start, postings, shares, ids, ends, size, passages, top_k):  # type: ignore[no-untyped-def]
    """Rows and scores of the ``top_k`` best passages of some queries, in order, and how many each query has.

    ``first``: where each query's terms begin in ``weights``, which rise within a query, and in ``lists``, where the
    lists of each term begin and end; a chunk has ``size`` rows (no constant: the cache of compiled code would not see
    that another module's constant has changed).
    """
    queries = len(first) - 1
    rows, scores = np.empty((queries, top_k), np.int32), np.zeros((queries, top_k), np.int32)
    counts = np.zeros(queries, np.int64)
    sums, touched = np.zeros(size, np.int32), np.empty(size, np.int32)
    kept_rows, kept_scores = np.empty(passages, np.int32), np.empty(passages, np.int32)
    for query in range(queries):
        own = slice(first[query], first[query + 1])
        kept = 0
        if first[query] < first[query + 1]:
            kept = _search(
                weights[own], lists[own], chunk, bounds, start, postings, shares, size, passages, top_k,
                sums, touched, kept_rows, kept_scores,
            )  # fmt: skip
        counts[query] = _in_order(kept_rows[:kept], kept_scores[:kept], ids, ends, rows[query], scores[query])
    return rows, scores, counts


@compiled
def _search(weights, lists, chunk, bounds, start, postings, shares, size, passages, top_k, sums, touched, rows, scores):  # type: ignore[no-untyped-def]
    """Put the ``top_k`` best passages of one query, and all that tie with the last, into ``rows`` and ``scores``.

    In no order; returns how many. ``sums`` are nought before and after; ``touched`` has room for a chunk's rows.
    """
    terms = len(weights)
    at, head, tail = lists[:, 0].copy(), np.empty(terms, np.int64), np.empty(terms, np.int64)
    reach = np.zeros(terms + 1, np.int64)  # what the first terms add to a passage at most
    best = np.zeros(top_k, np.int64)  # the best scores so far, the lowest first
    kept, least = 0, np.int64(1)
    for here in range((passages + size - 1) // size):
        looked_up = found = 0
        for term in range(terms):
            while at[term] < lists[term, 1] and chunk[at[term]] < here:
                at[term] += 1
            head[term] = tail[term] = most = 0
            if at[term] < lists[term, 1] and chunk[at[term]] == here:
                head[term], tail[term] = start[at[term]], start[at[term] + 1]
                most = _added(weights[term], np.int64(bounds[at[term]]) << _BOUND)
            reach[term + 1] = reach[term] + most
            looked_up += reach[term + 1] < least
        for term in range(looked_up, terms):
            for posting in postings[head[term] : tail[term]]:
                row = posting >> 16
                if sums[row] == 0:
                    touched[found] = row
                    found += 1
                sums[row] += _added(weights[term], shares[posting & 0xFFFF])
        for row in touched[:found]:
            score = np.int64(sums[row])
            sums[row] = 0
            for term in range(looked_up - 1, -1, -1):
                if score + reach[term + 1] < least:
                    break
                low, high = head[term], tail[term]
                while low < high:  # the first posting of this row or a later one
                    middle = (low + high) >> 1
                    if postings[middle] >> 16 < row:
                        low = middle + 1
                    else:
                        high = middle
                if low < tail[term] and postings[low] >> 16 == row:
                    score += _added(weights[term], shares[postings[low] & 0xFFFF])
            if score >= least:
                rows[kept], scores[kept] = here * size + row, score
                kept += 1
                if score > best[0]:
                    _raise(best, score)
                    least = max(least, best[0])
    found = 0
    for number in range(kept):
        if scores[number] >= least:
            rows[found], scores[found] = rows[number], scores[number]
            found += 1
    return found
