"""The ``numba`` engine: Lucene's BM25 with free k1 and b, computed from memory-mapped postings.

An index is written in bounded memory. The bytes of its files do not depend on the number of threads. pyarrow and numpy
invert chunks of passages, outside the interpreter's lock. Then each range of term hashes is merged over all chunks. A
64-bit hash identifies a term. The probability of a collision among ten million terms is 3 in a million.

The search is MaxScore (Turtle and Flood 1995), chunk by chunk, as in Lucene since version 9. The largest contribution
of a term in a chunk bounds the term's contribution to each passage. Terms with small weights, whose bounds together
cannot lift a passage into the top k, are looked up only for passages with another term of the query. Contributions are
integers, because the weights of a query are scaled to a sum of 2 ** 30. Sums therefore do not depend on the order of
addition, and ties are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from baselines.bm25.bm25_index import INDEXES, Index, Texts
from baselines.bm25.tokens import K1, WORDS, Analyzer, B
from baselines.core.passages import Strings, write_strings
from builders.core.errors import InputError, log
from builders.core.jobs import compiled, in_threads
from builders.store.runs import Columns

VERSION = "numba 2"  # increase the number when the file format changes
_IDS = "ids"  # file of the corpus ids, in row order
_SHARE = 26  # fractional bits of a share tf / (tf + norm), the saturated count of a term
_BOUND = 11  # low bits that are dropped from the largest share of a list, so that 16 bits suffice
_LISTS = 1 << 20  # lists per task of a thread
Array = npt.NDArray[Any]
CHUNK = 1 << 14  # passages per chunk, so that the sums of a chunk fit into the fastest caches of a CPU
_RANGES = 64  # number of ranges of the term hashes
FILES = {
    "terms": np.int64,  # hashes, sorted
    "lists": np.uint32,  # first list of each term; a term has a list for each chunk in which it occurs
    "chunk": np.uint16,  # chunk of each list
    "start": np.uint32,  # first posting of each list
    "postings": np.uint32,  # 2 ** 16 * (row within the chunk) + (index in "pairs")
    "pairs": np.int64,  # 256 * (count of the term in the passage) + (code of the passage's length), sorted
    "tokens": np.int64,  # number of passages, of passages with a token, and of tokens
}
# Passage lengths by code, as Lucene's SmallFloat.byte4ToInt: exact below 40, then four significant bits.
LENGTHS = np.array([n if n < 24 else 24 + (n % 8 if n < 32 else (n % 8 + 8) << (n // 8 - 4)) for n in range(256)])


def hashes_of(words: pa.StringArray) -> Array:
    """Return a 64-bit hash for each word."""
    _, ends, data = words.buffers()
    found = _hashes(np.frombuffer(data or b"", np.uint8), np.frombuffer(ends, np.int32), len(words))
    return np.asarray(found).view(np.int64)


@compiled
def _hashes(data, ends, words):  # type: ignore[no-untyped-def]
    codes = np.full(words, 0x243F6A8885A308D3, np.uint64)
    for word in range(words):
        for byte in range(ends[word], ends[word + 1]):
            codes[word] = (codes[word] ^ np.uint64(data[byte])) * np.uint64(0x9FB21C651E98DF25)
            codes[word] ^= codes[word] >> np.uint64(32)
    return codes


def _invert(texts: list[str]) -> dict[str, Any]:
    """Return the postings of one chunk of passages, sorted by the hashes of the terms."""
    split = pc.split_pattern(pa.array([text or None for text in texts], pa.string()), " ")
    lengths = pc.list_value_length(split).fill_null(0).to_numpy()
    words = split.flatten().dictionary_encode()
    hashes = hashes_of(words.dictionary)
    order = np.argsort(hashes)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    keys = np.sort(rank[words.indices.to_numpy()] * CHUNK + np.repeat(np.arange(len(texts)), lengths))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    counts, keys = np.diff(first, append=len(keys)), keys[first]
    codes = np.searchsorted(LENGTHS, lengths, side="right") - 1
    pairs = pa.array(counts << 8 | codes[keys % CHUNK]).dictionary_encode()
    starts = np.searchsorted(keys, np.arange(len(order) + 1) * CHUNK)
    cuts = np.searchsorted(hashes[order] >> 58, np.arange(_RANGES + 1) - _RANGES // 2)
    return {
        "hash": hashes[order],
        "size": np.diff(starts),
        "postings": (keys % CHUNK << 16 | pairs.indices.to_numpy()).astype(np.uint32),
        "pairs": pairs.dictionary.to_numpy(),
        "cuts": np.stack([cuts, starts[cuts]], 1),
        "tokens": np.array([len(lengths), np.count_nonzero(lengths), lengths.sum()]),
    }


def _merge(folder: Path, chunks: list[dict[str, Any]], pairs: Array, number_of_range: int) -> dict[str, Any]:
    """Merge one range of hashes over all chunks. In the result, lists and postings are numbered from 0."""

    def read(number: int, name: str, dtype: Any, cut: Array) -> Array:
        path, offset = folder / f"{name}-{number}.chunk", int(cut[0]) * np.dtype(dtype).itemsize
        return np.fromfile(path, dtype, int(cut[1] - cut[0]), offset=offset)

    found = []
    for number, chunk in enumerate(chunks):
        lists, cut = chunk["cuts"][number_of_range : number_of_range + 2].T
        hashes, sizes = read(number, "hash", np.int64, lists), read(number, "size", np.int64, lists)
        postings = read(number, "postings", np.uint32, cut)
        indices = np.searchsorted(pairs, chunk["pairs"]).astype(np.uint32)
        postings = postings >> 16 << 16 | indices[postings & 0xFFFF]
        found.append((hashes, sizes, np.full(len(hashes), number), postings))
    hashes, sizes, numbers, postings = map(np.concatenate, zip(*found, strict=True))
    order = np.argsort(hashes, kind="stable")
    terms, first = np.unique(hashes[order], return_index=True)
    begins, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
    start = np.cumsum(sizes) - sizes
    take = np.repeat(begins - start, sizes) + np.arange(len(postings))
    return dict(zip(FILES, (terms, first, numbers[order], start, postings[take]), strict=False))


def write_index(folder: Path, texts: Iterable[str], ids: Iterable[pa.Array], threads: int) -> None:
    """Write an index into a new folder, with ``threads`` threads.

    ``texts`` has the tokens of each passage, joined by one space. ``ids`` has the corpus ids in the same order.
    """
    chunks, texts = [], iter(texts)
    lists_of_texts = iter(lambda: list(islice(texts, CHUNK)), [])
    for number, chunk in enumerate(in_threads(_invert, lists_of_texts, threads, threads + 1)):
        for name in ("hash", "size", "postings"):
            chunk.pop(name).tofile(folder / f"{name}-{number}.chunk")
        chunks.append(chunk)
    pairs = np.unique(np.concatenate([chunk["pairs"] for chunk in chunks]))
    lists, postings = np.sum([chunk["cuts"][-1] for chunk in chunks], axis=0)
    if len(pairs) > 1 << 16 or max(lists, postings) >= 2**32:
        raise InputError(
            f"{postings} postings with {len(pairs)} pairs of count and length are too many for the numba engine; "
            "use --engine elasticsearch"
        )
    _append(folder, {"pairs": pairs, "tokens": np.sum([chunk["tokens"] for chunk in chunks], axis=0)})
    done = np.zeros(2, np.int64)
    for merged in in_threads(
        lambda number: _merge(folder, chunks, pairs, number), range(_RANGES), threads, threads + 1
    ):
        _append(folder, {**merged, "lists": merged["lists"] + done[0], "start": merged["start"] + done[1]})
        done += len(merged["chunk"]), len(merged["postings"])
    _append(folder, {"lists": done[:1], "start": done[1:]})
    for path in folder.glob("*.chunk"):
        path.unlink()
    write_strings(folder / _IDS, ids)


def _append(folder: Path, values: dict[str, Any]) -> None:
    for name, each in values.items():
        with open(folder / name, "ab") as file:
            each.astype(FILES[name], copy=False).tofile(file)


class NumbaIndex(Index):
    """An index in a folder, opened with values of k1 and b."""

    def __init__(self, folder: Path, k1: float, b: float, threads: int, analyzer: Analyzer = WORDS) -> None:
        self.folder, self.analyzer, self._threads = folder, analyzer, threads
        self._ids = Strings(folder / _IDS).array()
        self._terms, self._lists, chunk, start, postings, pairs, tokens = (
            _mapped(folder / name, dtype) for name, dtype in FILES.items()
        )
        self.passages, self._holding, total = map(int, tokens)
        norms = k1 * (1 - b + b * LENGTHS * max(1, self._holding) / max(1, total))
        shares = np.rint((pairs >> 8) / ((pairs >> 8) + norms[pairs & 255]) * 2**_SHARE).astype(np.int32)
        rounded_up = (-(-shares >> _BOUND)).astype(np.uint16)
        bounds = np.empty(len(chunk), np.uint16)

        def bound(first: int) -> None:
            """Store the largest share of each list, rounded up, for ``_LISTS`` lists from list ``first`` on."""
            starts = start[first : first + _LISTS + 1].astype(np.int64)
            each = rounded_up[postings[starts[0] : starts[-1]] & 0xFFFF]
            bounds[first : first + _LISTS] = np.maximum.reduceat(each, starts[:-1] - starts[0])

        list(in_threads(bound, range(0, len(chunk), _LISTS), threads))
        self._columns = (chunk, bounds, start, postings, shares)

    def reopened(self, k1: float, b: float) -> NumbaIndex:
        """Return the same index with other values of k1 and b."""
        return NumbaIndex(self.folder, k1, b, self._threads, self.analyzer)

    def search_columns(self, ids: Sequence[str], queries: list[list[str]], top_k: int) -> Columns:
        times = [Counter(words) for words in queries]
        hashes = hashes_of(pa.array([word for each in times for word in each], pa.string()))
        terms = np.searchsorted(self._terms, hashes)
        known = terms < len(self._terms)
        known[known] = self._terms[terms[known]] == hashes[known]
        terms = terms[known]
        numbers = np.repeat(np.arange(len(times)), [len(each) for each in times])[known]  # number of each term's query
        lists = np.stack([self._lists[terms], self._lists[terms + 1]], 1).astype(np.int64)
        holders = np.diff(self._columns[2][lists].astype(np.int64))[:, 0]
        counts = np.array([count for each in times for count in each.values()], np.int64)[known]
        weights = counts * np.log1p((self._holding - holders + 0.5) / (holders + 0.5))
        first = np.searchsorted(numbers, np.arange(len(times) + 1))
        # Each query is summed separately, because the order of a vectorised sum changes the last digits of scores.
        sums = np.array([weights[begin:end].sum() or 1.0 for begin, end in pairwise(first.tolist())])
        scales = 2**30 / sums
        order = np.lexsort((weights, numbers))
        whole = np.rint(weights[order] * scales[numbers]).astype(np.int64)
        rows, scores, counts = _search_all(
            first, whole, lists[order], *self._columns, CHUNK, self.passages, min(top_k, self.passages)
        )
        each = np.repeat(np.arange(len(counts)), counts)
        found = pa.table({"query": each, "score": scores, "id": self._ids.take(pa.array(rows))})
        # Arrow sorts ids by bytes, which is the order of characters in UTF-8.
        ranked = found.take(
            pc.sort_indices(found, [("query", "ascending"), ("score", "descending"), ("id", "ascending")])
        )
        best = ranked.filter(pa.array(np.arange(len(each)) - np.searchsorted(each, each) < top_k))
        each, scores = best["query"].to_numpy(), best["score"].to_numpy()
        # With eleven digits of a query's largest possible score, different integer sums remain different.
        digits = (10 - np.floor(np.log10(sums)).astype(np.int64))[each]
        shown = scores / scales[each]
        for number in np.unique(digits).tolist():
            shown[digits == number] = np.round(shown[digits == number], number)
        return Columns(ids, np.bincount(each, minlength=len(counts)), best["id"].combine_chunks(), shown)


def open_index(texts: Texts, keep: Path | None, workers: int, k1: float = K1, b: float = B) -> NumbaIndex:
    """Open the index of ``texts`` in the folder ``keep`` of indexes (None: the user's cache).

    ``workers`` processes and threads build a missing or damaged index in a temporary folder, which is then renamed. A
    second process that needs the same index waits.
    """
    folder, made = INDEXES.folder(
        keep, texts.key(VERSION), lambda new: write_index(new, texts.tokens(workers), texts.column("_id"), workers)
    )
    index = NumbaIndex(folder, k1, b, workers, texts.analyzer)
    log.info("BM25 index %s: %s (%d passages)", "built" if made else "reused", folder, index.passages)
    return index


def _mapped(path: Path, dtype: Any) -> Any:
    return np.asarray(np.memmap(path, dtype, "r")) if path.stat().st_size else np.empty(0, dtype)


@compiled
def _added(weight, share):  # type: ignore[no-untyped-def]
    """Return the contribution of a term to a passage's score. The contribution is at least 1."""
    return ((weight * share) >> _SHARE) + 1


@compiled
def _raise(best, score):  # type: ignore[no-untyped-def]
    """Replace the lowest score of the min-heap ``best`` by a higher score."""
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
def _search(weights, lists, chunk, bounds, start, postings, shares, size, passages, top_k, sums, touched, rows, scores):  # type: ignore[no-untyped-def]
    """Write one query's ``top_k`` best passages, and passages that tie with the last, into ``rows`` and ``scores``.

    Returns the number of written passages, which are unsorted. ``weights`` ascend. ``lists`` has the first list of each
    term and the end of the term's lists. ``sums`` and ``touched`` have an element for each row of a chunk. ``sums`` has
    only zeros before and after the call. ``size`` is an argument, because cached code would ignore a changed constant.
    """
    terms = len(weights)
    at, head, tail = lists[:, 0].copy(), np.empty(terms, np.int64), np.empty(terms, np.int64)
    reach = np.zeros(terms + 1, np.int64)  # reach[n]: upper bound of the sum of the first n contributions
    best = np.zeros(top_k, np.int64)  # min-heap of the best scores so far
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
                while low < high:  # binary search for the first posting with this row or a later row
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


@compiled
def _search_all(first, weights, lists, chunk, bounds, start, postings, shares, size, passages, top_k):  # type: ignore[no-untyped-def]
    """Search by several queries. Return the rows and scores of all hits, and the number of hits of each query.

    ``first`` has the first term of each query, then the number of all terms. The compiled code holds no Python lock.
    """
    sums, touched = np.zeros(size, np.int32), np.empty(size, np.int32)
    rows, scores = np.empty(passages, np.int32), np.empty(passages, np.int32)
    counts, hits, total = np.zeros(len(first) - 1, np.int64), np.empty((2, top_k), np.int32), 0
    for query in range(len(counts)):
        own, ends = weights[first[query] : first[query + 1]], lists[first[query] : first[query + 1]]
        if len(own):
            counts[query] = _search(
                own, ends, chunk, bounds, start, postings, shares, size, passages, top_k, sums, touched, rows, scores
            )
        last = total + counts[query]
        if last > hits.shape[1]:
            larger = np.empty((2, 2 * last), np.int32)
            larger[:, :total] = hits[:, :total]
            hits = larger
        hits[0, total:last], hits[1, total:last] = rows[: counts[query]], scores[: counts[query]]
        total = last
    return hits[0, :total], hits[1, :total], counts
