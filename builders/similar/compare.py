"""Compares training pairs with the development and test questions and their positive passages."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builders.common.command import InputError, progress
from builders.common.limits import usable_cores
from builders.similar.blocks import Compared, Hit, Known, comparing
from builders.similar.likeness import HOW, Like
from builders.similar.pairs import names_of, read_pairs
from builders.similar.questions import options_of, positives_of, tested_splits
from builders.similar.scores import read_scores
from builders.store.reader import Release, open_release

_SMALL = 64 << 20  # bytes of pairs that are compared before worker processes have started


@dataclass
class Benchmark:
    """What must not have been trained on.

    Attributes:
        questions, passages: texts by id.
        asked: by split, its questions' ids.
        answers: by split, by question's id, its positive passages' ids.
    """

    questions: dict[str, str] = field(default_factory=dict)
    passages: dict[str, str] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, dict[str, set[str]]] = field(default_factory=dict)


@dataclass
class Seen:
    """What was found in some pairs.

    Attributes:
        rows, texts: how much was compared.
        questions, positives: by id of what was found, the strongest way.
        together: the questions that stood in one row with one of their own positive passages.
    """

    rows: int = 0
    texts: dict[str, int] = field(default_factory=lambda: {"questions": 0, "passages": 0})
    questions: dict[str, str] = field(default_factory=dict)
    positives: dict[str, str] = field(default_factory=dict)
    together: set[str] = field(default_factory=set)

    def add(self, other: Seen) -> None:
        """Take in what was found in another file."""
        self.rows += other.rows
        for kind, number in other.texts.items():
            self.texts[kind] += number
        _strongest(self.questions, other.questions.items())
        _strongest(self.positives, other.positives.items())
        self.together |= other.together


def _strongest(mine: dict[str, str], found: Iterable[tuple[str, str]]) -> None:
    for each, how in found:
        mine[each] = min(how, mine.get(each, how), key=HOW.index)


def open_benchmark(release: Release, splits: list[str]) -> Benchmark:
    """The questions of some splits and their positive passages."""
    found = Benchmark()
    for split in splits:
        texts = release.texts("queries", split)
        found.questions |= texts
        found.asked[split], found.answers[split] = list(texts), positives_of(release, split)
    wanted = {passage for answers in found.answers.values() for passages in answers.values() for passage in passages}
    found.passages = release.texts("corpus", "corpus", wanted)
    return found


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """The report of the verb ``contamination``: ``options``, a record a file, and ``all`` of them together."""
    release = open_release(args.release)
    splits = tested_splits(release, args.split)
    names = names_of(args.question, args.positive)
    options = options_of(args, splits)
    benchmark = open_benchmark(release, splits)
    known = Known(
        benchmark.questions, benchmark.passages, _scores(args, benchmark), options["by"], args.ngram, args.jaccard
    )
    size = sum(path.stat().st_size for path in args.pairs)
    together, files = Seen(), []
    with comparing(known, args.workers or (usable_cores() if size > _SMALL else 1)) as compared:
        for path in args.pairs:
            pairs = progress(read_pairs(path, names), unit="row", label=path.name)
            seen, examples = _seen(path, compared(pairs), benchmark, args.examples)
            together.add(seen)
            files.append({"file": str(path), **_figures(seen, benchmark), "examples": examples})
    return {"options": options, "files": files, "all": _figures(together, benchmark)}


def _scores(args: argparse.Namespace, benchmark: Benchmark) -> dict[str, list[tuple[str, float]]]:
    if "model" not in args.by or not args.scores:
        return {}
    scores = read_scores(args.scores, args.threshold)
    for each in (like.id for likes in scores.values() for like in likes):
        if each not in benchmark.questions:
            where = ", ".join(map(str, args.scores))
            raise InputError(f"scores {each}; expected a question of the splits to keep apart", path=where)
    return {trained: [(like.id, like.score) for like in likes] for trained, likes in scores.items()}


def _seen(path: Path, blocks: Iterable[Compared], benchmark: Benchmark, most: int) -> tuple[Seen, list[dict[str, Any]]]:
    """What a file has of the benchmark, and at most so many examples of each kind and way, the first ones."""
    seen, examples = Seen(), list[dict[str, Any]]()
    kinds: dict[tuple[str, str], int] = {}
    answers = {each: passages for split in benchmark.answers.values() for each, passages in split.items()}

    def note(hit: Hit, kind: str, found: list[tuple[str, Like]], texts: Mapping[str, str]) -> None:
        for text, like in found:
            kinds[kind, like.how] = number = kinds.get((kind, like.how), 0) + 1
            if number <= most:
                example = {"kind": kind, "how": like.how, "score": round(like.score, 4), "line": hit.line}
                examples.append(example | {"id": like.id, "text": texts[like.id], "found": text})

    for block in blocks:
        seen.rows += block.rows
        seen.texts["questions"] += block.questions
        seen.texts["passages"] += block.passages
        for hit in block.hits:
            _strongest(seen.questions, ((like.id, like.how) for _, like in hit.questions))
            _strongest(seen.positives, ((like.id, like.how) for _, like in hit.passages))
            given = {like.id for _, like in hit.passages}
            seen.together |= {like.id for _, like in hit.questions if given & answers.get(like.id, set())}
            note(hit, "question", hit.questions, benchmark.questions)
            note(hit, "positive", hit.passages, benchmark.passages)
    if not seen.rows:
        raise InputError("has no rows; expected training pairs", path=path)
    return seen, examples


def _figures(seen: Seen, benchmark: Benchmark) -> dict[str, Any]:
    """How much was found, by split: of the questions, of their positive passages, and of both together."""
    splits = {}
    for split, asked in benchmark.asked.items():
        answers = benchmark.answers[split]
        passages = {passage for found in answers.values() for passage in found}
        splits[split] = {
            "questions": _counts(set(asked), seen.questions),
            "positives": _counts(passages, seen.positives),
            "questions with a positive": {"of": len(answers), "found": len(seen.together & set(answers))},
        }
    return {"rows": seen.rows, "texts": seen.texts, "splits": splits}


def _counts(members: set[str], found: Mapping[str, str]) -> dict[str, int]:
    by = dict.fromkeys(HOW, 0)
    for each in members & found.keys():
        by[found[each]] += 1
    return {"of": len(members), "found": sum(by.values()), **by}
