"""The ``numba`` engine: Lucene's BM25 with free k1 and b, computed from memory-mapped postings.

MaxScore (Turtle and Flood 1995) a chunk of rows at a time, as Lucene does it since version 9: the best contribution of
a term in a chunk bounds what a passage there can reach. Terms that cannot lift a passage over the last place, even
together, are looked up for the candidates of the others only; a chunk that cannot is skipped. Contributions are whole
numbers (a query's weights share out 2 ** 30), so sums do not depend on their order, and ties are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.bm25.index import KeptIndex
from baselines.bm25.postings import CHUNK, FILES, LENGTHS, hashes_of
from baselines.bm25.postings import write_index as write_index
from builders.common.command import log
from builders.common.compiled import compiled
from builders.common.jobs import in_threads

_SHARE = 26  # bits after the point of a saturated count, tf / (tf + norm)
_BOUND = 11  # fewer in the bound of a list
_WEIGHTS = 1 << 30
_MOST = (1 << 31) - 1  # no sum reaches this
_LISTS = 1 << 20


class NumbaIndex(KeptIndex):
    def __init__(self, folder: Path, k1: float, b: float, threads: int) -> None:
        super().__init__(folder)
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
        times = Counter(words)
        hashes = hashes_of(pa.array(list(times), pa.string()))
        terms = np.searchsorted(self._terms, hashes)
        known = terms < len(self._terms)
        known[known] = self._terms[terms[known]] == hashes[known]
        if not known.any():
            return []
        lists = np.stack([self._lists[terms[known]], self._lists[terms[known] + 1]], 1).astype(np.int64)
        holders = np.diff(self._columns[2][lists].astype(np.int64))[:, 0]
        weights = np.array(list(times.values()))[known] * np.log1p((self._holding - holders + 0.5) / (holders + 0.5))
        scale = _WEIGHTS / weights.sum()
        order = np.argsort(weights)
        whole = np.rint(weights[order] * scale).astype(np.int64)
        rows, scores = _search(whole, lists[order], *self._columns, CHUNK, self.passages, top_k)
        hits = sorted(zip((-scores.astype(np.int64)).tolist(), self.ids_of(rows), strict=True))[:top_k]
        # Eleven digits of the largest possible score tell any two of the sums apart.
        shown = np.round(np.array([-score for score, _ in hits]) / scale, 10 - math.floor(math.log10(weights.sum())))
        return [(corpus_id, score) for (_, corpus_id), score in zip(hits, shown.tolist(), strict=True)]


def _mapped(path: Path, dtype: Any) -> Any:
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


def engine_version() -> str:
    return "numba 2"  # raise it when the files change


def prepare(k1: float, b: float) -> None:
    """Any k1 and b will do; says what takes seconds where numba's cache has no compiled loops yet."""
    kept = _search.stats.cache_path  # None where numba can keep nothing
    if not kept or not any(Path(kept).glob(f"{__name__.rpartition('.')[2]}._search-*.nbi")):
        log.info("numba compiles the loops of the BM25 index and search: some seconds, once in this clone")


open_folder = NumbaIndex


@compiled
def _added(weight, share):  # type: ignore[no-untyped-def]
    """What a term adds to a passage: never nothing."""
    return ((weight * share) >> _SHARE) + 1


@compiled
def _best(rows, scores, top_k):  # type: ignore[no-untyped-def]
    """Move the ``top_k`` best, and all that tie with the last of them, to the front: (how many, the last's score)."""
    # The highest score that top_k passages reach, by halving: numba takes six seconds to compile a partition.
    least, above = np.int32(0), np.int32(_MOST)
    while above - least > 1:
        middle, reached = np.int32(least + (above - least) // 2), 0
        for number in range(len(scores)):
            reached += scores[number] >= middle
        least, above = (middle, above) if reached >= top_k else (least, middle)
    kept = 0
    for number in range(len(scores)):
        if scores[number] >= least:
            rows[kept], scores[kept] = rows[number], scores[number]
            kept += 1
    return kept, np.int64(least)


@compiled
def _search(weights, lists, chunk, bounds, start, postings, shares, size, passages, top_k):  # type: ignore[no-untyped-def]
    """Rows and scores of the ``top_k`` best passages and of all that tie with the last, in no order.

    ``weights`` rise; ``lists`` are where the lists of each term begin and end; a chunk has ``size`` rows (no constant:
    the cache of compiled code would not see that another module's constant has changed).
    """
    terms = len(weights)
    at, head, tail = lists[:, 0].copy(), np.empty(terms, np.int64), np.empty(terms, np.int64)
    reach = np.zeros(terms + 1, np.int64)  # what the first terms add to a passage at most
    sums, touched = np.zeros(size, np.int32), np.empty(size, np.int32)
    rows, scores = np.empty(passages, np.int32), np.empty(passages, np.int32)  # takes the memory that is written to
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
        if 4 * kept >= 5 * top_k:
            kept, least = _best(rows[:kept], scores[:kept], top_k)
    if kept > top_k:
        kept, least = _best(rows[:kept], scores[:kept], top_k)
    return rows[:kept], scores[:kept]
