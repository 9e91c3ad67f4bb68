"""Perturb a question as people's typing does: the rules of `add stress`.

Two rules change the whole question (``traditional``, ``full-width``). The other rules change one word of at least two
Chinese characters, which must not be a name, a number or a negation. ``stress.toml`` says which words stay, and
``homophones.tsv`` has the characters of the same pronunciation. Words that jieba's dictionary lacks also stay, because
most of them are names, for example 花呗. The changed word must not be a word of the dictionary, because 公式 and 公事
ask different questions.

Every rule yields all of its results for a question in a drawn order. The order depends only on the seed, the kind and
the question, so adding or removing other questions changes nothing.
"""

import functools
import importlib
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

from builders.add.homophones import read_homophones, stress_settings
from builders.core.errors import InputError, install_command
from builders.core.sampling import draw_in_order
from builders.core.words import word_cutter

_HAN_WORD = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]{2,}")
# ASCII signs, letters and digits and their full-width forms: ! is U+0021, and its full-width form U+FF01.
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}
_ASCII_WORD = re.compile("[A-Za-z0-9]")


class QuestionWord(NamedTuple):
    """A word of a question with jieba's tag. ``stays`` is True if no rule for words may change the word."""

    start: int
    text: str
    tag: str
    stays: bool


# A rule for words maps a word to its changed forms.
WordRule = Callable[[QuestionWord], list[str]]


def perturb(question: str, kind: str, seed: int) -> list[str]:
    """Return the perturbed forms of a question, each once, in the drawn order. Empty if the rule cannot change it.

    ``kind`` is a name of :data:`builders.store.layout.STRESS_KINDS`.
    """
    if kind == "traditional":
        forms = [_traditional(question)]
    elif kind == "full-width":
        forms = [question.translate(_FULL_WIDTH)]
    else:
        all_forms = list(_changed_questions(question, kind))
        forms = draw_in_order(all_forms, len(all_forms), f"{seed}\n{kind}\n{question}")
    return [form for form in forms if form != question]


def describe_libraries(kinds: Sequence[str]) -> dict[str, str]:
    """Return the versions of the libraries that the rules of these kinds use, for the manifest.

    Raises :class:`InputError` if a library is missing.
    """
    names: set[str] = set()
    for kind in kinds:
        if kind == "traditional":
            names.add("opencc")
        elif kind != "full-width":
            names.add("jieba")
        if kind in ("homophone", "pinyin-word"):
            names.add("pypinyin")
    versions = {}
    for name in sorted(names):
        try:
            importlib.import_module(name)
            versions[name] = version(name)
        except ImportError as error:  # PackageNotFoundError is an ImportError
            raise InputError(f"add stress needs {name}: {install_command('stress')}") from error
    return versions


def split_question(question: str) -> list[QuestionWord]:
    """Return the words of a question in order. Joined, the words equal the question."""
    kept = stress_settings()["kept"]
    # The places of titles of books and films, such as 《红楼梦》.
    titles = [match.span() for match in re.finditer(kept["titles"], question)]
    words = []
    start = 0
    for text, tag in _tagger()(question):
        end = start + len(text)
        in_title = any(start < title_end and end > title_start for title_start, title_end in titles)
        has_kept_character = any(character in kept["numerals"] + kept["negations"] for character in text)
        is_kept = in_title or has_kept_character or tag in kept["tags"]
        is_changeable = _HAN_WORD.fullmatch(text) is not None and _is_in_dictionary(text)
        words.append(QuestionWord(start, text, tag, is_kept or not is_changeable))
        start = end
    return words


def _changed_questions(question: str, kind: str) -> Iterator[str]:
    """Yield the question with each change of each word by the rule ``kind``. The same text may be repeated."""
    rule = _WORD_RULES[kind]
    for word in split_question(question):
        if word.stays:
            continue
        before = question[: word.start]
        after = question[word.start + len(word.text) :]
        # Pinyin beside letters or digits would become another name or number, for example win10xitong.
        is_beside_ascii = _ASCII_WORD.fullmatch(before[-1:]) or _ASCII_WORD.fullmatch(after[:1])
        if kind == "pinyin-word" and is_beside_ascii:
            continue
        for form in rule(word):
            # A word of the dictionary would ask another question. Nearly every single character is in the dictionary.
            is_other_word = len(form) > 1 and _is_in_dictionary(form)
            if form != word.text and not is_other_word:
                yield before + form + after


def _swap(word: QuestionWord) -> list[str]:
    """Return the word with each pair of neighbouring characters swapped in turn."""
    text = word.text
    forms = []
    for at in range(len(text) - 1):
        swapped_pair = text[at + 1] + text[at]
        forms.append(text[:at] + swapped_pair + text[at + 2 :])
    return forms


def _drop(word: QuestionWord) -> list[str]:
    """Return the word without each of its characters in turn.

    A word of two characters has no form, unless it is a pronoun, conjunction, adverb or preposition, such as 怎么.
    """
    text = word.text
    if len(text) == 2 and word.tag not in stress_settings()["drop"]["short_word_tags"]:
        return []
    return [text[:at] + text[at + 1 :] for at in range(len(text))]


def _repeat(word: QuestionWord) -> list[str]:
    """Return the word with each of its characters repeated in turn."""
    text = word.text
    return [text[: at + 1] + text[at:] for at in range(len(text))]


def _homophone(word: QuestionWord) -> list[str]:
    """Return the word with each character, in turn, replaced by frequent characters of the same sound and tone."""
    from pypinyin import Style, lazy_pinyin

    text = word.text
    replacement_count = stress_settings()["homophone"]["replacements"]
    forms = []
    # The pronunciation in this word: 行 in 银行 is hang2.
    for at, reading in enumerate(lazy_pinyin(text, style=Style.TONE3)):
        others = read_homophones().get(reading, "").replace(text[at], "")
        for other in others[:replacement_count]:
            forms.append(text[:at] + other + text[at + 1 :])
    return forms


def _pinyin(word: QuestionWord) -> list[str]:
    """Return the word's pinyin as people type it: without tones and blanks, and with v for ü."""
    from pypinyin import lazy_pinyin

    return ["".join(lazy_pinyin(word.text))]


_WORD_RULES: dict[str, WordRule] = {
    "homophone": _homophone,
    "swap": _swap,
    "drop": _drop,
    "repeat": _repeat,
    "pinyin-word": _pinyin,
}


def _is_in_dictionary(text: str) -> bool:
    """True for a word of jieba's dictionary, which :func:`_tagger` loads."""
    import jieba

    return bool(jieba.dt.FREQ.get(text, 0) > 0)


@functools.cache
def _tagger() -> Callable[[str], list[Any]]:
    """Return jieba's function that cuts a text into pairs of a word and its tag."""
    word_cutter("jieba")  # loads the dictionary without messages and without jieba's cache
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42.1 has invalid escapes
        import jieba.posseg
    tag_words: Callable[[str], list[Any]] = jieba.posseg.lcut
    return tag_words


@functools.cache
def _converter() -> Callable[[str], str]:
    """Return OpenCC's function from simplified to traditional characters."""
    import opencc

    convert: Callable[[str], str] = opencc.OpenCC(stress_settings()["traditional"]["opencc"]).convert
    return convert


def _traditional(question: str) -> str:
    """Return the question in traditional characters, or unchanged if it has no other form."""
    converted = _converter()(question)
    # A difference only in composed characters is no change.
    if unicodedata.normalize("NFKC", converted) == unicodedata.normalize("NFKC", question):
        return question
    return converted
