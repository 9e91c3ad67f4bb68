"""Cut a text into words with jieba's default mode, by the compiled binding rjieba or by jieba itself.

`release` cuts the raw DuReader rows that have no word lists. rjieba (jieba-rs) has jieba's dictionary and hidden Markov
model, but differs in three ways. This module corrects the first two differences, and the frequent case of the third:

- rjieba does not cut runs of Latin letters, digits and signs such as ``2016-09-04`` or ``jingyan.baidu.com``. jieba
  cuts such runs by a regular expression, which this module applies to rjieba's words.
- rjieba puts rare Chinese characters (the extension blocks, the compatibility ideographs, U+9FD6 to U+9FFF) into longer
  words, which jieba never does. This module makes each rare character a word and cuts the remaining text separately.
- rjieba's model has six decimals and jieba's has sixteen. Results may differ if two ways to cut are almost equally
  likely, which can happen for 36 pairs of characters. Only one pair is frequent in ordinary text: 常在 before a word of
  one character. This module cuts 常在 as jieba does. `benchmarks/segment.py` counts the remaining differences."""

import functools
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable
from importlib.metadata import version

from builders.core.errors import InputError, install

_IMPORTING = threading.Lock()
SEGMENTERS = ("rjieba", "jieba")  # the first is the default
_RULE = 1  # increase when the corrections of rjieba's words change

# jieba.finalseg's re_skip, which cuts runs of letters, digits and signs.
_SKIP = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
_SIGNS = "+#&._%-"  # besides letters and digits, the other characters that both libraries put into words
_LATIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + _SIGNS)
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese outside jieba's re_han_default
_RARE_RUN = re.compile(f"([{_RARE}]+)")
_TIE = "常在"
_MAY_DIFFER = re.compile(f"[{re.escape(_SIGNS)}{_RARE}]|{_TIE}")


def words(text: str, segmenter: str = SEGMENTERS[0]) -> list[str]:
    """Return the words of ``text`` in order. The joined words equal ``text``. Errors are those of :func:`cutter`."""
    return cutter(segmenter)(text)


@functools.cache
def cutter(segmenter: str = SEGMENTERS[0]) -> Callable[[str], list[str]]:
    """Return the function that cuts a text into words. A process loads the dictionary only once.

    Raises :class:`InputError` if the segmenter is not installed.
    """
    try:
        return {"rjieba": _rjieba, "jieba": _jieba}[segmenter]()
    except ImportError as error:
        raise _missing(segmenter) from error


def segmenter_version(segmenter: str = SEGMENTERS[0]) -> str:
    """Return the segmenter's name and version for manifests and cache keys.

    Raises :class:`InputError` if the segmenter is not installed.
    """
    try:
        return f"{segmenter} {version(segmenter)}" + (f" rule {_RULE}" if segmenter == "rjieba" else "")
    except ImportError as error:  # PackageNotFoundError is an ImportError
        raise _missing(segmenter) from error


def _missing(segmenter: str) -> InputError:
    return InputError(f"{segmenter} is not installed: {install('builders')}; or choose another with --segmenter")


def _jieba() -> Callable[[str], list[str]]:
    with _IMPORTING, warnings.catch_warnings():  # the filters of warnings belong to the whole process
        warnings.simplefilter("ignore")  # jieba 0.42.1 has invalid escapes and imports pkg_resources
        import jieba
    jieba.setLogLevel(logging.CRITICAL)  # hides messages about the cache, which is disabled below
    # jieba's cache in TMPDIR saves a second, but may be damaged, written by another user, or cut short by a full disk.
    jieba.dt.tmp_dir = os.devnull
    jieba.initialize()
    return jieba.lcut  # type: ignore[no-any-return]


def _rjieba() -> Callable[[str], list[str]]:
    import rjieba

    cut: Callable[[str], list[str]] = rjieba.cut
    in_dictionary: Callable[[str], bool] = rjieba.has_word  # words with signs: AT&T, c#, C#, c++, C++

    def cut_as_jieba(text: str) -> list[str]:
        if not _MAY_DIFFER.search(text):
            return cut(text)
        found: list[str] = []
        run = ""  # jieba cuts adjacent Latin words as a single run
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
    """Cut 常在 into two words where it begins a run that the model cuts, if one Chinese character follows.

    Such a run begins after a word of the dictionary or after non-Chinese text. After a single character, or after a
    word that the model has made, rjieba and jieba agree.
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
    if len(pieces) == 1:  # almost always, and faster
        return cut(text)
    return [word for position, piece in enumerate(pieces) for word in (list(piece) if position % 2 else cut(piece))]
