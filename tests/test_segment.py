"""Words of the compiled segmenter compared with jieba, on unusual, random and real texts."""

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.core import words as segment
from builders.core.words import cutter, words

# Chinese of every kind that the two treat differently or might, Latin letters, digits and signs next to each other,
# full-width forms, blanks of many kinds, emoji with and without joiners, other scripts and their digits.
PIECES = [
    *"的在常度不一了上我他们中国人大学北京清华绿萝浇水怎么养股票王小明龘囧〇々",
    *["A股", "T恤", "卡拉OK", "γ射线", "C++", "c#", "AT&T", "3.5%", "10%", "2016-09-04", "jingyan.baidu.com", "3.5.6"],
    *"aZ09+#&._%-@/\\:,;!?'\"()<>*~^|`$={}[]",
    *"，。！？、；：“”（）《》·—…％＋－．ＡＢ０９￥",
    *"㐀䶿鿕鿖鿿豈﫿𠀀𪛟𫝀丽", "\U0003ffff",
    *["\r\n", "\r", "\n", "\t", " ", "\u3000", "\xa0", "\u2028", "\u2029", "\x85", "\x1c", "\u200b", "\ufeff", "\0"],
    *["😀", "👨‍👩‍👧", "❤️", "é", "ß", "İ", "أ", "١", "क", "あ", "カ", "한", "²", "½", "Ⅳ", "①", "㎡"],
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)


def model_terms(cut: list[str]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """The likelihood of a cut in jieba's model, from places of characters in words, and their sequence."""
    places = "".join("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E" for word in cut)
    return Counter(zip("".join(cut), places, strict=True)), Counter(itertools.pairwise(places))


@settings(max_examples=500)
@given(TEXTS)
@example("度票票票们")  # 度票 票票们, 度票票 票们: the same terms, added in another order
def test_random_texts_are_cut_as_jieba_cuts_them(text: str) -> None:
    ours, theirs = words(text), words(text, "jieba")
    assert ours == theirs or model_terms(ours) == model_terms(theirs)


def test_odd_texts_are_cut_as_jieba_cuts_them() -> None:
    odd = "\r\n\r\n|的|龘|-|--|-5|WES-5.4.5|看ISU-CNS24093吧|AT&T.C#-5C++++|T恤-5.4T恤|1.2.3%%|北京㐀大学|a㐀b.c𠀀-d"
    for text in ["", " ", *odd.split("|"), "\u2028", "网址jingyan.baidu.com在2016-09-04更新", "％３．５", "γ射线-γ"]:
        assert words(text) == words(text, "jieba"), text
        assert "".join(words(text)) == text


def test_the_rules_taken_over_are_those_of_the_installed_jieba() -> None:
    cutter("jieba")
    import jieba

    assert segment._SKIP.pattern == jieba.finalseg.re_skip.pattern
    takes_in = {chr(code) for code in range(0x110000) if jieba.re_han_default.match(chr(code))}
    assert {c for c in takes_in if c.isascii()} == segment._LATIN
    assert not any(segment._RARE_RUN.match(c) for c in takes_in)
    import rjieba

    latin = {word for word, count in jieba.dt.FREQ.items() if count and set(word) <= segment._LATIN and len(word) > 1}
    assert latin and all(map(rjieba.has_word, latin))


def paragraphs(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
            for record in map(json.loads, lines):
                yield record["question"]
                yield from record.get("answers") or []
                for document in record["documents"]:
                    yield from document["paragraphs"]


def test_the_real_paragraphs_are_cut_as_jieba_cuts_them(shared_data: Path) -> None:
    texts = list(paragraphs(shared_data / "dureader-2.0-demo"))[::4]
    assert not [text for text in texts if words(text) != words(text, "jieba")]


def test_the_pair_that_rounding_decides_is_cut_as_jieba_cuts_it() -> None:
    """常在 in every place of a run of unknown characters: alone, first, inside, last, with every neighbour."""
    around = ["", *"，a的此乡打经㐀龘", "3.5", "稳定", "活动", "王小明", "一起", "锻炼", "常在"]
    for before, after, more in itertools.product(around, around, ["", "的", "一起"]):
        text = f"{before}常在{after}{more}"
        assert words(text) == words(text, "jieba"), text
