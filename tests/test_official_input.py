"""Official inputs equal the official reader's tokens. Their tokenizers load without this project."""

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_reader import Input, pair_input, passage_input, pieces, query_input, words
from transformers import AutoTokenizer, BertConfig, BertTokenizer

from baselines.retrieve.official_input import official_tokenizer

PARTS = ["##ing", "##tion", "the", "un", "##able", "ab", "abc", "##bc", "sep", "cls", "##19", "20", "##σ", "δ", "##ς"]
CHARACTERS = "的中国年节假日一在有abcdeipxyz0123456789,.[]!?，。、《》%-éä"
VOCABULARY = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *PARTS, *CHARACTERS, *(f"##{c}" for c in "abcdexyz0123"), "[UNK]"]
# Characters of web pages, up to Unicode 8, because the library's tables have no later ones.
BLOCKS = [(0, 0x24F), (0x370, 0x52F), (0xE00, 0xE7F), (0x1E00, 0x206F), (0x2100, 0x22FF), (0x3000, 0x30FF)]
BLOCKS += [(0x3400, 0x3410), (0x4E00, 0x9FA5), (0xAC00, 0xAC80), (0xE000, 0xE010), (0xFF00, 0xFFFD)]
BLOCKS += [(0x1F300, 0x1F64F), (0x20000, 0x20010), (0x2B740, 0x2B930), (0x2F800, 0x2F810)]
ANY = st.one_of(
    *(st.characters(min_codepoint=low, max_codepoint=high, exclude_categories=("Cs", "Cn")) for low, high in BLOCKS)
).filter(lambda character: character != "Σ")  # tested separately
USUAL = st.sampled_from(
    [*CHARACTERS, *" \t\n\u3000\xa0\u200b\x00\ufeffÀİß", "unable", "[SEP]", "[UNK]", "##ing", "x" * 101]
)
TEXTS = st.lists(st.one_of(USUAL, ANY), max_size=60).map("".join)


def saved(tmp: Path, vocabulary: list[str]) -> Callable[[str, int], Any]:
    """``tokenizer(kind, length)``: the official tokenizer, saved and loaded by transformers."""

    def tokenizer(kind: Any, length: int) -> Any:
        start = BertTokenizer({token: number for number, token in enumerate(vocabulary)})
        official_tokenizer(start, kind, length).save_pretrained(tmp / kind)
        BertConfig().save_pretrained(tmp / kind)  # beside a BERT whose own tokenizer must not replace it
        return AutoTokenizer.from_pretrained(tmp / kind)

    return tokenizer


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    make = saved(tmp_path_factory.mktemp("tokenizers"), VOCABULARY)
    return {"query": make("query", 8), "passage": make("passage", 16), "pair": make("pair", 15)}


def read(tokenizer: Any, *texts: str) -> Input:
    found = tokenizer(*texts, truncation=True)
    return tokenizer.convert_ids_to_tokens(found["input_ids"]), found["token_type_ids"]


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, other=TEXTS)
def test_any_text_becomes_what_the_official_reader_makes(tokenizers: dict[str, Any], text: str, other: str) -> None:
    vocabulary = set(VOCABULARY)
    assert read(tokenizers["query"], text) == query_input(text, vocabulary, 8)
    assert read(tokenizers["passage"], text) == passage_input(text, vocabulary, 16)
    if pieces(other, vocabulary):  # there are no empty passages
        assert read(tokenizers["pair"], text, other) == pair_input(text, other, vocabulary, 15)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("中 国 un able", ["中", "国", "un", "##able"]),  # spaces are removed, not word ends
        ("ab\u3000ab\xa0ab\tab\nab", ["ab"] * 5),  # other white space becomes one space
        ("a\x00b\u200bc\ufeff\ufffd", ["abc"]),  # control characters and U+FFFD are removed
        ("[SEP]", ["[", "sep", "]"]),  # the name of a special token in a text is plain text
        ("x" * 101, ["[UNK]"]),
    ],
)
def test_what_becomes_of_some_texts(tmp_path: Path, text: str, expected: list[str]) -> None:
    found, _ = read(saved(tmp_path, VOCABULARY)("passage", 384), text)
    assert found == ["[CLS]", "[SEP]", *expected, "[SEP]"]
    assert pieces(text, set(VOCABULARY)) == expected  # the reference reader has the same behaviour


def test_a_pair_of_two_long_texts_leaves_the_odd_piece_to_the_passage(tmp_path: Path) -> None:
    # The only known difference: the official reader gives this length to the query.
    found, _ = read(saved(tmp_path, VOCABULARY)("pair", 384), "中" * 200, "国" * 300)
    assert (found.count("中"), found.count("国")) == (190, 191)
    official, _ = pair_input("中" * 200, "国" * 300, set(VOCABULARY))
    assert (official.count("中"), official.count("国")) == (191, 190)


def test_real_queries_and_passages_become_the_official_inputs(shared_data: Path, tmp_path: Path) -> None:
    lines = (shared_data / "dureader-retrieval-samples/cross.train.tsv").read_text("utf-8").split("\n")
    rows = [line.split("\t") for line in lines if line]
    counted = collections.Counter(word for row in rows for text in (row[0], row[2]) for word in words(text))
    letters = sorted({letter for word in counted for letter in word if letter.isascii()})
    common = [word for word, count in counted.items() if count > 1]  # the rest: pieces of it, or unknown
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *dict.fromkeys([*common, *letters])]
    vocabulary += [*(f"##{letter}" for letter in letters), "##er", "##ing"]
    known, make = set(vocabulary), saved(tmp_path, vocabulary)
    query, passage, pair = make("query", 32), make("passage", 384), make("pair", 384)
    assert len(rows) > 50 and any(len(row[2]) > 400 for row in rows)
    for row in rows:
        assert read(query, row[0]) == query_input(row[0], known)
        assert read(passage, row[2]) == passage_input(row[2], known)
        assert read(pair, row[0], row[2]) == pair_input(row[0], row[2], known)


def test_transformers_4_finds_the_class_of_a_saved_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path, VOCABULARY)("query", 32)
    config = json.loads((tmp_path / "query" / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"  # TokenizersBackend, its other name, is unknown there
