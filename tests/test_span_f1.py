"""Compare the compiled loops of Algorithm 1 with a brute force that follows the paper."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.release.span_f1 import Questions, f1, is_positive, label_questions
from builders.release.span_scan import best_f1

THRESHOLDS = [Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(9, 10), Fraction(1)]


def brute_best(paragraph: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Return the maximum of F1(s, a) over all spans s, as the paper defines it."""
    spans = itertools.combinations(range(len(paragraph) + 1), 2)
    return max((f1(paragraph[start:end], answer) for start, end in spans), default=Fraction(0))


def questions(*rows: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]) -> Questions:
    """Draw (paragraphs, answers) of token ids for several questions."""
    texts, answers = [p for row in rows for p in row[0]], [a for row in rows for a in row[1]]
    flat, flat_answers = (np.array([t for text in group for t in text], np.int32) for group in (texts, answers))
    ends, answer_ends = (np.cumsum([len(text) for text in group], dtype=np.int64) for group in (texts, answers))
    counts, answer_counts = (np.cumsum([len(row[side]) for row in rows], dtype=np.int64) for side in (0, 1))
    return Questions(flat, ends, counts, flat_answers, answer_ends, answer_counts)


def best(paragraph: Sequence[int], answer: Sequence[int]) -> Fraction:
    texts = (np.array(text, np.int32) for text in (paragraph, answer))
    return Fraction(*best_f1(*texts, np.zeros(1 + max([*paragraph, *answer], default=0), np.int32)))


def label(
    paragraphs: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    threshold: Fraction = Fraction(1, 2),
    match: str = "threshold",
) -> list[bool]:
    return label_questions(questions((paragraphs, answers)), threshold, match).tolist()  # type: ignore[no-any-return]


def chars(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(c) for c in text] for text in texts]


tokens = st.lists(st.integers(0, 5), max_size=14)


@given(
    paragraph=st.lists(st.integers(0, 9), max_size=40) | tokens, answer=tokens, threshold=st.sampled_from(THRESHOLDS)
)
@settings(max_examples=150, deadline=None)
def test_the_largest_f1_and_the_decision_equal_brute_force(
    paragraph: list[int], answer: list[int], threshold: Fraction
) -> None:
    expected = brute_best(paragraph, answer)
    assert best(paragraph, answer) == expected
    assert label([paragraph], [answer], threshold) == [expected >= threshold]
    assert is_positive(paragraph, [answer], threshold) == (expected >= threshold)


@given(
    paragraphs=st.lists(st.text(alphabet="一二三ab", max_size=9), max_size=4),
    answers=st.lists(st.text(alphabet="一二三ab", max_size=6), max_size=3),
    threshold=st.sampled_from(THRESHOLDS),
)
@settings(max_examples=100, deadline=None)
def test_labels_of_a_question_equal_brute_force(paragraphs: list[str], answers: list[str], threshold: Fraction) -> None:
    scores = [[brute_best(paragraph, answer) for answer in answers] for paragraph in paragraphs]
    reached = [any(score >= threshold for score in row) for row in scores]
    assert label(chars(paragraphs), chars(answers), threshold) == reached
    top = [max((row[j] for row in scores), default=Fraction(0)) for j in range(len(answers))]
    expected = [any(s == top[j] and s >= threshold for j, s in enumerate(row)) for row in scores]
    assert label(chars(paragraphs), chars(answers), threshold, "best") == expected


rows = st.lists(st.tuples(st.lists(tokens, max_size=3), st.lists(tokens, max_size=2)), max_size=4)


@given(rows=rows, match=st.sampled_from(["threshold", "best"]))
@settings(max_examples=100, deadline=None)
def test_questions_labelled_together_are_labelled_as_alone(
    rows: list[tuple[list[list[int]], list[list[int]]]], match: str
) -> None:
    together = label_questions(questions(*rows), match=match).tolist() if rows else []
    assert together == [mark for paragraphs, answers in rows for mark in label(paragraphs, answers, match=match)]


def test_a_threshold_met_exactly_counts() -> None:
    # A span of one token that occurs in an answer of three tokens: F1 = 2 * 1 / (1 + 3) = 1/2.
    assert label([[7]], [[7, 8, 9]], Fraction(1, 2)) == [True]
    assert label([[7]], [[7, 8, 9]], Fraction(500001, 1000000)) == [False]


def test_nothing_matches_an_empty_answer_or_paragraph() -> None:
    assert label([[], [1]], [[]]) == [False, False]
    assert label([[1]], []) == [False]
    assert label([], [[1]]) == []
