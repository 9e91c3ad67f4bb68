"""The ``numba`` engine: Lucene's BM25 with free k1 and b, computed from memory-mapped postings.

MaxScore over windows of rows (Turtle and Flood 1995; as Lucene does it since version 9): the best contributions of the
blocks in a window bound what a passage there can reach. Terms that cannot lift a passage over the last place, even
together, are looked up for the candidates of the others only; a window that cannot is skipped. Contributions are whole
numbers (a query's weights share out 2 ** 30), so sums do not depend on their order, and ties are exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numba
import numpy as np

from baselines.bm25_index import KeptIndex
from baselines.bm25_postings import CHUNK, FILES, LENGTHS, MANY, hash_of, write_postings
from baselines.threads import in_order

_WINDOW = 1 << 14
_SHARE = 26  # bits after the point of a saturated count, tf / (tf + norm)
_BOUND = 15  # of the largest one in a block
_WEIGHTS = 1 << 30


class NumbaIndex(KeptIndex):
    def __init__(self, folder: Path, k1: float, b: float, threads: int) -> None:
        super().__init__(folder)
        files = {name: np.fromfile(folder / name, FILES[name]) for name in ("many_at", "many", "tokens")}
        for name in FILES.keys() - files.keys():
            mapped = (folder / name).stat().st_size > 0  # an empty file cannot be
            files[name] = np.asarray(np.memmap(folder / name, FILES[name], "r")) if mapped else np.empty(0, FILES[name])
        self._terms, self._blocks, self._start = files["terms"], files["blocks"], files["start"]
        self.passages, self._holding, tokens = map(int, files["tokens"])
        norm = k1 * (1 - b + b * LENGTHS / (tokens / max(1, self._holding)))
        counts = np.arange(MANY + 1)[:, None]
        with np.errstate(invalid="ignore"):  # k1 = 0
            shares = np.nan_to_num(counts / (counts + norm[None, :]))
        whole = np.rint(shares * 2**_SHARE).astype(np.int32).ravel()
        postings = [files[name] for name in ("first", "start", "low", "code")]
        self._rest = (*postings, whole, files["many_at"], files["many"], norm)
        self._bounds = np.empty(len(files["first"]), np.uint16)
        cuts = np.linspace(0, len(self._bounds), 8 * threads + 1).astype(np.int64)
        for _ in in_order(lambda cut: _bound(self._bounds, *cut, *self._rest), pairwise(cuts), threads):
            pass

    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        terms: list[int] = []
        weights: list[float] = []
        for word, times in Counter(words).items():
            data = np.frombuffer(word.encode(), np.uint8)
            code = np.uint64(hash_of(data, 0, len(data)))
            term = int(np.searchsorted(self._terms, code))
            if term < len(self._terms) and self._terms[term] == code:
                block, end = self._blocks[term : term + 2]
                holders = int(self._start[end]) - int(self._start[block])
                terms.append(term)
                weights.append(times * np.log1p((self._holding - holders + 0.5) / (holders + 0.5)))
        if not terms:
            return []
        scale = _WEIGHTS / sum(weights)
        whole = np.rint(np.array(weights) * scale).astype(np.int64)
        spans = np.array([[self._blocks[term], self._blocks[term + 1]] for term in terms], np.int64)
        rows, scores = _search(whole, spans, self._bounds, *self._rest, self.passages, top_k)
        found: list[tuple[int, str]] = list(zip((-scores.astype(np.int64)).tolist(), self.ids_of(rows), strict=True))
        hits = sorted(found)[:top_k]
        # Eleven digits of the largest possible score tell any two of the sums apart.
        shown = np.round(np.array([-score for score, _ in hits]) / scale, 10 - math.floor(math.log10(sum(weights))))
        return [(corpus_id, score) for (_, corpus_id), score in zip(hits, shown.tolist(), strict=True)]


def engine_version() -> str:
    return "numba 1"  # raise it when the files change


def check(k1: float, b: float) -> None:
    pass  # any


def build(folder: Path, texts: Iterator[str], threads: int) -> None:
    write_postings(folder, texts, threads)


def open_folder(folder: Path, k1: float, b: float, threads: int) -> NumbaIndex:
    return NumbaIndex(folder, k1, b, threads)


@numba.njit(cache=True, nogil=True)
def _share(posting, code, shares, many_at, many, norm):  # type: ignore[no-untyped-def]
    """What a posting gives for a weight of 1, times 2 ** _SHARE."""
    if code[posting] < MANY << 8:
        return np.int64(shares[code[posting]])
    times = many[np.searchsorted(many_at, posting)]
    return np.int64(np.rint(times / (times + norm[code[posting] & 255]) * 2.0**_SHARE))


@numba.njit(cache=True, nogil=True)
def _bound(bounds, begin, end, first, start, low, code, shares, many_at, many, norm):  # type: ignore[no-untyped-def]
    """The largest share in each block, rounded up to _BOUND bits."""
    for block in range(begin, end):
        best = 0
        for posting in range(start[block], start[block + 1]):
            best = max(best, _share(posting, code, shares, many_at, many, norm))
        bounds[block] = (best + (1 << (_SHARE - _BOUND)) - 1) >> (_SHARE - _BOUND)


@numba.njit(cache=True, nogil=True)
def _lower(values, begin, end, wanted):  # type: ignore[no-untyped-def]
    """The first place in ``values[begin:end]``, which rise, of ``wanted`` or more."""
    while begin < end:
        middle = (begin + end) >> 1
        if values[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@numba.njit(cache=True, nogil=True)
def _best(rows, scores, top_k):  # type: ignore[no-untyped-def]
    """Move the ``top_k`` best, and all that tie with the last of them, to the front: (how many, the last's score)."""
    least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    kept = 0
    for place in range(len(scores)):
        if scores[place] >= least:
            rows[kept], scores[kept] = rows[place], scores[place]
            kept += 1
    return kept, least


@numba.njit(cache=True, nogil=True)
def _search(weights, spans, bounds, first, start, low, code, shares, many_at, many, norm, passages, top_k):  # type: ignore[no-untyped-def]
    """Rows and scores of the ``top_k`` best passages and of all that tie with the last, in no order."""
    terms = len(weights)
    at, end, most = spans[:, 0].copy(), np.zeros(terms, np.int64), np.zeros(terms, np.int64)
    order, reach = np.arange(terms), np.zeros(terms + 1, np.int64)
    sums, touched = np.zeros(_WINDOW, np.int32), np.empty(_WINDOW, np.int32)
    rows, scores = np.empty(4 * top_k + _WINDOW, np.int64), np.empty(4 * top_k + _WINDOW, np.int32)
    kept, settled, least = 0, 0, 1
    for begin in range(0, passages, _WINDOW):
        bottom = begin % CHUNK
        for term in range(terms):
            block, last, best = at[term], spans[term, 1], np.int64(0)
            while block < last and (
                first[block] // CHUNK < begin // CHUNK or (block + 1 < last and first[block + 1] <= begin)
            ):
                block += 1
            at[term] = block
            while block < last and first[block] < begin + _WINDOW:
                best = max(best, np.int64(bounds[block]))
                block += 1
            end[term] = block
            most[term] = ((weights[term] * (best << (_SHARE - _BOUND))) >> _SHARE) + 1 if block > at[term] else 0
        for place in range(1, terms):  # insertion sort: nearly in order from the window before
            term, to = order[place], place
            while to > 0 and most[order[to - 1]] > most[term]:
                order[to] = order[to - 1]
                to -= 1
            order[to] = term
        looked_up = 0
        for place in range(terms):
            reach[place + 1] = reach[place] + most[order[place]]
            looked_up += reach[place + 1] < least
        if looked_up == terms:
            continue
        found = 0
        for term in order[looked_up:]:
            for block in range(at[term], end[term]):
                head, tail = np.int64(start[block]), np.int64(start[block + 1])
                if first[block] < begin:
                    head = _lower(low, head, tail, bottom)
                if low[tail - 1] >= bottom + _WINDOW:
                    tail = _lower(low, head, tail, bottom + _WINDOW)
                for posting in range(head, tail):
                    row = low[posting] - bottom
                    share = _share(posting, code, shares, many_at, many, norm)
                    if sums[row] == 0:
                        touched[found] = row
                        found += 1
                    sums[row] += ((weights[term] * share) >> _SHARE) + 1
        for row in touched[:found]:
            score = np.int64(sums[row])
            sums[row] = 0
            for place in range(looked_up - 1, -1, -1):
                if score + reach[place + 1] < least:
                    break
                term = order[place]
                block = _lower(first, at[term], end[term], begin + row + 1) - 1
                if block >= at[term]:
                    bound = ((weights[term] * (np.int64(bounds[block]) << (_SHARE - _BOUND))) >> _SHARE) + 1
                    if score + bound + reach[place] < least:
                        score = np.int64(0)
                        break
                    tail = np.int64(start[block + 1])
                    posting = _lower(low, np.int64(start[block]), tail, bottom + row)
                    if posting < tail and low[posting] == bottom + row:
                        share = _share(posting, code, shares, many_at, many, norm)
                        score += ((weights[term] * share) >> _SHARE) + 1
            if score >= least:
                rows[kept], scores[kept] = begin + row, score
                kept += 1
        if kept >= top_k and kept - settled > top_k // 4:
            kept, least = _best(rows[:kept], scores[:kept], top_k)
            settled = kept
        if kept + _WINDOW > len(rows):  # many tie with the last
            rows, scores = np.append(rows, rows), np.append(scores, scores)
    if kept > top_k:
        kept, least = _best(rows[:kept], scores[:kept], top_k)
    return rows[:kept], scores[:kept]
