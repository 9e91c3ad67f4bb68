"""Relevance judgments: from a release, a TREC qrels file, BEIR's TSV, or the official train.json and dev.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baselines.runs.lines import first_character, raw_lines, utf8
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
        for line, row in _official_rows(path):
            query, passages = _official_row(row, path, line)
            every.setdefault(query, {}).update(dict.fromkeys(passages, 1))
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
        try:
            score = int(fields[-1])
        except ValueError:
            shown = fields[-1].decode(errors="replace")
            raise InputError(f"expected a whole number as the score, found {shown!r}", path=path, line=number) from None
        yield utf8(fields[0], path, number), utf8(fields[-2], path, number), score


def _official_rows(path: Path) -> Iterator[tuple[int | None, Any]]:
    """(line, row) of the official JSON lines; the rows of a ``{"data": [...]}`` wrapper have no line of their own."""
    text = read_utf8(path)
    try:
        whole = json.loads(text)
    except ValueError:
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
                yield number, json.loads(line)
            except ValueError as error:
                raise InputError(f"expected one JSON object a line ({error})", path=path, line=number) from error


def _official_row(row: Any, path: Path, line: int | None) -> tuple[str, list[str]]:
    try:
        query, passages = row["question_id"], [paragraph["paragraph_id"] for paragraph in row["answer_paragraphs"]]
    except (TypeError, KeyError):
        query, passages = None, []
    if not isinstance(query, str) or not all(isinstance(passage, str) for passage in passages):
        raise InputError(
            "expected {question_id, question, answer_paragraphs: [{paragraph_id, ...}]} with ids as strings; found "
            + json.dumps(row, ensure_ascii=False)[:80],
            path=path,
            line=line,
        )
    return query, passages
