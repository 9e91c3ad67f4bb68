"""Excerpts of passages around the terms of a question, and the ranks of positives."""

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from baselines.measure.qrels import read_judgments
from builders.core import highlight
from builders.core.errors import visible
from builders.core.word_tokens import word_parts
from builders.store.layout import Set
from builders.store.reader import Release

CHARS = 120  # characters of an excerpt on the page
EXCERPT_SOURCE = 100_000  # characters of a passage from which an excerpt in the terminal is selected
_WHOLE = 5_000  # characters of an opened passage on the page

Word = tuple[str, bool]  # (word of a text, True if the word is also in the question)


def tally(ranking: Sequence[str], positive: set[str] | None) -> str:
    """Describe a ranking: the number of passages, and the ranks of the positives if they are known."""
    passages = f"{len(ranking)} passage{'s' * (len(ranking) != 1)}"
    if positive is None:
        return passages
    ranks = [str(rank) for rank, corpus in enumerate(ranking, 1) if corpus in positive]
    return f"{passages}, {len(ranks)} of {len(positive)} positive" + f", at rank {', '.join(ranks)}" * bool(ranks)


def excerpt_of(text: str, query: str) -> tuple[str, str]:
    """Return (excerpt, whole passage) as HTML, with ``<mark>`` around the terms of the query.

    The excerpt is the part of at most ``CHARS`` characters that :func:`excerpt` selects. The second string is
    empty if the excerpt is the whole passage.
    """
    line = visible(" ".join(text[:_WHOLE].split())) + "…" * (len(text) > _WHOLE)
    terms = highlight.common_terms(query, line)
    words = {unicodedata.normalize("NFKC", term) for term in terms}
    short = "".join(word for word, _ in excerpt(marked(line, words), CHARS))
    return highlight.marked(short, terms), highlight.marked(line, terms) if short != line else ""


def marked(text: str, terms: set[str]) -> list[Word]:
    """Split a text into words, with single spaces between them. The flag is True if the word is in ``terms``.

    ``terms`` are words of BM25 (``word_tokens``). A word may be written in another way, such as in full-width letters.
    """
    parts = word_parts(visible(" ".join(text.split())))
    return [(part.text, not terms.isdisjoint(part.words)) for part in parts]


def excerpt(text: Sequence[Word], chars: int) -> list[Word]:
    """Return the best part of a text, of at most ``chars`` characters.

    A part is better if the lengths of its distinct terms have a larger sum. Among equally good parts, the middle part
    is chosen, so that the terms have words on both sides. If the text has no terms, its beginning is returned. Omitted
    text is shown as "…".
    """
    starts = [0, *accumulate(len(word) for word, _ in text)]
    ends = [max(first + 1, bisect_right(starts, start + chars) - 1) for first, start in enumerate(starts[:-1])]
    del ends[bisect_left(ends, len(text)) + 1 :]  # the first part that reaches the end contains all later parts
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
    """Return the positive passages of every question; None if the split has no judgments."""
    if (configs.qrels, split) not in release.splits():
        return None
    judged = read_judgments(release, configs, split)
    return {query: {corpus for corpus, score in own.items() if score > 0} for query, own in judged.items()}
