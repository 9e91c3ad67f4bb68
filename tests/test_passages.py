"""Passage length control: the rules of the official passages."""

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.release.passages import cut_passages

documents = st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=12)
lengths = st.integers(1, 40)


def cut(*documents: list[tuple[str, bool]], least: int) -> list[tuple[int, str, bool]]:
    marks = np.array([mark for document in documents for _, mark in document], np.bool_)
    found = cut_passages([[text for text, _ in document] for document in documents], marks, least)
    assert found.chars.tolist() == [len(text) for text in found.texts.to_pylist()]
    assert found.ids.to_pylist() == [hashlib.md5(text.encode()).hexdigest() for text in found.texts.to_pylist()]
    assert found.blank().tolist() == [not text.strip() for text in found.texts.to_pylist()]
    return list(zip(found.document.tolist(), found.texts.to_pylist(), found.positive.tolist(), strict=True))


@given(documents, lengths)
@settings(deadline=None)
def test_nothing_is_lost_or_reordered_and_no_passage_is_too_short_or_too_long(
    paragraphs: list[tuple[str, bool]], least: int
) -> None:
    texts = [text for _, text, _ in cut(paragraphs, least=least)]
    assert "".join(texts) == "".join(text for text, _ in paragraphs)
    assert all(len(text) >= least for text in texts[:-1]) and all(texts)
    for text in texts:  # without its last paragraph, the passage is too short
        assert any(len(text) - len(last) < least for last, _ in paragraphs if last and text.endswith(last))


@given(documents, lengths)
@settings(deadline=None)
def test_a_passage_is_positive_if_any_of_its_paragraphs_is(paragraphs: list[tuple[str, bool]], least: int) -> None:
    rest = [(text, mark) for text, mark in paragraphs if text]
    for _, text, mark in cut(rest, least=least):
        own = []
        while sum(len(paragraph) for paragraph, _ in own) < len(text):
            own.append(rest.pop(0))
        assert mark == any(positive for _, positive in own)


def test_paragraphs_without_a_character_make_no_passage() -> None:
    assert cut([("", True), ("", True)], least=1) == []
    found = cut([("一二", False), ("", True)], [("", True), ("三", False)], least=2)
    assert found == [(0, "一二", False), (1, "三", True)]


@given(st.lists(documents, max_size=4), lengths)
@settings(deadline=None)
def test_documents_cut_together_are_cut_as_alone(many: list[list[tuple[str, bool]]], least: int) -> None:
    alone = [(number, text, mark) for number, own in enumerate(many) for _, text, mark in cut(own, least=least)]
    assert cut(*many, least=least) == alone


def test_what_is_kept_stays_together() -> None:
    found = cut_passages([["一", " "], ["三"]], np.array([True, True, False]), 1)
    kept = found.keep(~found.blank())
    assert kept.texts.to_pylist() == ["一", "三"]
    assert (kept.chars.tolist(), kept.positive.tolist(), kept.document.tolist()) == ([1, 1], [True, False], [0, 1])
