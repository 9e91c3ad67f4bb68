"""Find development and test questions, and their positive passages, in anyone's training pairs."""

from __future__ import annotations

import argparse
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from builders.core.errors import InputError, log, visible
from builders.core.files import temporary_folder, write_bytes
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.tables import aligned
from builders.core.typed import read_json
from builders.similar.likeness import (
    HOW,
    Like,
    LikeTexts,
    options_of,
    read_scores,
    tested_splits,
    with_scores,
)
from builders.similar.pairs import Pair, names_of, read_pairs
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import QUERIES, text_id
from builders.store.reader import Release, open_release

_SMALL = 64 << 20  # bytes of pairs that are compared before worker processes have started
_ROWS = 1_024  # of pairs, in a block
_SHOWN = 60  # characters of an example

Report = Mapping[str, Any]
Answers = Mapping[str, Mapping[str, set[str]]]  # by split, by question's id: its positive passages' ids
Scores = dict[str, list[Like]]  # by training question's id: the questions that a model finds it similar to


class Known(msgspec.Struct):
    """The texts that training pairs are compared with, by id, and the ways; every worker reads them once."""

    questions: dict[str, str]
    passages: dict[str, str]
    scores: Scores
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


@dataclass
class Seen:
    """Matches found in some pairs.

    Attributes:
        known: the texts of the benchmark.
        most: of each kind and way, the first so many are examples.
        rows, texts: how much was compared.
        questions, positives: by id of what was found, the strongest way.
        together: the questions that stood in one row with one of their own positive passages.
    """

    known: Known
    most: int = 0
    rows: int = 0
    texts: dict[str, int] = field(default_factory=lambda: {"questions": 0, "passages": 0})
    questions: dict[str, str] = field(default_factory=dict)
    positives: dict[str, str] = field(default_factory=dict)
    together: set[str] = field(default_factory=set)
    examples: list[dict[str, Any]] = field(default_factory=list)
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, block: Compared, answers: Mapping[str, set[str]]) -> None:
        """Count what a block holds. ``answers``: by question's id, its positive passages."""
        self.rows += block.rows
        self.texts["questions"] += block.questions
        self.texts["passages"] += block.passages
        for hit in block.hits:
            for kind, best, found, texts in (
                ("question", self.questions, hit.questions, self.known.questions),
                ("positive", self.positives, hit.passages, self.known.passages),
            ):
                for text, (each, how, score) in found:
                    best[each] = min(how, best.get(each, how), key=HOW.index)
                    self.numbers[kind, how] += 1
                    if self.numbers[kind, how] <= self.most:
                        example = {"kind": kind, "how": how, "score": round(score, 4), "line": hit.line}
                        self.examples.append(example | {"id": each, "text": texts[each], "found": text})
            given = {like.id for _, like in hit.passages}
            self.together |= {like.id for _, like in hit.questions if given & answers.get(like.id, set())}

    def figures(self, asked: Mapping[str, Mapping[str, str]], answers: Answers) -> dict[str, Any]:
        """Numbers of matches by split: questions, their positive passages, and both together."""
        splits = {}
        for split, questions in asked.items():
            passages = {passage for found in answers[split].values() for passage in found}
            splits[split] = {
                "questions": _counts(questions.keys(), self.questions),
                "positives": _counts(passages, self.positives),
                "questions with a positive": {
                    "of": len(answers[split]),
                    "found": len(self.together & answers[split].keys()),
                },
            }
        return {"rows": self.rows, "texts": self.texts, "splits": splits}


def _counts(members: Iterable[str], found: Mapping[str, str]) -> dict[str, int]:
    ways = [found[each] for each in members if each in found]
    return {"of": len([*members]), "found": len(ways), **{how: ways.count(how) for how in HOW}}


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """The report of ``similar --against``: ``options``, a record a file, and ``all`` of them together."""
    release = open_release(args.release)
    splits = tested_splits(release, args.split)
    names = names_of(args.question, args.positive)
    options = options_of(args, splits)
    asked = {split: release.texts("queries", split) for split in splits}
    answers = {split: positives_of(release, split) for split in splits}
    positives = {each: passages for own in answers.values() for each, passages in own.items()}
    questions = {each: text for texts in asked.values() for each, text in texts.items()}
    wanted = {passage for own in answers.values() for passages in own.values() for passage in passages}
    passages = release.texts("corpus", "corpus", wanted)
    scores = read_scores(args.scores, args.threshold) if "model" in options["by"] else {}
    if lost := [like.id for likes in scores.values() for like in likes if like.id not in questions]:
        where = ", ".join(map(str, args.scores))
        raise InputError(f"scores {lost[0]}; expected a question of the splits to keep apart", path=where)
    workers = args.workers or (usable_cores() if sum(path.stat().st_size for path in args.against) > _SMALL else 1)
    known = Known(questions, passages, scores, options["by"], args.ngram, args.jaccard)
    together, files = Seen(known), []
    with temporary_folder() as folder, process_pool(workers) as pool:
        write_bytes(folder / "known.json", msgspec.json.encode(known))
        for path in args.against:
            blocks = _blocks(progress(read_pairs(path, names), unit="row", label=path.name))
            seen = Seen(known, args.examples)
            for block in in_order(pool, functools.partial(_compare, folder / "known.json"), blocks, 2 * workers):
                seen.add(block, positives)
                together.add(block, positives)
            if not seen.rows:
                raise InputError("has no rows; expected training pairs", path=path)
            files.append({"file": str(path), **seen.figures(asked, answers), "examples": seen.examples})
        _open.cache_clear()
    return {"options": options, "files": files, "all": together.figures(asked, answers)}


