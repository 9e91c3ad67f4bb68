"""Chinese text into the tokens that BM25 counts.

The words of jieba's default mode, with its hidden Markov model for words outside its dictionary, as
``builders.common.words`` cuts them; lower-cased; tokens without a letter, digit or Chinese character dropped. Queries
and passages go through the same function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from builders.common.jobs import in_order, process_pool
from builders.common.words import segmenter_version, words

_RULE = 1  # raise it when tokens() changes: indexes built from other tokens are then built anew


def segmenter() -> str:
    """Name and version of what :func:`tokens` does; part of an index's key."""
    return f"{segmenter_version()} tokens {_RULE}"


def tokens(text: str) -> list[str]:
    """The tokens of one text, in order. They hold no blanks."""
    found = (token.lower() for token in words(text))
    return [token for token in found if any(map(str.isalnum, token))]


def _segment(batch: tuple[Any, list[str]]) -> tuple[Any, list[str]]:
    key, texts = batch
    return key, [" ".join(tokens(text)) for text in texts]


def segment_batches(batches: Iterable[tuple[Any, list[str]]], workers: int) -> Iterator[tuple[Any, list[str]]]:
    """(key, texts) batches into (key, token strings), in the same order; tokens are joined by one space.

    ``workers`` processes at most; no more than a few batches a worker are held at a time. The result does not depend
    on ``workers``. Raises :class:`InputError` where a worker process dies.
    """
    with process_pool(workers) as pool:
        yield from in_order(pool, _segment, batches, 4 * workers)
