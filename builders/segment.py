"""Words for rows that carry none: jieba, in its default mode."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable


@functools.cache
def cutter() -> Callable[[str], list[str]]:
    """jieba's ``lcut``, its dictionary loaded once in a process and without its notes on stderr."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42.1 has invalid escapes and imports pkg_resources
        import jieba
    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    return jieba.lcut  # type: ignore[no-any-return]


def words(text: str) -> list[str]:
    """The words of ``text`` in order; joined, they are the text."""
    return cutter()(text)
