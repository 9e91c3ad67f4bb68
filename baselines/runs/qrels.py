"""Relevance judgments: from a release, a TREC qrels file, BEIR's TSV, or the official train.json and dev.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from baselines.runs.lines import first_character, integer, raw_lines, utf8
from baselines.runs.sets import read_judgments
from builders.common.command import InputError, log
from builders.common.files import read_utf8
from builders.store.layout import SETS
from builders.store.reader import Release

_BEIR_HEADER = [b"query-id", b"corpus-id", b"score"]


@dataclass
class Qrels:
    """The reference: ``positives`` maps a query's id to its positive passages and their grades (>= 1).

    Only queries with at least one positive are in it: nothing can be measured on the others, and a mean over them
    would only say how many there are. ``without`` counts those left out.
    """

    name: str
    positives: dict[str, dict[str, int]] = field(default_factory=dict)
    without: int = 0

    @property
    def pairs(self) -> int:
        """The number of positive (query, passage) pairs."""
        return sum(map(len, self.positives.values()))


def release_qrels(release: Release, split: str, name: str = "main") -> Qrels:
    """The judgments of one split of a release's set. Raises :class:`InputError` where the split has no positive."""
    return _positives(
        f"{release.path} {split}" + f" of {name}" * (name != "main"), read_judgments(release, SETS[name], split)
    )


def read_qrels(path: Path) -> Qrels:
    """Read a qrels file; what it is shows in its first character and line. Raises :class:`InputError` with the line.

    TREC: ``query-id 0 corpus-id score``. BEIR: a header line, then ``query-id corpus-id score``. Official: JSON lines
    ``{question_id, question, answer_paragraphs: [{paragraph_id, paragraph_text}]}`` or all of them in
    ``{"data": [...]}``.
    """
    every: dict[str, dict[str, int]] = {}
    if first_character(path) in "{[":
        for row in _official(path):
            passages = (each.paragraph_id for each in row.answer_paragraphs)
            every.setdefault(row.question_id, {}).update(dict.fromkeys(passages, 1))
    else:
        for query, corpus, score in _columns(path):
            every.setdefault(query, {})[corpus] = score
    return _positives(str(path), every)


def _positives(name: str, every: dict[str, dict[str, int]]) -> Qrels:
    qrels = Qrels(name)
    for query, scores in every.items():
        if positive := {corpus: score for corpus, score in scores.items() if score > 0}:
            qrels.positives[query] = positive
        else:
            qrels.without += 1
    if not qrels.positives:
        raise InputError("has no query with a positive passage: there is nothing to measure against", path=name)
    if qrels.without:
        log.info("%s: %d queries without a positive passage are left out of every mean", name, qrels.without)
    return qrels


def _columns(path: Path) -> Iterator[tuple[str, str, int]]:
    beir = False
    for number, line in raw_lines(path):
        fields = line.split()
        if not fields:
            continue
        if number == 1 and fields == _BEIR_HEADER:
            beir = True
            continue
        if len(fields) != (3 if beir else 4):
            expected = "3 columns (query-id corpus-id score)" if beir else "4 columns (query-id 0 corpus-id score)"
            raise InputError(f"expected {expected}, found {len(fields)}", path=path, line=number)
        score = integer(fields[-1], "score", path, number)
        yield utf8(fields[0], path, number), utf8(fields[-2], path, number), score


class _Paragraph(msgspec.Struct):
    paragraph_id: str


class _Question(msgspec.Struct):
    """What is read of a row of the official train.json and dev.json."""

    question_id: str
    answer_paragraphs: list[_Paragraph]


def _official(path: Path) -> Iterator[_Question]:
    for line, row in _official_rows(path):
        try:
            yield msgspec.convert(row, _Question)
        except msgspec.ValidationError as error:
            expected = "{question_id, question, answer_paragraphs: [{paragraph_id, ...}]} with ids as strings"
            raise InputError(f"expected {expected} ({error})", path=path, line=line) from None


def _official_rows(path: Path) -> Iterator[tuple[int | None, Any]]:
    """(line, row) of the official JSON lines; the rows of a ``{"data": [...]}`` wrapper have no line of their own."""
    text = read_utf8(path)
    try:
        whole = msgspec.json.decode(text)
    except msgspec.DecodeError:
        whole = None  # several lines, or a bad one: read below, where the line is known
    if isinstance(whole, list) or (isinstance(whole, dict) and "question_id" not in whole):
        rows = whole.get("data") if isinstance(whole, dict) else whole
        if not isinstance(rows, list):
            raise InputError('expected JSON lines with question_id, or {"data": [...]}', path=path)
        yield from ((None, row) for row in rows)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise InputError(f"expected one JSON object a line ({error})", path=path, line=number) from error
