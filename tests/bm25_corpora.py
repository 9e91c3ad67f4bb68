"""Helpers for tests of BM25: random corpora, their index, and a direct implementation of Lucene's formula."""

import math
import random
from collections import Counter
from pathlib import Path

from releases import make_release

from baselines.bm25.bm25_index import Index, Texts, search_columns
from baselines.bm25.engine_numba import NumbaIndex, open_index
from builders.store.reader import open_release
from builders.store.runs import Hit

WORDS = [f"w{n}" for n in range(30)]


def one_byte(length: int) -> int:
    """Return a passage length as Lucene stores it (SmallFloat.intToByte4): exact below 40, then 4 bits."""
    if length < 24:
        return length
    rest = length - 24
    bits = rest.bit_length()
    if bits < 4:
        return length
    return 24 + (rest >> (bits - 4) << (bits - 4))


def lucene_scores(corpus: dict[str, list[str]], query: list[str], k1: float = 1.2, b: float = 0.75) -> dict[str, float]:
    """Return Lucene's BM25 scores of the passages with a word of the query."""
    # Lucene counts passages with at least one word.
    corpus = {corpus_id: words for corpus_id, words in corpus.items() if words}
    average = sum(map(len, corpus.values())) / len(corpus)
    counts = {corpus_id: Counter(words) for corpus_id, words in corpus.items()}
    scores: dict[str, float] = {}
    for word in query:  # a repeated word of the query counts twice
        holders = [corpus_id for corpus_id, found in counts.items() if word in found]
        idf = math.log(1 + (len(corpus) - len(holders) + 0.5) / (len(holders) + 0.5))
        for corpus_id in holders:
            tf = counts[corpus_id][word]
            norm = k1 * (1 - b + b * one_byte(len(corpus[corpus_id])) / average)
            scores[corpus_id] = scores.get(corpus_id, 0.0) + idf * tf / (tf + norm)
    return scores


def hits_of(index: Index, queries: list[tuple[str, str]], threads: int) -> dict[str, list[Hit]]:
    return {query: hits for part in search_columns(index, queries, 10, threads) for query, hits in part.hits().items()}


def build(folder: Path, corpus: dict[str, list[str]], workers: int = 1, k1: float = 1.2, b: float = 0.75) -> NumbaIndex:
    rows = {("corpus", "corpus"): [{"_id": i, "title": "", "text": " ".join(w)} for i, w in corpus.items()]}
    release = open_release(make_release(folder / "release", rows, rows_per_shard=500))
    return open_index(Texts(release), folder / "indexes", workers, k1=k1, b=b)


def random_corpus(seed: int, passages: int, longest: int) -> dict[str, list[str]]:
    rng = random.Random(seed)
    lengths = (range(rng.randint(1, longest)) for _ in range(passages))
    words = [[rng.choice(WORDS[: rng.choice([5, 30])]) for _ in own] for own in lengths]
    return {f"d{rng.getrandbits(40):010x}": found for found in words}
