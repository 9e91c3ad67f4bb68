"""Passage length control (Section 2.2.2) and the identifiers of the official release.

The official passages come out byte for byte: a document's paragraphs are joined, with no separator, until the joined
text has at least 256 characters (code points, not only Chinese ones); what is left at the end is a passage too, even if
shorter. Titles are dropped. A passage is positive if any of its paragraphs is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

MIN_CHARS = 256


def text_id(text: str) -> str:
    """The identifier of a passage or a query: lower-case hex MD5 of its UTF-8 text."""
    return hashlib.md5(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def join_paragraphs(
    paragraphs: Sequence[str], positive: Sequence[bool], min_chars: int = MIN_CHARS
) -> list[tuple[str, bool]]:
    """One document's passages, in order, each with its label.

    Args:
        paragraphs: the document's paragraphs, in order.
        positive: a label for each paragraph.
        min_chars: characters from which on a passage is long enough.

    Returns:
        ``(text, label)`` pairs. Texts of whitespace alone are among them; the caller drops and counts them.
    """
    passages: list[tuple[str, bool]] = []
    parts: list[str] = []
    length, label = 0, False
    for paragraph, is_positive in zip(paragraphs, positive, strict=True):
        parts.append(paragraph)
        length += len(paragraph)
        label |= bool(is_positive)
        if length >= min_chars:
            passages.append(("".join(parts), label))
            parts, length, label = [], 0, False
    if length:
        passages.append(("".join(parts), label))
    return passages
