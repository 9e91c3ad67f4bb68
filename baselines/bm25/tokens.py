"""Chinese text into the tokens that BM25 counts, in four ways; the same way for queries and passages.

``words``: of jieba's default mode, with its hidden Markov model for words outside its dictionary, as
``builders.core.words`` cuts them. ``characters``: every Chinese character for itself. ``bigrams``: every two
neighbouring Chinese characters, and a Chinese character that has no neighbour. In both, a run of other letters and
digits is one token. ``both``: the words and then the bigrams; what is a word of two characters counts as both.
Everywhere: lower case, and no token without a letter, digit or Chinese character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from baselines.bm25.stop_words import STOP_WORDS
from builders.core.jobs import in_order, process_pool
from builders.core.words import segmenter_version, words

_RULE = 1  # raise it when tokens() changes: indexes built from other tokens are then built anew
_CHARACTERS_RULE = 1  # likewise, of characters and bigrams
_STOP_WORDS_RULE = 1  # likewise, of the stop words
_CHINESE = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(f"[{_CHINESE}]+|[^\\W_{_CHINESE}]+")
_IS_CHINESE = re.compile(f"[{_CHINESE}]")


def tokens(text: str) -> list[str]:
    """The words of one text, in order. They hold no blanks."""
    found = (token.lower() for token in words(text))
    return [token for token in found if any(map(str.isalnum, token))]


def characters(text: str) -> list[str]:
    """The Chinese characters of one text, and its runs of other letters and digits, in order."""
    return [each for run in _RUN.findall(text.lower()) for each in (run if _IS_CHINESE.match(run) else [run])]


def bigrams(text: str) -> list[str]:
    """Each two neighbouring Chinese characters of one text, and its runs of other letters and digits, in order."""
    found: list[str] = []
    for run in _RUN.findall(text.lower()):
        if len(run) > 1 and _IS_CHINESE.match(run):
            found += map("".join, pairwise(run))
        else:
            found.append(run)
    return found


def both(text: str) -> list[str]:
    """The words of one text, then its bigrams."""
    return tokens(text) + bigrams(text)


ANALYZERS: dict[str, Callable[[str], list[str]]] = {
    "words": tokens,
    "characters": characters,
    "bigrams": bigrams,
    "both": both,
}


@dataclass(frozen=True)
class Analyzer:
    """A text's tokens, as a callable: also what bm25s takes as its ``splitter``.

    Attributes:
        name: one of ``ANALYZERS``.
        drop_stop_words: leave out the tokens that are stop words (:mod:`baselines.bm25.stop_words`).
    """

    name: str = "words"
    drop_stop_words: bool = False

    def __call__(self, text: str) -> list[str]:
        found = ANALYZERS[self.name](text)
        return [token for token in found if token not in STOP_WORDS] if self.drop_stop_words else found

    @property
    def version(self) -> str:
        """Name and version of what is done; part of an index's key."""
        parts = [f"{segmenter_version()} tokens {_RULE}"] if self.name in ("words", "both") else []
        if self.name != "words":
            parts.append(f"{self.name} {_CHARACTERS_RULE}")
        if self.drop_stop_words:
            parts.append(f"no stop words {_STOP_WORDS_RULE}")
        return ", ".join(parts)


WORDS = Analyzer()


def _segment(task: tuple[Analyzer, Any, list[str]]) -> tuple[Any, list[str]]:
    analyzer, key, texts = task
    return key, [" ".join(analyzer(text)) for text in texts]


def segment_batches(
    batches: Iterable[tuple[Any, list[str]]], workers: int, analyzer: Analyzer = WORDS
) -> Iterator[tuple[Any, list[str]]]:
    """(key, texts) batches into (key, token strings), in the same order; tokens are joined by one space.

    ``workers`` processes at most; no more than a few batches a worker are held at a time. The result does not depend
    on ``workers``. Raises :class:`InputError` where a worker process dies.
    """
    with process_pool(workers) as pool:
        yield from in_order(pool, _segment, ((analyzer, *batch) for batch in batches), 4 * workers)
