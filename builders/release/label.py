"""The first half of ``release``: one block of raw rows to its labelled questions and passages (Section 2.2.2).

Paragraphs are labelled by span-F1 with the answers of their question (Algorithm 1, see :mod:`.span_f1`), and joined to
passages (see :mod:`.passages`), which get their ids: MD5 of the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from builders.core.folders import task_folder
from builders.core.words import words
from builders.release.label_files import block_folder, write_labelled
from builders.release.options import Options
from builders.release.passages import cut_passages
from builders.release.rows import Row, SegmentedRow, parse_rows
from builders.release.span_f1 import Questions, char_ids, label_questions, word_ids
from builders.sources.lines import Block
from builders.store.ids import text_id


def label_block(block: Block, options: Options, work: Path) -> int:
    """Label the paragraphs of a block's rows, cut passages, give ids; write :mod:`.label_files` to ``work``.

    Returns the number of rows. Raises :class:`InputError` naming file and line for a row that is wrong.
    """
    found = list(parse_rows(block, segmented=options.unit == "word"))
    rows = [row for _, row in found]
    documents = [document.paragraphs for row in rows for document in row.documents]
    passages = cut_passages(documents, label_rows(rows, options), options.min_chars)
    row_of_document = np.repeat(np.arange(len(rows)), [len(row.documents) for row in rows])
    blank = passages.blank()
    blank_passages = np.bincount(row_of_document[passages.document[blank]], minlength=len(rows))
    passages = passages.keep(~blank)
    positive = np.flatnonzero(passages.positive)
    queries = [text_id(row.question) for row in rows]
    split, count = block.source.split, len(rows)
    questions = {
        "split": [split] * count,
        "question_id": [str(row.question_id) for row in rows],
        "query_id": queries,
        "text": [row.question for row in rows],
        "chars": [len(row.question) for row in rows],
        "answered": [bool(row.answers) for row in rows],
        "blank_passages": blank_passages,
        "segmented": [_needs_segmenter(row) for row in rows],
        "source": [block.source.shown] * count,
        "offset": [offset for offset, _ in found],
    }
    positives = {
        "split": [split] * positive.size,
        "query_id": [queries[number] for number in row_of_document[passages.document[positive]]],
        "docid": passages.ids.take(positive),
        "passage": positive,
        "chars": passages.chars[positive],
    }
    with task_folder(block_folder(work, block.number)) as folder:
        write_labelled(folder, "questions", questions)
        write_labelled(folder, "passages", {"docid": passages.ids, "text": passages.texts, "chars": passages.chars})
        write_labelled(folder, "positives", positives)
    return count


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


def _needs_segmenter(row: Row) -> bool:
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
