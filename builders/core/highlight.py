"""Mark the terms of a query in a passage, as HTML."""

import html
import re

from builders.core.words import words

_TERM = re.compile(r"[^\W_]{2,}|[0-9A-Za-z]+")
# Question words are not highlighted, because they tell nothing about a passage.
ASKING = {"什么", "怎么", "怎么办", "怎么样", "怎样", "如何", "为什么", "为何", "多少", "哪里", "哪些", "哪个", "是否"}


def common_terms(query: str, passage: str) -> list[str]:
    """Return the words of a query that occur in a passage, ignoring case, the longest first."""
    text = passage.lower()
    found = {word.lower() for word in words(query) if _TERM.fullmatch(word)} - ASKING
    return sorted((word for word in found if word in text), key=lambda word: (-len(word), word))


def marked(text: str, terms: list[str]) -> str:
    """Return the text as escaped HTML with ``<mark>`` around each of the ``terms``."""
    if not terms:
        return html.escape(text)
    # Split at the terms before escaping, so that no term matches inside an HTML entity.
    parts = re.split(f"({'|'.join(map(re.escape, terms))})", text, flags=re.IGNORECASE)
    return "".join(f"<mark>{html.escape(part)}</mark>" if n % 2 else html.escape(part) for n, part in enumerate(parts))
