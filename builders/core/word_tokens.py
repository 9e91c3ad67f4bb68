"""Split a text of any script into words, for search and for highlights.

Texts are first normalised to Unicode's NFKC, so that full-width and half-width letters, Kangxi radicals, ligatures and
decomposed accents become ordinary characters. Then there are three kinds of runs:

- ``letters``: letters of a script with spaces between words, such as é, Cyrillic, Arabic, Devanagari or Hangul, with
  their combining marks and adjoining ASCII letters and digits. The run is one word.
- ``unspaced``: kana, and the scripts of South-East Asia that have no spaces. No dictionary is available, so
  neighbouring letters are paired, each with its combining marks.
- ``rest``: Chinese, ASCII, numbers and signs. jieba segments the text.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from builders.core.words import split_words

CHINESE = "\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_IS_CHINESE = re.compile(f"[{CHINESE}]")
# Most texts have only these characters: ASCII, Chinese, and signs. Some signs are changed by NFKC, for example a
# full-width comma, but no word depends on them. Such texts are not normalised, which saves a third of the time. Signs
# such as the full-width full stop are absent, because jieba keeps their NFKC forms in words.
_SIGNS = "\u00a0°±·×—‘’“”•\u2002\u2003\u200b※←-⇿≤≥■-◿★\u3000、。〈-】〔-〗・～，：；？！（）＜＞｜"
_ELLIPSIS = "…"  # the only frequent sign whose NFKC form, three full stops, jieba may keep in words
_NEEDS_CARE = re.compile(f"[^\0-\x7f{_SIGNS}〇\u3400-\u4dbf\u4e00-\u9fff]")
# First and last code points of kana, and of the scripts that Unicode's line breaking calls complex (UAX 14, class SA).
_UNSPACED = (
    (0x3041, 0x30FF),  # kana
    (0x31F0, 0x31FF),
    (0x1AFF0, 0x1B16F),
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Burmese
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0x1780, 0x17DF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0xAA80, 0xAADF),  # Tai Viet
    (0x11700, 0x1174F),  # Ahom
)
_JOINERS = "\u200c\u200d"  # Persian and Indian words have them between letters
# Marks that select the shape of a sign or an emoji.
_VARIANTS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# The runs, in the classes of the characters that _CharacterClasses returns:
#
#     0 ASCII digit   a ASCII letter   . full stop   l letter or digit of a script with spaces   m combining mark
#     u letter of a script without spaces   j joiner   (space) Chinese, and all other characters
#
# For example, "Café 3.5μm ひと" is "aaal 0.0la uu", which has the runs "aaal", "la" and "uu". As in jieba, the decimals
# of a number belong to the number: 3.5μm is cut into 3.5 and μm.
_RUN = re.compile(
    r"(?<![0al])(?:(?<=[0a]\.)0++)?(?P<letters>(?:[0a]++m|[0a]*+l)(?:[0alm]|(?<=[lm])j(?=[lm]))*)|(?P<unspaced>u[um]*)"
)
_MARKED_LETTER = re.compile("um*")


class TextRun(NamedTuple):
    """A part of a normalised text. ``letters`` has each letter of an ``unspaced`` run, with its marks."""

    kind: Literal["letters", "unspaced", "rest"]
    text: str
    letters: list[str]


class WordPart(NamedTuple):
    """A part of a text, and the words that the part belongs to: none for signs and spaces."""

    text: str
    words: list[str]


class _CharacterClasses(dict[int, str]):
    """Cache of the class of each character, by code point. ``str.translate`` looks up each character here."""

    def __missing__(self, code_point: int) -> str:
        self[code_point] = _class_of(chr(code_point))
        return self[code_point]


def _class_of(character: str) -> str:
    """Return the class of a character, which is a letter or sign: the comment before ``_RUN`` lists the classes."""
    category = unicodedata.category(character)
    is_digit = category == "Nd"
    if character == ".":
        return "."
    if character.isascii():
        if is_digit:
            return "0"
        return "a" if character.isalpha() else " "
    if character in _JOINERS:
        return "j"
    if category in ("Mn", "Mc") and not _VARIANTS.match(character):
        return "m"
    if _IS_CHINESE.match(character) or not (is_digit or category.startswith("L")):
        return " "
    code_point = ord(character)
    is_unspaced = any(first <= code_point <= last for first, last in _UNSPACED)
    if is_unspaced and not is_digit:
        return "u"
    return "l"


_CHARACTER_CLASSES = _CharacterClasses()


def plain_text(text: str) -> str | None:
    """Return the text if it is a single run of the kind ``rest`` and its words are as in NFKC; otherwise None.

    An ellipsis is replaced by its NFKC form. For None, the text must be normalised and split by :func:`text_runs`.
    """
    text = text.replace(_ELLIPSIS, "...")
    return None if _NEEDS_CARE.search(text) else text


def text_runs(text: str) -> Iterator[TextRun]:
    """Yield the runs of a text in order. The joined runs equal the text in NFKC."""
    text = unicodedata.normalize("NFKC", text)
    character_classes = text.translate(_CHARACTER_CLASSES)
    rest_start = 0
    for match in _RUN.finditer(character_classes):
        run_kind: Literal["letters", "unspaced"] = "letters" if match["letters"] else "unspaced"
        run_start, run_end = match.span(run_kind)
        if rest_start < run_start:
            yield TextRun("rest", text[rest_start:run_start], [])
        letters: list[str] = []
        if run_kind == "unspaced":
            for letter in _MARKED_LETTER.finditer(character_classes, run_start, run_end):
                letters.append(text[letter.start() : letter.end()])
        yield TextRun(run_kind, text[run_start:run_end], letters)
        rest_start = run_end
    if rest_start < len(text):
        yield TextRun("rest", text[rest_start:], [])


def pair_letters(letters: list[str]) -> list[str]:
    """Return the pairs of neighbouring letters. A lone letter stays."""
    if len(letters) <= 1:
        return letters
    return list(map("".join, itertools.pairwise(letters)))


def word_tokens(text: str, cut: Callable[[str], list[str]] = split_words) -> list[str]:
    """Return the words of a text in lower case, in order. Each word has a letter or digit, and no space.

    ``cut`` returns the words of a run of the kind ``rest``.
    """
    single_run = plain_text(text)
    if single_run is not None:
        return _segment(single_run, cut)
    tokens: list[str] = []
    for run in text_runs(text):
        if run.kind == "letters":
            tokens.append(run.text.lower())
        elif run.kind == "unspaced":
            tokens += pair_letters(run.letters)
        else:
            tokens += _segment(run.text, cut)
    return tokens


def _segment(text: str, cut: Callable[[str], list[str]]) -> list[str]:
    """Return the words of ``cut`` in lower case, without words that have neither a letter nor a digit."""
    # Nearly all words have only letters and digits. Testing the whole word first is faster.
    return [word for word in map(str.lower, cut(text)) if word.isalnum() or any(map(str.isalnum, word))]


def word_parts(text: str) -> list[WordPart]:
    """Return the parts of a text with the words of :func:`word_tokens`. The joined parts equal the text.

    A part may be written in another way than its word, for example in full-width letters. A letter of a script without
    spaces belongs to two words, because these words are pairs of letters.
    """
    parts: list[WordPart] = []
    original_ends = normalised_ends(text)
    part_start = 0
    normalised_position = 0
    # Words of the next part: those that end within a character wait, such as 株 in ㈱.
    waiting_words: list[str] = []
    for piece, piece_words in _normalised_parts(text):
        normalised_position += len(piece)
        waiting_words += piece_words
        part_end = original_ends[normalised_position]
        if part_end is not None:
            parts.append(WordPart(text[part_start:part_end], waiting_words))
            part_start = part_end
            waiting_words = []
    return parts


def _normalised_parts(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a text in NFKC, and the words that each part belongs to."""
    for run in text_runs(text):
        if run.kind == "letters":
            yield run.text, [run.text.lower()]
        elif run.kind == "unspaced":
            letter_pairs = pair_letters(run.letters)
            for letter_number, letter in enumerate(run.letters):
                # A letter belongs to the pair that it ends, and to the pair that it begins.
                yield letter, letter_pairs[max(0, letter_number - 1) : letter_number + 1]
        else:
            for word in split_words(run.text):
                has_letter_or_digit = any(map(str.isalnum, word))
                yield word, [word.lower()] if has_letter_or_digit else []


