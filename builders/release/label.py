"""First step of ``release``: turn a block of raw rows into labelled questions and passages (Section 2.2.2).

Each paragraph is labelled by its span-F1 with the answers of the question (Algorithm 1, :mod:`builders.text.span_f1`).
Then paragraphs are joined to passages (see :mod:`.paragraphs`). A passage's id is the MD5 of its text.

The result of a block is a folder of three Arrow files, named by the number of the block. The folder is renamed to this
name when it is complete, so a killed build resumes from the finished folders. A row of these files is identified by its
*place*, the number ``(block << 32) + row number in the block's file``. Places are in the order of the input.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.folders import task_folder
from builders.core.words import words
from builders.release.answer_records import RAW, record_of
from builders.release.paragraphs import cut_passages
from builders.release.rows import Row, Words, parse_rows
from builders.sources.lines import Block
from builders.store.layout import text_id
from builders.text.span_f1 import Questions, char_ids, label_questions, word_ids
from builders.text.span_options import Options

Places = npt.NDArray[np.int64]

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


def label_block(block: Block, options: Options, work: Path) -> int:
    """Label the paragraphs of a block, cut passages, compute ids, and write the result to ``work``.

    Returns the number of rows. Raises :class:`InputError` with file and line for a wrong row.
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
        "record": [record_of(row, block.source.name) for row in rows],
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
    with task_folder(_folder(work, block.number)) as folder:
        write_labelled(folder, "questions", questions)
        write_labelled(folder, "passages", {"docid": passages.ids, "text": passages.texts, "chars": passages.chars})
        write_labelled(folder, "positives", positives)
    return count


def label_rows(rows: Sequence[Row[Any]], options: Options) -> npt.NDArray[np.bool_]:
    """Return one label for each paragraph of ``rows``: True for a positive paragraph (Algorithm 1)."""
    counts = [sum(len(document.paragraphs) for document in row.documents) for row in rows]
    answer_counts = [len(row.answers or ()) for row in rows]
    if options.unit == "char":
        paragraphs = [text for row in rows for document in row.documents for text in document.paragraphs]
        tokens = char_ids(paragraphs), char_ids([text for row in rows for text in row.answers or ()])
    else:
        tokens = word_ids(
            [found for row in rows for found in _paragraph_words(row, options.segmenter)],
            [found for row in rows for found in _words(row.answers, row.segmented_answers, options.segmenter)],
        )
    return label_questions(Questions.of(*tokens, counts, answer_counts), options.threshold, options.match)


def _paragraph_words(row: Row[Any], segmenter: str) -> Iterator[list[str]]:
    for document in row.documents:
        if row.answers:
            yield from _words(document.paragraphs, document.segmented_paragraphs, segmenter)
        else:  # no paragraph is positive, so words are not needed
            yield from ([] for _ in document.paragraphs)


def _words(texts: Sequence[str] | None, word_lists: Words, segmenter: str) -> list[list[str]]:
    """Return the words of each text: the raw row's word lists or, if they are missing, the segmenter's words."""
    return [words(text, segmenter) for text in texts or ()] if word_lists is None else word_lists


def _folder(work: Path, block: int) -> Path:
    return work / f"{block:06d}"


def write_labelled(folder: Path, name: str, columns: Mapping[str, Any]) -> None:
    """Write one file of a block. It is not compressed, so that readers can map single columns into memory."""
    with pa.ipc.new_file(str(folder / f"{name}.arrow"), SCHEMAS[name]) as out:
        out.write_table(pa.table(columns, schema=SCHEMAS[name]))


def read_labelled(work: Path, block: int, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Map one file of a block, or some of its columns, into memory."""
    fields = None if columns is None else [SCHEMAS[name].get_field_index(column) for column in columns]
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    with pa.memory_map(str(_folder(work, block) / f"{name}.arrow")) as file:
        return pa.ipc.open_file(file, options=options).read_all()


def rows_at(places: Places, work: Path, name: str, columns: Sequence[str]) -> pa.Table:
    """Return the rows at ``places``, in the order of ``places``, from all blocks."""
    if not places.size:
        return SCHEMAS[name].empty_table().select(columns)
    order = np.argsort(places, kind="stable")
    blocks, numbers = np.divmod(places[order], 1 << 32)
    found, starts = np.unique(blocks, return_index=True)
    tables = [
        read_labelled(work, block, name, columns).take(some)
        for block, some in zip(found.tolist(), np.split(numbers, starts[1:]), strict=True)
    ]
    table = pa.concat_tables(tables)
    if (order[1:] > order[:-1]).all():  # ``places`` was sorted
        return table
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return table.combine_chunks().take(back)
