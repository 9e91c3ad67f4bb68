"""Passage length control (Section 2.2.2): paragraphs joined until they have 256 characters.

The official passages come out byte for byte. Titles are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from builders.release.options import MIN_CHARS


def cut_passages(
    paragraphs: Iterable[str], positive: Iterable[bool], min_chars: int = MIN_CHARS
) -> Iterator[tuple[str, bool]]:
    """One document's passages in order, each with its label.

    Paragraphs are joined, with no separator, until the text has at least ``min_chars`` characters (code points, not
    only Chinese ones); what is left at the end is a passage too, even if shorter. A passage is positive if any of its
    paragraphs is. Paragraphs without a character make no passage.

    Args:
        paragraphs: the document's.
        positive: a label for each.
        min_chars: characters from which on a passage is long enough.
    """
    text, label = "", False
    for paragraph, is_positive in zip(paragraphs, positive, strict=True):
        text += paragraph
        label = label or is_positive
        if len(text) >= min_chars:
            yield text, label
            text, label = "", False
    if text:
        yield text, label


def is_blank(passage: str) -> bool:
    """Whitespace alone: such a passage is left out, as in the official collection."""
    return passage.isspace()