def normalised_ends(text: str) -> list[int | None]:
    """Return, for each position in the NFKC form of the text, the position in the text.

    A position is the number of characters before it. None means that the position is within a character of the text,
    or within characters that NFKC composes. For example, the text 1㈱2 is 1(株)2 in NFKC, and the result is 0, 1, None,
    None, 2, 3.
    """
    normalised = unicodedata.normalize("NFKC", text)
    if normalised == text:
        return list(range(len(text) + 1))
    # Usually, the characters in NFKC one by one give the text in NFKC.
    pieces = [unicodedata.normalize("NFKC", character) for character in text]
    units = list(text)
    if "".join(pieces) != normalised:
        # Some neighbours are composed, so they are normalised together, as a unit. A unit is a run of characters that
        # match _NEEDS_CARE with the character before the run, or any other single character.
        units = re.findall(f".?{_NEEDS_CARE.pattern}+|.", text, re.DOTALL)
        pieces = [unicodedata.normalize("NFKC", unit) for unit in units]
    # Only the last character of a unit's normalised form has an end in the text.
    ends: list[int | None] = [0]
    unit_end = 0
    for unit, piece in zip(units, pieces, strict=True):
        unit_end += len(unit)
        ends += [None] * (len(piece) - 1)
        ends.append(unit_end)
    return ends
