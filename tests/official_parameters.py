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
    return json.loads((folder / "expected.json").read_text(encoding="utf-8"))


def convert(folder: Path, params: str, out: Path, *more: object, code: int = 0) -> Done:
    words = ["--params", folder / params, "--config", folder / "ernie_config.json", "--vocab", folder / "vocab.txt"]
    return run("baselines", "convert", "--quiet", *words, "--out", out, *more, code=code)


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
    return Path(shutil.copytree(official, tmp_path / "official"))


# Chinese characters as BERT defines them: the CJK blocks, without kana and hangul.
CHINESE = [
    *[(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)],
    *[(0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)],
]
ASCII_PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
Input = tuple[list[str], list[int]]  # pieces, types


def words(text: str) -> list[str]:
    """Split a text without spaces into words: lower case, no accents, punctuation and Chinese characters apart."""
    spaced = ""
    for character in text.replace(" ", ""):
        kind = unicodedata.category(character)
        if character in "\t\n\r" or kind == "Zs":
            spaced += " "
        elif any(low <= ord(character) <= high for low, high in CHINESE):
            spaced += f" {character} "
        elif not kind.startswith("C") and character != "\ufffd":
            spaced += character
    found = []
    for word in spaced.split():
        bare = unicodedata.normalize("NFD", word.lower())
        parted = ""
        for character in bare:
            if character in ASCII_PUNCTUATION or unicodedata.category(character).startswith("P"):
                parted += f" {character} "
            elif unicodedata.category(character) != "Mn":
                parted += character
        found += parted.split()
    return found


def pieces(text: str, vocabulary: set[str]) -> list[str]:
    """Split a text by greedy WordPiece, the longest piece first. A word without pieces, or too long, is [UNK]."""
    found: list[str] = []
    for word in words(text):
        parts: list[str] = []
        rest = word
        while rest and len(word) <= 100:
            mark = "##" if parts else ""
            fits = [end for end in range(len(rest), 0, -1) if mark + rest[:end] in vocabulary]
            if not fits:
                break
            parts.append(mark + rest[: fits[0]])
            rest = rest[fits[0] :]
        found += ["[UNK]"] if rest else parts
    return found


def query_input(text: str, vocabulary: set[str], length: int = 32) -> Input:
    body = pieces(text, vocabulary)[: length - 2]
    return ["[CLS]", *body, "[SEP]"], [0] * (len(body) + 2)


def passage_input(text: str, vocabulary: set[str], length: int = 384) -> Input:
    body = pieces(text, vocabulary)[: length - 3]
    return ["[CLS]", "[SEP]", *body, "[SEP]"], [0, 0, *[1] * (len(body) + 1)]


def pair_input(query: str, text: str, vocabulary: set[str], length: int = 384) -> Input:
    first, second = pieces(query, vocabulary), pieces(text, vocabulary)
    while len(first) + len(second) > length - 3:
        (first if len(first) > len(second) else second).pop()
    types = [*[0] * (len(first) + 2), *[1] * (len(second) + 1)]
    return ["[CLS]", *first, "[SEP]", *second, "[SEP]"], types
