"""Passages that contain an answer: one of their spans reaches the threshold of span-F1 (Section 2.2.2, Algorithm 1).

The span may cross paragraphs.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from builders.core.words import cutter
from builders.text.span_options import Options

AT_ONCE = 1_024  # queries whose words are in memory at the same time


def contain_answer(
    texts: Sequence[Sequence[str]], answers: Sequence[Sequence[str]], options: Options
) -> list[list[bool]]:
    """Return for each question and each of its ``texts``: True if the text contains one of the question's ``answers``.

    ``options`` has the unit, the threshold and the segmenter of span-F1.
    """
    from builders.text.span_f1 import Questions, char_ids, label_questions, word_ids

    distinct = list(dict.fromkeys(chain(*texts, *answers)))  # a text is cut once, even if it has several answers
    if options.unit == "char":
        ids, ends = char_ids(distinct)
    else:
        (ids, ends), _ = word_ids([*map(cutter(options.segmenter), distinct)], [])
    tokens_of = dict(zip(distinct, np.split(ids, ends[:-1]), strict=False))  # of no text, np.split gives one part
    sides = ([tokens_of[text] for text in chain(*side)] for side in (texts, answers))
    passages, people = (
        (np.concatenate([ids[:0], *side]), np.cumsum([*map(len, side)], dtype=np.int64)) for side in sides
    )
    labels = label_questions(Questions.of(passages, people, map(len, texts), map(len, answers)), options.threshold)
    cuts = np.cumsum([len(own) for own in texts])[:-1]
    return [part.tolist() for part in np.split(labels, cuts)] if texts else []
