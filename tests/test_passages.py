"""Passage length control, against what the official passages show: nothing lost, nothing too long."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.release.passages import cut_passages, paragraphs_of


@given(paragraphs=st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=12), least=st.integers(1, 40))
@settings(max_examples=200, deadline=None)
def test_passage_length_control(paragraphs: list[tuple[str, bool]], least: int) -> None:
    """Nothing lost, nothing reordered, each long enough but the last, none too long, labels of its own paragraphs."""
    texts, marks = [text for text, _ in paragraphs], [mark for _, mark in paragraphs]
    cut = cut_passages(paragraphs_of([[texts]]), np.array(marks, bool), least)
    passages = cut.texts().to_pylist()
    assert "".join(passages) == "".join(texts)
    assert all(len(text) >= least for text in passages[:-1])
    assert cut.blank.tolist() == [not text.strip() for text in passages]
    for text in passages:
        # Without its last (non-empty) paragraph a passage was still too short.
        assert any(len(text) - len(last) < least for last in texts if last and text.endswith(last))
    # Followed paragraph by paragraph, each passage carries the labels of exactly its own.
    place, expected = 0, []
    for text in passages:
        length, mark = 0, False
        while length < len(text):
            length, mark, place = length + len(texts[place]), mark or marks[place], place + 1
        expected.append(mark)
    empty_positive = any(mark and not text for text, mark in paragraphs)
    assert empty_positive or cut.positive.tolist() == expected


documents = st.lists(st.lists(st.text(max_size=12), max_size=4), max_size=4)


@given(rows=st.lists(documents, max_size=4), least=st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_documents_cut_together_are_cut_as_alone(rows: list[list[list[str]]], least: int) -> None:
    count = sum(len(paragraphs) for row in rows for paragraphs in row)
    together = cut_passages(paragraphs_of(rows), np.zeros(count, bool), least)
    alone = []
    for number, texts in enumerate(rows):
        for paragraphs in texts:
            cut = cut_passages(paragraphs_of([[paragraphs]]), np.zeros(len(paragraphs), bool), least)
            alone += [(number, text) for text in cut.texts().to_pylist()]
    assert list(zip(together.row.tolist(), together.texts().to_pylist(), strict=True)) == alone
