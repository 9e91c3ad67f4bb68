"""Find the development and test questions and their positive passages in other training pairs."""

import functools
import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from builders.core.errors import InputError, log, make_visible
from builders.core.jobs import in_order, process_pool
from builders.core.limits import usable_cores
from builders.core.locks import temporary_folder
from builders.core.progress import show_progress
from builders.core.read_files import convert_read_errors
from builders.core.results import Report, Table
from builders.core.tables import align_rows
from builders.core.typed import read_json
from builders.core.write_files import write_bytes
from builders.similar.pairs import Names, Pair, count_rows, read_pairs
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import QUERIES, text_id
from builders.store.reader import Release
from builders.text.likeness import LikeText, LikeTexts, Scores, TestedQuestions, with_scores
from builders.text.ngram_options import HOW

_SMALL = 64 << 20  # with fewer bytes of pairs, worker processes cost more time than they save
_ROWS = 1_024  # rows of a block
_BLOCKS_PER_WORKER = 2  # blocks that are read ahead for each worker process
_EXAMPLES = 3  # examples from a file, for each kind of text and each way to match
_SHOWN = 60  # characters of an example
_QUESTION = "question"
_POSITIVE = "positive"
_WIDTHS = (34, 11)  # characters of the report's first column, and of each further column

Answers = dict[str, dict[str, set[str]]]  # split -> question's id -> ids of its positive passages


class BenchmarkTexts(msgspec.Struct):
    """The input of a worker: the benchmark's questions and passages, a model's scores, and settings.

    ``texts`` maps a kind (question or positive) to texts (id -> text). ``answers`` maps a question's id to the ids of
    its positive passages. ``scores`` has a model's matches of the questions in training pairs, by the MD5 of their
    text. ``settings`` are arguments of :class:`LikeTexts`: the ways, the length of n-grams, the lowest similarity.
    """

    texts: dict[str, dict[str, str]]
    answers: dict[str, set[str]]
    scores: Scores
    settings: tuple[list[str], int, float]


class Match(NamedTuple):
    """A text of a row, which matches a text of the benchmark. ``text_kind`` is question or positive."""

    text_kind: str
    line: int  # number of the row in its file
    text: str  # of the row
    like: LikeText  # the benchmark's text


class BlockResult(NamedTuple):
    """The result for a block of rows: the number of rows and texts, and the matches.

    ``answered_ids`` has the questions that share a row with one of their positive passages.
    """

    row_count: int
    question_count: int
    passage_count: int
    matches: list[Match]
    answered_ids: set[str]


class MatchTotals:
    """Matches in training pairs: the strongest way to match each text of the benchmark, examples, and counts."""

    def __init__(self) -> None:
        self.rows = 0
        self.texts = {"questions": 0, "passages": 0}
        # Kind of text -> id of the benchmark's text -> way.
        self.strongest_ways: dict[str, dict[str, str]] = {_QUESTION: {}, _POSITIVE: {}}
        self.answered_ids: set[str] = set()
        self.examples: list[dict[str, Any]] = []
        self._match_counts: Counter[tuple[str, str]] = Counter()

    def add(self, block_result: BlockResult, benchmark: BenchmarkTexts) -> None:
        """Add the matches, examples and counts of a block. ``benchmark`` has the texts of the examples."""
        self.rows += block_result.row_count
        self.texts["questions"] += block_result.question_count
        self.texts["passages"] += block_result.passage_count
        self.answered_ids |= block_result.answered_ids
        for text_kind, line, text, like in block_result.matches:
            ways_by_id = self.strongest_ways[text_kind]
            earlier_way = ways_by_id.get(like.id, like.how)
            # HOW has the strongest way first.
            ways_by_id[like.id] = min(like.how, earlier_way, key=HOW.index)
            self._match_counts[text_kind, like.how] += 1
            if self._match_counts[text_kind, like.how] <= _EXAMPLES:
                self.examples.append(
                    {
                        "kind": text_kind,
                        "how": like.how,
                        "score": round(like.score, 4),
                        "line": line,
                        "id": like.id,
                        "text": benchmark.texts[text_kind][like.id],
                        "found": text,
                    }
                )

    def figures(self, texts_by_split: Mapping[str, Collection[str]], answers: Answers) -> dict[str, Any]:
        """Count matching questions and passages of each split, and questions that share a row with their positive.

        ``texts_by_split`` has the ids of the questions of each split. The result has ``rows`` and ``texts`` of the
        training pairs, and ``splits``: split -> kind of text -> counts.
        """
        split_figures = {}
        for split, question_ids in texts_by_split.items():
            passages_by_question = answers[split]
            positive_ids: set[str] = set().union(*passages_by_question.values())
            answered_count = len(self.answered_ids & passages_by_question.keys())
            split_figures[split] = {
                "questions": _count_ways(question_ids, self.strongest_ways[_QUESTION]),
                "positives": _count_ways(positive_ids, self.strongest_ways[_POSITIVE]),
                "questions with a positive": {"of": len(passages_by_question), "found": answered_count},
            }
        return {"rows": self.rows, "texts": self.texts, "splits": split_figures}


