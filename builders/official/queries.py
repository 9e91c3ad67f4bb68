"""Questions, judgments and hard negatives of the official archives: the splits train, dev and test.

``train.json``, ``dev.json`` and the test files say the questions, their order and which passages are positive. The
pre-processed release has no ``train.json``: there the rows of ``dual.train.tsv`` and ``cross.train.tsv`` say it. Where
both are given, ``train.json`` counts, and what the TSVs hold beyond it is counted and reported. The TSVs' negatives
become ``negative_passages``: each once, in order, without those that are positive for their question.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.common.command import InputError
from builders.official.blocks import parsed
from builders.official.corpus import HEAD, Corpus, File, Step, count_unusual, usual_columns
from builders.official.formats import BadLine, Id, Judgments, read_questions, read_tsv, text_column
from builders.official.style import sniff, sniff_lines
from builders.official.text_pool import TextPool, as_keys, hex_ids
from builders.sources.splits import split_of


class Split:
    """The questions of one split, each with its positive and negative passages.

    Attributes:
        ids: the questions' ids, 16 bytes each.
        texts: their numbers in the pool.
        positives: for each, pairs (passage id of 16 bytes, the text's number in the pool).
        negatives: for each, numbers in the pool.
        labelled: whether the split carries judgments.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ids: list[bytes] = []
        self.texts: list[int] = []
        self.positives: list[list[tuple[bytes, int]]] = []
        self.negatives: list[list[int]] = []
        self.by_id: dict[bytes, int] = {}
        self.by_text: dict[int, int] = {}
        self.labelled = False

    def add(self, key: bytes, text: int) -> int:
        """A new question; returns its row."""
        row = len(self.ids)
        self.ids.append(key)
        self.texts.append(text)
        self.positives.append([])
        self.negatives.append([])
        self.by_id[key] = row
        self.by_text.setdefault(text, row)
        return row


def read_json(step: Step, file: File, split: Split, pool: TextPool, corpus: Corpus) -> None:
    """Questions, and judgments where there are any, of a JSON file into ``split``."""
    head = file.member.read(HEAD)
    file.layout["style"] = sniff_lines(head, len(head) == file.member.size)
    labelled = file.role != "test"
    split.labelled |= labelled
    line = 0
    for block in parsed(file.member, read_questions, labelled, pool=step.pool, workers=step.workers):
        rows = _take_questions(step, file, split, pool, block, line)
        file.numbers.append(np.array(rows, np.int32))
        line += len(rows)
        if block.counts is not None:
            _take_judgments(step, split, pool, corpus, block, rows)
    file.layout["rows"] = line


def _take_questions(step: Step, file: File, split: Split, pool: TextPool, block: Judgments, line: int) -> list[int]:
    ids, digests = as_keys(block.questions.ids), as_keys(block.questions.column.digests)
    if (wrong := (ids != digests).any(axis=1)).any():
        step.findings.add(
            f"questions of {split.name} whose id is not the MD5 of their text", int(wrong.sum()), hex_ids(ids[wrong])[0]
        )
    rows = []
    for place, text in enumerate(pool.add(block.questions.column.texts, digests).tolist()):
        key = block.questions.ids[16 * place : 16 * place + 16]
        row = split.by_id.get(key)
        if row is None:
            row = split.add(key, text)
        elif split.texts[row] != text:
            raise InputError(
                f"question_id {key.hex()} has two texts; expected one text for one id",
                path=file.member.shown,
                line=line + place + 1,
            )
        else:
            step.findings.add(f"questions of {split.name} that came before")
        rows.append(row)
    return rows


def _take_judgments(
    step: Step, split: Split, pool: TextPool, corpus: Corpus, block: Judgments, rows: list[int]
) -> None:
    ids, digests = as_keys(block.passages.ids), as_keys(block.passages.column.digests)
    numbers = pool.add(block.passages.column.texts, digests).tolist()
    if (wrong := (ids != digests).any(axis=1)).any():
        step.findings.add(
            f"judged passages of {split.name} whose id is not the MD5 of their text",
            int(wrong.sum()),
            hex_ids(ids[wrong])[0],
        )
    if corpus.present:
        found = corpus.ids.find(ids)
        other = (found >= 0) & (corpus.texts(found, ids) != digests).any(axis=1)
        if other.any():
            step.findings.add(
                f"judged passages of {split.name} whose text is not the collection's under their id",
                int(other.sum()),
                hex_ids(ids[other])[0],
            )
    place = 0
    for row, count in zip(rows, block.counts or [], strict=True):
        for at in range(place, place + count):
            pair = (block.passages.ids[16 * at : 16 * at + 16], numbers[at])
            if pair in split.positives[row]:
                step.findings.add(f"judgments of {split.name} that came before")
            else:
                split.positives[row].append(pair)
        place += count


def read_ids(step: Step, file: File, split: Split, pool: TextPool) -> None:
    """``q2qid.dev.json`` ({question: id}) and ``dev.q.format``: held against the split, or its only questions."""
    known = bool(split.ids)
    if file.role == "ids":
        data = file.member.read()
        try:
            pairs = msgspec.json.decode(data, type=dict[str, Id])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(f"expected one JSON object {{question: id}} ({error})", path=file.member.shown) from None
        body = data.rstrip()
        style = sniff([body.decode()])
        file.layout["style"] = style and style | {"tail": data[len(body) :].decode()}
        try:
            column = text_column([text.encode() for text in pairs], "question")
        except BadLine as error:
            raise InputError(error.message, path=file.member.shown) from None
        numbers = pool.add(column.texts, as_keys(column.digests))
        keys = [bytes.fromhex(value) for value in pairs.values()]
        file.columns["id"] = pa.array(keys, pa.binary(16))
    else:
        chunks, key_chunks = [np.empty(0, np.int32)], []
        for (column,), _, unusual in parsed(
            file.member, read_tsv, "queries", usual_columns(file), pool=step.pool, workers=step.workers
        ):
            count_unusual(step, file, unusual)
            chunks.append(pool.add(column.texts, as_keys(column.digests)))
            key_chunks.append(column.digests)
        numbers, joined = np.concatenate(chunks), b"".join(key_chunks)
        keys = [joined[start : start + 16] for start in range(0, len(joined), 16)]
    file.columns["query"] = numbers
    file.layout["rows"] = len(numbers)
    for text, key in zip(numbers.tolist(), keys, strict=True):
        row = split.by_text.get(text)
        if row is None and known:
            step.findings.add(f"questions of {file.name} that the split {split.name} does not have", 1, key.hex())
        elif row is None:
            split.add(key, text)
        elif file.role == "ids" and split.ids[row] != key:
            step.findings.add(f"ids of {file.name} that are not those of the split {split.name}", 1, key.hex())


def read_pairs_files(step: Step, files: list[File], split: Split, pool: TextPool, corpus: Corpus) -> None:
    """The rows of ``dual.train.tsv`` and ``cross.train.tsv``: negatives, and judgments where there are no others."""
    known = split.labelled
    positives: list[npt.NDArray[np.int64]] = []
    negatives: list[npt.NDArray[np.int64]] = []
    for file in files:
        names = ("query", "positive", "negative") if file.role == "dual" else ("query", "passage")
        chunks: dict[str, list[Any]] = {name: [] for name in (*names, "label")}
        for columns, labels, unusual in parsed(
            file.member, read_tsv, file.role, usual_columns(file), pool=step.pool, workers=step.workers
        ):
            count_unusual(step, file, unusual)
            for name, column in zip(names, columns, strict=True):
                chunks[name].append(pool.add(column.texts, as_keys(column.digests)))
            if labels is not None:
                chunks["label"].append(np.array(labels, np.int8))
        file.columns = {name: np.concatenate(parts) for name, parts in chunks.items() if parts}
        query = file.columns["query"].astype(np.int64) << 32
        file.layout["rows"] = len(query)
        if file.role == "dual":
            positives.append(query | file.columns["positive"])
            negatives.append(query | file.columns["negative"])
        else:
            right = file.columns["label"] == 1
            positives.append((query | file.columns["passage"])[right])
            negatives.append((query | file.columns["passage"])[~right])
    _join(step, split, pool, corpus, _distinct(positives), _distinct(negatives), known)


def _distinct(pairs: list[npt.NDArray[np.int64]]) -> list[tuple[int, int]]:
    """Distinct (question, passage) pairs in the order in which they come first."""
    every = np.concatenate([np.empty(0, np.int64), *pairs])
    values, first = np.unique(every, return_index=True)
    values = values[np.argsort(first)]
    return list(zip((values >> 32).tolist(), (values & 0xFFFFFFFF).tolist(), strict=True))


def _join(
    step: Step,
    split: Split,
    pool: TextPool,
    corpus: Corpus,
    positives: list[tuple[int, int]],
    negatives: list[tuple[int, int]],
    known: bool,
) -> None:
    findings, digests = step.findings, pool.keys()
    ids = [key.tobytes() for key in corpus.id_of(digests)]
    judged = [{text for _, text in pairs} for pairs in split.positives]
    if not known:
        for query, passage in positives:
            row = split.by_text.get(query)
            if row is None:
                row = split.add(digests[query].tobytes(), query)
                judged.append(set())
            split.positives[row].append((ids[passage], passage))
            judged[row].add(passage)
        split.labelled = True
    also: dict[int, set[int]] = {}  # positive in a TSV alone: neither judged nor a negative
    unknown: set[int] = set()
    for query, passage in positives if known else ():
        row = split.by_text.get(query)
        if row is None:
            unknown.add(query)
        elif passage not in judged[row]:
            also.setdefault(row, set()).add(passage)
            findings.add("positives of the TSVs that train.json does not judge (left out)", 1, ids[passage].hex())
    for query, passage in negatives:
        row = split.by_text.get(query)
        if row is None:
            unknown.add(query)
        elif passage in judged[row] or passage in also.get(row, ()):
            findings.add("negatives of the TSVs that are positives of their question (left out)", 1, ids[passage].hex())
        else:
            split.negatives[row].append(passage)
    if unknown:
        what = "train.json" if known else "their positives"
        findings.add(
            f"questions of the TSVs that {what} do not have (left out)".replace("json do", "json does"), len(unknown)
        )


def split_name(file: File) -> str:
    """The split that a file belongs to."""
    found = split_of(file.name)
    assert found is not None  # the pattern of its role has it
    return found
