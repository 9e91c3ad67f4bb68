"""Mark the terms of a query in a passage, as HTML."""

import html
import re
import unicodedata

from builders.core.word_tokens import normalised_ends, word_tokens

# Two or more letters or digits of any script, or a single one of ASCII. A single Chinese character tells too little.
_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Question words are not highlighted, because they tell nothing about a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}


def common_terms(query: str, passage: str) -> list[str]:
    """Return the words of a query that occur in a passage, ignoring case and width, the longest first.

    Question words and single Chinese characters are skipped. The words are written as in the passage and as in
    the query: iphone and ｉｐｈｏｎｅ for the query iPhone, if the passage has ｉＰｈｏｎｅ.
    """
    # _TERM has no combining marks, so they are ignored.
    query_terms = {word for word in word_tokens(query) if _TERM.fullmatch(_without_marks(word))}
    query_words = query_terms - ASKING
    lower_passage = unicodedata.normalize("NFKC", passage).lower()
    common_words = {word for word in query_words if word in lower_passage}
    spellings = _spellings(common_words, query) | _spellings(common_words, passage)
    return sorted(spellings, key=lambda word: (-len(word), word))


def _without_marks(word: str) -> str:
    """Return a word without its combining marks, which are neither letters nor digits."""
    return "".join(character for character in word if not unicodedata.category(character).startswith("M"))


def _spellings(words: set[str], text: str) -> set[str]:
    """Return the spellings of some words in a text, in lower case, for example full-width ｉｐｈｏｎｅ for iphone.

    ``words`` are in NFKC and lower case, and occur in the text.
    """
    normalised = unicodedata.normalize("NFKC", text)
    if normalised == text:
        return words
    original_positions = normalised_ends(text)  # for each position in ``normalised``
    spellings: set[str] = set()
    for word in words:
        for match in re.finditer(re.escape(word), normalised, flags=re.IGNORECASE):
            spelling_start = original_positions[match.start()]
            spelling_end = original_positions[match.end()]
            # None: the word is only a part of a character, such as 株 in ㈱.
            if spelling_start is not None and spelling_end is not None:
                spellings.add(text[spelling_start:spelling_end].lower())
    return spellings


def mark_terms(text: str, terms: list[str]) -> str:
    """Return the text as escaped HTML with ``<mark>`` around each of the ``terms`` (the longest first)."""
    if not terms:
        return html.escape(text)
    # Split at the terms before escaping, so that no term matches inside an HTML entity. A regular expression takes the
    # first alternative that matches, so the longest terms stand first in ``terms``.
    any_term = "|".join(map(re.escape, terms))
    html_parts = []
    for part_number, part in enumerate(re.split(f"({any_term})", text, flags=re.IGNORECASE)):
        is_term = part_number % 2 == 1  # split returns the text between two terms, and the terms
        html_parts.append(f"<mark>{html.escape(part)}</mark>" if is_term else html.escape(part))
    return "".join(html_parts)
