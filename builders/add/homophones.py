"""The table of frequent characters by pronunciation, for the rule ``homophone`` of `add stress`.

``homophones.tsv`` has a line for each pronunciation: pinyin with the number of the tone, a tab, and the frequent
characters of this pronunciation, the most frequent first. This module writes the table from jieba's dictionary, which
has the frequency of each word, and from pypinyin's usual pronunciation of a character::

    python -m builders.add.homophones
"""

import functools
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

TABLE_PATH = Path(__file__).with_name("homophones.tsv")
_SETTINGS_PATH = Path(__file__).with_name("stress.toml")
_FIRST_HAN, _LAST_HAN = "\u4e00", "\u9fff"


@functools.cache
def stress_settings() -> dict[str, Any]:
    """Return the content of ``stress.toml``: ``version``, ``seed``, ``kept``, and the settings of some rules by name.

    ``kept`` describes the words that no rule for words changes.
    """
    with open(_SETTINGS_PATH, "rb") as file:
        return tomllib.load(file)


@functools.cache
def read_homophones() -> dict[str, str]:
    """Return the frequent characters of each pronunciation, such as ``shi4``, the most frequent first."""
    characters_by_reading = {}
    for line in TABLE_PATH.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            reading, _, characters = line.partition("\t")
            characters_by_reading[reading] = characters
    return characters_by_reading


def make_table() -> str:
    """Return the text of ``homophones.tsv``. Its first line names the versions of jieba and pypinyin that made it."""
    from importlib.metadata import version

    import jieba
    from pypinyin import Style, lazy_pinyin

    jieba.initialize()
    # A character is as frequent as the words that contain it.
    frequencies: Counter[str] = Counter()
    for word, frequency in jieba.dt.FREQ.items():
        for character in word:
            if _FIRST_HAN <= character <= _LAST_HAN:
                frequencies[character] += frequency
    # Equal frequencies are ordered by code point, so that the table does not depend on the dictionary's order.
    ordered = sorted(frequencies, key=lambda character: (-frequencies[character], character))
    frequent_count = stress_settings()["homophone"]["frequent_characters"]
    characters_by_reading: dict[str, str] = {}
    for character in ordered[:frequent_count]:
        (reading,) = lazy_pinyin(character, style=Style.TONE3)
        characters_by_reading[reading] = characters_by_reading.get(reading, "") + character
    lines = [f"# jieba {version('jieba')}, pypinyin {version('pypinyin')}; written by python -m {_MODULE}"]
    for reading, characters in sorted(characters_by_reading.items()):
        if len(characters) > 1:  # a character alone has no homophone
            lines.append(f"{reading}\t{characters}")
    return "\n".join(lines) + "\n"


_MODULE = "builders.add.homophones"  # __name__ is "__main__" when the module runs

if __name__ == "__main__":
    TABLE_PATH.write_text(make_table(), encoding="utf-8")
