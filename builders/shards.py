"""The first half of ``release``: one block of raw rows to one finished shard of labelled passages.

A shard is a folder ``NNNNNN`` in the build's work directory with three Parquet files, ``questions``, ``passages`` and
``positives``; it appears under its name only when it is whole, which is what resuming a killed build relies on.
``seq`` numbers every row in the order of the input: (block << 32) + the row's place in the block.

All paragraphs of a block are one string, and what is known of each paragraph is a number in an array: labels, lengths
and passages are found by compiled loops, and Arrow takes the passages as slices of the string's UTF-8.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.command import InputError
from builders.passages import MIN_CHARS, cut_passages, text_id
from builders.raw import Block, Row, parse_rows
from builders.segment import SEGMENTERS, segmenter_version, words
from builders.span_f1 import THRESHOLD, Questions, char_ids, label_questions, word_ids

QUESTIONS = pa.schema(
    [
        ("seq", pa.int64()),
        ("split", pa.string()),
        ("question_id", pa.string()),  # the raw row's own
        ("query_id", pa.string()),
        ("text", pa.string()),
        ("answered", pa.bool_()),
        ("blank_passages", pa.int64()),
        ("cut", pa.bool_()),  # the row carried no words: this build cut them
        ("source", pa.string()),
        ("line", pa.int64()),
    ]
)
PASSAGES = pa.schema([("seq", pa.int64()), ("docid", pa.string()), ("text", pa.string())])
POSITIVES = pa.schema(
    [
        ("seq", pa.int64()),
        ("split", pa.string()),
        ("query_id", pa.string()),
        ("docid", pa.string()),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Options:
    """What decides the bytes of a release, apart from its sources."""

    unit: str = "word"
    threshold: Fraction = THRESHOLD
    match: str = "threshold"
    min_chars: int = MIN_CHARS
    segmenter: str = SEGMENTERS[0]

    def as_json(self, *, cut: bool = True) -> dict[str, str | int]:
        """For keys and manifests; ``cut`` is False where no row needed the segmenter."""
        options: dict[str, str | int] = {
            "unit": self.unit,
            "threshold": str(self.threshold),
            "match": self.match,
            "min_chars": self.min_chars,
        }
        if cut and self.unit == "word":
            options["segmenter"] = segmenter_version(self.segmenter)
        return options


def needs_cutting(row: Row, options: Options) -> bool:
    """Whether labelling ``row`` takes words that it does not carry."""
    if options.unit != "word" or not row.answers:
        return False
    return row.segmented_answers is None or any(document.segmented_paragraphs is None for document in row.documents)


def any_was_cut(work: Path) -> bool:
    """Whether the finished shards under ``work`` hold a row whose words the build cut itself."""
    tables = (pq.read_table(path, columns=["cut"]) for path in work.glob("[0-9]*/questions.parquet"))
    return any(pc.any(table["cut"]).as_py() for table in tables)


def label_rows(rows: Sequence[Row], options: Options) -> npt.NDArray[np.bool_]:
    """Algorithm 1 over rows: a label for each paragraph of each document of each row, in order."""
    paragraphs = [[p for document in row.documents for p in document.paragraphs] for row in rows]
    answers = [row.answers or [] for row in rows]
    if options.unit == "char":
        ids, ends = char_ids(list(chain.from_iterable(paragraphs)))
        answer_ids, answer_ends = char_ids(list(chain.from_iterable(answers)))
    else:
        # What no answer asks about need not be cut into words.
        segmented: list[list[list[str]]] = [
            _segmented(row, options.segmenter) if row.answers else [[] for _ in p]
            for row, p in zip(rows, paragraphs, strict=True)
        ]
        segmented_answers = [
            row.segmented_answers
            if row.segmented_answers is not None
            else [words(answer, options.segmenter) for answer in row.answers or []]
            for row in rows
        ]
        (ids, ends), (answer_ids, answer_ends) = word_ids(
            list(chain.from_iterable(segmented)), list(chain.from_iterable(segmented_answers))
        )
    questions = Questions(ids, ends, _ends(map(len, paragraphs)), answer_ids, answer_ends, _ends(map(len, answers)))
    return label_questions(questions, options.threshold, options.match)


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


def shard_path(work: Path, number: int) -> Path:
    return work / f"{number:06d}"


def build_shard(block: Block, options: Options, work: Path) -> int:
    """Label, cut and number the rows of ``block``; write its shard under ``work``. Returns the number of rows.

    Raises :class:`InputError` naming file and line for a row that is wrong.
    """
    lines, rows = [], []
    for line, row in parse_rows(block, segmented=options.unit == "word"):
        try:
            _check_segmented(row)
        except ValueError as error:
            raise InputError(str(error), path=block.source.shown, line=line) from None
        lines.append(line)
        rows.append(row)
    passages = cut_passages(
        [[d.paragraphs for d in row.documents] for row in rows], label_rows(rows, options), options.min_chars
    )
    query_ids = [text_id(row.question) for row in rows]
    blanks = [0] * len(rows)
    docids: list[str] = []
    kept: list[int] = []
    positive: list[int] = []
    seen: set[str] = set()
    data, ends = memoryview(passages.data), passages.ends.tolist()
    start = 0
    for number, (end, blank, mark, of) in enumerate(
        zip(ends, passages.blank.tolist(), passages.positive.tolist(), passages.row.tolist(), strict=True)
    ):
        docid = hashlib.md5(data[start:end], usedforsecurity=False).hexdigest()
        docids.append(docid)
        start = end
        if blank:
            blanks[of] += 1
            continue
        if docid not in seen:
            seen.add(docid)
            kept.append(number)
        if mark:
            positive.append(number)
    split, texts, ids = block.source.split, passages.texts(), pa.array(docids, pa.string())
    _write_shard(
        shard_path(work, block.number),
        {
            "questions": [
                _seq(block, len(rows)),
                [split] * len(rows),
                [str(row.question_id) for row in rows],
                query_ids,
                [row.question for row in rows],
                [bool(row.answers) for row in rows],
                blanks,
                [needs_cutting(row, options) for row in rows],
                [block.source.shown] * len(rows),
                lines,
            ],
            "passages": [
                _seq(block, len(kept)),
                ids.take(pa.array(kept, pa.int64())),
                texts.take(pa.array(kept, pa.int64())),
            ],
            "positives": [
                _seq(block, len(positive)),
                [split] * len(positive),
                [query_ids[row] for row in passages.row[positive].tolist()],
                ids.take(pa.array(positive, pa.int64())),
                texts.take(pa.array(positive, pa.int64())),
            ],
        },
    )
    return len(rows)


def _write_shard(final: Path, tables: dict[str, list[object]]) -> None:
    half = final.with_name(f"{final.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for (name, columns), schema in zip(tables.items(), (QUESTIONS, PASSAGES, POSITIVES), strict=True):
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=schema)
        pq.write_table(table, half / f"{name}.parquet", compression="lz4", use_dictionary=False)
    os.rename(half, final)


def _seq(block: Block, count: int) -> npt.NDArray[np.int64]:
    return (block.number << 32) + np.arange(count, dtype=np.int64)
