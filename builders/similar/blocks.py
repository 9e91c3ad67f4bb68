"""Training pairs compared block by block, on several processes: what each row has of the benchmark."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from builders.common.files import write_bytes
from builders.common.jobs import in_order, process_pool
from builders.common.temporary import temporary_folder
from builders.common.typed import read_json
from builders.similar.likeness import Like, LikeTexts
from builders.similar.pairs import Pair
from builders.store.layout import text_id

_ROWS = 1_024  # a block


class Known(msgspec.Struct):
    """What training pairs are compared with, and how; every worker reads it once.

    Attributes:
        questions, passages: the benchmark's texts by id.
        scores: by id of a training question, the questions that a model finds it similar to, with their scores.
        by, ngram, jaccard: see :class:`builders.similar.likeness.LikeTexts`.
    """

    questions: dict[str, str]
    passages: dict[str, str]
    scores: dict[str, list[tuple[str, float]]]
    by: list[str]
    ngram: int
    jaccard: float


class Hit(NamedTuple):
    """A row that has something of the benchmark: its line; its texts, and what each is like."""

    line: int
    questions: list[tuple[str, Like]]
    passages: list[tuple[str, Like]]


class Compared(NamedTuple):
    """A block: its rows, its questions, its passages, and the rows that have something."""

    rows: int
    questions: int
    passages: int
    hits: list[Hit]


@contextlib.contextmanager
def comparing(known: Known, workers: int) -> Iterator[Callable[[Iterable[Pair]], Iterator[Compared]]]:
    """A function that compares pairs, in their order, on ``workers`` processes."""
    with temporary_folder() as folder, process_pool(workers) as pool:
        file = folder / "known.json"
        write_bytes(file, msgspec.json.encode(known))
        compare = functools.partial(_compare, file)
        yield lambda pairs: in_order(pool, compare, _blocks(pairs), 2 * workers)
        _open.cache_clear()


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    rows = iter(pairs)
    while block := list(itertools.islice(rows, _ROWS)):
        yield block


class _Index(NamedTuple):
    questions: LikeTexts
    passages: LikeTexts
    scores: dict[str, list[tuple[str, float]]]


@functools.lru_cache(maxsize=1)
def _open(file: Path) -> _Index:
    known = read_json(file, Known, any_file=True)  # this build wrote it
    settings = known.by, known.ngram, known.jaccard
    return _Index(LikeTexts(known.questions, *settings), LikeTexts(known.passages, *settings), known.scores)


def _compare(file: Path, block: list[Pair]) -> Compared:
    index = _open(file)
    questions = [text for pair in block for text in pair.questions]
    passages = [text for pair in block for text in pair.passages]
    asked = zip(questions, index.questions.find(questions), strict=True)
    given = zip(passages, index.passages.find(passages), strict=True)
    hits = []
    for pair in block:
        mine = [
            (text, like)
            for text, likes in itertools.islice(asked, len(pair.questions))
            for like in _with_scores(text, likes, index.scores)
        ]
        theirs = [(text, like) for text, likes in itertools.islice(given, len(pair.passages)) for like in likes]
        if mine or theirs:
            hits.append(Hit(pair.line, mine, theirs))
    return Compared(len(block), len(questions), len(passages), hits)


def _with_scores(question: str, likes: list[Like], scores: dict[str, list[tuple[str, float]]]) -> list[Like]:
    """What a question is like, by the model, too."""
    if not scores:
        return likes
    known = {like.id for like in likes}
    found = scores.get(text_id(question), ())
    return [*likes, *(Like(each, "model", score) for each, score in found if each not in known)]
