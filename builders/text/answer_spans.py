"""Passages that contain an answer: one of their spans reaches the threshold of span-F1 (Section 2.2.2, Algorithm 1).

The span may cross paragraphs.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from builders.core.words import word_cutter
from builders.text.span_options import SpanOptions

if TYPE_CHECKING:
    from builders.text.span_f1 import Flat

AT_ONCE = 1_024  # queries whose words are in memory at the same time


def contain_answer(
    texts: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], options: SpanOptions
) -> list[list[bool]]:
    """Return for each question and each of its ``texts``: True if the text contains one of the question's ``answers``.

    ``texts`` and ``answers`` have a list for each question, in the same order. ``options`` has the unit, the threshold
    and the segmenter of span-F1.
    """
    from builders.text.span_f1 import QuestionTokens, char_ids, label_questions, word_ids

    # Each distinct text is cut once, even if it has several answers.
    distinct_texts = list(dict.fromkeys(chain(*texts, *answers)))
    if options.unit == "char":
        token_ids, text_ends = char_ids(distinct_texts)
    else:
        cut_text = word_cutter(options.segmenter)
        (token_ids, text_ends), _ = word_ids([cut_text(text) for text in distinct_texts], [])
    # Not strict, because np.split gives one part for no text.
    tokens_by_text = dict(zip(distinct_texts, np.split(token_ids, text_ends[:-1]), strict=False))

    def concatenate(text_groups: Sequence[Sequence[str]]) -> "Flat":
        """Return the tokens of all texts of all groups, one after the other, and the end of each text."""
        text_tokens = [tokens_by_text[text] for text in chain.from_iterable(text_groups)]
        no_tokens = token_ids[:0]  # gives the type if there is no text
        ends = np.cumsum([len(tokens) for tokens in text_tokens], dtype=np.int64)
        return np.concatenate([no_tokens, *text_tokens]), ends

    questions = QuestionTokens.of(concatenate(texts), concatenate(answers), map(len, texts), map(len, answers))
    labels = label_questions(questions, options.threshold)
    if not texts:
        return []
    group_ends = np.cumsum([len(text_group) for text_group in texts])
    return [group_labels.tolist() for group_labels in np.split(labels, group_ends[:-1])]
