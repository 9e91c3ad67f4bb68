"""Rule ``entities``: a person, place, institution or other name of the query that the passage has not.

Names are what jieba's part-of-speech tagging calls nr, ns, nt or nz, of two characters or more. A place or institution
stands in the passage, too, where it does so without its last character or its last two (四川省, 清华大学): both are
left with two at least. Case and width make no difference. A name that fewer than half of the positives have counts for
nothing: titles are no part of passages, and jieba takes some ordinary words for names. Other names for the same
(北大), and passages that say 他, are false alarms; names that jieba takes for ordinary nouns are missed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from builders.common.words import tagged

TAGS = ("nr", "ns", "nt", "nz")


def entities(text: str) -> list[str]:
    """The names in a text, in order, each once."""
    found = (word for word, tag in tagged(_folded(text)) if tag[:2] in TAGS and len(word.strip()) > 1)
    return list(dict.fromkeys(found))


def absent(query: str, passage: str, positives: Sequence[str] = ()) -> list[str]:
    """The names of the query that the passage has not; where there are positives, those that half of them have."""
    text, right = _folded(passage), [_folded(each) for each in positives]
    names = (name for name in entities(query) if not _has(text, name))
    return [name for name in names if 2 * sum(_has(each, name) for each in right) >= len(right)]


def _has(text: str, name: str) -> bool:
    return any(form in text for form in _forms(name))


def _forms(name: str) -> list[str]:
    """A name, and what is left without its last characters: 四川, 清华."""
    return [name, *(name[:end] for end in (-1, -2) if len(name) + end >= 2)]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()
