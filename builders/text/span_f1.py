"""Label paragraphs by span-F1 with the human answers (Section 2.2.2, Algorithm 1).

A span has L tokens, an answer has m tokens, and they share a multiset of o tokens. Then F1 = 2o / (L + m). F1 reaches
a threshold p/q exactly if ``2q*o - p*L >= p*m``. The comparison uses integers, because many pairs of the real data have
an F1 of exactly 0.5, and floating point rounds some of them wrongly. :mod:`builders.text.span_scan` has the loops.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import chain
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.text.span_options import THRESHOLD
from builders.text.span_scan import any_reaches, best_f1

Tokens = npt.NDArray[np.int32]
Ends = npt.NDArray[np.int64]
Flat = tuple[Tokens, Ends]  # concatenated token ids of many texts, and the end of each text


def f1(span: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Return F1 of two token lists: twice the number of shared tokens, divided by the sum of both lengths."""
    common = Counter(span) & Counter(answer)
    return Fraction(2 * common.total(), len(span) + len(answer)) if common else Fraction(0)


def is_positive(
    paragraph: Sequence[object], answers: Sequence[Sequence[object]], threshold: Fraction = THRESHOLD
) -> bool:
    """True if any span of the paragraph reaches the threshold with any answer (Algorithm 1).

    This is the definition for readers and tests. :func:`label_questions` gives the same labels faster.
    """
    starts, ends = range(len(paragraph)), range(1, len(paragraph) + 1)
    return any(f1(paragraph[i:j], answer) >= threshold for answer in answers for i in starts for j in ends if i < j)


def char_ids(texts: Sequence[str]) -> Flat:
    """Return the code points of ``texts`` as tokens."""
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.int32), _ends(map(len, texts))


def word_ids(paragraphs: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> tuple[Flat, Flat]:
    """Return the words as tokens. A word has the same number in paragraphs and answers."""
    words = pa.array(chain.from_iterable(chain(paragraphs, answers)), pa.string())
    numbers = words.dictionary_encode().indices.to_numpy()
    ends, answer_ends = _ends(map(len, paragraphs)), _ends(map(len, answers))
    first = ends[-1] if len(ends) else 0
    return (numbers[:first], ends), (numbers[first:], answer_ends)


def _ends(lengths: Iterable[int]) -> Ends:
    return np.cumsum(np.fromiter(lengths, np.int64))


class Questions(NamedTuple):
    """Paragraphs and answers of many questions, as concatenated tokens.

    ``ids`` has the tokens of all paragraphs. ``ends[i]`` is the end of paragraph i in ``ids``. ``question_ends[k]`` is
    the number of paragraphs of questions 0 to k. The three fields of the answers are analogous.
    """

    ids: Tokens
    ends: Ends
    question_ends: Ends
    answers: Tokens
    answer_ends: Ends
    answer_question_ends: Ends

    @classmethod
    def of(cls, paragraphs: Flat, answers: Flat, counts: Iterable[int], answer_counts: Iterable[int]) -> Self:
        """Build from tokens. ``counts`` and ``answer_counts`` have each question's number of paragraphs and answers."""
        return cls(*paragraphs, _ends(counts), *answers, _ends(answer_counts))


def label_questions(
    questions: Questions, threshold: Fraction = THRESHOLD, match: str = "threshold"
) -> npt.NDArray[np.bool_]:
    """Return one label for each paragraph of all questions: True for a positive paragraph.

    With ``match="threshold"`` (Algorithm 1), a span of the paragraph must reach the threshold with an answer. With
    ``match="best"`` (v2 of the paper), the span must also have the highest F1 of the question's spans with this answer.
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
