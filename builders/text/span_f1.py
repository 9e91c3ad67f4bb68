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


def token_f1(span: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Return F1 of the tokens of a span and an answer: twice the shared tokens, divided by the sum of both lengths."""
    shared_tokens = Counter(span) & Counter(answer)
    if not shared_tokens:
        return Fraction(0)
    return Fraction(2 * shared_tokens.total(), len(span) + len(answer))


def is_positive(
    paragraph: Sequence[object], answers: Sequence[Sequence[object]], threshold: Fraction = THRESHOLD
) -> bool:
    """True if any span of the paragraph reaches the threshold with any answer (Algorithm 1).

    This is the definition for readers and tests. :func:`label_questions` gives the same labels faster.
    """
    for answer in answers:
        for start in range(len(paragraph)):
            for end in range(start + 1, len(paragraph) + 1):
                if token_f1(paragraph[start:end], answer) >= threshold:
                    return True
    return False


def char_ids(texts: Sequence[str]) -> Flat:
    """Return the code points of ``texts`` as tokens."""
    # UTF-32 has one number of four bytes for each character.
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.int32), _ends(map(len, texts))


def word_ids(paragraphs: Sequence[Sequence[str]], answers: Sequence[Sequence[str]]) -> tuple[Flat, Flat]:
    """Return the words of the paragraphs and of the answers as tokens. Equal words get equal tokens in both.

    ``paragraphs`` and ``answers`` have a list of words for each text.
    """
    # The index of a word in Arrow's dictionary of distinct words is its token.
    all_words = pa.array(chain.from_iterable(chain(paragraphs, answers)), pa.string())
    word_numbers = all_words.dictionary_encode().indices.to_numpy()
    paragraph_ends = _ends(map(len, paragraphs))
    answer_ends = _ends(map(len, answers))
    first_answer_word = paragraph_ends[-1] if len(paragraph_ends) else 0
    return (word_numbers[:first_answer_word], paragraph_ends), (word_numbers[first_answer_word:], answer_ends)


def _ends(lengths: Iterable[int]) -> Ends:
    """Return the end of each text in the concatenated tokens of texts of these lengths."""
    return np.cumsum(np.fromiter(lengths, np.int64))


class QuestionTokens(NamedTuple):
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
        paragraph_ids, paragraph_ends = paragraphs
        answer_ids, answer_ends = answers
        return cls(paragraph_ids, paragraph_ends, _ends(counts), answer_ids, answer_ends, _ends(answer_counts))


def label_questions(
    questions: QuestionTokens, threshold: Fraction = THRESHOLD, match: str = "threshold"
) -> npt.NDArray[np.bool_]:
    """Return one label for each paragraph of all questions: True for a positive paragraph.

    With ``match="threshold"`` (Algorithm 1), a span of the paragraph must reach the threshold with an answer. With
    ``match="best"`` (v2 of the paper), the span must also have the highest F1 of the question's spans with this answer.
    """
    # One entry for each token, whose largest number depends on the texts: words are numbered, characters are not.
    largest_token = max(int(questions.ids.max(initial=0)), int(questions.answers.max(initial=0)))
    token_numbers = np.zeros(1 + largest_token, np.int32)  # scratch space of the compiled loops
    if match == "best":
        return _label_best(questions, threshold, token_numbers)
    numerator, denominator = threshold.as_integer_ratio()
    return np.asarray(any_reaches(*questions, token_numbers, numerator, denominator))


def _label_best(questions: QuestionTokens, threshold: Fraction, token_numbers: Tokens) -> npt.NDArray[np.bool_]:
    """Return the labels of :func:`label_questions` for ``match="best"``. ``token_numbers`` is its scratch space."""
    paragraphs = np.split(questions.ids, questions.ends[:-1])
    answers = np.split(questions.answers, questions.answer_ends[:-1])
    labels = np.zeros(questions.ends.size, np.bool_)
    first = 0
    first_answer = 0
    for last, last_answer in zip(questions.question_ends, questions.answer_question_ends, strict=True):
        for answer in answers[first_answer:last_answer]:
            # Exact fractions, because paragraphs with an equal F1 are all positive.
            scores = [Fraction(*best_f1(paragraph, answer, token_numbers)) for paragraph in paragraphs[first:last]]
            best_score = max(scores, default=Fraction(0))
            labels[first:last] |= np.array([score == best_score >= threshold for score in scores], np.bool_)
        first = last
        first_answer = last_answer
    return labels
