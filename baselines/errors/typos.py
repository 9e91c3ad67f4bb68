"""Rule ``typos``: a Latin word of the query that is nearly one of the passage or of a positive.

Two words are nearly the same where one edit (a letter more, less, other, or two neighbours exchanged) makes one of the
other, or two in words from eight letters; both begin with the same letter. A word that a positive passage has is
spelled as it should be: then the typo is the passage's. Endings of English (-s, -es, -ed, -ing) make no typo. Chinese
typos (支付包) are not found.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_WORD = re.compile(r"[a-z]{4,}")
_ENDING = re.compile(r"(?:s|es|d|ed|ing|er)$")
_LONG = 8  # letters from which two edits are a typo


def typo(query: str, passage: str, positives: Sequence[str] = ()) -> tuple[str, str] | None:
    """(as the query has it, as the other text has it): the first word that is nearly another; None where none is."""
    here, right = _words(passage), {word for text in positives for word in _words(text)}
    for word in dict.fromkeys(_list(query)):
        if word in here:
            continue
        for other in sorted(here) if word in right else sorted(here | right):
            if other not in right & {word} and is_typo(word, other):
                return word, other
    return None


def is_typo(one: str, other: str) -> bool:
    """Whether one of two different words may be the other, mistyped."""
    from rapidfuzz.distance import OSA

    short, long = sorted((one, other), key=len)
    if (
        short == long
        or short[0] != long[0]
        or len(long) < 5
        or _ENDING.sub("", long) in (short, _ENDING.sub("", short))
    ):
        return False
    edits = 2 if len(long) >= _LONG else 1
    return bool(OSA.distance(short, long, score_cutoff=edits) <= edits)


def _list(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def _words(text: str) -> set[str]:
    return set(_list(text))
