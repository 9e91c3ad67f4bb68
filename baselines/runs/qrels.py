"""Relevance judgments: from a release, a TREC qrels file, BEIR's TSV, or the official train.json and dev.json."""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from baselines.runs.sets import judged_again, read_judgments
from builders.core.errors import InputError, log
from builders.core.files import expect_id, first_character, id_of, integer, raw_lines, read_whole
from builders.core.typed import json_of
from builders.store.layout import set_of
from builders.store.reader import Release

_HIGHEST = 1_000_000  # the library that measures makes room for every grade up to the highest
_BEIR_HEADER = [b"query-id", b"corpus-id", b"score"]


@dataclass
class Qrels:
    """The reference: ``positives`` maps a query's id to its positive passages and their grades (>= 1).

    Only queries with at least one positive are in it: nothing can be measured on the others, and a mean over them
    would only say how many there are. ``without`` counts those left out. ``negatives``: the passages of the same
    queries that were judged, and are no positive (a score of 0 or less); most benchmarks publish none.
    """

    name: str
    positives: dict[str, dict[str, int]] = field(default_factory=dict)
    negatives: dict[str, set[str]] = field(default_factory=dict)
    without: int = 0

    @property
    def pairs(self) -> int:
        """The number of positive (query, passage) pairs."""
        return sum(map(len, self.positives.values()))

    def judged(self) -> dict[str, dict[str, int]]:
        """Every judged passage of the reference's queries with its grade, 0 for a negative."""
        return {
            query: positive | dict.fromkeys(sorted(self.negatives.get(query, ())), 0)
            for query, positive in self.positives.items()
        }


def release_qrels(release: Release, split: str, name: str = "main", queries: str = "", qrels: str = "") -> Qrels:
    """The judgments of one split of a release's set. Raises :class:`InputError` where the split has no positive.

    ``queries``, ``qrels``: configs in the place of the set's (:func:`baselines.runs.sets.read_judgments`).
    """
    shown = f"{release.path} {split}" + f" of {name}" * (name != "main") + f" of {queries}" * bool(queries)
    shown += f" by {qrels}" * bool(qrels)
    return _positives(shown, read_judgments(release, set_of(name), split, queries, qrels))


def read_qrels(path: Path) -> Qrels:
    """Read a qrels file; what it is shows in its first character and line. Raises :class:`InputError` with the line.

    TREC: ``query-id 0 corpus-id score``. BEIR: a header line, then ``query-id corpus-id score``. Official: JSON lines
    ``{question_id, question, answer_paragraphs: [{paragraph_id, paragraph_text}]}`` or all of them in
    ``{"data": [...]}``. Rows of one question are united; a pair that TREC's or BEIR's lines judge twice is an error.
    """
    every: dict[str, dict[str, int]] = {}
    if first_character(path) in "{[":
        for row in _official(path):
            passages = (expect_id(each.paragraph_id, path) for each in row.answer_paragraphs)
            every.setdefault(expect_id(row.question_id, path), {}).update(dict.fromkeys(passages, 1))
    else:
        for number, query, corpus, score in _columns(path):
            scores = every.setdefault(query, {})
            if corpus in scores:
                raise InputError(judged_again(query, corpus, scores[corpus], score), path=path, line=number)
            scores[corpus] = score
    return _positives(str(path), every)


def _positives(name: str, every: dict[str, dict[str, int]]) -> Qrels:
    qrels = Qrels(name)
    for query, scores in every.items():
        if positive := {corpus: score for corpus, score in scores.items() if score > 0}:
            if max(positive.values()) > _HIGHEST:
                found = max(positive.values())
                raise InputError(f"query {query!r}: expected scores of at most {_HIGHEST:,}, found {found}", path=name)
            qrels.positives[query] = positive
            if negative := scores.keys() - positive.keys():
                qrels.negatives[query] = negative
        else:
            qrels.without += 1
    if not qrels.positives:
        raise InputError("has no query with a positive passage: there is nothing to measure against", path=name)
    if qrels.without:
        log.info("%s: %d queries without a positive passage are left out of every mean", name, qrels.without)
    return qrels


def _columns(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """(number of the line, query id, corpus id, score) of every line that is not blank."""
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
        yield number, id_of(fields[0], path, number), id_of(fields[-2], path, number), score


class _Paragraph(msgspec.Struct):
    paragraph_id: str


class _Question(msgspec.Struct):
    """What is read of a row of the official train.json and dev.json."""

    question_id: str
    answer_paragraphs: list[_Paragraph]


def _official(path: Path) -> Iterator[_Question]:
    """The rows of the official JSON lines, of a list of them, or of ``{"data": [...]}``."""
    expected = "expected {question_id, question, answer_paragraphs: [{paragraph_id, ...}]} with ids as strings"
    content = read_whole(path).removeprefix(codecs.BOM_UTF8)
    whole: Any = None
    with contextlib.suppress(ValueError, RecursionError):  # several lines, or a bad one: read where the line is known
        whole = msgspec.json.decode(content, type=dict[str, msgspec.Raw] | list[msgspec.Raw])
    if whole is None or "question_id" in whole:
        for number, line in raw_lines(path):
            if line.strip():
                yield json_of(line, _Question, path, number, expected)
    elif isinstance(whole, dict) and "data" not in whole:
        raise InputError('expected JSON lines with question_id, or {"data": [...]}', path=path)
    else:
        rows = bytes(whole["data"]) if isinstance(whole, dict) else content
        yield from json_of(rows, list[_Question], path, remedy=expected)
