"""A pool: the pairs of query and passage that people judge, as JSON lines."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from builders.core.errors import InputError
from builders.core.files import atomic_text, expect_id, raw_lines
from builders.core.typed import json_of

Rank = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class Pooled(msgspec.Struct, frozen=True, rename={"query_id": "query-id", "corpus_id": "corpus-id"}):
    """One pair of a pool.

    Attributes:
        rank, score: among its query's passages, by the ensemble: from 1; the mean of the re-rankers' scores.
        runs: the rank in each run that has the passage, by the run's name; empty where none of them has.
        judged: its score in the release's qrels; None: nobody has judged it.
    """

    query_id: str
    corpus_id: str
    rank: Rank
    score: float
    runs: dict[str, Rank]
    judged: int | None

    def __post_init__(self) -> None:
        if not math.isfinite(self.score):
            raise ValueError("score: expected a finite number")


def write_pool(path: Path, pairs: Iterable[Pooled]) -> int:
    """Write a pool, whole or not at all, gzipped where ``path`` ends in ``.gz``; returns the number of pairs."""
    count = 0
    with atomic_text(path) as file:
        for pair in pairs:
            file.write(f"{msgspec.json.encode(pair).decode()}\n")
            count += 1
    return count


def read_pool(path: Path) -> list[Pooled]:
    """The pairs of a pool, each once, in the file's order. Raises :class:`InputError` with the line."""
    found: dict[tuple[str, str], Pooled] = {}
    for number, line in raw_lines(path):
        if not line.strip():
            continue
        pair = json_of(line, Pooled, path, number)
        key = expect_id(pair.query_id, path, number), expect_id(pair.corpus_id, path, number)
        if key in found:
            raise InputError(f"the pair {key[0]} {key[1]} comes again; expected each once", path=path, line=number)
        found[key] = pair
    if not found:
        raise InputError("is empty; expected a pool, JSON lines as `pool select` writes them", path=path)
    return list(found.values())
