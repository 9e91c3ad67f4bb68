"""Span-F1 distant supervision (Section 2.2.2, Algorithm 1): does any span of a paragraph match a human answer?

For a span of L tokens, an answer of m tokens and a multiset overlap o, F1 = 2o / (L + m). It reaches a threshold p/q
exactly when ``2q*o - p*L >= p*m``: everything is decided in integers, because many pairs of the real data meet 0.5
exactly and floating point flips some of them. The scans themselves are in :mod:`builders.release.span_scan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.release.options import THRESHOLD
from builders.release.span_scan import any_reaches, best_f1

Tokens = npt.NDArray[np.int32]
Ends = npt.NDArray[np.int64]
Flat = tuple[Tokens, Ends]  # token ids of many texts end to end, and where each text ends


def f1(span: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Twice the tokens that both hold over the tokens of both."""
    common = Counter(span) & Counter(answer)
    return Fraction(2 * common.total(), len(span) + len(answer)) if common else Fraction(0)


def is_positive(
    paragraph: Sequence[object], answers: Sequence[Sequence[object]], threshold: Fraction = THRESHOLD
) -> bool:
    """Algorithm 1 as the paper words it: some span of the paragraph reaches the threshold with some answer.

    The definition, for readers and for tests; :func:`label_questions` decides the same, fast.
    """
    starts, ends = range(len(paragraph)), range(1, len(paragraph) + 1)
    return any(f1(paragraph[i:j], answer) >= threshold for answer in answers for i in starts for j in ends if i < j)


def char_ids(texts: Sequence[str]) -> Flat:
    """Texts as their code points."""
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.int32), _ends(map(len, texts))


def word_ids(paragraphs: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> tuple[Flat, Flat]:
    """Lists of words as numbers, the same word with the same number in paragraphs and answers."""
    words = pa.array(chain.from_iterable(chain(paragraphs, answers)), pa.string())
    numbers = words.dictionary_encode().indices.to_numpy()
    ends, answer_ends = _ends(map(len, paragraphs)), _ends(map(len, answers))
    first = ends[-1] if len(ends) else 0
    return (numbers[:first], ends), (numbers[first:], answer_ends)


def _ends(lengths: Iterable[int]) -> Ends:
    return np.cumsum(np.fromiter(lengths, np.int64))


class Questions(NamedTuple):
    """Paragraphs and answers of many questions, as tokens end to end.

    ``ids``: the tokens of paragraph 0, of paragraph 1 ...; ``ends[i]``: where paragraph i ends in them;
    ``question_ends[k]``: the number of paragraphs up to the end of question k. The same for the answers.
    """

    ids: Tokens
    ends: Ends
    question_ends: Ends
    answers: Tokens
    answer_ends: Ends
    answer_question_ends: Ends

    @classmethod
    def of(cls, paragraphs: Flat, answers: Flat, counts: Iterable[int], answer_counts: Iterable[int]) -> Questions:
        """``counts``: the number of paragraphs of each question, ``answer_counts`` of its answers."""
        return cls(*paragraphs, _ends(counts), *answers, _ends(answer_counts))


def label_questions(
    questions: Questions, threshold: Fraction = THRESHOLD, match: str = "threshold"
) -> npt.NDArray[np.bool_]:
    """Return the labels of all paragraphs of all questions: True for the positive ones.

    ``match``: ``"threshold"``, Algorithm 1: any span of the paragraph reaches the threshold with any answer;
    ``"best"``, as v2 of the paper words it: of these paragraphs those with that answer's largest F1 (ties are all
    positive).
    """
    table = np.zeros(1 + max(int(ids.max(initial=0)) for ids in (questions.ids, questions.answers)), np.int32)
    if match == "best":
        return _best_only(questions, threshold, table)
    return np.asarray(any_reaches(*questions, table, *threshold.as_integer_ratio()))


def _best_only(questions: Questions, threshold: Fraction, table: Tokens) -> npt.NDArray[np.bool_]:
    paragraphs = np.split(questions.ids, questions.ends[:-1])
    answers = np.split(questions.answers, questions.answer_ends[:-1])
    positive = np.zeros(questions.ends.size, np.bool_)
    first = first_answer = 0
    for last, last_answer in zip(questions.question_ends, questions.answer_question_ends, strict=True):
        for answer in answers[first_answer:last_answer]:
            scores = [Fraction(*best_f1(paragraph, answer, table)) for paragraph in paragraphs[first:last]]
            best = max(scores, default=Fraction(0))
            positive[first:last] |= np.array([score == best >= threshold for score in scores], np.bool_)
        first, first_answer = last, last_answer
    return positive
