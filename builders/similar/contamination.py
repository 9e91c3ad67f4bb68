"""Find development and test questions, and their positive passages, in anyone's training pairs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from builders.core.errors import InputError, log, visible
from builders.core.files import temporary_folder, write_bytes
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores
from builders.core.markdown import as_code, as_text
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.similar.likeness import HOW, Like, LikeTexts, options_of, read_scores, tested_splits
from builders.similar.pairs import Pair, names_of, read_pairs
from builders.store.draft import describe_files, draft_release
from builders.store.ids import text_id
from builders.store.judged import read_judged
from builders.store.layout import QUERIES
from builders.store.reader import Release, open_release

_SMALL = 64 << 20  # bytes of pairs that are compared before worker processes have started
_ROWS = 1_024  # of pairs, in a block
_SHOWN = 60  # characters of an example
_HEAD = ["", "of", "found", "share", *HOW]

Report = Mapping[str, Any]


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
    """The report of ``similar --against``: ``options``, a record a file, and ``all`` of them together."""
    release = open_release(args.release)
    splits = tested_splits(release, args.split)
    names = names_of(args.question, args.positive)
    options = options_of(args, splits)
    benchmark = open_benchmark(release, splits)
    known = Known(
        benchmark.questions, benchmark.passages, _scores(args, benchmark), options["by"], args.ngram, args.jaccard
    )
    size = sum(path.stat().st_size for path in args.against)
    together, files = Seen(), []
    with comparing(known, args.workers or (usable_cores() if size > _SMALL else 1)) as compared:
        for path in args.against:
            pairs = progress(read_pairs(path, names), unit="row", label=path.name)
            seen, examples = _seen(path, compared(pairs), benchmark, args.examples)
            together.add(seen)
            files.append({"file": str(path), **_found(seen, benchmark), "examples": examples})
    return {"options": options, "files": files, "all": _found(together, benchmark)}


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


def _found(seen: Seen, benchmark: Benchmark) -> dict[str, Any]:
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


class Known(msgspec.Struct):
    """What training pairs are compared with, and how; every worker reads it once.

    Attributes:
        questions, passages: the benchmark's texts by id.
        scores: by id of a training question, the questions that a model finds it similar to, with their scores.
        by, ngram, jaccard: see :class:`LikeTexts`.
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


def as_json(report: Report) -> str:
    """Everything, as one JSON object."""
    return json.dumps(report, ensure_ascii=False, indent=1)


def as_plain(report: Report) -> str:
    """Aligned text: a table a file, and one for all."""
    lines = [_compared(report), ""]
    for title, part in _parts(report):
        lines.append(f"{visible(title)}: {_size(part)}")
        for row in [_HEAD, *_rows(part)]:
            lines.append(f"  {row[0]:<32}" + "".join(f"{cell:>11}" for cell in row[1:]).rstrip())
        for example in part.get("examples", ()):
            lines.append(f"  {_place(example)}: {_cut(example['text'])} = {_cut(example['found'])}")
        lines.append("")
    return "\n".join(lines).rstrip()


def as_markdown(report: Report) -> str:
    """A page: a table a file with its examples, and one for all."""
    lines = ["# Contamination", "", _compared(report), ""]
    for title, part in _parts(report):
        lines += [f"## {as_text(title)}", "", f"{_size(part)}.", ""]
        lines += [f"| {' | '.join(_HEAD)} |", f"|---{'|---:' * (len(_HEAD) - 1)}|"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(part)]
        lines.append("")
        if examples := part.get("examples"):
            lines += ["| what | where | in the benchmark | in the pairs |", "|---|---|---|---|"]
            for each in examples:
                what = f"{each['kind']}, {each['how']} ({each['score']:g})"
                texts = f"{as_code(_cut(each['text']))} | {as_code(_cut(each['found']))}"
                lines.append(f"| {what} | line {each['line']:,} | {texts} |")
            lines.append("")
    return "\n".join(lines).rstrip()


FORMATS: dict[str, Callable[[Report], str]] = {"text": as_plain, "json": as_json, "markdown": as_markdown}


def _parts(report: Report) -> Iterator[tuple[str, Report]]:
    yield from ((part["file"], part) for part in report["files"])
    if len(report["files"]) > 1:
        yield "All files", report["all"]


def _compared(report: Report) -> str:
    options = report["options"]
    settings = [f"{name} {options[name]}" for name in ("ngram", "jaccard", "threshold") if name in options]
    return f"Compared with {' and '.join(options['splits'])}: {', '.join([*options['by'], *settings])}."


def _size(part: Report) -> str:
    return f"{part['rows']:,} rows, {part['texts']['questions']:,} questions, {part['texts']['passages']:,} passages"


def _rows(part: Report) -> Iterator[list[str]]:
    for split, kinds in part["splits"].items():
        for kind, found in kinds.items():
            share = f"{found['found'] / found['of']:.2%}" if found["of"] else "-"
            ways = [f"{found[how]:,}" if how in found else "" for how in HOW]
            yield [f"{split}: {kind}", f"{found['of']:,}", f"{found['found']:,}", share, *ways]


def _place(example: Report) -> str:
    return f"{example['kind']}, {example['how']} ({example['score']:g}), line {example['line']:,}"


def _cut(text: str) -> str:
    return visible(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
