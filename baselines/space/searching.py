"""The search behind the page: a query in, a column of hits of each system out. Nothing of it knows of Gradio."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baselines.bm25.index import INDEXES, Index, open_index
from baselines.bm25.tokens import tokens
from baselines.retrieve.passages import Passages, open_passages
from baselines.runs.sets import read_judgments, read_queries
from baselines.space.excerpts import Excerpt, excerpt_of
from builders.core.limits import usable_cores
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import Hit

LONGEST = 1_000  # characters of a query that are searched for; the official ones have at most 100 or so
_KEPT = 512  # answers that are kept for whoever asks the same

Search = Callable[[str, int], list[Hit]]  # (a query's text, how many): scores falling, ties by corpus id
Rerank = Callable[[str, Sequence[str]], list[Hit]]  # (a query's text, corpus ids): the same passages, best first


@dataclass(frozen=True)
class System:
    """A column's name and its search."""

    name: str
    search: Search


@dataclass(frozen=True)
class Shown:
    """A hit as it is shown.

    Attributes:
        rank: from 1.
        positive: None where nobody knows.
        before: the rank in the column that was re-ranked; None where nothing was.
    """

    rank: int
    corpus: str
    score: float
    positive: bool | None
    excerpt: Excerpt
    before: int | None = None


@dataclass(frozen=True)
class Column:
    """What a system has found, and how many positives the query has (None: nobody knows)."""

    name: str
    hits: tuple[Shown, ...]
    positives: int | None


@dataclass(frozen=True)
class Answer:
    """A query's columns.

    Attributes:
        query: what was searched for: the text in one line, at most ``LONGEST`` characters of it.
        id: of the same question in the split; None where it has none.
        cut: how many characters were given where not all of them were searched for, else 0.
    """

    query: str
    id: str | None
    cut: int
    columns: tuple[Column, ...]


class Searcher:
    """Systems over one collection, and the questions that it is asked. Safe to share between threads.

    ``questions``: (id, text); ``positives``: by query id, None where the split has no judgments. ``rerank``: reads the
    best ``candidates`` of the last of ``systems``.
    """

    def __init__(
        self,
        systems: Sequence[System],
        passages: Passages,
        questions: Sequence[tuple[str, str]] = (),
        positives: dict[str, set[str]] | None = None,
        *,
        rerank: tuple[str, Rerank] | None = None,
        top_k: int = 10,
        candidates: int = 50,
    ) -> None:
        self.questions = questions
        self._systems, self._passages, self._rerank = systems, passages, rerank
        self._top_k, self._candidates = top_k, candidates
        self._positives = positives
        self._ids: dict[str, str] = {}
        for query, text in questions:
            self._ids.setdefault(one_line(text), query)
        self._answer = functools.lru_cache(_KEPT)(self._searched)

    def answer(self, text: str) -> Answer | None:
        """What the systems find for any text; None for one of blanks alone."""
        line = one_line(text)
        if not line:
            return None
        found = self._answer(line[:LONGEST].rstrip(), self._ids.get(line))
        return Answer(found[0], found[1], len(line) if len(line) > LONGEST else 0, found[2])

    def _searched(self, query: str, known: str | None) -> tuple[str, str | None, tuple[Column, ...]]:
        positive = None if known is None or self._positives is None else self._positives.get(known, set())
        columns, last = [], list[Hit]()
        for number, system in enumerate(self._systems, 1):
            wanted = self._candidates if self._rerank and number == len(self._systems) else 0
            last = system.search(query, max(self._top_k, wanted))
            columns.append(self._column(system.name, query, last, positive))
        if self._rerank:
            name, rerank = self._rerank
            ids = [corpus for corpus, _ in last[: self._candidates]]
            before = {corpus: rank for rank, corpus in enumerate(ids, 1)}
            columns.append(self._column(name, query, rerank(query, ids) if ids else [], positive, before))
        return query, known, tuple(columns)

    def _column(
        self,
        name: str,
        query: str,
        hits: Sequence[Hit],
        positive: set[str] | None,
        before: dict[str, int] | None = None,
    ) -> Column:
        best = hits[: self._top_k]
        texts = self._passages.texts(self._passages.rows([corpus for corpus, _ in best]).tolist())
        shown = [
            Shown(
                rank=rank,
                corpus=corpus,
                score=score,
                positive=None if positive is None else corpus in positive,
                excerpt=excerpt_of(text, query),
                before=before[corpus] if before else None,
            )
            for rank, ((corpus, score), text) in enumerate(zip(best, texts, strict=True), 1)
        ]
        return Column(name, tuple(shown), None if positive is None else len(positive))


def one_line(text: str) -> str:
    """A text of anybody's: blanks and line ends each as one blank, no half of a character that UTF-8 cannot hold."""
    return " ".join(text.encode("utf-8", "replace").decode().split())


def bm25(index: Index) -> System:
    """The column of BM25."""
    return System("BM25", lambda query, top_k: index.search(tokens(query), top_k))


def open_searcher(args: argparse.Namespace) -> Searcher:
    """The systems that the options of `space` ask for, opened: what is wrong with any is an :class:`InputError`."""
    release, configs = open_release(args.release), SETS[args.set]
    questions = read_queries(release, args.split, configs.queries)
    positives: dict[str, set[str]] | None = None
    if (configs.qrels, args.split) in release.splits():
        judged = read_judgments(release, configs, args.split)
        positives = {query: {corpus for corpus, score in own.items() if score > 0} for query, own in judged.items()}
    passages = open_passages(release, configs.corpus)
    systems, rerank = [], None
    if args.model or args.reranker:  # before BM25: what is wrong with a model is said before an index is built
        from baselines.space.ranking import open_cross_ranker, open_dual_search

        if args.model:
            systems.append(System("dual-encoder", open_dual_search(args, release, configs.corpus, passages)))
        if args.reranker:
            name = f"{'dual-encoder' if args.model else 'BM25'} > re-ranker"
            rerank = (name, open_cross_ranker(args, passages))
    index = open_index(release, INDEXES.home(), usable_cores(), configs.corpus)
    return Searcher(
        [bm25(index), *systems],
        passages,
        questions,
        positives,
        rerank=rerank,
        top_k=args.top_k,
        candidates=args.candidates,
    )
