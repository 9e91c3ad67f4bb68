"""Lists of strings out of JSON: as the JSON library reads them, whatever the bytes."""

from __future__ import annotations

import json
from itertools import product

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.release.json_texts import NotTexts, Texts, read_lists

JSON = msgspec.json.Decoder(msgspec.Raw).decode  # sees that it is JSON, not that it is UTF-8
STRINGS = msgspec.json.Decoder(list[str]).decode
MANY = msgspec.json.Decoder(list[msgspec.Raw]).decode


def check(texts: Texts, lists: list[list[str]]) -> None:
    flat = [text for each in lists for text in each]
    assert bytes(texts.data) == "".join(flat).encode()
    assert "".join(map(chr, texts.codes)) == "".join(flat)
    assert texts.sizes.tolist() == [len(text.encode()) for text in flat]
    assert texts.lengths.tolist() == list(map(len, flat))
    assert texts.counts.tolist() == list(map(len, lists))


lists_of_texts = st.lists(st.lists(st.text(max_size=8), max_size=4), max_size=4)


@given(lists=lists_of_texts, escaped=st.booleans(), indent=st.sampled_from([None, 1]))
@example([['\x00\b\t\n\f\r"\\/\x7fé߿ࠀ퟿\ue000\uffff😀\U0010ffff']], True, None)
@settings(max_examples=300, deadline=None)
def test_lists_of_strings_are_read_as_they_were_written(
    lists: list[list[str]], escaped: bool, indent: int | None
) -> None:
    check(read_lists(MANY(json.dumps(lists, ensure_ascii=escaped, indent=indent).encode())), lists)


def test_every_escape() -> None:
    line = rb' [ "\"\\\/\b\f\n\r\t\u0041\u00E9\u4e2D\uD83d\uDe00" , "" ] '
    check(read_lists([JSON(line)]), [json.loads(line)])
    check(read_lists([]), [])


def expected(value: bytes) -> list[str] | None:
    try:
        return STRINGS(value)
    except (msgspec.ValidationError, UnicodeDecodeError):
        return None


def same_as_the_library(value: bytes) -> None:
    texts = expected(value)
    if texts is None:
        with pytest.raises(NotTexts) as error:
            read_lists([b'["a"]', value, b"[]"])
        assert error.value.number == 1
    else:
        check(read_lists([b'["a"]', value, b"[]"]), [["a"], texts, []])


GOOD = json.dumps(["é😀ß中国", "\U0010ffff߿ࠀ퟿\ue000\uffff a"], ensure_ascii=False).encode()


@given(st.integers(0, len(GOOD)), st.binary(max_size=4), st.integers(0, 5))
@settings(max_examples=500, deadline=None)
def test_what_is_not_utf8_is_refused(cut: int, put: bytes, length: int) -> None:
    try:
        value = bytes(JSON(GOOD[:cut] + put + GOOD[cut + length :]))
    except msgspec.DecodeError:
        return
    same_as_the_library(value)


def test_every_beginning_of_a_character_that_is_not_ascii() -> None:
    ends = [b"", b"\x80", b"\xbf\xbf", b"\x80\x80\x80", b"\x80a"]
    for lead, second, end in product(range(0x80, 0x100), [0x41, 0x7F, *range(0x80, 0x100)], ends):
        text = bytes([lead, second]) + end
        try:
            assert bytes(read_lists([b'["' + text + b'"]']).data).decode() == text.decode("utf-8", "replace")
        except NotTexts:
            with pytest.raises(UnicodeDecodeError):
                text.decode()


others = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)


@given(others)
@settings(max_examples=300, deadline=None)
def test_what_is_no_list_of_strings_is_refused(value: object) -> None:
    same_as_the_library(json.dumps(value).encode())
