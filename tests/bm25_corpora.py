"""Helpers for tests of BM25: random corpora, their index, and a direct implementation of Lucene's formula."""

import math
import random
from collections import Counter
from pathlib import Path

from releases import make_release

from baselines.bm25.bm25_index import IndexedTexts, InvertedIndex, search_columns
from baselines.bm25.engine_numba import NumbaIndex, open_index
from builders.store.reader import open_release
from builders.store.runs import Hit

WORDS = [f"w{n}" for n in range(30)]


def one_byte(length: int) -> int:
    """Return a passage length as Lucene stores it (SmallFloat.intToByte4): exact below 40, then 4 bits."""
    if length < 24:
        return length
    excess = length - 24
    bit_count = excess.bit_length()
    if bit_count < 4:
        return length
    dropped_bits = bit_count - 4
    return 24 + (excess >> dropped_bits << dropped_bits)


def lucene_scores(corpus: dict[str, list[str]], query: list[str], k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """Return Lucene's BM25 scores of the passages with a word of the query, by passage id.

    ``corpus`` has the words of each passage by its id.
    """
    # Lucene counts passages with at least one word.
    corpus = {passage_id: words for passage_id, words in corpus.items() if words}
    passage_count = len(corpus)
    average_length = sum(map(len, corpus.values())) / passage_count
    word_counts = {passage_id: Counter(words) for passage_id, words in corpus.items()}
    scores: dict[str, float] = {}
    for word in query:  # a repeated word of the query counts twice
        matching_ids = [passage_id for passage_id, counts in word_counts.items() if word in counts]
        frequency = len(matching_ids) + 0.5
        idf = math.log(1 + (passage_count - len(matching_ids) + 0.5) / frequency)
        for passage_id in matching_ids:
            word_count = word_counts[passage_id][word]
            stored_length = one_byte(len(corpus[passage_id]))
            length_norm = k1 * (1 - b + b * stored_length / average_length)
            earlier_score = scores.get(passage_id, 0.0)
            scores[passage_id] = earlier_score + idf * word_count / (word_count + length_norm)
    return scores


def hits_of(index: InvertedIndex, queries: list[tuple[str, str]], threads: int) -> dict[str, list[Hit]]:
    """Search an index for the ten best hits of each query, a pair of id and text. Return the hits by query id."""
    hits_by_query: dict[str, list[Hit]] = {}
    for part in search_columns(index, queries, 10, threads):
        hits_by_query |= part.hits()
    return hits_by_query


def build(folder: Path, corpus: dict[str, list[str]], workers: int = 1, k1: float = 1.2, b: float = 0.75) -> NumbaIndex:
    """Write a release of the corpus (passage id -> words), and build its index with this number of processes."""
    rows = [{"_id": passage_id, "title": "", "text": " ".join(words)} for passage_id, words in corpus.items()]
    release_path = make_release(folder / "release", {("corpus", "corpus"): rows}, rows_per_shard=500)
    return open_index(IndexedTexts(open_release(release_path)), folder / "indexes", workers, k1=k1, b=b)


def random_corpus(seed: int, passages: int, longest: int) -> dict[str, list[str]]:
    """Return the words of random passages by passage id. A passage has one to ``longest`` words."""
    rng = random.Random(seed)
    word_lists = []
    for _ in range(passages):
        length = rng.randint(1, longest)
        # Half of the words come from the first five, so that some words are frequent.
        word_lists.append([rng.choice(WORDS[: rng.choice([5, 30])]) for _ in range(length)])
    return {f"d{rng.getrandbits(40):010x}": words for words in word_lists}
