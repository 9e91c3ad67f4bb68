"""Find the development and test questions and their positive passages in other training pairs."""

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from builders.core.errors import InputError, log, visible
from builders.core.files import reading, temporary_folder, write_bytes
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.results import Report, Table
from builders.core.tables import aligned
from builders.core.typed import read_json
from builders.similar.pairs import Names, Pair, read_pairs
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import QUERIES, text_id
from builders.store.reader import Release
from builders.text.likeness import Like, LikeTexts, Scores, Tested, with_scores
from builders.text.ngram_options import HOW

_SMALL = 64 << 20  # with fewer bytes of pairs, worker processes cost more time than they save
_ROWS = 1_024  # rows of a block
_EXAMPLES = 3  # examples from a file, for each kind of text and each way to match
_SHOWN = 60  # characters of an example

Answers = dict[str, dict[str, set[str]]]  # split -> question's id -> ids of its positive passages


class Known(msgspec.Struct):
    """The input of a worker: the benchmark's questions and passages, a model's scores, and settings.

    ``texts`` maps a kind (question or positive) to texts (id -> text). ``answers`` maps a question's id to the ids of
    its positive passages. ``settings`` are arguments of :class:`LikeTexts`.
    """

    texts: dict[str, dict[str, str]]
    answers: dict[str, set[str]]
    scores: Scores
    settings: tuple[list[str], int, float]


class Match(NamedTuple):
    """A text of a row, which matches a text of the benchmark. ``kind`` is question or positive."""

    kind: str
    line: int
    text: str
    like: Like


class Block(NamedTuple):
    """The result for a block of rows: the number of rows and texts, and the matches.

    ``together`` has the questions that share a row with one of their positive passages.
    """

    rows: int
    questions: int
    passages: int
    matches: list[Match]
    together: set[str]


class Seen:
    """Matches in training pairs: the strongest way to match each text of the benchmark, examples, and counts."""

    def __init__(self) -> None:
        self.rows, self.texts = 0, {"questions": 0, "passages": 0}
        self.ways: dict[str, dict[str, str]] = {"question": {}, "positive": {}}
        self.together: set[str] = set()
        self.examples: list[dict[str, Any]] = []
        self._numbers: Counter[tuple[str, str]] = Counter()

    def add(self, block: Block, known: Known) -> None:
        """Add the matches, examples and counts of a block."""
        self.rows += block.rows
        self.texts["questions"] += block.questions
        self.texts["passages"] += block.passages
        self.together |= block.together
        for kind, line, text, (each, how, score) in block.matches:
            best = self.ways[kind]
            best[each] = min(how, best.get(each, how), key=HOW.index)
            self._numbers[kind, how] += 1
            if self._numbers[kind, how] <= _EXAMPLES:
                example = {"kind": kind, "how": how, "score": round(score, 4), "line": line, "id": each}
                self.examples.append(example | {"text": known.texts[kind][each], "found": text})

    def figures(self, asked: Mapping[str, Collection[str]], answers: Answers) -> dict[str, Any]:
        """Count matching questions and passages of each split, and questions that share a row with their positive."""
        splits = {
            split: {
                "questions": _counts(questions, self.ways["question"]),
                "positives": _counts(set().union(*own.values()), self.ways["positive"]),
                "questions with a positive": {"of": len(own), "found": len(self.together & own.keys())},
            }
            for (split, questions), own in zip(asked.items(), answers.values(), strict=True)
        }
        return {"rows": self.rows, "texts": self.texts, "splits": splits}


def _counts(members: Collection[str], found: Mapping[str, str]) -> dict[str, int]:
    ways = [found[each] for each in members if each in found]
    return {"of": len(members), "found": len(ways), **{how: ways.count(how) for how in HOW}}


def compare_pairs(
    tested: Tested, pair_paths: Sequence[Path], names: Names, workers: int | None = None
) -> dict[str, Any]:
    """Search training pairs for the benchmark's questions and positive passages.

    Return the report of ``similar --against``: ``options``, ``files`` (a record for each file), ``all`` (totals).

    Args:
        tested: the benchmark's questions and the rule of the comparison.
        pair_paths: files of training pairs.
        names: keys or columns with questions and passages.
        workers: worker processes (default: all cores, or 1 for few pairs).
    """
    answers: Answers = {split: _positives(tested.release, split) for split in tested.asked}
    positives_of: dict[str, set[str]] = {}
    for positives in answers.values():
        positives_of |= positives
    passages = tested.release.texts("corpus", "corpus", set().union(*positives_of.values()))
    settings = tested.rule.active_ways, tested.rule.ngram, tested.rule.jaccard
    known = Known({"question": tested.questions(), "positive": passages}, positives_of, tested.scores, settings)
    if workers is None:
        is_large = sum(map(_size_of, pair_paths)) > _SMALL
        workers = usable_cores() if is_large else 1
    every, files = Seen(), []
    with temporary_folder() as folder, process_pool(workers) as pool:
        write_bytes(folder / "known.json", msgspec.json.encode(known))
        for path in pair_paths:
            rows = iter(progress(read_pairs(path, names), unit="row", label=path.name))
            blocks = iter(lambda rows=rows: list(itertools.islice(rows, _ROWS)), [])  # type: ignore[misc]
            seen = Seen()
            for block in in_order(pool, functools.partial(_compare, folder / "known.json"), blocks, 2 * workers):
                seen.add(block, known)
                every.add(block, known)
            if not seen.rows:
                raise InputError("has no rows; expected training pairs", path=path)
            files.append({"file": str(path), **seen.figures(tested.asked, answers), "examples": seen.examples})
        _open.cache_clear()
    return {"options": tested.options, "files": files, "all": every.figures(tested.asked, answers)}


