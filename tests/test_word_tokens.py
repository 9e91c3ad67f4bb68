"""Texts of any script and width become the same tokens in passages, queries and highlights."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import make_release

from baselines.bm25.bm25_index import IndexedTexts, search_columns
from baselines.bm25.engine_numba import NumbaIndex, open_index
from baselines.bm25.tokens import ANALYZERS, Analyzer
from baselines.look.excerpts import excerpt_html, flag_terms
from builders.core.highlight import common_terms
from builders.core.word_tokens import word_parts, word_tokens
from builders.store.reader import open_release

# Text, then the tokens of words, characters and bigrams.
TOKENS = [
    # Width, and characters that stand for others
    ("ｉＰｈｏｎｅ１５手机", "iphone15 手机", "iphone15 手 机", "iphone15 手机"),
    ("３０天", "30 天", "30 天", "30 天"),
    ("３．５米", "3.5 米", "3 5 米", "3 5 米"),
    ("⼈⼝", "人口", "人 口", "人口"),
    ("㈱东京", "株 东京", "株 东 京", "株 东京"),
    ("①天", "1 天", "1 天", "1 天"),
    ("ﬁne", "fine", "fine", "fine"),
    # Letters with accents, composed and decomposed
    ("café", "café", "café", "café"),
    ("cafe\u0301", "café", "café", "café"),
    ("q\u0303x", "q\u0303x", "q\u0303x", "q\u0303x"),
    ("nǐ hǎo", "nǐ hǎo", "nǐ hǎo", "nǐ hǎo"),
    ("喝café吧", "喝 café 吧", "喝 café 吧", "喝 café 吧"),
    ("3.5μm", "3.5 μm", "3 5 μm", "3 5 μm"),
    ("β2", "β2", "β2", "β2"),
    # Other scripts with spaces between words
    ("Привет мир", "привет мир", "привет мир", "привет мир"),
    ("ΟΔΟΣ", "οδος", "οδος", "οδος"),
    ("한국어 단어", "한국어 단어", "한국어 단어", "한국어 단어"),
    ("नमस्ते दुनिया", "नमस्ते दुनिया", "नमस्ते दुनिया", "नमस्ते दुनिया"),
    ("مرحبا ٣٠", "مرحبا ٣٠", "مرحبا ٣٠", "مرحبا ٣٠"),
    ("می\u200cخواهم", "می\u200cخواهم", "می\u200cخواهم", "می\u200cخواهم"),
    # Scripts without spaces, in pairs of letters
    ("カタカナ", "カタ タカ カナ", "カ タ カ ナ", "カタ タカ カナ"),
    ("ｶﾞｽ", "ガス", "ガ ス", "ガス"),
    ("本の", "本 の", "本 の", "本 の"),
    ("ที่นี่", "ที่นี่", "ที่ นี่", "ที่นี่"),
    # Marks that select the shape of a sign
    ("3\ufe0f\u20e3", "3", "3", "3"),
]
ODD = "北京天地春a1.-%é\u0301ｉ３．，…①㈱½ßİΣカがｶﾞﾟ각\u1100\u1161\u11a8ที\u0938\u094d\u200d\ufe0f\u20e3 "
ODD_TEXT = st.text(st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"])), max_size=30)


@pytest.mark.parametrize(("text", "words", "characters", "bigrams"), TOKENS)
def test_a_text_of_any_script_has_these_tokens(text: str, words: str, characters: str, bigrams: str) -> None:
    assert Analyzer("words")(text) == words.split(" ")
    assert Analyzer("characters")(text) == characters.split(" ")
    assert Analyzer("bigrams")(text) == bigrams.split(" ")
    assert Analyzer("both")(text) == f"{words} {bigrams}".split(" ")


@settings(max_examples=500)
@given(text=ODD_TEXT)
def test_the_normalised_text_has_the_same_tokens(text: str) -> None:
    for analyzer in ANALYZERS.values():
        tokens = analyzer(text)
        assert analyzer(unicodedata.normalize("NFKC", text)) == tokens
        # The index splits tokens at spaces.
        assert not any(" " in token or token == "" for token in tokens)


@settings(max_examples=500)
@given(text=ODD_TEXT)
def test_the_parts_of_a_text_have_all_its_words(text: str) -> None:
    parts = word_parts(text)
    assert "".join(part.text for part in parts) == text
    words_of_parts: set[str] = set()
    for part in parts:
        words_of_parts.update(part.words)
    assert words_of_parts == set(word_tokens(text))


PASSAGES = {"half": "新的iPhone15怎么卖", "full": "新的ｉＰｈｏｎｅ１５怎么卖", "other": "怎么买高铁票"}


@pytest.fixture(params=ANALYZERS)
def index(tmp_path: Path, request: pytest.FixtureRequest) -> NumbaIndex:
    rows = [{"_id": passage_id, "title": "", "text": text} for passage_id, text in PASSAGES.items()]
    release = open_release(make_release(tmp_path / "release", {("corpus", "corpus"): rows}))
    return open_index(IndexedTexts(release, analyzer=Analyzer(request.param)), tmp_path / "indexes", 1)


@pytest.mark.parametrize("query", ["iPhone15", "ｉＰｈｏｎｅ１５", "ＩＰＨＯＮＥ15"])
def test_a_query_finds_passages_of_any_width(index: NumbaIndex, query: str) -> None:
    (block,) = search_columns(index, [("q", query)], 10, 1)
    assert {passage_id for passage_id, _ in block.hits()["q"]} == {"half", "full"}


@pytest.mark.parametrize("query", ["iPhone15", "ｉＰｈｏｎｅ１５"])
def test_words_of_any_width_are_marked(query: str) -> None:
    for passage_id in ("half", "full"):
        text = PASSAGES[passage_id]
        phone_name = text[2:10]
        flagged_parts = flag_terms(text, set(word_tokens(query)))
        assert [part for part, is_term in flagged_parts if is_term] == [phone_name]
        assert excerpt_html(text, query)[0] == f"新的<mark>{phone_name}</mark>怎么卖"


def test_terms_are_written_as_in_the_query_and_in_the_passage() -> None:
    assert set(common_terms("iPhone的café", "ｉＰｈｏｎｅ和cafe\u0301")) == {
        "iphone",
        "ｉｐｈｏｎｅ",
        "café",
        "cafe\u0301",
    }
