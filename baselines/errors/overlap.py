"""Rule ``overlap``: query and passage share one noun, and nothing else of the query is in the passage.

Terms are the query's nouns, verbs, adjectives and Latin words, as jieba tags them, without what makes a question of it
(怎么, 多少). The noun, or Latin word, is no person or institution: a passage that names it is about it. It has at most
half of the terms' characters; of the other terms no two neighbouring characters stand in the passage, of a term of one
character that one. Where fewer than half of the positives have any of them, that says nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from builders.annotate.marking import ASKING
from builders.common.words import tagged

_CONTENT = ("n", "v", "a", "i", "l", "j", "e", "t", "s", "z", "b")  # the beginnings of tags; "eng" is among them
_NOUN = ("n", "e", "j")
_EMPTY = {
    "是",
    "有",
    "会",
    "能",
    "要",
    "可以",
    "在",
    "去",
    "到",
    "做",
    "让",
    "给",
    "用",
    "来",
    "求",
    "问",
    "请问",
    "好",
    "大",
    "多",
}


def only_shared(query: str, passage: str, positives: Sequence[str] = ()) -> str | None:
    """The term that is shared, where it is all that is; None else."""
    text, right = _folded(passage), [_folded(each) for each in positives]
    tags = {word: tag for word, tag in tagged(_folded(query)) if tag[0] in _CONTENT and word not in ASKING | _EMPTY}
    terms = list(tags)
    shared = [term for term in terms if term in text]
    others = [term for term in terms if term not in text]
    if len(shared) != 1 or not others or len(shared[0]) > len("".join(others)):
        return None
    if len(shared[0]) < 2 or tags[shared[0]][0] not in _NOUN or tags[shared[0]][:2] in ("nr", "nt"):
        return None
    parts = [part for term in others for part in _parts(term)]
    answered = sum(any(part in each for part in parts) for each in right)
    return None if any(part in text for part in parts) or 2 * answered < len(right) else shared[0]


def _parts(term: str) -> list[str]:
    return [term[start : start + 2] for start in range(len(term) - 1)] or [term]


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).lower()