def _blocks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    rows = iter(pairs)
    while block := list(itertools.islice(rows, _ROWS)):
        yield block


def positives_of(release: Release, split: str) -> dict[str, set[str]]:
    """The positive passages' ids of a split's questions that have some; of an unlabelled split none."""
    judged = read_judged(release, "qrels", split)
    found = {query: {each for each, score in scores.items() if score > 0} for query, scores in judged.items()}
    return {query: passages for query, passages in found.items() if passages}


def write_questions(args: argparse.Namespace) -> None:
    """Write the questions of ``args.against`` as the training queries of a release, with the splits to keep apart.

    `python -m baselines match` compares them; ids are the MD5 of the text, as everywhere.
    """
    release = open_release(args.release)
    splits = tested_splits(release, args.split)
    names = names_of(args.question, args.positive)
    found: dict[str, str] = {}
    for path in args.against:
        found |= {text_id(text): text for pair in read_pairs(path, names) for text in pair.questions if text.strip()}
    sources = describe_files((path.name, path) for path in args.against)
    build = {"verb": "contamination", "options": {"splits": splits}, "sources": sources}
    with draft_release(args.questions, build) as draft:
        columns = [pa.array(list(values), pa.string()) for values in (found.keys(), found.values())]
        draft.write("queries", "train", [pa.table(columns, schema=QUERIES)])
        for split in splits:
            draft.write("queries", split, [release.table("queries", split)])
    log.info("%s: %d questions; `python -m baselines match` scores them", args.questions, len(found))


@functools.lru_cache(maxsize=1)
def _open(file: Path) -> tuple[LikeTexts, LikeTexts, Scores]:
    known = read_json(file, Known)  # this build wrote it
    settings = known.by, known.ngram, known.jaccard
    return LikeTexts(known.questions, *settings), LikeTexts(known.passages, *settings), known.scores


def _compare(file: Path, block: list[Pair]) -> Compared:
    known_questions, known_passages, scores = _open(file)
    questions = [text for pair in block for text in pair.questions]
    passages = [text for pair in block for text in pair.passages]
    asked = zip(questions, known_questions.find(questions), strict=True)
    given = zip(passages, known_passages.find(passages), strict=True)
    hits = []
    for pair in block:
        mine = [
            (text, like)
            for text, likes in itertools.islice(asked, len(pair.questions))
            for like in with_scores(likes, scores.get(text_id(text), ()) if scores else ())
        ]
        theirs = [(text, like) for text, likes in itertools.islice(given, len(pair.passages)) for like in likes]
        if mine or theirs:
            hits.append(Hit(pair.line, mine, theirs))
    return Compared(len(block), len(questions), len(passages), hits)


def as_text(report: Report) -> str:
    """Aligned text: a table a file, and one for all."""
    options, files = report["options"], [(part["file"], part) for part in report["files"]]
    settings = [f"{name} {options[name]}" for name in ("ngram", "jaccard", "threshold") if name in options]
    lines = [f"Compared with {' and '.join(options['splits'])}: {', '.join([*options['by'], *settings])}."]
    for title, part in [*files, ("All files", report["all"])] if len(files) > 1 else files:
        texts = part["texts"]
        size = f"{part['rows']:,} rows, {texts['questions']:,} questions, {texts['passages']:,} passages"
        lines += ["", f"{visible(title)}: {size}", *aligned([*_rows(part)], widths=(34, 11))]
        for each in part.get("examples", ()):
            place = f"{each['kind']}, {each['how']} ({each['score']:g}), line {each['line']:,}"
            lines.append(f"  {place}: {_cut(each['text'])} = {_cut(each['found'])}")
    return "\n".join(lines)


def _rows(part: Report) -> Iterator[list[str]]:
    yield ["", "of", "found", "share", *HOW]
    for split, kinds in part["splits"].items():
        for kind, found in kinds.items():
            share = f"{found['found'] / found['of']:.2%}" if found["of"] else "-"
            ways = [f"{found[how]:,}" if how in found else "" for how in HOW]
            yield [f"  {split}: {kind}", f"{found['of']:,}", f"{found['found']:,}", share, *ways]


def _cut(text: str) -> str:
    return visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
