"""A passage as the page shows it: a few words around the terms of the query, and the whole behind them, as HTML."""

from __future__ import annotations

from typing import NamedTuple

from baselines.show import excerpt
from baselines.show import marked as words_of
from builders.annotate.marking import common_terms, marked
from builders.core.errors import visible

CHARS = 120
_WHOLE = 5_000  # characters of a passage: the rest is not for a page


class Excerpt(NamedTuple):
    """HTML in which nothing is markup but ``<mark>`` around terms; ``whole`` is empty where ``short`` is all of it."""

    short: str
    whole: str


def excerpt_of(text: str, query: str) -> Excerpt:
    """At most ``CHARS`` characters of a passage, where they hold most terms of the query; and all of it."""
    line = visible(" ".join(text[:_WHOLE].split())) + "…" * (len(text) > _WHOLE)
    terms = common_terms(query, line)
    short = "".join(word for word, _ in excerpt(words_of(line, set(terms)), CHARS))
    return Excerpt(marked(short, terms), marked(line, terms) if short != line else "")
