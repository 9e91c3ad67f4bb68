"""Words of a user for jieba, in the format of jieba's user dictionaries.

A line has a word, and optionally its frequency and its part of speech, separated by white space::

    云计算平台 5 n
    石墨烯电池

The frequency decides between two ways to cut a text. Without one, jieba computes a frequency with which the word is
cut as a whole.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from builders.core.errors import InputError, log
from builders.core.read_files import convert_read_errors, read_utf8, rereadable_path
from builders.core.words import cut_as_jieba

_LARGEST_FREQUENCY = 10**9  # the whole dictionary of jieba has 60 million
_MOST_PARTS = 3  # word, frequency, part of speech
# The characters of jieba's words, in jieba.re_han_default and jieba.re_skip. jieba cuts a text at all others.
_POSSIBLE_WORD = re.compile(r"[\u4e00-\u9fd5a-zA-Z0-9+#&._%\-]+")
_EXPECTED = "expected WORD [FREQUENCY] [PART OF SPEECH]"


class UserWord(NamedTuple):
    """A word, and its frequency or None."""

    word: str
    frequency: int | None


@dataclass(frozen=True)
class UserDictionary:
    """A file of words, which worker processes read again. ``sha256`` is the hash of the words."""

    path: Path
    sha256: str

    def cut(self, text: str) -> list[str]:
        """Return the words into which jieba cuts a text if its dictionary also has the user's words."""
        return _open_cutter(self.path, self.sha256)(text)


def open_dictionary(path: Path) -> UserDictionary:
    """Read and check a dictionary. Raises :class:`InputError` for a wrong line, or a file without words."""
    with convert_read_errors(path):
        file_path = rereadable_path(path)
    words = read_user_words(file_path)
    impossible_words = [word for word, _ in words if not _POSSIBLE_WORD.fullmatch(word)]
    if impossible_words:
        log.warning(
            "%s: %d of %d words have other characters than jieba's words, for example %r, and are never found",
            path,
            len(impossible_words),
            len(words),
            impossible_words[0],
        )
    return UserDictionary(file_path, _hash_words(words))


def read_user_words(path: Path) -> list[UserWord]:
    """Return the words of a dictionary in the order of the file, in Unicode's NFKC. Empty lines are skipped.

    Raises :class:`InputError` for a wrong line, or a file without words.
    """
    words: list[UserWord] = []
    for number, line in enumerate(read_utf8(path).split("\n"), start=1):
        parts = line.split()
        if not parts:
            continue
        frequency = None
        has_frequency = len(parts) > 1 and parts[1].isdecimal()
        if len(parts) > _MOST_PARTS or (len(parts) == _MOST_PARTS and not has_frequency):
            raise InputError(f"{_EXPECTED}, found {line.strip()[:100]!r}", path=path, line=number)
        if has_frequency:
            frequency = _read_frequency(parts[1], path, number)
        words.append(UserWord(unicodedata.normalize("NFKC", parts[0]), frequency))
    if not words:
        raise InputError(f"has no words; {_EXPECTED} in each line", path=path)
    return words


def _read_frequency(digits: str, path: Path, line_number: int) -> int:
    if len(digits) <= len(str(_LARGEST_FREQUENCY)) and 1 <= int(digits) <= _LARGEST_FREQUENCY:
        return int(digits)
    problem = f"expected a frequency from 1 to {_LARGEST_FREQUENCY:,}, found {digits[:100]}"
    raise InputError(problem, path=path, line=line_number)


def _hash_words(words: list[UserWord]) -> str:
    return hashlib.sha256(repr(words).encode()).hexdigest()


@functools.lru_cache(maxsize=2)
def _open_cutter(path: Path, sha256: str) -> Callable[[str], list[str]]:
    """Return the function that cuts a text with a file's words. ``sha256`` is the hash of the words when checked."""
    import rjieba

    words = read_user_words(path)
    if _hash_words(words) != sha256:
        raise InputError("changed after the check; run again", path=path)
    # A segmenter of its own, because words without a dictionary use the common one.
    segmenter = rjieba.Jieba()
    for word, frequency in words:
        segmenter.add_word(word, frequency, None)
    return cut_as_jieba(segmenter.cut, segmenter.has_word)
