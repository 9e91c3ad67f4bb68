"""Mark the terms of a query in a passage, as HTML."""

import html
import re
import unicodedata

from builders.core.word_tokens import normalised_ends, word_tokens

_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Question words are not highlighted, because they tell nothing about a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}


def common_terms(query: str, passage: str) -> list[str]:
    """Return the words of a query that occur in a passage, ignoring case and width, the longest first.

    The words are written as in the passage and as in the query: iphone and ｉｐｈｏｎｅ for the query iPhone, if the
    passage has ｉＰｈｏｎｅ.
    """
    query_words = {word for word in word_tokens(query) if _TERM.fullmatch(_without_marks(word))} - ASKING
    lower_passage = unicodedata.normalize("NFKC", passage).lower()
    found = {word for word in query_words if word in lower_passage}
    spellings = _spellings(found, query) | _spellings(found, passage)
    return sorted(spellings, key=lambda word: (-len(word), word))


def _without_marks(word: str) -> str:
    """Return a word without its combining marks, which are neither letters nor digits."""
    return "".join(character for character in word if not unicodedata.category(character).startswith("M"))


def _spellings(words: set[str], text: str) -> set[str]:
    """Return the words, all in lower case, as a text writes them."""
    normalised = unicodedata.normalize("NFKC", text)
    if normalised == text:
        return words
    ends = normalised_ends(text)
    spellings: set[str] = set()
    for word in words:
        for match in re.finditer(re.escape(word), normalised, flags=re.IGNORECASE):
            start, end = ends[match.start()], ends[match.end()]
            if start is not None and end is not None:  # None: only a part of a character, such as 株 in ㈱
                spellings.add(text[start:end].lower())
    return spellings


def marked(text: str, terms: list[str]) -> str:
    """Return the text as escaped HTML with ``<mark>`` around each of the ``terms``."""
    if not terms:
        return html.escape(text)
    # Split at the terms before escaping, so that no term matches inside an HTML entity.
    parts = re.split(f"({'|'.join(map(re.escape, terms))})", text, flags=re.IGNORECASE)
    return "".join(f"<mark>{html.escape(part)}</mark>" if n % 2 else html.escape(part) for n, part in enumerate(parts))
