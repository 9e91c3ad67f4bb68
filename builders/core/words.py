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
from collections.abc import Callable, Iterator
from importlib.metadata import version

from builders.core.errors import InputError, install_command

_IMPORT_LOCK = threading.Lock()
SEGMENTERS = ("rjieba", "jieba")  # the first is the default
_RULE = 1  # increase when the corrections of rjieba's words change

# jieba.finalseg's re_skip, which cuts runs of letters, digits and signs.
_SKIP = re.compile(r"([a-zA-Z0-9]+(?:\.\d+)?%?)")
# Besides letters and digits, the other characters that both libraries put into words.
_SIGNS = "+#&._%-"
_LATIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" + _SIGNS)
# Chinese outside jieba's re_han_default.
_RARE = "\u3400-\u4dbf\u9fd6-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RARE_RUN = re.compile(f"([{_RARE}]+)")
_FIRST_CHINESE = "\u4e00"  # the other Chinese characters, in jieba's re_han_default
_LAST_CHINESE = "\u9fd5"
_TIE = "常在"  # the frequent pair for which two ways to cut are almost equally likely
_MAY_DIFFER = re.compile(f"[{re.escape(_SIGNS)}{_RARE}]|{_TIE}")


def split_words(text: str, segmenter: str = SEGMENTERS[0]) -> list[str]:
    """Return the words of ``text`` in order: joined, they equal ``text``. Errors are those of :func:`word_cutter`."""
    return word_cutter(segmenter)(text)


@functools.cache
def word_cutter(segmenter: str = SEGMENTERS[0]) -> Callable[[str], list[str]]:
    """Return the function that cuts a text into words. A process loads the dictionary only once.

    Raises :class:`InputError` if the segmenter is not installed.
    """
    try:
        return {"rjieba": _load_rjieba, "jieba": _load_jieba}[segmenter]()
    except ImportError as error:
        raise _not_installed(segmenter) from error


def segmenter_version(segmenter: str = SEGMENTERS[0]) -> str:
    """Return the segmenter's name and version for manifests and cache keys.

    Raises :class:`InputError` if the segmenter is not installed.
    """
    try:
        package_version = version(segmenter)
    except ImportError as error:  # PackageNotFoundError is an ImportError
        raise _not_installed(segmenter) from error
    if segmenter == "rjieba":
        return f"rjieba {package_version} rule {_RULE}"
    return f"{segmenter} {package_version}"


def _not_installed(segmenter: str) -> InputError:
    return InputError(
        f"{segmenter} is not installed: {install_command('builders')}; or choose another with --segmenter"
    )


def _load_jieba() -> Callable[[str], list[str]]:
    """Import jieba, load its dictionary without messages and without its cache, and return its function."""
    # The filters of warnings belong to the whole process.
    with _IMPORT_LOCK, warnings.catch_warnings():
        # jieba 0.42.1 has invalid escapes and imports pkg_resources.
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.CRITICAL)  # hides messages about the cache, which is disabled below
    # jieba's cache in TMPDIR saves a second, but may be damaged, written by another user, or cut short by a full disk.
    jieba.dt.tmp_dir = os.devnull
    jieba.initialize()
    return jieba.lcut  # type: ignore[no-any-return]


def _load_rjieba() -> Callable[[str], list[str]]:
    """Return the function of rjieba, corrected by :func:`cut_as_jieba`."""
    import rjieba

    cut_text: Callable[[str], list[str]] = rjieba.cut
    # True for a word of the dictionary. Those with signs are AT&T, c#, C#, c++ and C++.
    in_dictionary: Callable[[str], bool] = rjieba.has_word
    return cut_as_jieba(cut_text, in_dictionary)


def cut_as_jieba(
    cut_text: Callable[[str], list[str]], in_dictionary: Callable[[str], bool]
) -> Callable[[str], list[str]]:
    """Return a function that cuts a text as jieba does.

    ``cut_text`` and ``in_dictionary`` are the methods ``cut`` and ``has_word`` of a segmenter of rjieba.
    """

    def cut(text: str) -> list[str]:
        if not _MAY_DIFFER.search(text):
            return cut_text(text)
        # Collect neighbouring Latin words, and cut the run as jieba does.
        cut_words: list[str] = []
        latin_run = ""  # jieba cuts adjacent Latin words as a single run
        for word in _cut_around_rare(text, cut_text):
            is_latin = word.isascii() and word[0] in _LATIN
            # A longer word of the dictionary, such as C++, ends the run, because jieba does not cut the word either.
            if is_latin and not (len(word) > 1 and in_dictionary(word)):
                latin_run += word
                continue
            if latin_run:
                cut_words += _cut_latin(latin_run)
                latin_run = ""
            cut_words.append(word)
        if latin_run:
            cut_words += _cut_latin(latin_run)
        if _TIE in cut_words:
            _cut_tie(cut_words, in_dictionary)
        return cut_words

    return cut


def _cut_latin(latin_run: str) -> Iterator[str]:
    """Return the words of a run of Latin letters, digits and signs: ``2016-09-04`` has five words."""
    return filter(None, _SKIP.split(latin_run))


def _cut_tie(cut_words: list[str], in_dictionary: Callable[[str], bool]) -> None:
    """Cut 常在 into two words where it begins a run that the model cuts, if one Chinese character follows.

    Such a run begins after a word of the dictionary or after non-Chinese text. After a single character, or after a
    word that the model has made, rjieba and jieba agree.
    """
    # From the end, because a cut moves the words after it.
    for position in range(len(cut_words) - 2, -1, -1):
        if cut_words[position] != _TIE or not _is_single(cut_words[position + 1]):
            continue
        word_before = cut_words[position - 1] if position else ""
        if _is_single(word_before):
            continue
        is_after_chinese = _FIRST_CHINESE <= word_before[-1:] <= _LAST_CHINESE
        if in_dictionary(word_before) or not is_after_chinese:
            cut_words[position : position + 1] = _TIE  # a text as a list: 常, 在


def _is_single(word: str) -> bool:
    """True for one Chinese character that is not rare."""
    return len(word) == 1 and _FIRST_CHINESE <= word <= _LAST_CHINESE


def _cut_around_rare(text: str, cut_text: Callable[[str], list[str]]) -> list[str]:
    """Cut the text between runs of rare characters. Each rare character is a word."""
    pieces = _RARE_RUN.split(text)
    if len(pieces) == 1:  # almost always, and faster
        return cut_text(text)
    cut_words: list[str] = []
    for piece_number, piece in enumerate(pieces):
        is_rare_run = piece_number % 2 == 1  # split returns the text between two runs, and the runs
        cut_words += list(piece) if is_rare_run else cut_text(piece)
    return cut_words
