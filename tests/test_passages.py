"""Passage length control, against what the official passages show: nothing lost, nothing too long."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from builders.release.passages import cut_passages, is_blank

documents = st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=12)
lengths = st.integers(1, 40)


def cut(paragraphs: list[tuple[str, bool]], least: int) -> list[tuple[str, bool]]:
    return list(cut_passages([text for text, _ in paragraphs], [mark for _, mark in paragraphs], least))


@given(documents, lengths)
@settings(deadline=None)
def test_nothing_is_lost_or_reordered(paragraphs: list[tuple[str, bool]], least: int) -> None:
    assert "".join(text for text, _ in cut(paragraphs, least)) == "".join(text for text, _ in paragraphs)


@given(documents, lengths)
@settings(deadline=None)
def test_every_passage_but_the_last_is_long_enough(paragraphs: list[tuple[str, bool]], least: int) -> None:
    texts = [text for text, _ in cut(paragraphs, least)]
    assert all(len(text) >= least for text in texts[:-1])
    assert all(texts)


@given(documents, lengths)
@settings(deadline=None)
def test_no_passage_is_longer_than_needed(paragraphs: list[tuple[str, bool]], least: int) -> None:
    """Without its last paragraph it was still too short."""
    for text, _ in cut(paragraphs, least):
        assert any(len(text) - len(last) < least for last, _ in paragraphs if last and text.endswith(last))


@given(documents, lengths)
@settings(deadline=None)
def test_a_passage_is_positive_if_any_of_its_paragraphs_is(paragraphs: list[tuple[str, bool]], least: int) -> None:
    rest = [(text, mark) for text, mark in paragraphs if text]
    for text, mark in cut(rest, least):
        own = []
        while sum(len(paragraph) for paragraph, _ in own) < len(text):
            own.append(rest.pop(0))
        assert mark == any(positive for _, positive in own)


def test_paragraphs_without_a_character_make_no_passage() -> None:
    assert cut([("", True), ("", True)], 1) == []
    assert cut([("一二", False), ("", True)], 2) == [("一二", False)]


@given(st.text(max_size=5))
def test_blank_is_what_strips_to_nothing(text: str) -> None:
    assert is_blank(text) == (bool(text) and not text.strip())
