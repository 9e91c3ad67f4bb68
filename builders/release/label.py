"""The first half of ``release``: one block of raw rows to one finished shard of labelled passages (see
:mod:`builders.release.shard_files`).

All paragraphs of a block stand end to end, and what is known of each is a number in an array: labels, lengths and
passages are found by compiled loops, and Arrow takes the passages as slices of the paragraphs' UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.common.columns import encoded, flags, numbers, repeated, strings
from builders.common.command import InputError
from builders.common.folders import task_folder
from builders.common.words import words
from builders.release.dedupe import write_ids
from builders.release.json_texts import NotTexts
from builders.release.options import Options
from builders.release.passages import Paragraphs, Passages, cut_passages, paragraphs_in, paragraphs_of
from builders.release.rows import BareRow, PlainRow, Row, parse_rows
from builders.release.shard_files import ID, PASSAGES, POSITIVES, QUESTIONS, shard_path, write_table
from builders.release.span_f1 import Flat, Questions, char_ids, label_questions, word_ids
from builders.sources.lines import Block, line_number
from builders.store.ids import text_ids


def needs_cutting(row: Row | BareRow, options: Options) -> bool:
    """Whether labelling ``row`` takes words that it does not carry."""
    if options.unit != "word" or isinstance(row, BareRow) or not row.answers:
        return False
    return row.segmented_answers is None or any(document.segmented_paragraphs is None for document in row.documents)


def label_rows(
    rows: Sequence[Row] | Sequence[BareRow], options: Options, paragraphs: Paragraphs
) -> npt.NDArray[np.bool_]:
    """Algorithm 1 over rows: a label for each of their ``paragraphs``, in order. For words :class:`Row` is needed."""
    answers = [row.answers or [] for row in rows]
    if options.unit == "char":
        ids, ends = paragraphs.codes, np.cumsum(paragraphs.lengths)
        answer_ids, answer_ends = char_ids(list(chain.from_iterable(answers)))
    else:
        (ids, ends), (answer_ids, answer_ends) = _word_ids(cast(Sequence[Row], rows), options.segmenter)
    # Up to the end of each question: its documents' paragraphs.
    last = np.concatenate([[0], np.cumsum(paragraphs.counts)])[np.cumsum(paragraphs.rows)]
    questions = Questions(ids, ends, last, answer_ids, answer_ends, _ends(map(len, answers)))
    return label_questions(questions, options.threshold, options.match)


def _word_ids(rows: Sequence[Row], segmenter: str) -> tuple[Flat, ...]:
    """The words of all paragraphs, and of all answers; what no answer asks about need not be cut into words."""
    segmented: list[list[list[str]]] = [
        _segmented(row, segmenter) if row.answers else [[] for d in row.documents for _ in d.paragraphs] for row in rows
    ]
    answers = [
        row.segmented_answers
        if row.segmented_answers is not None
        else [words(answer, segmenter) for answer in row.answers or []]
        for row in rows
    ]
    return word_ids(list(chain.from_iterable(segmented)), list(chain.from_iterable(answers)))


def _ends(lengths: Iterable[int]) -> npt.NDArray[np.int64]:
    return np.cumsum(np.fromiter(lengths, np.int64))


def _segmented(row: Row, segmenter: str) -> list[list[str]]:
    return [
        segmented
        for document in row.documents
        for segmented in (
            document.segmented_paragraphs
            if document.segmented_paragraphs is not None
            else [words(paragraph, segmenter) for paragraph in document.paragraphs]
        )
    ]


def _check_segmented(row: Row) -> None:
    """ValueError where the given ``segmented_*`` lists do not go with the texts."""
    for number, document in enumerate(row.documents):
        given = document.segmented_paragraphs
        if given is not None and len(given) != len(document.paragraphs):
            raise ValueError(
                f"documents[{number}] has {len(document.paragraphs)} paragraphs and {len(given)} segmented_paragraphs"
            )
    if row.segmented_answers is not None and len(row.segmented_answers) != len(row.answers or []):
        raise ValueError(f"{len(row.answers or [])} answers and {len(row.segmented_answers)} segmented_answers")


def _read_words(block: Block) -> tuple[list[int], list[Row], Paragraphs]:
    """The rows of a block with their words, where each begins in the source, and their paragraphs."""
    offsets, rows = [], []
    for offset, row in parse_rows(block):
        try:
            _check_segmented(row)
        except ValueError as error:
            raise InputError(str(error), path=block.source.shown, line=line_number(block.source, offset)) from None
        offsets.append(offset)
        rows.append(row)
    return offsets, rows, paragraphs_of([[document.paragraphs for document in row.documents] for row in rows])


def _read_characters(block: Block) -> tuple[list[int], list[BareRow], Paragraphs]:
    """As :func:`_read_words`, without a word."""
    found = list(parse_rows(block, BareRow))
    rows = [row for _, row in found]
    try:
        paragraphs = paragraphs_in([[document.paragraphs for document in row.documents] for row in rows])
    except NotTexts:
        list(parse_rows(block, PlainRow))  # names the first line that is wrong, and says how
        raise
    return [offset for offset, _ in found], rows, paragraphs


def build_shard(block: Block, options: Options, work: Path) -> int:
    """Label, cut and number the rows of ``block``; write its shard under ``work``. Returns the number of rows.

    Raises :class:`InputError` naming file and line for a row that is wrong.
    """
    offsets, rows, paragraphs = _read_words(block) if options.unit == "word" else _read_characters(block)
    passages = cut_passages(paragraphs, label_rows(rows, options, paragraphs), options.min_chars)
    texts, count = [row.question.encode() for row in rows], len(rows)
    queries = text_ids(b"".join(texts), _ends(map(len, texts)))
    questions = [
        repeated(block.source.split, count),
        strings([str(row.question_id) for row in rows]),
        _uuids(queries),
        encoded(texts),
        flags([bool(row.answers) for row in rows]),
        numbers(np.bincount(passages.row[passages.blank], minlength=count)),
        flags([needs_cutting(row, options) for row in rows]),
        repeated(block.source.shown, count),
        numbers(np.array(offsets, np.int64)),
    ]
    with task_folder(shard_path(work, block.number)) as folder:
        _write_passages(folder, passages, queries, block.source.split)
        write_table(folder / "questions.arrow", QUESTIONS, questions)
    return count


def _write_passages(folder: Path, passages: Passages, queries: npt.NDArray[np.uint8], split: str) -> None:
    shown = np.flatnonzero(~passages.blank)
    ids = text_ids(passages.data.data, passages.ends)[shown]
    firsts, first_of = write_ids(folder / "ids", ids)
    texts = passages.texts()
    if len(firsts) < len(texts):
        texts = texts.take(numbers(shown[firsts]))
    write_table(folder / "passages.arrow", PASSAGES, [_binaries(ids[firsts]), texts])
    positive = np.flatnonzero(passages.positive[shown])
    query, docid = queries[passages.row[shown[positive]]], ids[positive]
    columns = [repeated(split, len(positive)), _uuids(query), _uuids(docid), numbers(first_of[positive])]
    write_table(folder / "positives.arrow", POSITIVES, columns)


def _binaries(ids: npt.NDArray[np.uint8]) -> pa.Array:
    return pa.FixedSizeBinaryArray.from_buffers(ID, len(ids), [None, pa.py_buffer(np.ascontiguousarray(ids))])


def _uuids(ids: npt.NDArray[np.uint8]) -> pa.Array:
    """As the database takes ids without turning them into something else."""
    return pa.ExtensionArray.from_storage(pa.uuid(), _binaries(ids))
