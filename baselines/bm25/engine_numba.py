"""The ``numba`` engine: Lucene's BM25 with free k1 and b, computed from memory-mapped postings.

An index is written in bounded memory. The bytes of its files do not depend on the number of threads. pyarrow and numpy
invert chunks of passages, outside the interpreter's lock. Then each range of term hashes is merged over all chunks. A
64-bit hash identifies a term. The probability of a collision among ten million terms is 3 in a million.

The files of an index of two passages, "a b b" and "b c"::

    pairs     (1, 2)    (1, 3)    (2, 3)              each (count of a term in a passage, length of the passage)
    postings  0: 1      0: 2      1: 0      1: 0      row within the chunk: index in pairs
    start     0         1                   3      4  first posting of each list, and the end of the last list
    chunk     0         0                   0         chunk of each list
    lists     0         1                   2      3  first list of each term, and the end of the last term
    terms     a         b                   c         stored as hashes, and sorted by them

A score depends on a passage only through the pair of count and length. There are few pairs, so a new k1 or b needs one
new value for each pair, and the postings stay the same.

The search is MaxScore (Turtle and Flood 1995, "Query evaluation: strategies and optimizations"), chunk by chunk, as in
Lucene since version 9. The largest contribution of a term in a chunk bounds the term's contribution to each passage.
Terms with small weights, whose bounds together cannot lift a passage into the top k, are looked up only for passages
with another term of the query. An example, if the k-th best score so far is 10::

    term       bound in this chunk   sum of the bounds so far
    the        2                     2     < 10: looked up
    of         5                     7     < 10: looked up
    retrieval  9                     16   >= 10: all postings are read

A passage with only "the" and "of" scores at most 7, so the postings of "retrieval" have every passage that can reach
10. If "retrieval" adds 4 to a passage, the other terms can still lift the score to 4 + 7. "of" is looked up first, by
binary search. If the passage lacks "of", "the" is not looked up, because 4 + 2 is below 10.

Thresholds are guessed from a sample of the chunks, and verified (:func:`_search_query`).

Contributions are integers, because the weights of a query are scaled to a sum of 2 ** 30. Sums therefore do not depend
on the order of addition, and ties are exact.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from baselines.bm25.bm25_index import INDEXES, IndexedTexts, InvertedIndex
from baselines.bm25.tokens import K1, WORDS, Analyzer, B
from baselines.core.passages import MappedStrings, write_strings
from builders.core.cache import writable_cache
from builders.core.errors import InputError, log
from builders.core.jobs import compiled, in_threads
from builders.core.locks import temporary_folder
from builders.store.runs import RunColumns

VERSION = "numba 3"  # increase the number when the file format changes
_IDS = "ids"  # file of the corpus ids, in row order
Array = npt.NDArray[Any]

# A posting has the row within the chunk in its upper bits, and the index of a pair in its lower bits.
_PAIR_BITS = 16
_PAIR_MASK = (1 << _PAIR_BITS) - 1
# A pair has the count of the term in its upper bits, and the code of the passage's length in its lower bits.
_CODE_BITS = 8
_CODE_MASK = (1 << _CODE_BITS) - 1

# Passages per chunk, so that the sums of a chunk fit into the fastest caches of a CPU.
CHUNK = 1 << 14
_LISTS = 1 << 20  # lists per task of a thread
_RANGES = 64  # number of ranges of the term hashes
_RANGE_SHIFT = 58  # the upper 6 bits of a hash are the number of its range

_WEIGHT_SUM = 2**30  # sum of a query's integer weights
_SHARE = 26  # fractional bits of a share tf / (tf + norm), the saturated count of a term
_BOUND = 11  # low bits that are dropped from the largest share of a list, so that 16 bits suffice
_DIGITS = 11  # digits of a query's largest possible score

# A hit is one integer that ascends from the best hit to the worst: (_SCORE_LIMIT - score) in the upper 32 bits, and the
# rank of the passage's id in the lower 32 bits. So equal scores are ordered by id, and no two hits are equal.
_KEY_BITS = 32
_RANK_MASK = (1 << _KEY_BITS) - 1
_SCORE_LIMIT = (1 << 31) - 1
_ROWS_PER_BLOCK = 64  # rows whose largest sum is computed at a time
# A sparse chunk has fewer postings than this share of its rows. Its postings are read twice instead of all its sums.
_SPARSE_SHARE = 8
# A binary search in a list costs about as much as reading this number of postings.
_POSTINGS_PER_LOOKUP = 12
_CHUNKS_PER_SAMPLE = 8  # every eighth chunk is in the sample from which a threshold is guessed
_FEWEST_CHUNKS = 4  # no threshold is guessed for smaller collections
# Standard deviations between the expected number of hits in the sample, and the number that is used.
_DEVIATIONS = 3
# No threshold is guessed for a query that has fewer postings than this number times top_k.
_POSTINGS_PER_HIT = 8

# Constants of the hash of a word: the first 64 fractional bits of pi, and the multiplier of the mixer rrmxmx (Pelle
# Evensen), which XXH3 uses, too.
_HASH_START = 0x243F6A8885A308D3
_HASH_MULTIPLIER = 0x9FB21C651E98DF25

FILES = {
    "terms": np.int64,  # hashes, sorted
    # First list of each term; a term has a list for each chunk in which it occurs.
    "lists": np.uint32,
    "chunk": np.uint16,  # chunk of each list
    "start": np.uint32,  # first posting of each list
    "postings": np.uint32,  # 2 ** 16 * (row within the chunk) + (index in "pairs")
    # 256 * (count of the term in the passage) + (code of the passage's length), sorted.
    "pairs": np.int64,
    "tokens": np.int64,  # number of passages, of passages with a token, and of tokens
    "ranks": np.uint32,  # rank of each passage's id among all ids, in the order of the ids' bytes
    "rows": np.uint32,  # row of each rank: the inverse of "ranks"
}

_EXACT_CODES = 24  # smaller codes are the lengths themselves
_MANTISSA = 8  # codes with the same exponent


def _decode_length(code: int) -> int:
    """Return the passage length of a code of 8 bits, as Lucene's SmallFloat.byte4ToInt.

    A code from 24 on is a small float: 24 + 8 * exponent + mantissa. Lengths below 40 are exact. Longer ones have four
    significant bits above 24, for example 40, 42, 44 ... 54, 56, 60, 64 ...
    """
    if code < _EXACT_CODES:
        return code
    exponent, mantissa = divmod(code - _EXACT_CODES, _MANTISSA)
    if exponent == 0:
        return _EXACT_CODES + mantissa
    return _EXACT_CODES + ((_MANTISSA + mantissa) << (exponent - 1))


# Passage length by code, ascending.
LENGTHS = np.array([_decode_length(code) for code in range(256)])


def hashes_of(words: pa.StringArray) -> Array:
    """Return a 64-bit hash for each word."""
    _, offsets, data = words.buffers()
    word_bytes = np.frombuffer(data or b"", np.uint8)
    word_hashes = _hash_words(word_bytes, np.frombuffer(offsets, np.int32), len(words))
    return np.asarray(word_hashes).view(np.int64)


@compiled
def _hash_words(word_bytes, offsets, word_count):  # type: ignore[no-untyped-def]
    """Hash the words of an Arrow column: word n has the bytes from ``offsets[n]`` to ``offsets[n + 1]``.

    Each byte is mixed in as in FNV-1a: xor, then multiply. Then the upper half is xored into the lower half, because a
    multiplication moves bits only upwards.
    """
    word_hashes = np.full(word_count, _HASH_START, np.uint64)
    for word in range(word_count):
        for position in range(offsets[word], offsets[word + 1]):
            word_hashes[word] = (word_hashes[word] ^ np.uint64(word_bytes[position])) * np.uint64(_HASH_MULTIPLIER)
            word_hashes[word] ^= word_hashes[word] >> np.uint64(32)
    return word_hashes


def _invert_chunk(texts: list[str]) -> dict[str, Any]:
    """Return the postings of one chunk of passages, as columns by name. A term's postings are one list.

    ``texts`` has the tokens of each passage, joined by one space. ``hash`` and ``size`` are the hash of each list's
    term, ascending, and the number of its postings. ``postings`` are those of all lists, in this order. ``pairs`` are
    the distinct pairs of count and length. ``cuts`` has a row for each range of hashes, and one for the end: the first
    list and the first posting. ``tokens`` are the numbers of passages, of passages with a token, and of tokens.
    """
    # A passage without tokens becomes a null, because Arrow splits "" into one empty token.
    split_texts = pc.split_pattern(pa.array([text or None for text in texts], pa.string()), " ")
    lengths = pc.list_value_length(split_texts).fill_null(0).to_numpy()
    tokens = split_texts.flatten().dictionary_encode()
    term_hashes = hashes_of(tokens.dictionary)
    # Arrow numbers the terms by first occurrence. Here they are numbered by hash.
    hash_order = np.argsort(term_hashes)
    term_numbers = np.empty(len(hash_order), np.int64)
    term_numbers[hash_order] = np.arange(len(hash_order))
    sorted_hashes = term_hashes[hash_order]
    # Sort all tokens by term, and by row within a term, in one pass: the term is the upper part of a key, the row the
    # lower part. Equal keys are neighbours then. Each run of equal keys becomes a posting, and its length the count.
    token_rows = np.repeat(np.arange(len(texts)), lengths)
    token_keys = np.sort(term_numbers[tokens.indices.to_numpy()] * CHUNK + token_rows)
    run_starts = np.flatnonzero(np.diff(token_keys, prepend=-1))
    counts = np.diff(run_starts, append=len(token_keys))
    posting_keys = token_keys[run_starts]
    posting_rows = posting_keys % CHUNK
    length_codes = np.searchsorted(LENGTHS, lengths, side="right") - 1
    pairs = pa.array(counts << _CODE_BITS | length_codes[posting_rows]).dictionary_encode()
    list_starts = np.searchsorted(posting_keys, np.arange(len(hash_order) + 1) * CHUNK)
    # The first list and the first posting of each range of hashes. Hashes are signed, so the ranges begin at -32.
    range_lists = np.searchsorted(sorted_hashes >> _RANGE_SHIFT, np.arange(_RANGES + 1) - _RANGES // 2)
    return {
        "hash": sorted_hashes,
        "size": np.diff(list_starts),
        "postings": (posting_rows << _PAIR_BITS | pairs.indices.to_numpy()).astype(np.uint32),
        "pairs": pairs.dictionary.to_numpy(),
        "cuts": np.stack([range_lists, list_starts[range_lists]], 1),
        "tokens": np.array([len(lengths), np.count_nonzero(lengths), lengths.sum()]),
    }


def _merge_range(folder: Path, chunks: list[dict[str, Any]], pairs: Array, range_number: int) -> dict[str, Array]:
    """Merge one range of hashes over all chunks. In the result, lists and postings are numbered from 0.

    ``chunks`` are the results of :func:`_invert_chunk`, without the columns that are in files. ``pairs`` are the
    distinct pairs of all chunks, sorted.
    """

    def read_column(chunk_number: int, name: str, dtype: Any, limits: Array) -> Array:
        start, stop = limits.tolist()
        offset = start * np.dtype(dtype).itemsize
        return np.fromfile(folder / f"{name}-{chunk_number}.chunk", dtype, stop - start, offset=offset)

    hash_parts = []
    size_parts = []
    chunk_parts = []
    posting_parts = []
    for chunk_number, chunk in enumerate(chunks):
        # The range's row of cuts, and the next row, which is the end of the range.
        list_limits, posting_limits = chunk["cuts"][range_number : range_number + 2].T
        hashes = read_column(chunk_number, "hash", np.int64, list_limits)
        postings = read_column(chunk_number, "postings", np.uint32, posting_limits)
        # A posting has the index of a pair in the chunk's own pairs. Replace it by the index in all pairs.
        pair_numbers = np.searchsorted(pairs, chunk["pairs"]).astype(np.uint32)
        # The upper bits of the postings, with zeros below.
        shifted_rows = postings >> _PAIR_BITS << _PAIR_BITS
        hash_parts.append(hashes)
        size_parts.append(read_column(chunk_number, "size", np.int64, list_limits))
        chunk_parts.append(np.full(len(hashes), chunk_number))
        posting_parts.append(shifted_rows | pair_numbers[postings & _PAIR_MASK])
    # Sort the lists by hash. The sort is stable, so the lists of a term are in the order of the chunks.
    all_hashes = np.concatenate(hash_parts)
    order = np.argsort(all_hashes, kind="stable")
    terms, first_lists = np.unique(all_hashes[order], return_index=True)
    # Move each list's postings to the list's new position.
    all_sizes = np.concatenate(size_parts)
    old_starts = (np.cumsum(all_sizes) - all_sizes)[order]
    sizes = all_sizes[order]
    new_starts = np.cumsum(sizes) - sizes
    all_postings = np.concatenate(posting_parts)
    old_positions = np.repeat(old_starts - new_starts, sizes) + np.arange(len(all_postings))
    return {
        "terms": terms,
        "lists": first_lists,
        "chunk": np.concatenate(chunk_parts)[order],
        "start": new_starts,
        "postings": all_postings[old_positions],
    }


def write_index(folder: Path, texts: Iterable[str], ids: Iterable[pa.Array], threads: int) -> None:
    """Write an index into a new folder, with ``threads`` threads.

    ``texts`` has the tokens of each passage, joined by one space. ``ids`` has the corpus ids in the same order.

    Raises:
        InputError: the corpus is too large for the file format.
    """
    # Invert the chunks. The large columns of a chunk wait in files.
    chunks = []
    text_iterator = iter(texts)
    # Lists of CHUNK texts, until the first empty list.
    text_chunks = iter(lambda: list(islice(text_iterator, CHUNK)), [])
    for number, chunk in enumerate(in_threads(_invert_chunk, text_chunks, threads, threads + 1)):
        for name in ("hash", "size", "postings"):
            chunk.pop(name).tofile(folder / f"{name}-{number}.chunk")
        chunks.append(chunk)
    # Number the pairs of all chunks, and check that all numbers fit into the columns of the files.
    pairs = np.unique(np.concatenate([chunk["pairs"] for chunk in chunks]))
    # The last row of a chunk's cuts has the numbers of its lists and postings.
    list_total, posting_total = np.sum([chunk["cuts"][-1] for chunk in chunks], axis=0)
    if len(pairs) > 1 << _PAIR_BITS or max(list_total, posting_total) >= 2**32:
        raise InputError(
            f"{posting_total} postings with {len(pairs)} pairs of count and length are too many for the numba engine; "
            "use --engine elasticsearch"
        )
    _append_columns(folder, {"pairs": pairs, "tokens": np.sum([chunk["tokens"] for chunk in chunks], axis=0)})

    # Merge the ranges of hashes, and append the ranges in ascending order.
    def merge(range_number: int) -> dict[str, Array]:
        return _merge_range(folder, chunks, pairs, range_number)

    list_count = 0
    posting_count = 0
    for merged in in_threads(merge, range(_RANGES), threads, threads + 1):
        columns = dict(merged)
        columns["lists"] = merged["lists"] + list_count
        columns["start"] = merged["start"] + posting_count
        _append_columns(folder, columns)
        list_count += len(merged["chunk"])
        posting_count += len(merged["postings"])
    # The ends of the last term and of the last list.
    _append_columns(folder, {"lists": np.array([list_count]), "start": np.array([posting_count])})
    for chunk_path in folder.glob("*.chunk"):
        chunk_path.unlink()
    write_strings(folder / _IDS, ids)
    # Sorting the ids once makes ties cheap: a search compares ranks, which are integers, instead of strings.
    # Arrow sorts by bytes, which is the order of characters in UTF-8.
    rows_by_rank = pc.sort_indices(MappedStrings(folder / _IDS).array()).to_numpy()
    ranks = np.empty(len(rows_by_rank), np.uint32)
    ranks[rows_by_rank] = np.arange(len(rows_by_rank), dtype=np.uint32)
    _append_columns(folder, {"ranks": ranks, "rows": rows_by_rank})


def _append_columns(folder: Path, columns: dict[str, Array]) -> None:
    for name, column in columns.items():
        with open(folder / name, "ab") as file:
            column.astype(FILES[name], copy=False).tofile(file)


class _Postings(NamedTuple):
    """The arrays of an index that a search reads. numba passes them to compiled code as one argument.

    Attributes:
        chunks: chunk of each list.
        bounds: largest share of each list, rounded up, without the lowest ``_BOUND`` bits.
        starts: first posting of each list, and the end of the last list.
        postings: 2 ** 16 * (row within the chunk) + (index in ``shares``).
        shares: share tf / (tf + norm) of each pair of count and length, times 2 ** ``_SHARE``.
        ranks: rank of each passage's id.
    """

    chunks: Array
    bounds: Array
    starts: Array
    postings: Array
    shares: Array
    ranks: Array


class _Buffers(NamedTuple):
    """Memory of a search, which is used again for the next query.

    Attributes:
        sums: sum of the contributions to each row of a chunk. All zero before and after a chunk.
        candidates: rows of a chunk that can become hits.
        keys: the best hits so far, and newer hits. ``_KEY_BITS`` describes a key.
    """

    sums: Array
    candidates: Array
    keys: Array


class NumbaIndex(InvertedIndex):
    """An index in a folder, opened with values of k1 and b."""

    def __init__(
        self,
        folder: Path,
        k1: float,
        b: float,
        threads: int,
        analyzer: Analyzer = WORDS,
        folder_owner: object = None,
    ) -> None:
        """Open an index. ``folder_owner`` is an object that removes a temporary folder when no index refers to it."""
        self.folder = folder
        self.analyzer = analyzer
        self._folder_owner = folder_owner
        self._threads = threads
        self._ids = MappedStrings(folder / _IDS).array()
        files = {name: _map_file(folder / name, dtype) for name, dtype in FILES.items()}
        self._terms = files["terms"]
        self._lists = files["lists"]
        # Passages without a token count neither for idf nor for the average length, as in Lucene.
        self.passages, self._passages_with_tokens, token_count = map(int, files["tokens"])
        # BM25's norm by code of a passage's length. Another order of the factors may change the last bit.
        norms = k1 * (1 - b + b * LENGTHS * max(1, self._passages_with_tokens) / max(1, token_count))
        # The saturated count of each pair, as an integer with _SHARE fractional bits.
        pairs = files["pairs"]
        counts = pairs >> _CODE_BITS
        shares = np.rint(counts / (counts + norms[pairs & _CODE_MASK]) * 2**_SHARE).astype(np.int32)
        self._postings = _Postings(
            chunks=files["chunk"],
            bounds=self._bound_lists(files["start"], files["postings"], shares),
            starts=files["start"],
            postings=files["postings"],
            shares=shares,
            ranks=files["ranks"],
        )
        self._rows_by_rank = files["rows"]

    def _bound_lists(self, starts: Array, postings: Array, shares: Array) -> Array:
        """Return the largest share of each list, rounded up, without the lowest ``_BOUND`` bits."""
        list_count = len(starts) - 1
        # -(-a >> n) divides by 2 ** n and rounds up.
        rounded_up = (-(-shares >> _BOUND)).astype(np.uint16)
        bounds = np.empty(list_count, np.uint16)

        def bound_lists_from(first_list: int) -> None:
            task_starts = starts[first_list : first_list + _LISTS + 1].astype(np.int64)
            task_shares = rounded_up[postings[task_starts[0] : task_starts[-1]] & _PAIR_MASK]
            largest = np.maximum.reduceat(task_shares, task_starts[:-1] - task_starts[0])
            bounds[first_list : first_list + _LISTS] = largest

        for _ in in_threads(bound_lists_from, range(0, list_count, _LISTS), self._threads):
            pass  # an exception of a thread is raised here
        return bounds

    def with_parameters(self, k1: float, b: float) -> NumbaIndex:
        """Return the same index with other values of k1 and b."""
        return NumbaIndex(self.folder, k1, b, self._threads, self.analyzer, self._folder_owner)

    def search_columns(self, query_ids: Sequence[str], queries: list[list[str]], top_k: int) -> RunColumns:
        rows, scores, hit_counts = self.search_rows(queries, top_k)
        return RunColumns(query_ids, hit_counts, self._ids.take(pa.array(rows)), scores)

    def search_rows(self, queries: list[list[str]], top_k: int) -> tuple[Array, Array, Array]:
        """Return the rows and the scores of all hits, and the number of hits of each query.

        ``queries`` are lists of tokens. A row is the position of a passage in the corpus. The hits of a query are
        adjacent, best first, at most ``top_k``.
        """
        query_numbers, list_ranges, weights = self._look_up_terms(queries)
        # The first term of each query, then the number of all terms.
        first_terms = np.searchsorted(query_numbers, np.arange(len(queries) + 1))
        # Each query is summed separately, because the order of a vectorised sum changes the last digits of scores.
        # A query without terms has the sum 1, because its scale below is a quotient.
        weight_sums = np.array([weights[begin:end].sum() or 1.0 for begin, end in pairwise(first_terms.tolist())])
        scales = _WEIGHT_SUM / weight_sums
        # Within a query, the search needs the terms by ascending weight. The terms of a query stay together, so
        # query_numbers itself does not change.
        order = np.lexsort((weights, query_numbers))
        integer_weights = np.rint(weights[order] * scales[query_numbers]).astype(np.int64)
        keys, hit_counts = _search_queries(
            first_terms,
            integer_weights,
            list_ranges[order],
            self._postings,
            CHUNK,
            self.passages,
            min(top_k, self.passages),
        )
        ends = np.cumsum(hit_counts).tolist()
        for begin, end in pairwise([0, *ends]):
            keys[begin:end].sort()
        rows = self._rows_by_rank[keys & _RANK_MASK]
        integer_scores = _SCORE_LIMIT - (keys >> _KEY_BITS)
        return rows, _scale_back(integer_scores, hit_counts, weight_sums), hit_counts

    def _look_up_terms(self, queries: list[list[str]]) -> tuple[Array, Array, Array]:
        """Return the terms of the queries that the index has, by query. ``queries`` are lists of tokens.

        The three arrays have a row for each term of a query: (1) the number of the query, (2) the first list and the
        end of the term's lists, shape (terms, 2), and (3) the weight, which is the idf times the count of the term in
        the query.
        """
        counts_by_query = [Counter(words) for words in queries]
        all_words: list[str] = []
        word_counts: list[int] = []
        for term_counts in counts_by_query:
            all_words += term_counts.keys()
            word_counts += term_counts.values()
        # Find each word in the sorted terms. Words that the index lacks are dropped.
        word_hashes = hashes_of(pa.array(all_words, pa.string()))
        terms = np.searchsorted(self._terms, word_hashes)
        # searchsorted returns the position of the next larger hash if the index lacks a word, and the end after the
        # last hash. So only positions before the end are compared.
        is_indexed = terms < len(self._terms)
        is_indexed[is_indexed] = self._terms[terms[is_indexed]] == word_hashes[is_indexed]
        terms = terms[is_indexed]
        # A column of query numbers, parallel to the terms.
        query_sizes = [len(term_counts) for term_counts in counts_by_query]
        query_numbers = np.repeat(np.arange(len(queries)), query_sizes)[is_indexed]
        list_ranges = np.stack([self._lists[terms], self._lists[terms + 1]], 1).astype(np.int64)
        # The number of a term's postings is the number of passages with the term.
        posting_ranges = self._postings.starts[list_ranges].astype(np.int64)
        document_counts = posting_ranges[:, 1] - posting_ranges[:, 0]
        idf = np.log1p((self._passages_with_tokens - document_counts + 0.5) / (document_counts + 0.5))
        weights = np.array(word_counts, np.int64)[is_indexed] * idf
        return query_numbers, list_ranges, weights


def _scale_back(integer_scores: Array, hit_counts: Array, weight_sums: Array) -> Array:
    """Return the scores of integer scores. ``hit_counts`` and ``weight_sums`` have a value for each query.

    A query's largest possible score is the sum of its weights. With eleven digits of this score, different integer
    scores remain different.
    """
    query_numbers = np.repeat(np.arange(len(hit_counts)), hit_counts)
    scales = _WEIGHT_SUM / weight_sums
    scores: Array = integer_scores / scales[query_numbers]
    decimals = (_DIGITS - 1 - np.floor(np.log10(weight_sums)).astype(np.int64))[query_numbers]
    # np.round takes one number of decimals for all scores.
    for decimal_count in np.unique(decimals).tolist():
        is_rounded = decimals == decimal_count
        scores[is_rounded] = np.round(scores[is_rounded], decimal_count)
    return scores


def open_index(
    texts: IndexedTexts, indexes_folder: Path | None, workers: int, k1: float = K1, b: float = B
) -> NumbaIndex:
    """Open the index of ``texts``. ``indexes_folder`` contains all indexes (None: the user's cache).

    ``workers`` processes and threads build a missing or damaged index in a temporary folder, which is then renamed. A
    second process that needs the same index waits. If the source of a user's tokenizer is unknown, the index is in a
    temporary folder, which is removed with the index.
    """

    def build(new_folder: Path) -> None:
        write_index(new_folder, texts.tokens(workers), texts.column("_id"), workers)

    if not texts.analyzer.has_known_source:
        owner = _TemporaryFolder(indexes_folder)
        build(owner.folder)
        return NumbaIndex(owner.folder, k1, b, workers, texts.analyzer, owner)
    folder, is_built = INDEXES.folder(indexes_folder, texts.key(VERSION), build)
    index = NumbaIndex(folder, k1, b, workers, texts.analyzer)
    action = "built" if is_built else "reused"
    log.info("BM25 index %s: %s (%d passages)", action, folder, index.passages)
    return index


class _TemporaryFolder:
    """A folder beside the cached indexes, which is removed when this object is deleted, or when the process ends.

    ``indexes_folder`` contains all indexes (None: the user's cache).
    """

    def __init__(self, indexes_folder: Path | None) -> None:
        stack = contextlib.ExitStack()
        self.folder = stack.enter_context(temporary_folder(indexes_folder or writable_cache(INDEXES.name)))
        weakref.finalize(self, stack.close)


def _map_file(path: Path, dtype: Any) -> Any:
    if path.stat().st_size:
        return np.asarray(np.memmap(path, dtype, "r"))
    return np.empty(0, dtype)  # an empty file cannot be mapped


@compiled
def _contribution(weight, share):  # type: ignore[no-untyped-def]
    """Return the contribution of a term to a passage's score. The contribution is at least 1."""
    return ((weight * share) >> _SHARE) + 1


@compiled
def _select_smallest(keys, count, smallest_count):  # type: ignore[no-untyped-def]
    """Move the ``smallest_count`` smallest of ``keys[:count]`` to the front, unsorted, with the largest of them last.

    Quickselect (Hoare 1961, "Algorithm 65: Find"): the keys are split at a pivot, then the side with the wanted
    position is split again. Unlike a heap, it costs a few nanoseconds per key.
    """
    position = smallest_count - 1
    low = 0
    high = count - 1
    while low < high:
        # The pivot is the median of three keys, so that sorted keys are split well, too.
        first, middle, last = keys[low], keys[(low + high) >> 1], keys[high]
        pivot = max(min(first, middle), min(max(first, middle), last))
        left = low
        right = high
        while left <= right:
            while keys[left] < pivot:
                left += 1
            while keys[right] > pivot:
                right -= 1
            if left <= right:
                keys[left], keys[right] = keys[right], keys[left]
                left += 1
                right -= 1
        if position <= right:
            high = right
        elif position >= left:
            low = left
        else:
            break


@compiled
def _find_posting(postings, row, first, end):  # type: ignore[no-untyped-def]
    """Return the position of the first posting with this row or a later row, by binary search.

    Positions from ``first`` to ``end - 1`` are searched. The result is ``end`` if all their rows are earlier.
    """
    low = first
    high = end
    while low < high:
        middle = (low + high) >> 1
        if postings[middle] >> _PAIR_BITS < row:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _add_postings(sums, postings, shares, weight, only_touched):  # type: ignore[no-untyped-def]
    """Add a term's contributions to ``sums``, which has a sum for each row of a chunk.

    ``postings`` are the term's in the chunk, and ``weight`` is the term's. ``only_touched``: add only to rows whose sum
    is not 0.
    """
    if only_touched:
        for posting in postings:
            row = posting >> np.uint32(_PAIR_BITS)
            score = sums[row]
            # A product instead of a branch, because a processor cannot predict which rows are touched.
            contribution = _contribution(weight, np.int64(shares[posting & np.uint32(_PAIR_MASK)]))
            sums[row] = score + contribution * (score > 0)
    else:
        for posting in postings:
            row = posting >> np.uint32(_PAIR_BITS)
            sums[row] += _contribution(weight, np.int64(shares[posting & np.uint32(_PAIR_MASK)]))


@compiled
def _gather_all(sums, candidates, needed_sum):  # type: ignore[no-untyped-def]
    """Write the rows whose sum is at least ``needed_sum`` to ``candidates``. Clear the other sums. Return the count.

    The largest sum of a block is computed by vector instructions. Most blocks have no candidate.
    """
    count = 0
    for start in range(0, len(sums), _ROWS_PER_BLOCK):
        block = sums[start : start + _ROWS_PER_BLOCK]
        largest = np.int32(0)
        for score in block:
            largest = max(largest, score)
        if largest < needed_sum:
            block[:] = 0
            continue
        for offset in range(len(block)):
            if block[offset] >= needed_sum:
                candidates[count] = start + offset
                count += 1
            else:
                block[offset] = 0
    return count


@compiled
def _gather_touched(sums, candidates, postings, needed_sum, count):  # type: ignore[no-untyped-def]
    """Write the rows of a list whose sum is at least ``needed_sum`` to ``candidates``. Clear the list's other sums.

    ``candidates`` has ``count`` rows of other lists already. Return the new count. The sum of a candidate becomes
    negative, so that the next list does not add the candidate again.
    """
    for posting in postings:
        row = posting >> np.uint32(_PAIR_BITS)
        score = sums[row]
        is_candidate = score >= needed_sum
        # Without a branch: a row that is no candidate is overwritten by the next row.
        candidates[count] = row
        count += is_candidate
        # A sum below 0 stays, a candidate's sum becomes negative, and any other sum becomes 0.
        sums[row] = min(score, 0) - score * is_candidate
    return count


@compiled
def _order_chunks(chunk_count):  # type: ignore[no-untyped-def]
    """Return the numbers of all chunks, first those of the sample, which are spaced evenly."""
    order = np.empty(chunk_count, np.int64)
    position = 0
    for chunk in range(0, chunk_count, _CHUNKS_PER_SAMPLE):
        order[position] = chunk
        position += 1
    for chunk in range(chunk_count):
        if chunk % _CHUNKS_PER_SAMPLE:
            order[position] = chunk
            position += 1
    return order


@compiled
def _find_lists(list_ranges, chunks, chunk_count):  # type: ignore[no-untyped-def]
    """Return the list of each term in each chunk, or -1, shape (chunks, terms).

    ``list_ranges`` has the first list and the end of each term's lists. ``chunks`` has the chunk of each list.
    """
    term_lists = np.full((chunk_count, len(list_ranges)), -1, np.int64)
    for term in range(len(list_ranges)):
        for term_list in range(list_ranges[term, 0], list_ranges[term, 1]):
            term_lists[chunks[term_list], term] = term_list
    return term_lists


@compiled
def _search_query(weights, list_ranges, index, buffers, chunk_size, passage_count, top_k):  # type: ignore[no-untyped-def]
    """Write the keys of one query's ``top_k`` best passages into the buffer of keys, unsorted. Return their number.

    ``weights`` has the integer weight of each term, ascending, and ``list_ranges`` the first list and the end of its
    lists. ``index`` is :class:`_Postings`, and ``buffers`` is :class:`_Buffers`.

    With a high threshold from the start, most terms are only looked up. So a sample of the chunks is searched first. If
    the sample is 1/8 of the chunks, about 125 of the best 1,000 passages are in it. The score of the sample's passage
    160 is therefore very probably below the score of the passage 1,000, and is the threshold for the other chunks. If
    at least 1,000 passages exceed the guessed threshold, they include the best 1,000, and the result is exact. Else the
    query is searched again, without a guess.
    """
    chunk_count = (passage_count + chunk_size - 1) // chunk_size
    term_lists = _find_lists(list_ranges, index.chunks, chunk_count)
    posting_count = np.int64(0)
    for term in range(len(weights)):
        posting_count += np.int64(index.starts[list_ranges[term, 1]]) - np.int64(index.starts[list_ranges[term, 0]])
    chunk_order = _order_chunks(chunk_count)
    sample_size = (chunk_count + _CHUNKS_PER_SAMPLE - 1) // _CHUNKS_PER_SAMPLE
    if chunk_count >= _FEWEST_CHUNKS and posting_count >= _POSTINGS_PER_HIT * top_k:
        # The number of hits in the sample varies about as a Poisson variable: its variance is its mean.
        expected_count = top_k * sample_size / chunk_count
        sample_hits = min(top_k, int(expected_count + _DEVIATIONS * math.sqrt(expected_count)) + 1)
        sample_chunks = chunk_order[:sample_size]
        # 0 and 1: the buffer has no keys yet, and every score is high enough.
        key_count = _search_chunks(weights, term_lists, sample_chunks, index, buffers, chunk_size, sample_hits, 0, 1)
        if key_count == sample_hits:
            worst_key = buffers.keys[0]
            for key in buffers.keys[:key_count]:
                worst_key = max(worst_key, key)
            threshold = _SCORE_LIMIT - (worst_key >> _KEY_BITS) + 1
            # Other passages of the sample may tie with the worst one. All passages with this score are dropped.
            better_count = 0
            for key in buffers.keys[:key_count]:
                if _SCORE_LIMIT - (key >> _KEY_BITS) >= threshold:
                    buffers.keys[better_count] = key
                    better_count += 1
            key_count = _search_chunks(
                weights,
                term_lists,
                chunk_order[sample_size:],
                index,
                buffers,
                chunk_size,
                top_k,
                better_count,
                threshold,
            )
            if key_count == top_k:
                return key_count
    # Search all chunks, without a guess.
    return _search_chunks(weights, term_lists, chunk_order, index, buffers, chunk_size, top_k, 0, 1)


@compiled
def _search_chunks(  # type: ignore[no-untyped-def]
    weights, term_lists, chunk_numbers, index, buffers, chunk_size, top_k, key_count, lowest_score
):
    """Search some chunks. Write the keys of the ``top_k`` best passages into the buffer, and return their number.

    The buffer has ``key_count`` keys of other chunks, and hits need at least ``lowest_score``. The example at the top
    of this file explains the method. ``weights`` has the weight of each term, ascending, and ``term_lists`` the list of
    each term in each chunk, or -1. ``index`` is :class:`_Postings`, and ``buffers`` is :class:`_Buffers`.
    ``chunk_size`` is an argument, because cached code would ignore a changed constant.
    """
    _, bounds, starts, postings, shares, ranks = index
    sums, candidates, keys = buffers
    term_count = len(weights)
    first_postings = np.empty(term_count, np.int64)  # the postings of each term in the chunk
    end_postings = np.empty(term_count, np.int64)
    # reach[n]: upper bound of the sum of the first n contributions.
    reach = np.zeros(term_count + 1, np.int64)
    # A smaller buffer is full earlier, so the threshold rises earlier.
    capacity = min(len(keys), 2 * top_k)
    for chunk in chunk_numbers:
        # Find the postings of each term in this chunk, and the number of terms that are only looked up.
        lookup_count = 0
        for term in range(term_count):
            term_list = term_lists[chunk, term]
            first_postings[term] = 0
            end_postings[term] = 0
            bound = 0
            if term_list >= 0:
                first_postings[term] = starts[term_list]
                end_postings[term] = starts[term_list + 1]
                bound = _contribution(weights[term], np.int64(bounds[term_list]) << _BOUND)
            reach[term + 1] = reach[term] + bound
            # reach only rises, so these are the first terms.
            lookup_count += reach[term + 1] < lowest_score
        # Read all postings of the other terms. Contributions are positive, so a sum of 0 marks a row without them.
        posting_count = 0
        for term in range(lookup_count, term_count):
            posting_count += end_postings[term] - first_postings[term]
            _add_postings(sums, postings[first_postings[term] : end_postings[term]], shares, weights[term], False)
        if posting_count == 0:
            continue
        # Gather the rows that the remaining terms can lift to a hit.
        needed_sum = max(1, lowest_score - reach[lookup_count])
        candidate_count = 0
        if posting_count < chunk_size // _SPARSE_SHARE:
            for term in range(lookup_count, term_count):
                term_postings = postings[first_postings[term] : end_postings[term]]
                candidate_count = _gather_touched(sums, candidates, term_postings, needed_sum, candidate_count)
            for row in candidates[:candidate_count]:
                sums[row] = -sums[row]
        else:
            candidate_count = _gather_all(sums, candidates, needed_sum)
        # Add the remaining terms, the largest bound first. After each term, drop the rows that cannot become a hit.
        for term in range(lookup_count - 1, -1, -1):
            if candidate_count == 0:
                break
            first = first_postings[term]
            end = end_postings[term]
            if first == end:
                continue
            if candidate_count * _POSTINGS_PER_LOOKUP < end - first:
                for row in candidates[:candidate_count]:
                    position = _find_posting(postings, row, first, end)
                    if position < end and postings[position] >> _PAIR_BITS == row:
                        sums[row] += _contribution(weights[term], np.int64(shares[postings[position] & _PAIR_MASK]))
            else:
                _add_postings(sums, postings[first:end], shares, weights[term], True)
            needed_sum = lowest_score - reach[term]
            remaining_count = 0
            for row in candidates[:candidate_count]:
                is_remaining = sums[row] >= needed_sum
                # Without a branch: a dropped row is overwritten by the next row, and its sum becomes 0.
                candidates[remaining_count] = row
                remaining_count += is_remaining
                sums[row] *= is_remaining
            candidate_count = remaining_count
        # Keep the hits. When the buffer is full, only the best remain, and their worst score must be reached.
        for row in candidates[:candidate_count]:
            score = np.int64(sums[row])
            sums[row] = 0
            if score < lowest_score:
                continue
            if key_count == capacity:
                _select_smallest(keys, key_count, top_k)
                key_count = top_k
                lowest_score = max(lowest_score, _SCORE_LIMIT - (keys[top_k - 1] >> _KEY_BITS))
            keys[key_count] = ((_SCORE_LIMIT - score) << _KEY_BITS) | np.int64(ranks[chunk * chunk_size + row])
            key_count += 1
        # A higher threshold saves work in all later chunks.
        if key_count >= top_k + top_k // 4:
            _select_smallest(keys, key_count, top_k)
            key_count = top_k
            lowest_score = max(lowest_score, _SCORE_LIMIT - (keys[top_k - 1] >> _KEY_BITS))
    if key_count > top_k:
        _select_smallest(keys, key_count, top_k)
        key_count = top_k
    return key_count


@compiled
def _search_queries(first_terms, weights, list_ranges, index, chunk_size, passage_count, top_k):  # type: ignore[no-untyped-def]
    """Search by several queries. Return the unsorted keys of all hits, and the number of hits of each query.

    ``first_terms`` has the first term of each query, then the number of all terms. ``weights`` and ``list_ranges`` have
    a row for each term: the integer weight, and the first list and the end of the term's lists. ``index`` is
    :class:`_Postings`. The compiled code holds no Python lock.
    """
    query_count = len(first_terms) - 1
    buffers = _Buffers(
        np.zeros(chunk_size, np.int32),
        np.empty(chunk_size, np.int32),
        np.empty(min(2 * top_k, passage_count), np.int64),
    )
    hit_counts = np.zeros(query_count, np.int64)
    # Grows by doubling, because most queries of a large top_k have fewer hits.
    hits = np.empty(top_k, np.int64)
    total = 0
    for query in range(query_count):
        first_term = first_terms[query]
        end_term = first_terms[query + 1]
        if end_term > first_term:
            hit_counts[query] = _search_query(
                weights[first_term:end_term],
                list_ranges[first_term:end_term],
                index,
                buffers,
                chunk_size,
                passage_count,
                top_k,
            )
        new_total = total + hit_counts[query]
        if new_total > len(hits):
            larger_hits = np.empty(2 * new_total, np.int64)
            larger_hits[:total] = hits[:total]
            hits = larger_hits
        hits[total:new_total] = buffers.keys[: hit_counts[query]]
        total = new_total
    return hits[:total], hit_counts
