"""Terms that a query and a passage have in common, marked for the eyes of a reader, as HTML."""

from __future__ import annotations

import html
import re

from builders.core.words import words

# A word of one character marks too much: 的, 了, 吗. Numbers and Latin words count at any length.
_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Nor does what makes a question of a query say anything of a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}


def common_terms(query: str, passage: str) -> list[str]:
    """The words of a query that stand in a passage, whatever their case; the longest first."""
    text = passage.lower()
    found = {word.lower() for word in words(query) if _TERM.fullmatch(word)} - ASKING
    return sorted((word for word in found if word in text), key=lambda word: (-len(word), word))


def marked(text: str, terms: list[str]) -> str:
    """The text as HTML: nothing in it is markup but ``<mark>`` around each of the ``terms``."""
    if not terms:
        return html.escape(text)
    # Split where a term stands, before anything is escaped: no term is found in what escaping adds.
    parts = re.split(f"({'|'.join(map(re.escape, terms))})", text, flags=re.IGNORECASE)
    pieces = list(map(html.escape, parts))
    pieces[1::2] = (f"<mark>{term}</mark>" for term in pieces[1::2])
    return "".join(pieces)
