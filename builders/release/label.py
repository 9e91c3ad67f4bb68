"""First step of ``release``: turn a block of raw rows into labelled questions and passages (Section 2.2.2).

Each paragraph is labelled by its span-F1 with the answers of the question (Algorithm 1, :mod:`builders.text.span_f1`).
Then paragraphs are joined to passages (see :mod:`.paragraphs`). A passage's id is the MD5 of its text.

The result of a block is a folder of three Arrow files, named by the number of the block. The folder is renamed to this
name when it is complete, so a killed build resumes from the finished folders.

A row of these files is identified by its *place*, one integer with the number of the block in the upper 32 bits and the
row's number in the block's file in the lower 32 bits. For example, row 5 of block 2 has the place
``(2 << 32) + 5 = 8,589,934,597``. Places are in the order of the input, so the lowest place is the first occurrence,
and the database (:mod:`.select`) sorts and compares plain integers instead of texts.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.errors import InputError
from builders.core.folders import task_folder
from builders.core.words import split_words
from builders.release.answer_records import RAW, record_of
from builders.release.paragraphs import JoinedPassages, cut_passages
from builders.release.rows import RawRow, Words, parse_rows
from builders.sources.lines import Block, line_number
from builders.store.layout import LONGEST_TEXT, text_id
from builders.text.span_f1 import QuestionTokens, char_ids, label_questions, word_ids
from builders.text.span_options import SpanOptions

Places = npt.NDArray[np.int64]
ROW_BITS = 32  # lower bits of a place

SCHEMAS = {
    # One row for each raw row.
    "questions": pa.schema(
        [
            ("split", pa.string()),
            ("question_id", pa.string()),  # the id in the raw row
            ("query_id", pa.string()),  # MD5 of the text
            ("text", pa.string()),
            ("chars", pa.int64()),
            ("answered", pa.bool_()),
            ("blank_passages", pa.int64()),  # number of skipped passages
            ("record", RAW),  # the answers and types
            ("source", pa.string()),
            ("offset", pa.int64()),  # first byte of the line in the source
        ]
    ),
    # One row for each passage. Equal passages have several rows.
    "passages": pa.schema([("docid", pa.string()), ("text", pa.string()), ("chars", pa.int64())]),
    # One row for each positive passage. ``passage`` is its row number in ``passages``.
    "positives": pa.schema(
        [
            ("split", pa.string()),
            ("query_id", pa.string()),
            ("docid", pa.string()),
            ("passage", pa.int64()),
            ("chars", pa.int64()),
        ]
    ),
}


def label_block(block: Block, options: SpanOptions, work_folder: Path) -> int:
    """Label the paragraphs of a block, cut passages, compute ids, and write the result to ``work_folder``.

    Returns the number of raw rows. Raises :class:`InputError` with file and line for a wrong row, and for a passage
    that readers of a release would refuse.
    """
    offsets = []
    rows = []
    for offset, row in parse_rows(block, segmented=options.unit == "word"):
        offsets.append(offset)
        rows.append(row)

    # Label the paragraphs, then join them to passages. A passage of only white space is dropped.
    documents = list(chain.from_iterable(row.documents for row in rows))
    labels = label_rows(rows, options)
    paragraph_lists = [document.paragraphs for document in documents]
    passages = cut_passages(paragraph_lists, labels, options.passage_chars)
    row_of_document = np.repeat(np.arange(len(rows)), [len(row.documents) for row in rows])
    is_blank = passages.blank()
    blank_passages = np.bincount(row_of_document[passages.document[is_blank]], minlength=len(rows))
    passages = passages.keep(~is_blank)
    _expect_short_passages(passages, block, np.array(offsets, np.int64)[row_of_document], options)

    query_ids = [text_id(row.question) for row in rows]
    split = block.source.split
    questions = {
        "split": [split] * len(rows),
        "question_id": [str(row.question_id) for row in rows],
        "query_id": query_ids,
        "text": [row.question for row in rows],
        "chars": [len(row.question) for row in rows],
        "answered": [bool(row.answers) for row in rows],
        "blank_passages": blank_passages,
        "record": [record_of(row, block.source.name) for row in rows],
        "source": [block.source.shown] * len(rows),
        "offset": offsets,
    }
    passage_columns = {"docid": passages.ids, "text": passages.texts, "chars": passages.chars}
    positive_numbers = np.flatnonzero(passages.positive)
    positive_rows = row_of_document[passages.document[positive_numbers]]
    positives = {
        "split": [split] * positive_numbers.size,
        "query_id": [query_ids[row_number] for row_number in positive_rows],
        "docid": passages.ids.take(positive_numbers),
        "passage": positive_numbers,
        "chars": passages.chars[positive_numbers],
    }
    with task_folder(_block_folder(work_folder, block.number)) as folder:
        write_labelled(folder, "questions", questions)
        write_labelled(folder, "passages", passage_columns)
        write_labelled(folder, "positives", positives)
    return len(rows)


def _expect_short_passages(
    passages: JoinedPassages, block: Block, document_offsets: npt.NDArray[np.int64], options: SpanOptions
) -> None:
    """Raise :class:`InputError` for a passage that readers of a release would refuse.

    Each paragraph is short enough (:func:`.rows.parse_row`), but paragraphs are joined. ``document_offsets`` has the
    offset of each document's line in the source.
    """
    long_passages = np.flatnonzero(passages.chars > LONGEST_TEXT)
    if not long_passages.size:
        return
    first_long = long_passages[0]
    remedy = "leave out --whole-documents" if options.whole_documents else "cut its paragraphs or lower --min-chars"
    raise InputError(
        f"the joined paragraphs of a passage have {passages.chars[first_long]:,} characters, "
        f"expected at most {LONGEST_TEXT:,}; {remedy}",
        path=block.source.shown,
        line=line_number(block.source, int(document_offsets[passages.document[first_long]])),
    )


def label_rows(rows: Sequence[RawRow[Any]], options: SpanOptions) -> npt.NDArray[np.bool_]:
    """Return one label for each paragraph of ``rows``: True for a positive paragraph (Algorithm 1).

    The paragraphs of all documents of all rows follow each other. A row without answers has no positive paragraph.
    """
    # All rows of a block are labelled by one call of a compiled function, which takes concatenated tokens.
    paragraph_counts = [sum(len(document.paragraphs) for document in row.documents) for row in rows]
    answer_counts = [len(row.answers or ()) for row in rows]
    if options.unit == "char":
        paragraph_tokens = char_ids(_paragraphs(rows))
        answer_tokens = char_ids(_answers(rows))
    else:
        paragraph_words = _paragraph_words(rows, options.segmenter)
        answer_words = _answer_words(rows, options.segmenter)
        paragraph_tokens, answer_tokens = word_ids(paragraph_words, answer_words)
    questions = QuestionTokens.of(paragraph_tokens, answer_tokens, paragraph_counts, answer_counts)
    return label_questions(questions, options.threshold, options.match)


def _paragraphs(rows: Sequence[RawRow[Any]]) -> list[str]:
    paragraphs: list[str] = []
    for row in rows:
        for document in row.documents:
            paragraphs += document.paragraphs
    return paragraphs


def _answers(rows: Sequence[RawRow[Any]]) -> list[str]:
    answers: list[str] = []
    for row in rows:
        answers += row.answers or ()
    return answers


def _paragraph_words(rows: Sequence[RawRow[Any]], segmenter: str) -> list[list[str]]:
    word_lists: list[list[str]] = []
    for row in rows:
        for document in row.documents:
            if row.answers:
                word_lists += _segment(document.paragraphs, document.segmented_paragraphs, segmenter)
            else:  # no paragraph is positive, so words are not needed
                word_lists += [[] for _ in document.paragraphs]
    return word_lists


def _answer_words(rows: Sequence[RawRow[Any]], segmenter: str) -> list[list[str]]:
    word_lists: list[list[str]] = []
    for row in rows:
        word_lists += _segment(row.answers, row.segmented_answers, segmenter)
    return word_lists


def _segment(texts: Sequence[str] | None, word_lists: Words, segmenter: str) -> list[list[str]]:
    """Return the words of each text: the raw row's word lists or, if they are missing, the segmenter's words."""
    if word_lists is not None:
        return word_lists
    return [split_words(text, segmenter) for text in texts or ()]


def _block_folder(work_folder: Path, block_number: int) -> Path:
    return work_folder / f"{block_number:06d}"


def write_labelled(folder: Path, table_name: str, columns: Mapping[str, Any]) -> None:
    """Write one file of a block. It is not compressed, so that readers can map single columns into memory."""
    with pa.ipc.new_file(str(folder / f"{table_name}.arrow"), SCHEMAS[table_name]) as out:
        out.write_table(pa.table(columns, schema=SCHEMAS[table_name]))


def read_labelled(work_folder: Path, block_number: int, table_name: str, columns: Sequence[str]) -> pa.Table:
    """Map ``columns`` of one file of a block into memory."""
    field_numbers = [SCHEMAS[table_name].get_field_index(column) for column in columns]
    options = pa.ipc.IpcReadOptions(included_fields=field_numbers)
    path = _block_folder(work_folder, block_number) / f"{table_name}.arrow"
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file, options=options).read_all()


def rows_at(places: Places, work_folder: Path, table_name: str, columns: Sequence[str]) -> pa.Table:
    """Return the rows at ``places``, in the order of ``places``, from all blocks."""
    if not places.size:
        return SCHEMAS[table_name].empty_table().select(columns)
    # Group the places by block, so that each file is opened once.
    order = np.argsort(places, kind="stable")
    blocks, row_numbers = np.divmod(places[order], 1 << ROW_BITS)
    block_numbers, block_starts = np.unique(blocks, return_index=True)
    rows_by_block = np.split(row_numbers, block_starts[1:])
    tables = []
    for block_number, block_rows in zip(block_numbers.tolist(), rows_by_block, strict=True):
        block_table = read_labelled(work_folder, block_number, table_name, columns)
        tables.append(block_table.take(block_rows))
    table = pa.concat_tables(tables)
    was_sorted = (order[1:] > order[:-1]).all()
    if was_sorted:
        return table
    # ``order`` leads from a sorted row to its position in ``places``. Its inverse leads back.
    inverse_order = np.empty_like(order)
    inverse_order[order] = np.arange(order.size)
    return table.combine_chunks().take(inverse_order)
