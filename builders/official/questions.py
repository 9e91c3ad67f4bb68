"""The questions of the official archives with their judgments: the splits train, dev and test.

``train.json``, ``dev.json`` and the test files say the questions, their order and which passages are positive.
``q2qid.dev.json`` and ``dev.q.format`` of the pre-processed release are held against the split; where nothing else
says its questions, they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from builders.common.command import InputError
from builders.official.formats import BadLine, Id, Questions, parse_questions, text_column
from builders.official.numbered import Numbers, as_keys
from builders.official.work import OfficialFile, Work
from builders.sources.files import split_of


class Positive(NamedTuple):
    """A judged passage: its id, 16 bytes, and the number of its text."""

    key: bytes
    text: int


@dataclass
class Question:
    """A question: its row in its split, its id, 16 bytes, and the number of its text; ``negatives``: such numbers."""

    row: int
    key: bytes
    text: int
    positives: list[Positive] = field(default_factory=list)
    negatives: list[int] = field(default_factory=list)


class Split:
    """The questions of one split. ``labelled``: whether it carries judgments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.questions: list[Question] = []
        self.by_id: dict[bytes, Question] = {}
        self.by_text: dict[int, Question] = {}
        self.labelled = False

    def add(self, key: bytes, text: int) -> Question:
        """A new question. Where several have one text, :attr:`by_text` has the first."""
        question = Question(len(self.questions), key, text)
        self.questions.append(question)
        self.by_id[key] = question
        self.by_text.setdefault(text, question)
        return question


def ids_in(data: bytes) -> Iterator[bytes]:
    """The ids of 16 bytes that stand one after the other."""
    return (data[start : start + 16] for start in range(0, len(data), 16))


def read_questions(work: Work, file: OfficialFile, split: Split) -> None:
    """``train.json`` and ``dev.json``, with judgments, ``test1.json`` and ``test2.json``, without, into ``split``."""
    labelled = file.role != "test"
    work.head(file, parse_questions, labelled)
    split.labelled |= labelled
    for parsed in work.parsed(file, parse_questions, labelled):
        block: Questions = parsed.found
        lines = parsed.lines(len(block.questions.column.texts)).tolist()
        found = _take_questions(work, file, split, block, lines)
        file.rows = (file.rows or 0) + sum(question is not None for question in found)
        if block.counts is not None:
            _take_judgments(work, split, block, block.counts, found)


def _take_questions(
    work: Work, file: OfficialFile, split: Split, block: Questions, lines: list[int]
) -> list[Question | None]:
    """The questions of a block, which stand in these ``lines`` of the file; None for one that is left out."""
    ids, digests = as_keys(block.questions.ids), as_keys(block.questions.column.digests)
    what = f"questions of {split.name} whose id is not the MD5 of their text"
    work.findings.add_ids(what, ids, (ids != digests).any(axis=1))
    found: list[Question | None] = []
    texts = work.number_texts(block.questions.column).tolist()
    for line, key, text in zip(lines, ids_in(block.questions.ids), texts, strict=True):
        question = split.by_id.get(key)
        if question is None:
            question = split.add(key, text)
        elif question.text != text:
            work.skip(file, line, f"question_id {key.hex()} has two texts; expected one text for one id")
            question = None
        else:
            work.findings.add(f"questions of {split.name} that came before")
        found.append(question)
    return found


def _take_judgments(
    work: Work, split: Split, block: Questions, counts: list[int], questions: list[Question | None]
) -> None:
    """The positives of a block's questions, of which each has as many as ``counts`` says; None is left out."""
    ids, digests = as_keys(block.passages.ids), as_keys(block.passages.column.digests)
    what = f"judged passages of {split.name} whose id is not the MD5 of their text"
    work.findings.add_ids(what, ids, (ids != digests).any(axis=1))
    if work.passages.given:
        rows = work.passages.ids.find(ids)
        changed = (rows >= 0) & (work.passages.digests_of(rows, ids) != digests).any(axis=1)
        what = f"judged passages of {split.name} whose text is not the collection's under their id"
        work.findings.add_ids(what, ids, changed)
    texts = work.number_texts(block.passages.column).tolist()
    positives = map(Positive, ids_in(block.passages.ids), texts)
    for question, count in zip(questions, counts, strict=True):
        for _ in range(count):
            positive = next(positives)
            if question is None:
                continue
            if positive in question.positives:
                work.findings.add(f"judgments of {split.name} that came before")
            else:
                question.positives.append(positive)


def split_named(file: OfficialFile) -> str:
    """The split that the name of a ``q.format`` or ``q2qid`` file says."""
    found = split_of(file.name)
    assert found is not None  # the pattern of its role has it
    return found


def read_question_list(work: Work, file: OfficialFile, split: Split) -> None:
    """``q2qid.dev.json`` ({question: id}) or ``dev.q.format``: held against the split, or its only questions."""
    known = bool(split.questions)
    texts, keys = _read_ids(work, file) if file.role == "ids" else _read_queries(work, file)
    file.rows = len(texts)
    for text, key in zip(texts.tolist(), keys, strict=True):
        question = split.by_text.get(text)
        if question is None and known:
            what = f"questions of {file.name} that the split {split.name} does not have"
            work.findings.add(what, 1, key.hex())
        elif question is None:
            split.add(key, text)
        elif file.role == "ids" and question.key != key:
            work.findings.add(f"ids of {file.name} that are not those of the split {split.name}", 1, key.hex())


def _read_ids(work: Work, file: OfficialFile) -> tuple[Numbers, Iterator[bytes]]:
    """The numbers of the texts in ``q2qid.dev.json``, and their ids."""
    data = file.member.read()
    try:
        pairs = msgspec.json.decode(data, type=dict[str, Id])
        column = text_column([text.encode() for text in pairs], "question")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"expected one JSON object {{question: id}} ({error})", path=file.member.shown) from None
    except BadLine as error:
        raise InputError(error.message, path=file.member.shown) from None
    return work.number_texts(column), map(bytes.fromhex, pairs.values())


def _read_queries(work: Work, file: OfficialFile) -> tuple[Numbers, Iterator[bytes]]:
    """The numbers of the questions in ``dev.q.format``, and their ids: the MD5 of the texts."""
    numbers, ids = [np.empty(0, np.int32)], b""
    for block in work.tsv_blocks(file):
        numbers.append(work.number_texts(block.columns["query"]))
        ids += block.columns["query"].digests
    return np.concatenate(numbers), ids_in(ids)
