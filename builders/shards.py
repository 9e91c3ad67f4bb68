"""The first half of ``release``: one block of raw rows to one finished shard of labelled passages.

A shard is a folder ``NNNNNN`` in the build's work directory with three Parquet files, ``questions``, ``passages`` and
``positives``; it appears under its name only when it is whole, which is what resuming a killed build relies on.
``seq`` numbers every row in the order of the input: (block << 32) + the row's place in the block.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.command import InputError
from builders.passages import MIN_CHARS, join_paragraphs, text_id
from builders.raw import Block, Row, parse_rows
from builders.segment import SEGMENTERS, segmenter_version, words
from builders.span_f1 import THRESHOLD, char_ids, label, word_ids

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


def label_paragraphs(row: Row, options: Options) -> list[list[bool]]:
    """Algorithm 1 over all documents of a row: a label for each paragraph of each document.

    Raises ValueError where the given ``segmented_*`` lists do not go with the texts.
    """
    answers = row.answers or []
    if not answers:
        return [[False] * len(document.paragraphs) for document in row.documents]
    paragraphs = [paragraph for document in row.documents for paragraph in document.paragraphs]
    if options.unit == "char":
        marked = label(char_ids(paragraphs), char_ids(answers), options.threshold, options.match)
    else:
        segmented: list[list[str]] = []
        for number, document in enumerate(row.documents):
            given = document.segmented_paragraphs
            if given is None:
                given = [words(paragraph, options.segmenter) for paragraph in document.paragraphs]
            if len(given) != len(document.paragraphs):
                raise ValueError(
                    f"documents[{number}] has {len(document.paragraphs)} paragraphs"
                    f" and {len(given)} segmented_paragraphs"
                )
            segmented += given
        segmented_answers = row.segmented_answers
        if segmented_answers is None:
            segmented_answers = [words(answer, options.segmenter) for answer in answers]
        if len(segmented_answers) != len(answers):
            raise ValueError(f"{len(answers)} answers and {len(segmented_answers)} segmented_answers")
        vocabulary: dict[str, int] = {}
        marked = label(
            word_ids(segmented, vocabulary), word_ids(segmented_answers, vocabulary), options.threshold, options.match
        )
    flags = iter(marked.tolist())
    return [[next(flags) for _ in document.paragraphs] for document in row.documents]


def shard_path(work: Path, number: int) -> Path:
    return work / f"{number:06d}"


def build_shard(block: Block, options: Options, work: Path) -> int:
    """Label, cut and number the rows of ``block``; write its shard under ``work``. Returns the number of rows.

    Raises :class:`InputError` naming file and line for a row that is wrong.
    """
    questions: dict[str, list[object]] = {name: [] for name in QUESTIONS.names}
    passages: dict[str, list[object]] = {name: [] for name in PASSAGES.names}
    positives: dict[str, list[object]] = {name: [] for name in POSITIVES.names}
    seen: set[str] = set()
    split = block.source.split
    for number, (line, row) in enumerate(parse_rows(block)):
        try:
            labels = label_paragraphs(row, options)
        except ValueError as error:
            raise InputError(str(error), path=block.source.shown, line=line) from None
        query_id, blank = text_id(row.question), 0
        for document, marks in zip(row.documents, labels, strict=True):
            for text, positive in join_paragraphs(document.paragraphs, marks, options.min_chars):
                if not text.strip():
                    blank += 1
                    continue
                docid = text_id(text)
                if docid not in seen:
                    seen.add(docid)
                    _append(passages, seq=_seq(block, len(passages["seq"])), docid=docid, text=text)
                if positive:
                    _append(
                        positives,
                        seq=_seq(block, len(positives["seq"])),
                        split=split,
                        query_id=query_id,
                        docid=docid,
                        text=text,
                    )
        _append(
            questions,
            seq=_seq(block, number),
            split=split,
            question_id=str(row.question_id),
            query_id=query_id,
            text=row.question,
            answered=bool(row.answers),
            blank_passages=blank,
            cut=needs_cutting(row, options),
            source=block.source.shown,
            line=line,
        )
    final = shard_path(work, block.number)
    half = work / f"{final.name}.half"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    for name, schema, columns in (
        ("questions", QUESTIONS, questions),
        ("passages", PASSAGES, passages),
        ("positives", POSITIVES, positives),
    ):
        pq.write_table(pa.Table.from_pydict(columns, schema), half / f"{name}.parquet", compression="lz4")
    os.rename(half, final)
    return len(questions["seq"])


def _append(columns: dict[str, list[object]], **values: object) -> None:
    for name, value in values.items():
        columns[name].append(value)


def _seq(block: Block, place: int) -> int:
    return (block.number << 32) + place
