"""Algorithm 1: the scan against a brute force written here, straight from the paper."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.span_f1 import char_ids, label, span_f1, word_ids

THRESHOLDS = [Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(9, 10), Fraction(1)]


def brute_best(paragraph: Sequence[object], answer: Sequence[object]) -> Fraction:
    """max over all spans s of F1(s, a): twice the common tokens over the tokens of both."""
    wanted, best = Counter(answer), Fraction(0)
    for start in range(len(paragraph)):
        span: Counter[object] = Counter()
        for end in range(start, len(paragraph)):
            span[paragraph[end]] += 1
            common = sum((span & wanted).values())
            if common:
                best = max(best, Fraction(2 * common, (end + 1 - start) + len(answer)))
    return best


def ids(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, np.int32)


tokens = st.lists(st.integers(0, 5), max_size=14)


@given(paragraph=tokens, answer=tokens, threshold=st.sampled_from(THRESHOLDS))
@settings(max_examples=600, deadline=None)
def test_the_largest_f1_and_the_decision_equal_brute_force(
    paragraph: list[int], answer: list[int], threshold: Fraction
) -> None:
    expected = brute_best(paragraph, answer)
    assert Fraction(*span_f1([ids(paragraph)], [ids(answer)])[0, 0].tolist()) == expected
    found = Fraction(*span_f1([ids(paragraph)], [ids(answer)], threshold)[0, 0].tolist())
    assert (found >= threshold) == (expected >= threshold)
    assert found == 0 or threshold <= found <= expected


@given(
    paragraphs=st.lists(st.text(alphabet="一二三ab", max_size=9), max_size=4),
    answers=st.lists(st.text(alphabet="一二三ab", max_size=6), max_size=3),
    threshold=st.sampled_from(THRESHOLDS),
)
@settings(max_examples=300, deadline=None)
def test_labels_of_a_question_equal_brute_force(paragraphs: list[str], answers: list[str], threshold: Fraction) -> None:
    scores = [[brute_best(paragraph, answer) for answer in answers] for paragraph in paragraphs]
    reached = [any(score >= threshold for score in row) for row in scores]
    marked = label(char_ids(paragraphs), char_ids(answers), threshold)
    assert marked.tolist() == reached
    best = [max((row[j] for row in scores), default=Fraction(0)) for j in range(len(answers))]
    expected = [any(s == best[j] and s >= threshold for j, s in enumerate(row)) for row in scores]
    assert label(char_ids(paragraphs), char_ids(answers), threshold, "best").tolist() == expected


def test_a_threshold_met_exactly_counts() -> None:
    # One of two tokens in a span of one, an answer of three: F1 = 2 * 1 / (1 + 3) = 1/2.
    assert label([ids([7])], [ids([7, 8, 9])], Fraction(1, 2)).tolist() == [True]
    assert label([ids([7])], [ids([7, 8, 9])], Fraction(500001, 1000000)).tolist() == [False]


def test_repeated_tokens_count_only_as_often_as_the_answer_holds_them() -> None:
    assert Fraction(*span_f1([ids([1, 1, 1, 1])], [ids([1, 1])])[0, 0].tolist()) == 1
    assert Fraction(*span_f1([ids([1])], [ids([1, 1, 1])])[0, 0].tolist()) == Fraction(1, 2)


def test_nothing_matches_an_empty_answer_or_paragraph() -> None:
    assert label([ids([]), ids([1])], [ids([])]).tolist() == [False, False]
    assert label([ids([1])], []).tolist() == [False]
    assert label([], [ids([1])]).tolist() == []


@pytest.mark.parametrize(("threshold", "match"), [(Fraction(0), "threshold"), (Fraction(2), "best"), (1, "first")])
def test_wrong_options_are_refused(threshold: Fraction, match: str) -> None:
    with pytest.raises(ValueError):
        label([ids([1])], [ids([1])], threshold, match)


@pytest.mark.parametrize("unit", ["char", "word"])
def test_labels_of_the_real_rows_equal_brute_force(shared_data: Path, unit: str) -> None:
    """Every paragraph of up to 60 tokens of 40 real rows; longer ones are too slow by brute force."""
    threshold, compared, positive = Fraction(1, 2), 0, 0
    with gzip.open(shared_data / "dureader-2.0-demo/search.train.json.gz", "rb") as file:
        rows = [json.loads(line) for line in file.read().split(b"\n")[:40] if line]
    for row in rows:
        field = "segmented_" if unit == "word" else ""
        paragraphs = [p for document in row["documents"] for p in document[f"{field}paragraphs"] if len(p) <= 60]
        answers = [answer for answer in row[f"{field}answers"] if len(answer) <= 60]
        if unit == "word":
            vocabulary: dict[str, int] = {}
            coded, coded_answers = word_ids(paragraphs, vocabulary), word_ids(answers, vocabulary)
        else:
            coded, coded_answers = char_ids(paragraphs), char_ids(answers)
        scores = [[brute_best(paragraph, answer) for answer in answers] for paragraph in paragraphs]
        exact = span_f1(coded, coded_answers).tolist()
        assert [[Fraction(*pair) for pair in line] for line in exact] == scores
        expected = [any(score >= threshold for score in line) for line in scores]
        assert label(coded, coded_answers, threshold).tolist() == expected
        compared += len(paragraphs)
        positive += sum(expected)
    assert compared > 500
    assert positive > 20
