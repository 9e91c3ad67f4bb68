"""Run files: TREC runs in and out, the official JSON of predictions in.

A TREC run has one line per hit, ``query-id Q0 corpus-id rank score tag``: ranks from 1, scores never increasing, ties
broken by corpus id; gzipped where the name ends in ``.gz``. The official predictions are one JSON object
``{query id: [passage ids, best first]}``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.files import atomic_text, expect_id, first_character, id_of, integer, raw_lines, read_whole, shown
from builders.core.typed import json_of
from builders.store.columns import Columns
from builders.store.columns import Hit as Hit
from builders.store.run_table import read_plain


class Run:
    """What was retrieved: by dictionaries, or as columns, of which dictionaries are made when they are asked for."""

    def __init__(self, path: Path, hits: Mapping[str, list[Hit]] | Columns) -> None:
        self.path, self._hits = path, hits

    @functools.cached_property
    def hits(self) -> dict[str, list[Hit]]:
        """A query's hits, best first, by its id. A passage may stand there twice."""
        return self._hits.hits() if isinstance(self._hits, Columns) else dict(self._hits)

    @functools.cached_property
    def rankings(self) -> dict[str, list[str]]:
        """Corpus ids alone, best first, by query id."""
        if isinstance(self._hits, Columns):
            return self._hits.rankings()
        return {query: [hit[0] for hit in hits] for query, hits in self._hits.items()}


def write_run(path: Path, rankings: Iterable[tuple[str, Iterable[Hit]]], tag: str = "dureader_retrieval") -> int:
    """Write a TREC run of (query id, hits in any order) pairs; returns the number of lines.

    Hits are sorted here, so every run of the project is in the same order. Scores are printed with all their digits:
    two scores that differ stay different in the file. The file appears when it is whole.
    """
    lines = 0
    seen: set[str] = set()
    with atomic_text(path) as file:
        for query, hits in rankings:
            if query in seen:
                raise ValueError(f"query {query!r} comes twice")
            seen.add(query)
            ordered = sorted(((float(score), corpus) for corpus, score in hits), key=lambda hit: (-hit[0], hit[1]))
            for rank, (score, corpus) in enumerate(ordered, 1):
                if len(f"{query} {corpus}".split()) != 2 or not math.isfinite(score):
                    raise _unfit(path, query, corpus, score)
                file.write(f"{query} Q0 {corpus} {rank} {score!r} {tag}\n")
                lines += 1
    return lines


def write_columns(path: Path, parts: Iterable[Columns], tag: str = "dureader_retrieval") -> int:
    """:func:`write_run` of hits that are columns, and in order already: the same bytes, without an object a hit."""
    lines = 0
    seen: set[str] = set()
    with atomic_text(path) as file:
        for part in parts:
            if again := seen.intersection(part.queries):
                raise ValueError(f"query {min(again)!r} comes twice")
            seen.update(part.queries)
            if unfit := part.first_unfit():
                raise _unfit(path, *unfit)
            if not part.are_ordered():
                raise ValueError(f"the hits of queries {part.queries[0]!r} to {part.queries[-1]!r} are out of order")
            text = str(part.trec(tag), "utf-8")
            if path.suffix == ".gz":  # what gzip makes of them depends on the pieces that it is given
                file.writelines(text.splitlines(keepends=True))
            else:
                file.write(text)
            lines += len(part)
    return lines


def _unfit(path: Path, query: str, corpus: str, score: float) -> InputError:
    return InputError(
        f"cannot hold query {query!r}, passage {corpus!r}, score {score}: a TREC run needs ids without blanks and "
        "finite scores",
        path=path,
    )


def read_run(path: Path) -> Run:
    """Read a TREC run or the official JSON of predictions (told apart by the first character that is not blank).

    A TREC run is ordered by score, then by its rank column; predictions, which have no scores, get 1/rank.
    Raises :class:`InputError` naming file and line.
    """
    first = first_character(path)
    if first == "{":
        return Run(path, _read_predictions(path))
    if first in '["':
        raise InputError("expected a JSON object {query id: [passage ids]} or a TREC run", path=path)
    found = read_plain(path)
    if found is None:
        return Run(path, _read_trec(path))
    columns, contradicted = found
    _warn(path, contradicted)
    return Run(path, columns)


def first_line_with(path: Path, passage: str) -> int | None:
    """The line of a TREC run that has a passage first, from 1; None in predictions, which have no lines."""
    if first_character(path) == "{":
        return None
    return next((number for number, _, found, _, _ in _trec_lines(path) if found == passage), None)


def _trec_lines(path: Path) -> Iterator[tuple[int, str, str, int, float]]:
    """(number of the line, query id, corpus id, rank, score) of every line that is not blank."""
    for number, line in raw_lines(path):
        fields = line.split()  # bytes: ASCII blanks only, an id may hold any other character
        if not fields:
            continue
        if len(fields) != 6:
            raise InputError(
                f"expected 6 columns (query-id Q0 corpus-id rank score tag), found {len(fields)}",
                path=path,
                line=number,
            )
        query, corpus = id_of(fields[0], path, number), id_of(fields[2], path, number)
        yield number, query, corpus, integer(fields[3], "rank", path, number), _finite(fields[4], path, number)


def _read_trec(path: Path) -> dict[str, list[Hit]]:
    found: dict[str, list[tuple[float, int, str]]] = {}
    for _, query, corpus, rank, score in _trec_lines(path):
        found.setdefault(query, []).append((-score, rank, corpus))
    contradicted = 0
    for hits in found.values():
        hits.sort(key=lambda hit: hit[:2])
        contradicted += any(above[1] > below[1] for above, below in pairwise(hits))
    _warn(path, contradicted)
    return {query: [(corpus, -negated) for negated, _, corpus in hits] for query, hits in found.items()}


def _warn(path: Path, contradicted: int) -> None:
    if contradicted:
        log.warning("%s: the ranks of %d queries contradict the scores; ordered by score", path, contradicted)


def _finite(field: bytes, path: Path, line: int) -> float:
    try:
        score = float(field)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"expected a finite number as the score, found {shown(field)}", path=path, line=line)
    return score


def _read_predictions(path: Path) -> dict[str, list[Hit]]:
    data = read_whole(path)
    content = json_of(data, dict[str, Any], path)
    for query, passages in content.items():
        if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
            raise InputError(f"expected a list of passage ids (strings) for the query {query!r}", path=path)
        for each in (query, *passages):
            expect_id(each, path)
    if again := len(json.loads(data, object_pairs_hook=list)) - len(content):
        log.warning("%s: %d lists are of queries that came before; the last list counts", path, again)
    return {query: [(p, 1 / rank) for rank, p in enumerate(passages, 1)] for query, passages in content.items()}