def _count_ways(text_ids: Collection[str], strongest_ways: Mapping[str, str]) -> dict[str, int]:
    """Return the number of texts ("of"), of matching texts ("found"), and of texts that match in each way."""
    ways = [strongest_ways[text_id] for text_id in text_ids if text_id in strongest_ways]
    counts = {"of": len(text_ids), "found": len(ways)}
    for way in HOW:
        counts[way] = ways.count(way)
    return counts


def compare_pairs(
    tested: TestedQuestions, pair_paths: Sequence[Path], names: Names, workers: int | None = None
) -> dict[str, Any]:
    """Search training pairs for the benchmark's questions and positive passages.

    Return the report of ``similar --against``: ``options``, ``files`` (a record for each file), ``all`` (totals).

    Args:
        tested: the benchmark's questions and the rule of the comparison.
        pair_paths: files of training pairs.
        names: keys or columns with questions and passages.
        workers: worker processes (default: all cores, or 1 for few pairs).
    """
    # The texts of the benchmark.
    answers: Answers = {split: _positives(tested.release, split) for split in tested.texts_by_split}
    positives_by_question: dict[str, set[str]] = {}
    for split_positives in answers.values():
        positives_by_question |= split_positives
    positive_ids: set[str] = set().union(*positives_by_question.values())
    passages = tested.release.texts("corpus", "corpus", positive_ids)
    benchmark = BenchmarkTexts(
        texts={_QUESTION: tested.questions(), _POSITIVE: passages},
        answers=positives_by_question,
        scores=tested.scores,
        settings=(tested.rule.active_ways, tested.rule.ngram, tested.rule.jaccard),
    )
    if workers is None:
        workers = _choose_workers(pair_paths)

    # Blocks of rows are compared by the workers, which read the benchmark's texts from a file.
    all_totals = MatchTotals()
    file_reports = []
    with temporary_folder() as folder, process_pool(workers) as pool:
        benchmark_path = folder / "benchmark.json"
        write_bytes(benchmark_path, msgspec.json.encode(benchmark))
        compare = functools.partial(_compare_block, benchmark_path)
        for path in pair_paths:
            # The bar moves with every block that has been compared.
            file_totals = MatchTotals()
            with show_progress(total=count_rows(path), unit="row", label=path.name) as bar:
                blocks = _read_blocks(path, names)
                for block_result in in_order(pool, compare, blocks, _BLOCKS_PER_WORKER * workers):
                    file_totals.add(block_result, benchmark)
                    all_totals.add(block_result, benchmark)
                    bar.update(block_result.row_count)
            if not file_totals.rows:
                raise InputError("has no rows; expected training pairs", path=path)
            figures = file_totals.figures(tested.texts_by_split, answers)
            file_reports.append({"file": str(path)} | figures | {"examples": file_totals.examples})
        _open_benchmark.cache_clear()  # without a pool, this process has kept the indexes in memory
    return {
        "options": tested.options,
        "files": file_reports,
        "all": all_totals.figures(tested.texts_by_split, answers),
    }


