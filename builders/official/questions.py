"""The questions of the official archives with judgments and negatives: the splits train, dev and test.

- ``train.json``, ``dev.json`` and the test files say the questions, their order and which passages are positive.
- ``q2qid.dev.json`` and ``dev.q.format`` of the pre-processed release are held against the split. Where nothing else
  says its questions, they do.
- ``dual.train.tsv`` and ``cross.train.tsv`` say the questions of train and their judgments where there is no
  ``train.json``. Where both are given, ``train.json`` counts, and what the TSVs hold beyond it is counted. Their
  negatives become ``negative_passages``: each once, in order, without those that are positive for their question.

At the end, :func:`write_split` writes a split's queries, qrels, joined rows and figures of Table 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.errors import InputError
from builders.official.blocks import OfficialFile, Work
from builders.official.formats import BadLine, Id, Questions, parse_questions, text_column
from builders.official.numbered import Keys, Numbers, as_keys, hex_ids
from builders.sources.splits import split_of
from builders.store.layout import JOINED, QRELS, QUERIES
from builders.store.table3 import LengthCounter, table3_column


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
    if file.role == "ids":
        texts, keys = _read_ids(work, file)
    else:  # without ids, which are the MD5 of the texts
        texts = work.text_columns(file).texts["query"]
        keys = ids_in(work.texts.digests()[texts].tobytes())
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


Pairs = list[tuple[int, int]]  # numbers of a question's and a passage's text


def read_training(work: Work, files: list[OfficialFile], split: Split) -> None:
    """Take the files' rows into ``split``: the whole files before their excerpts (``demo``), dual before cross."""
    positives: list[npt.NDArray[np.int32]] = []
    negatives: list[npt.NDArray[np.int32]] = []
    for file in sorted(files, key=lambda file: (".demo." in file.name, file.role == "cross")):
        texts, labels, _ = work.text_columns(file)
        query = texts["query"]
        if file.role == "dual":
            positives.append(np.stack([query, texts["positive"]], axis=1))
            negatives.append(np.stack([query, texts["negative"]], axis=1))
        else:
            pairs = np.stack([query, texts["passage"]], axis=1)
            positives.append(pairs[labels == 1])
            negatives.append(pairs[labels == 0])
    _join(work, split, _distinct(positives), _distinct(negatives))


def _distinct(pairs: list[npt.NDArray[np.int32]]) -> Pairs:
    """Distinct pairs in the order in which they come first."""
    every = np.concatenate(pairs)
    first = np.unique(every, axis=0, return_index=True)[1]
    return [(query, passage) for query, passage in every[np.sort(first)].tolist()]


def _join(work: Work, split: Split, positives: Pairs, negatives: Pairs) -> None:
    digests = work.texts.digests()
    ids = [key.tobytes() for key in work.passages.ids_of(digests)]
    judged = split.labelled  # by train.json
    if not judged:
        for query, passage in positives:
            new = split.by_text.get(query) or split.add(digests[query].tobytes(), query)
            new.positives.append(Positive(ids[passage], passage))
        split.labelled = True
    # By question: what is positive, by train.json or by a TSV. Such a passage is never a negative.
    positive = [{each.text for each in question.positives} for question in split.questions]
    for query, passage in positives if judged else ():
        question = split.by_text.get(query)
        if question is not None and passage not in positive[question.row]:
            positive[question.row].add(passage)
            what = "positives of the TSVs that train.json does not judge (left out)"
            work.findings.add(what, 1, ids[passage].hex())
    for query, passage in negatives:
        question = split.by_text.get(query)
        if question is None:
            continue
        if passage in positive[question.row]:
            what = "negatives of the TSVs that are positives of their question (left out)"
            work.findings.add(what, 1, ids[passage].hex())
        else:
            question.negatives.append(passage)
    unknown = {query for query, _ in [*positives, *negatives] if query not in split.by_text}
    if unknown:
        whose = "train.json does not" if judged else "their positives do not"
        work.findings.add(f"questions of the TSVs that {whose} have (left out)", len(unknown))


_BATCH = 2_048


def write_split(work: Work, split: Split) -> None:
    """``queries``, ``qrels``, joined rows and Table 3's row of one split."""
    queries, joined = work.draft.writer("queries", split.name), work.draft.writer(split.name, split.name)
    if split.labelled:
        _write_qrels(work, split)
    ids = work.passages.ids_of(work.texts.digests())
    for start in range(0, len(split.questions), _BATCH):
        rows = _joined(work, split.questions[start : start + _BATCH], ids)
        queries.write(pa.table([rows["query_id"], rows["query"]], schema=QUERIES))
        joined.write(rows)
    work.draft.stats["table3"][split.name] = _table3(work, split)


def _joined(work: Work, questions: list[Question], ids: Keys) -> pa.Table:
    """The questions with their passages, as the configs train, dev and test have them; ``ids``: of texts, by number."""
    positives = [positive for question in questions for positive in question.positives]
    negatives = np.array([text for question in questions for text in question.negatives], np.int64)
    good = _passages([each.key.hex() for each in positives], work.texts.get(np.array([p.text for p in positives], int)))
    bad = _passages(hex_ids(ids[negatives]), work.texts.get(negatives))
    rows = [
        {
            "query_id": question.key.hex(),
            "query": text,
            "positive_passages": [next(good) for _ in question.positives],
            "negative_passages": [next(bad) for _ in question.negatives],
        }
        for question, text in zip(questions, work.texts.get(np.array([q.text for q in questions])), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=JOINED)


def _passages(ids: list[str], texts: list[str]) -> Iterator[dict[str, str]]:
    return ({"docid": key, "title": "", "text": text} for key, text in zip(ids, texts, strict=True))


def _write_qrels(work: Work, split: Split) -> None:
    """The judgments of passages that the collection holds; of all, where the archives hold no collection."""
    pairs = [(question.key, positive.key) for question in split.questions for positive in question.positives]
    if empty := sum(not question.positives for question in split.questions):
        work.findings.add(f"questions of {split.name} without a positive passage", empty)
    keys = as_keys(b"".join(key for _, key in pairs))
    held = work.passages.has(keys) if work.passages.given else np.ones(len(keys), np.bool_)
    what = f"judgments of {split.name} whose passage the collection lacks (left out of the qrels)"
    work.findings.add_ids(what, keys, ~held)
    rows = [
        {"query-id": query.hex(), "corpus-id": passage.hex(), "score": 1}
        for (query, passage), there in zip(pairs, held.tolist(), strict=True)
        if there
    ]
    work.draft.write("qrels", split.name, [pa.Table.from_pylist(rows, schema=QRELS)])


def _table3(work: Work, split: Split) -> dict[str, float | int | None]:
    """The split's column of Table 3. A passage counts once for every question that it is a positive of."""
    lengths, questions, passages = work.texts.lengths(), split.questions, LengthCounter()
    positives = [positive.text for question in questions for positive in question.positives]
    passages.add(lengths[np.array(positives, np.int64)])
    query_chars = int(lengths[[question.text for question in questions]].sum())
    return table3_column(len(questions), query_chars, len(positives), passages)
