"""The first half of ``release``: one block of raw rows to its labelled questions and passages.

Paragraphs are labelled by span-F1 with the answers of their question (Algorithm 1, see :mod:`.span_f1`), and joined to
passages (see :mod:`.passages`), which get their ids: MD5 of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from builders.common.folders import task_folder
from builders.common.words import words
from builders.release.labelled import Passage, Positive, Question, block_folder, write_labelled
from builders.release.options import Options
from builders.release.passages import cut_passages, is_blank
from builders.release.rows import Row, SegmentedRow, parse_rows
from builders.release.span_f1 import Questions, char_ids, label_questions, word_ids
from builders.sources.lines import Block
from builders.store.ids import id_of, text_id


def label_block(block: Block, options: Options, work: Path) -> int:
    """Label, cut and number the rows of ``block``; write what :mod:`.labelled` describes under ``work``.

    Returns the number of rows. Raises :class:`InputError` naming file and line for a row that is wrong.
    """
    found = list(parse_rows(block, segmented=options.unit == "word"))
    labels = iter(label_rows([row for _, row in found], options).tolist())
    split, source = block.source.split, block.source.shown
    questions: list[Question] = []
    passages: list[Passage] = []
    positives: list[Positive] = []
    for offset, row in found:
        query, blank = text_id(row.question), 0
        for document in row.documents:
            own = islice(labels, len(document.paragraphs))
            for text, positive in cut_passages(document.paragraphs, own, options.min_chars):
                if is_blank(text):
                    blank += 1
                    continue
                utf8 = text.encode()
                docid = id_of(utf8)
                if positive:
                    positives.append(Positive(split, query, docid, len(passages)))
                passages.append(Passage(docid, utf8, len(text)))
        number, chars = str(row.question_id), len(row.question)
        questions.append(
            Question(
                split, number, query, row.question, chars, bool(row.answers), blank, needs_cutting(row), source, offset
            )
        )
    with task_folder(block_folder(work, block.number)) as folder:
        write_labelled(folder, Question, questions)
        write_labelled(folder, Passage, passages)
        write_labelled(folder, Positive, positives)
    return len(found)


def label_rows(rows: Sequence[Row], options: Options) -> npt.NDArray[np.bool_]:
    """Algorithm 1 over rows: a label for each of their paragraphs, in order. On words, the rows are segmented ones."""
    counts = [sum(len(document.paragraphs) for document in row.documents) for row in rows]
    answer_counts = [len(row.answers or ()) for row in rows]
    if options.unit == "char":
        paragraphs = [text for row in rows for document in row.documents for text in document.paragraphs]
        tokens = char_ids(paragraphs), char_ids([text for row in rows for text in row.answers or ()])
    else:
        tokens = word_ids(
            [text for row in rows for text in _paragraph_words(row, options.segmenter)],
            [text for row in rows for text in _answer_words(row, options.segmenter)],
        )
    return label_questions(Questions.of(*tokens, counts, answer_counts), options.threshold, options.match)


def needs_cutting(row: Row) -> bool:
    """Whether labelling ``row`` takes words that it does not carry."""
    if not isinstance(row, SegmentedRow) or not row.answers:
        return False
    return row.segmented_answers is None or any(document.segmented_paragraphs is None for document in row.documents)


def _paragraph_words(row: Row, segmenter: str) -> Iterator[list[str]]:
    """The words of each paragraph: those that the row carries, else cut here."""
    assert isinstance(row, SegmentedRow)
    for document in row.documents:
        if not row.answers:  # no answer asks for them
            yield from ([] for _ in document.paragraphs)
        elif document.segmented_paragraphs is not None:
            yield from document.segmented_paragraphs
        else:
            yield from (words(paragraph, segmenter) for paragraph in document.paragraphs)


def _answer_words(row: Row, segmenter: str) -> Iterator[list[str]]:
    assert isinstance(row, SegmentedRow)
    if row.segmented_answers is not None:
        yield from row.segmented_answers
    else:
        yield from (words(answer, segmenter) for answer in row.answers or ())