def _read_blocks(path: Path, names: Names) -> Iterator[list[Pair]]:
    """Yield the rows of a file in lists of at most ``_ROWS`` rows."""
    rows = read_pairs(path, names)
    while True:
        block = list(itertools.islice(rows, _ROWS))
        if not block:
            return
        yield block


def _positives(release: Release, split: str) -> dict[str, set[str]]:
    """Return question's id -> ids of its positive passages, for the questions of a split that have any."""
    positives: dict[str, set[str]] = {}
    for query_id, relevance in read_judged(release, "qrels", split).items():
        passage_ids = {passage_id for passage_id, grade in relevance.items() if grade > 0}
        if passage_ids:
            positives[query_id] = passage_ids
    return positives


def _choose_workers(pair_paths: Sequence[Path]) -> int:
    """Return the number of worker processes: 1 for small files, else one for each usable core."""
    total_bytes = sum(map(_size_of, pair_paths))
    if total_bytes <= _SMALL:
        return 1
    return usable_cores()


def _size_of(path: Path) -> int:
    with convert_read_errors(path):
        return path.stat().st_size


@functools.lru_cache(maxsize=1)
def _open_benchmark(benchmark_path: Path) -> tuple[BenchmarkTexts, dict[str, LikeTexts]]:
    """Return the benchmark's texts, and an index of each kind of text. A worker builds the indexes only once."""
    benchmark = read_json(benchmark_path, BenchmarkTexts)
    ways, ngram_length, jaccard = benchmark.settings
    indexes = {}
    for text_kind, texts in benchmark.texts.items():
        indexes[text_kind] = LikeTexts(texts, ways, ngram_length, jaccard)
    return benchmark, indexes


def _compare_block(benchmark_path: Path, block: list[Pair]) -> BlockResult:
    """Return the matches of the questions and passages of a block of rows."""
    benchmark, indexes = _open_benchmark(benchmark_path)
    questions = [(pair.line, text) for pair in block for text in pair.questions]
    passages = [(pair.line, text) for pair in block for text in pair.passages]
    matches = _match_texts(_QUESTION, questions, indexes[_QUESTION], benchmark.scores)
    matches += _match_texts(_POSITIVE, passages, indexes[_POSITIVE], {})
    answered_ids = _answered_questions(matches, benchmark.answers)
    matches.sort(key=lambda match: match.line)
    return BlockResult(len(block), len(questions), len(passages), matches, answered_ids)


def _match_texts(text_kind: str, lines: Sequence[tuple[int, str]], index: LikeTexts, scores: Scores) -> list[Match]:
    """Return the matches of ``lines``, (line, text) pairs, with the texts of ``index``.

    ``scores`` has a model's matches of a text by the text's MD5, and may be empty.
    """
    matches = []
    likes_of_texts = index.find([text for _, text in lines])
    for (line, text), likes in zip(lines, likes_of_texts, strict=True):
        scored_likes: Sequence[LikeText] = ()
        if scores:  # otherwise the MD5 is not needed
            scored_likes = scores.get(text_id(text), ())
        for like in with_scores(likes, scored_likes):
            matches.append(Match(text_kind, line, text, like))
    return matches


def _answered_questions(matches: Sequence[Match], answers: Mapping[str, set[str]]) -> set[str]:
    """Return the ids of the benchmark's questions that share a row with one of their positive passages.

    ``answers`` maps a question's id to the ids of its positive passages.
    """
    positives_in_rows = {(match.line, match.like.id) for match in matches if match.text_kind == _POSITIVE}
    answered_ids = set()
    for match in matches:
        if match.text_kind == _QUESTION:
            for passage_id in answers.get(match.like.id, ()):
                if (match.line, passage_id) in positives_in_rows:
                    answered_ids.add(match.like.id)
    return answered_ids


