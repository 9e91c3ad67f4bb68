"""Excerpts of passages: the words around the terms that a passage has in common with a question."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from baselines.measure.qrels import read_judgments
from builders.annotate import tasks as marking
from builders.core.errors import visible
from builders.core.words import words
from builders.store.layout import Set
from builders.store.reader import Release

SAMPLE = Path("build/sample")
CHARS = 120  # of an excerpt on the page
_WHOLE = 5_000  # characters of a passage that the page shows

Word = tuple[str, bool]  # a word of a text, and True if the question has it too


def tally(ranking: Sequence[str], positive: set[str] | None) -> str:
    """The number of passages of a list, and the ranks of the positives where they are known."""
    passages = f"{len(ranking)} passage{'s' * (len(ranking) != 1)}"
    if positive is None:
        return passages
    ranks = [str(rank) for rank, corpus in enumerate(ranking, 1) if corpus in positive]
    return f"{passages}, {len(ranks)} of {len(positive)} positive" + f", at rank {', '.join(ranks)}" * bool(ranks)


def excerpt_of(text: str, query: str) -> tuple[str, str]:
    """(at most ``CHARS`` characters of a passage, where they hold most terms of the query; all of it), as HTML.

    Nothing is markup but ``<mark>`` around terms. The second is empty where the first is all of the passage.
    """
    line = visible(" ".join(text[:_WHOLE].split())) + "…" * (len(text) > _WHOLE)
    terms = marking.common_terms(query, line)
    short = "".join(word for word, _ in excerpt(marked(line, set(terms)), CHARS))
    return marking.marked(short, terms), marking.marked(line, terms) if short != line else ""


def marked(text: str, terms: set[str]) -> list[Word]:
    """The words of a text, blanks and line ends each as one blank; True for those among the ``terms``."""
    return [(word, word.lower() in terms) for word in words(visible(" ".join(text.split())))]


def excerpt(text: Sequence[Word], chars: int) -> list[Word]:
    """At most ``chars`` characters of the words of a text: where they hold most characters of different terms.

    Of equally good places the middle one, so that the terms have words on both sides; the beginning where there is
    no term. What is left out is shown as "…".
    """
    starts = [0, *accumulate(len(word) for word, _ in text)]
    ends = [max(first + 1, bisect_right(starts, start + chars) - 1) for first, start in enumerate(starts[:-1])]
    del ends[bisect_left(ends, len(text)) + 1 :]  # what begins later holds less
    values = []
    for first, end in enumerate(ends):
        found = [word.lower() for word, common in text[first:end] if common]
        values.append((sum(map(len, set(found))), len(found)))
    most = max(values, default=(0, 0))
    best = [first for first, value in enumerate(values) if value == most != (0, 0)] or [0]
    first = best[len(best) // 2]
    end = ends[first] if ends else 0
    cut: Word = ("…", False)
    return [cut] * (first > 0) + list(text[first:end]) + [cut] * (end < len(text))


def positives_of(release: Release, configs: Set, split: str) -> dict[str, set[str]] | None:
    """The positive passages of every question; None where the split has no judgments."""
    if (configs.qrels, split) not in release.splits():
        return None
    judged = read_judgments(release, configs, split)
    return {query: {corpus for corpus, score in own.items() if score > 0} for query, own in judged.items()}
