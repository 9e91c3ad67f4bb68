"""Words for rows that carry none: jieba's default mode, from the compiled binding rjieba or from jieba itself.

rjieba (jieba-rs) has jieba's dictionary and its hidden Markov model. What it does differently, and what is done here:

- It keeps a run of Latin letters, digits and signs such as ``2016-09-04`` or ``jingyan.baidu.com`` whole, where jieba
  cuts it with a regular expression: such runs are cut again, with that expression.
- It takes the rarer Chinese characters (the extension blocks, the compatibility ideographs, U+9FD6 to U+9FFF) into
  words, which jieba never does: they come out alone, and the text on either side is cut for itself.
- Its model has six decimals where jieba's has sixteen, so the two may part where two ways to cut are as good as equally
  likely. Of pairs of characters 36 are, in one context or another; 常在 before a single character is the only one that
  ordinary text holds, and is cut as jieba cuts it. The others stay; `benchmarks/segment.py` counts where they show."""

from __future__ import annotations

import functools
import logging
import os
import re
import warnings
from collections.abc import Callable
from importlib.metadata import version

from builders.core.errors import InputError, install

SEGMENTERS = ("rjieba", "jieba")  # the first is the default
_RULE = 1  # raise it when what is done to rjieba's words changes

# jieba.finalseg's re_skip: what a run of letters, digits and signs is cut into.
_SKIP = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
_SIGNS = "+#&._%-"  # with letters and digits, the characters outside Chinese that both take into words
_LATIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + _SIGNS)
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese, but not to jieba's re_han_default
_RARE_RUN = re.compile(f"([{_RARE}]+)")
_TIE = "常在"
_MAY_DIFFER = re.compile(f"[{re.escape(_SIGNS)}{_RARE}]|{_TIE}")


def words(text: str, segmenter: str = SEGMENTERS[0]) -> list[str]:
    """The words of ``text`` in order; joined, they are the text. Raises as :func:`cutter` does."""
    return cutter(segmenter)(text)


@functools.cache
def cutter(segmenter: str = SEGMENTERS[0]) -> Callable[[str], list[str]]:
    """The function that cuts a text into words, its dictionary loaded once in a process.

    Raises :class:`InputError` where the segmenter is not installed.
    """
    try:
        return {"rjieba": _rjieba, "jieba": _jieba}[segmenter]()
    except ImportError as error:
        raise _missing(segmenter) from error


def segmenter_version(segmenter: str = SEGMENTERS[0]) -> str:
    """Name and version of what decides the words: goes into manifests and into the keys of what is kept on disk.

    Raises :class:`InputError` where the segmenter is not installed.
    """
    try:
        installed = version(segmenter)
    except ImportError as error:  # PackageNotFoundError is one
        raise _missing(segmenter) from error
    return f"{segmenter} {installed}" + (f" rule {_RULE}" if segmenter == "rjieba" else "")


def _missing(segmenter: str) -> InputError:
    return InputError(f"no segmenter {segmenter} here: {install('builders')}; or choose another with --segmenter")


def _jieba() -> Callable[[str], list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42.1 has invalid escapes and imports pkg_resources
        import jieba
    jieba.setLogLevel(logging.CRITICAL)  # of its cache, which is made nowhere
    # Its cache of a second's work lies in TMPDIR: what is read there may be damaged, or anybody's, and a full disk
    # keeps half of it.
    jieba.dt.tmp_dir = os.devnull
    jieba.initialize()
    return jieba.lcut  # type: ignore[no-any-return]


def _rjieba() -> Callable[[str], list[str]]:
    import rjieba

    cut: Callable[[str], list[str]] = rjieba.cut
    in_dictionary: Callable[[str], bool] = rjieba.has_word  # of Latin runs: AT&T, c#, C#, c++, C++

    def cut_as_jieba(text: str) -> list[str]:
        if not _MAY_DIFFER.search(text):
            return cut(text)
        found: list[str] = []
        run = ""  # neighbouring Latin words, which jieba cuts as one
        for word in _cut_around_rare(text, cut):
            if word.isascii() and word[0] in _LATIN and not (len(word) > 1 and in_dictionary(word)):
                run += word
                continue
            if run:
                found += filter(None, _SKIP.split(run))
                run = ""
            found.append(word)
        if run:
            found += filter(None, _SKIP.split(run))
        if _TIE in found:
            _cut_tie(found, in_dictionary)
        return found

    return cut_as_jieba


def _cut_tie(found: list[str], in_dictionary: Callable[[str], bool]) -> None:
    """Cut 常在 where it begins what the model was asked about and a single character of the same follows it.

    Such a beginning is at a word of the dictionary, or where what is not Chinese ends; after a single character, or a
    word of the model's own, the two do not part.
    """
    for position in range(len(found) - 2, -1, -1):
        if found[position] == _TIE and _is_single(found[position + 1]):
            before = found[position - 1] if position else ""
            if not _is_single(before) and (in_dictionary(before) or not "\u4e00" <= before[-1:] <= "\u9fd5"):
                found[position : position + 1] = _TIE


def _is_single(word: str) -> bool:
    return len(word) == 1 and "\u4e00" <= word <= "\u9fd5"


def _cut_around_rare(text: str, cut: Callable[[str], list[str]]) -> list[str]:
    pieces = _RARE_RUN.split(text)  # every second piece is a run of rare characters
    if len(pieces) == 1:
        return cut(text)
    return [word for position, piece in enumerate(pieces) for word in (list(piece) if position % 2 else cut(piece))]