def write_pair_questions(tested: TestedQuestions, pair_paths: Sequence[Path], names: Names, out: Path) -> None:
    """Write a release whose train queries are the questions of training pairs.

    The other splits of the queries are those of the benchmark that are compared. `python -m baselines match` reads this
    release. The ids are the MD5 of the text.
    """
    # Equal questions have equal ids, so each question is written once.
    questions: dict[str, str] = {}
    for path in pair_paths:
        for pair in show_progress(read_pairs(path, names), total=count_rows(path), unit="row", label=path.name):
            for text in pair.questions:
                if text.strip():
                    questions[text_id(text)] = text
    sources = describe_files((path.name, path) for path in pair_paths)
    build = {"verb": "contamination", "options": {"splits": list(tested.texts_by_split)}, "sources": sources}
    question_table = pa.table([list(questions), list(questions.values())], schema=QUERIES)
    with draft_release(out, build) as draft:
        draft.write("queries", "train", [question_table])
        for split in tested.texts_by_split:
            draft.write("queries", split, [tested.release.table("queries", split)])
    log.info("%s: %d questions; score them with `python -m baselines match`", out, len(questions))


def contamination_report(value: Mapping[str, Any]) -> Report:
    """Return the result of :func:`compare_pairs` as a report with a row for each file, split and kind of text.

    The last rows are the totals of all files.
    """
    rows = []
    for part in value["files"] + [_all_files(value)]:
        for split, kinds in part["splits"].items():
            for text_kind, counts in kinds.items():
                way_counts = [counts.get(way) for way in HOW]
                rows.append(
                    [part["file"], split, text_kind, counts["of"], counts["found"], _share(counts), *way_counts]
                )
    columns = ("file", "split", "text", "of", "found", "share", *HOW)
    table = Table(columns, rows, percent_columns=("share",), text_columns=3)
    return Report(value, lambda: report_text(value), [table])


def _all_files(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the totals of a report in the form of a file's record."""
    return {"file": "All files", **report["all"]}


def _share(counts: Mapping[str, int]) -> float | None:
    return counts["found"] / counts["of"] if counts["of"] else None


def report_text(report: Mapping[str, Any]) -> str:
    """Return the result of :func:`compare_pairs` as aligned text: a table for each file, and a table for all files."""
    # The first line names the splits, the ways to match, and their thresholds.
    options = report["options"]
    rule_words = list(options["by"])
    for name in ("ngram", "jaccard", "threshold"):
        if name in options:
            rule_words.append(f"{name} {options[name]}")
    lines = [f"Compared with {' and '.join(options['splits'])}: {', '.join(rule_words)}."]

    # With a single file, the totals would repeat its table.
    parts = list(report["files"])
    if len(parts) > 1:
        parts.append(_all_files(report))
    for part in parts:
        # The number of rows and texts, the table of counts, and examples.
        sizes = [f"{part['rows']:,} rows"]
        sizes += [f"{count:,} {kind_of_texts}" for kind_of_texts, count in part["texts"].items()]
        lines += ["", f"{make_visible(part['file'])}: {', '.join(sizes)}"]
        lines += align_rows(list(_text_rows(part)), widths=_WIDTHS)
        lines += [_example_line(example) for example in part.get("examples", ())]
    return "\n".join(lines)


def _example_line(example: Mapping[str, Any]) -> str:
    """Return an example as a line: how and where it was found, and the start of both texts."""
    position = f"{example['kind']}, {example['how']} ({example['score']:g}), line {example['line']:,}"
    both_texts = f"{_shorten(example['text'])} = {_shorten(example['found'])}"
    return f"  {position}: {make_visible(both_texts)}"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _text_rows(part: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the rows of a file's table: a header, and a row for each split and kind of text.

    ``part`` is one of the report's ``files``, or its totals.
    """
    yield ["", "of", "found", "share", *HOW]
    for split, kinds in part["splits"].items():
        for text_kind, counts in kinds.items():
            share = _share(counts)
            row = [f"  {split}: {text_kind}", f"{counts['of']:,}", f"{counts['found']:,}"]
            row.append("-" if share is None else f"{share:.2%}")
            # The row of questions with a positive has no ways.
            row += [f"{counts[way]:,}" if way in counts else "" for way in HOW]
            yield row
