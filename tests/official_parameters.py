"""A tiny ERNIE saved by Paddle, the command that converts it, and the official reader's inputs in plain Python.

Paddle 2.6.2 wrote ``paddle_fixture.tar.xz``: the random parameters of two tiny ERNIEs, saved by
``paddle.static.save_vars``, and Paddle's outputs. The script is ``tests/paddle_fixture.py`` of the commit 5d17c2a.
"""

import json
import shutil
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from conftest import Once

FIXTURE = Path(__file__).with_name("paddle_fixture.tar.xz")


def unpack(folder: Path) -> Path:
    """Unpack Paddle's files: dual_params, cross_params, half, ernie_config.json, vocab.txt, expected.json."""
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def expected(folder: Path) -> dict[str, Any]:
    """Return Paddle's outputs."""
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def convert(folder: Path, params: str, out: Path, *more: object, code: int = 0) -> Done:
    """Convert the parameters ``folder``/``params`` to a model ``out``. ``more``: further words of `convert`."""
    words = ["--params", folder / params, "--config", folder / "ernie_config.json", "--vocab", folder / "vocab.txt"]
    return run("baselines", "convert", "--quiet", words, "--out", out, more, code=code)


@pytest.fixture(scope="session")
def official(once: Once) -> Path:
    """Paddle's parameters, and both converted models ``dual`` and ``cross``. Do not change them."""

    def make(folder: Path) -> None:
        unpack(folder)
        convert(folder, "dual_params", folder / "dual")
        convert(folder, "cross_params", folder / "cross")

    return once("official-parameters", make)


@pytest.fixture
def parameters(official: Path, tmp_path: Path) -> Path:
    """A copy of ``official`` that the test may change."""
    return Path(shutil.copytree(official, tmp_path / "official"))


# Chinese characters as BERT defines them: the CJK blocks, without kana and hangul.
CHINESE = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
]
ASCII_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
Input = tuple[list[str], list[int]]  # pieces, types


def words(text: str) -> list[str]:
    """Split a text into words: lower case, no accents, punctuation and Chinese characters apart.

    Spaces are removed first, so they separate no words. Other white space, such as a tab, does.
    """
    spaced_text = ""
    for character in text.replace(" ", ""):
        category = unicodedata.category(character)
        if character in "\t\n\r" or category == "Zs":
            spaced_text += " "
        elif any(low <= ord(character) <= high for low, high in CHINESE):
            spaced_text += f" {character} "
        elif not category.startswith("C") and character != "\ufffd":
            spaced_text += character
    split_words: list[str] = []
    for word in spaced_text.split():
        split_words += split_word(word)
    return split_words


def split_word(word: str) -> list[str]:
    """Split a word at its punctuation. Letters become lower case and lose their accents."""
    spaced_word = ""
    # NFD makes an accent a character of its own, of the category Mn.
    for character in unicodedata.normalize("NFD", word.lower()):
        category = unicodedata.category(character)
        if character in ASCII_PUNCTUATION or category.startswith("P"):
            spaced_word += f" {character} "
        elif category != "Mn":
            spaced_word += character
    return spaced_word.split()


def pieces(text: str, vocabulary: set[str]) -> list[str]:
    """Split a text by greedy WordPiece, the longest piece first. A word without pieces, or too long, is [UNK]."""
    text_pieces: list[str] = []
    for word in words(text):
        word_pieces: list[str] = []
        rest = word
        while rest and len(word) <= 100:
            prefix = "##" if word_pieces else ""
            piece_ends = [end for end in range(len(rest), 0, -1) if prefix + rest[:end] in vocabulary]
            if not piece_ends:
                break
            longest_end = piece_ends[0]
            word_pieces.append(prefix + rest[:longest_end])
            rest = rest[longest_end:]
        text_pieces += ["[UNK]"] if rest else word_pieces
    return text_pieces


def query_input(text: str, vocabulary: set[str], length: int = 32) -> Input:
    """Return the official reader's input of a query, cut to a length."""
    query_pieces = pieces(text, vocabulary)[: length - 2]
    return ["[CLS]", *query_pieces, "[SEP]"], [0] * (len(query_pieces) + 2)


def passage_input(text: str, vocabulary: set[str], length: int = 384) -> Input:
    """Return the official reader's input of a passage, which follows an empty first segment."""
    passage_pieces = pieces(text, vocabulary)[: length - 3]
    types = [0, 0] + [1] * (len(passage_pieces) + 1)
    return ["[CLS]", "[SEP]", *passage_pieces, "[SEP]"], types


def pair_input(query: str, text: str, vocabulary: set[str], length: int = 384) -> Input:
    """Return the official reader's input of a query and a passage. The longer of the two is cut first."""
    query_pieces = pieces(query, vocabulary)
    passage_pieces = pieces(text, vocabulary)
    while len(query_pieces) + len(passage_pieces) > length - 3:
        if len(query_pieces) > len(passage_pieces):
            query_pieces.pop()
        else:
            passage_pieces.pop()
    types = [0] * (len(query_pieces) + 2) + [1] * (len(passage_pieces) + 1)
    return ["[CLS]", *query_pieces, "[SEP]", *passage_pieces, "[SEP]"], types
