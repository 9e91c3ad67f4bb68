"""A query's hard negatives: what a run ranks high and nobody holds for a positive, in the order of a seed."""

from __future__ import annotations

import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from baselines.retrieve.passages import Passages
from baselines.runs.qrels import Qrels
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run

_TEXTS = 1 << 16  # passages ready for comparison that are kept: many are found for many queries


@dataclass
class Candidates:
    """One query's candidates in random order, how many of them are asked for, and its positives in the collection."""

    query: str
    ids: list[str]
    asked: int
    positives: list[str]


def for_english(given: Run, release: Release, split: str) -> Run:
    """A run of the Chinese queries, or of the English ones, as one of the English ones: they share the judgments."""
    hits = dict(given.hits)
    for batch in release.batches(SETS["crosslingual"].queries, split, ["_id", "zh_id"]):
        for english, chinese in zip(batch["_id"].to_pylist(), batch["zh_id"].to_pylist(), strict=True):
            if english not in hits and chinese in hits:
                hits[english] = hits[chinese]
    return Run(given.path, hits)


def hard_negatives(
    given: Run, qrels: Qrels, passages: Passages, top_k: int, negatives: int, seed: int, every: bool = False
) -> Iterator[Candidates]:
    """Every judged query's hard negatives (Sections 3.1, A.2): its top ``top_k`` less its positives, by the seed.

    As many as are asked for (as there are, where there are fewer), or ``every`` one. A candidate's text is compared
    with the positives' only when its turn comes. (The library's mine_hard_negatives searches by itself, with a
    dual-encoder, over texts and vectors that all lie in memory; these candidates may be of BM25, and of 8 M passages.)
    """

    @functools.lru_cache(_TEXTS)
    def plain(corpus: str) -> str:
        return plain_text(passages.texts(passages.rows([corpus]).tolist())[0])

    for query, positive in qrels.positives.items():
        known = [c for c, row in zip(positive, passages.rows(list(positive)).tolist(), strict=True) if row >= 0]
        same = set(map(plain, known))
        ranked = dict.fromkeys(corpus for corpus, _ in given.hits.get(query, ())[:top_k])
        order = sorted(ranked, key=lambda corpus: hashlib.sha256(f"{seed}\0{query}\0{corpus}".encode()).digest())
        negative = (corpus for corpus in order if corpus not in positive and plain(corpus) not in same)
        asked = negatives * len(positive)
        yield Candidates(query, list(itertools.islice(negative, None if every else asked)), asked, known)


def plain_text(text: str) -> str:
    """A text without what two copies of it may differ in: case, width and blanks."""
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())