def _positives(release: Release, split: str) -> dict[str, set[str]]:
    """Return question's id -> ids of its positive passages, for the questions of a split that have any."""
    positives: dict[str, set[str]] = {}
    for query_id, scores in read_judged(release, "qrels", split).items():
        passage_ids = {passage_id for passage_id, score in scores.items() if score > 0}
        if passage_ids:
            positives[query_id] = passage_ids
    return positives


def _size_of(path: Path) -> int:
    with reading(path):
        return path.stat().st_size


@functools.lru_cache(maxsize=1)
def _open(file: Path) -> tuple[Known, dict[str, LikeTexts]]:
    known = read_json(file, Known)
    return known, {kind: LikeTexts(texts, *known.settings) for kind, texts in known.texts.items()}


def _compare(file: Path, block: list[Pair]) -> Block:
    known, indexes = _open(file)
    questions = [(pair.line, text) for pair in block for text in pair.questions]
    passages = [(pair.line, text) for pair in block for text in pair.passages]
    matches = []
    for kind, rows in (("question", questions), ("positive", passages)):
        for (line, text), likes in zip(rows, indexes[kind].find([text for _, text in rows]), strict=True):
            scored = known.scores.get(text_id(text), ()) if known.scores and kind == "question" else ()
            matches += [Match(kind, line, text, like) for like in with_scores(likes, scored)]
    given = {(match.line, match.like.id) for match in matches if match.kind == "positive"}
    together = {
        match.like.id
        for match in matches
        if match.kind == "question" and any((match.line, p) in given for p in known.answers.get(match.like.id, ()))
    }
    matches.sort(key=lambda match: match.line)
    return Block(len(block), len(questions), len(passages), matches, together)


def write_pair_questions(tested: Tested, pair_paths: Sequence[Path], names: Names, out: Path) -> None:
    """Write a release with the questions of training pairs as queries of train, and the compared questions.

    `python -m baselines match` reads this release. The ids are the MD5 of the text.
    """
    questions: dict[str, str] = {}
    for path in pair_paths:
        for pair in read_pairs(path, names):
            questions |= {text_id(text): text for text in pair.questions if text.strip()}
    sources = describe_files((path.name, path) for path in pair_paths)
    build = {"verb": "contamination", "options": {"splits": list(tested.asked)}, "sources": sources}
    with draft_release(out, build) as draft:
        draft.write("queries", "train", [pa.table([[*questions], [*questions.values()]], schema=QUERIES)])
        for split in tested.asked:
            draft.write("queries", split, [tested.release.table("queries", split)])
    log.info("%s: %d questions; score them with `python -m baselines match`", out, len(questions))


def contamination_report(value: Mapping[str, Any]) -> Report:
    """Return the result of :func:`compare_pairs` as a report with a row for each file, split and kind of text."""
    rows = []
    for part in [*value["files"], {"file": "All files", **value["all"]}]:
        for split, kinds in part["splits"].items():
            for kind, counts in kinds.items():
                share = counts["found"] / counts["of"] if counts["of"] else None
                numbers = [counts["of"], counts["found"], share, *(counts.get(way) for way in HOW)]
                rows.append([part["file"], split, kind, *numbers])
    columns = ("file", "split", "text", "of", "found", "share", *HOW)
    table = Table(columns, rows, percent_columns=("share",), text_columns=3)
    return Report(value, lambda: as_text(value), [table])


def as_text(report: Mapping[str, Any]) -> str:
    """Return the report as aligned text: a table for each file, and a table for all files."""
    options, parts = report["options"], [*report["files"], {"file": "All files", **report["all"]}]
    settings = [f"{name} {options[name]}" for name in ("ngram", "jaccard", "threshold") if name in options]
    lines = [f"Compared with {' and '.join(options['splits'])}: {', '.join([*options['by'], *settings])}."]
    for part in parts if len(parts) > 2 else parts[:1]:
        size = ", ".join(f"{number:,} {name}" for name, number in {"rows": part["rows"], **part["texts"]}.items())
        lines += ["", f"{visible(part['file'])}: {size}", *aligned([*_rows(part)], widths=(34, 11))]
        for each in part.get("examples", ()):
            place = f"{each['kind']}, {each['how']} ({each['score']:g}), line {each['line']:,}"
            texts = (text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..." for text in (each["text"], each["found"]))
            lines.append(f"  {place}: {visible(' = '.join(texts))}")
    return "\n".join(lines)


def _rows(part: Mapping[str, Any]) -> Iterator[list[str]]:
    yield ["", "of", "found", "share", *HOW]
    for split, kinds in part["splits"].items():
        for kind, found in kinds.items():
            share = f"{found['found'] / found['of']:.2%}" if found["of"] else "-"
            ways = [f"{found[how]:,}" if how in found else "" for how in HOW]
            yield [f"  {split}: {kind}", f"{found['of']:,}", f"{found['found']:,}", share, *ways]
