"""Exact search of binary embeddings: the score of a pair is the inner product of the signs of its numbers.

With n dimensions, of which h differ in sign, the inner product is n - 2h. The number h (Hamming distance) is counted by
the XOR of 64-bit words: 1 bits of the XOR are dimensions that differ. For example, with 4 dimensions:

    ==============  ======  =========  ======
    passage         bits    XOR        score
    ==============  ======  =========  ======
    query           1 0 1 1
    A               1 0 0 1  0 0 1 0   4 - 2 = 2
    B               0 1 1 1  1 1 0 0   4 - 4 = 0
    ==============  ======  =========  ======

Many passages have equal scores, so ties matter. They are broken by id, so that the result depends neither on the blocks
nor on the number of threads. NumPy counts on the CPU, with one thread per core. This module does not import PyTorch.
"""

import functools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from baselines.core.passages import Rows
from baselines.retrieve.index_files import VectorIndex
from baselines.retrieve.vector_stores import Codes, Halves
from builders.core.jobs import in_threads
from builders.core.limits import usable_cores
from builders.core.progress import show_progress

# Passages per step: a column of words takes 128 kB, which fits into a CPU's cache.
_BLOCK_ROWS = 1 << 14
_WORD_BYTES = 8
# A sort key has the distance in the upper bits, and the rank of the passage's id in the lower 40 bits.
_RANK_BITS = 40
_RANK_MASK = (1 << _RANK_BITS) - 1
Words = npt.NDArray[np.uint64]
Keys = npt.NDArray[np.int64]


def nearest_by_signs(
    passage_vectors: VectorIndex, query_vectors: Halves, get_ranks: Callable[[], Rows], top_k: int
) -> Iterator[tuple[Rows, npt.NDArray[np.float64]]]:
    """Yield (rows of the corpus, scores) of each query's ``top_k`` best passages, by falling score, then by id.

    Args:
        passage_vectors: binary embeddings of all passages, or of the rows ``passage_vectors.chosen``.
        query_vectors: embeddings of the queries, shape (queries, dimensions). Only their signs are used.
        get_ranks: returns the rank of each row of the corpus in the order of the corpus ids.
    """
    top_k = min(top_k, passage_vectors.rows)
    corpus_ranks = get_ranks()
    row_of_rank = np.empty_like(corpus_ranks)
    row_of_rank[corpus_ranks] = np.arange(len(corpus_ranks))
    passage_ranks = corpus_ranks
    if passage_vectors.chosen is not None:
        passage_ranks = corpus_ranks[passage_vectors.chosen]
    query_words = _to_words(passage_vectors.store.pack(query_vectors))
    best_keys: list[Keys] = [np.empty(0, np.int64)] * len(query_words)
    with show_progress(total=passage_vectors.rows, unit="passage", label="search") as bar:
        for start, codes in passage_vectors.code_blocks(_BLOCK_ROWS):
            # A column has the same word of all passages, so that NumPy works on adjacent numbers.
            columns = np.ascontiguousarray(_to_words(codes).T)
            block_ranks = passage_ranks[start : start + len(codes)]

            # The thread of a query merges the block into the best passages so far.
            merge_block = functools.partial(_merge_block, columns, block_ranks, top_k)
            best_keys = list(in_threads(merge_block, zip(query_words, best_keys, strict=True), usable_cores()))
            bar.update(len(codes))
    for keys in best_keys:
        sorted_keys = np.sort(keys)
        distances = sorted_keys >> _RANK_BITS
        yield row_of_rank[sorted_keys & _RANK_MASK], (passage_vectors.dim - 2 * distances).astype(np.float64)


def _merge_block(columns: Words, block_ranks: Rows, top_k: int, query_and_best: tuple[Words, Keys]) -> Keys:
    """Return the ``top_k`` smallest keys of a block and of the best passages so far, unsorted.

    Args:
        columns: the words of the block's passages, shape (words, passages).
        block_ranks: ranks of the passages' ids.
        query_and_best: the words of a query, and the keys of its best passages in earlier blocks.
    """
    query_words, best_keys = query_and_best
    keys = (_count_differing_bits(columns, query_words) << _RANK_BITS) + block_ranks
    keys = np.concatenate([best_keys, keys])
    if len(keys) <= top_k:
        return keys
    return np.partition(keys, top_k - 1)[:top_k]


def _to_words(codes: Codes) -> Words:
    """Convert rows of bytes to rows of 64-bit words. Bytes of zeros fill up the last word."""
    word_count = -(-codes.shape[1] // _WORD_BYTES)
    filled_codes = np.zeros((len(codes), word_count * _WORD_BYTES), np.uint8)
    filled_codes[:, : codes.shape[1]] = codes
    return filled_codes.view(np.uint64)


def _count_differing_bits(columns: Words, query_words: Words) -> Keys:
    """Return the number of bits in which each passage differs from a query, shape (passages,)."""
    distances = np.zeros(columns.shape[1], np.int64)
    for column, query_word in zip(columns, query_words, strict=True):
        distances += np.bitwise_count(column ^ query_word)
    return distances
