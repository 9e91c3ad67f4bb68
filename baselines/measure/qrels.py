"""Read queries and relevance judgments from a release or a file (TREC qrels, BEIR's TSV or an official dev.json)."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError, UsageError, log
from builders.core.read_files import expect_id, first_character, id_of, parse_integer, raw_lines, read_whole
from builders.core.typed import json_lines, json_of
from builders.store.layout import JOINED, SETS, Set, schema_of, set_of
from builders.store.reader import Release, open_release

_HIGHEST_GRADE = 1_000_000  # ir-measures allocates memory for every grade up to the highest
_BEIR_HEADER = [b"query-id", b"corpus-id", b"score"]
_TREC_COLUMNS = "4 columns (query-id 0 corpus-id score)"
_BEIR_COLUMNS = "3 columns (query-id corpus-id score)"

Judged = dict[str, dict[str, int]]  # scores by query and passage
NO_TEST_LABELS = (
    "has no judgments of the split test, because the benchmark's test labels are unpublished. What remains: --split "
    "dev; --set cmedqa or ccovid, whose test labels are public; own judgments (--qrels FILE without --release); a "
    "submission (`python -m builders export --format official --runs-only --run RUN --release DIR --out DIR`)"
)


@dataclass
class Qrels:
    """The reference judgments. ``positives`` maps a query's id to the grades (>= 1) of its positive passages, by id.

    ``name`` is for messages: the file, or the release with its split and configs. ``negatives`` has the judged passages
    with a score of 0 or less by query. A query without them is absent. Most benchmarks publish no negatives.
    ``without`` is the number of queries without a positive, which are excluded because every measure would be 0.
    """

    name: str
    positives: Judged = field(default_factory=dict)
    negatives: dict[str, set[str]] = field(default_factory=dict)
    without: int = 0

    @property
    def pairs(self) -> int:
        """The number of positive (query, passage) pairs."""
        return sum(map(len, self.positives.values()))

    def judged(self) -> Judged:
        """Return every judged passage of the reference's queries with its grade, 0 for a negative."""
        grades_by_query = {}
        for query_id, positives in self.positives.items():
            negatives = dict.fromkeys(sorted(self.negatives.get(query_id, ())), 0)
            grades_by_query[query_id] = positives | negatives
        return grades_by_query


def expect_main(set_name: str, option: str, value: str | None) -> str:
    """Return the option's value or "". Raises :class:`UsageError` if a value is given with a set other than main."""
    if value and set_name != "main":
        raise UsageError(f"{option} {value} belongs to the set main; remove it or --set {set_name}")
    return value or ""


def expect_one_reference(release: Release | Path | None, qrels: Path | None) -> None:
    """Raise :class:`UsageError` unless exactly one of a release and a file has the judgments."""
    if (release is None) == (qrels is None):
        raise UsageError("expected either --release DIR or --qrels FILE")


def read_reference(
    *,
    release: Release | Path | None,
    qrels: Path | None,
    split: str,
    set_name: str,
    queries: str | None = None,
    qrels_config: str | None = None,
) -> Qrels:
    """Read the judgments of a split of a release, or of a file. Exactly one of ``release`` and ``qrels`` is given.

    ``queries`` and ``qrels_config`` name configs of the release. Raises :class:`InputError`.
    """
    expect_one_reference(release, qrels)
    query_config = expect_main(set_name, "--queries", queries)
    judgments_config = expect_main(set_name, "--qrels-config", qrels_config)
    if release is not None:
        return release_qrels(open_release(release), split, set_name, query_config, judgments_config)
    if query_config or judgments_config:
        raise UsageError("--queries and --qrels-config name configs of a release; expected --release DIR")
    if set_name != "main":
        raise UsageError(f"--set {set_name} names a set of a release; expected --release DIR")
    assert qrels is not None
    return read_qrels(qrels)


def release_qrels(release: Release, split: str, name: str = "main", queries: str = "", qrels: str = "") -> Qrels:
    """Read the judgments of one split of a release's set. Raises :class:`InputError` if the split has no positive.

    ``name`` is the name of the set. ``queries`` and ``qrels`` name configs to use instead of the set's queries and
    judgments ("": the set's).
    """
    description = f"{release.path} {split}"
    if name != "main":
        description += f" of {name}"
    if queries:
        description += f" of {queries}"
    if qrels:
        description += f" by {qrels}"
    return _select_positives(description, read_judgments(release, set_of(name), split, queries, qrels))


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """Return (id, text) of every query of a split of ``config``, in the release's order.

    ``config`` is a config of queries or a joined config (queries with the texts of their passages), whose columns have
    other names. Raises :class:`InputError` for a repeated id.
    """
    id_column, text_column = "_id", "text"
    if schema_of(config) == JOINED:
        id_column, text_column = "query_id", "query"
    queries: list[tuple[str, str]] = []
    for batch in release.batches(config, split, [id_column, text_column]):
        queries += zip(batch[id_column].to_pylist(), batch[text_column].to_pylist(), strict=True)
    _expect_unique_ids(release, config, split, [query_id for query_id, _ in queries])
    return queries


def read_judgments(release: Release, configs: Set, split: str, queries: str = "", qrels: str = "") -> Judged:
    """Return the scores of the judged passages of every query of a split. An unjudged query has an empty dict.

    Args:
        configs: the configs of the set.
        queries: a config of ``builders.store.names.QUESTION_CONFIGS`` to use instead of the set's queries ("": the
            set's). If the config is joined, its rows also have the judgments, and ``qrels`` is not used. The
            removed training questions (Section 2.3) are in no qrels, so their judgments are the positive passages of
            their joined rows.
        qrels: a config to use instead of the set's qrels ("": the set's).

    Raises:
        InputError: the release lacks a config or split, or an id or a judged pair is repeated.
    """
    if queries and schema_of(queries) == JOINED:
        return _joined_positives(release, queries, split)
    judgments = _read_set_judgments(release, configs, split, qrels or configs.qrels)
    if not queries:
        return judgments
    return {query_id: judgments.get(query_id, {}) for query_id, _ in read_queries(release, split, queries)}


def _joined_positives(release: Release, config: str, split: str) -> Judged:
    """Return the positive passages of the rows of a joined config, each with grade 1, by query id."""
    rows: list[dict[str, Any]] = []
    for batch in release.batches(config, split, ["query_id", "positive_passages.list.element.docid"]):
        rows += batch.to_pylist()
    _expect_unique_ids(release, config, split, [row["query_id"] for row in rows])
    positives = {}
    for row in rows:
        passage_ids = [passage["docid"] for passage in row["positive_passages"]]
        positives[row["query_id"]] = dict.fromkeys(passage_ids, 1)
    return positives


def _read_set_judgments(release: Release, dataset_set: Set, split: str, qrels_config: str) -> Judged:
    """Return the judgments of a set. Translated and perturbed queries have the judgments of their originals."""
    judgments: Judged = {}
    # The keys are the query ids of the qrels. In a translated or perturbed set, these are the ids of the originals.
    ids_by_judged_id: dict[str, list[str]] = {}
    if (dataset_set.queries, split) in release.splits():
        query_rows = release.table(dataset_set.queries, split).to_pylist()
        _expect_unique_ids(release, dataset_set.queries, split, [row["_id"] for row in query_rows])
        for row in query_rows:
            query_id = row["_id"]
            judged_id = row[dataset_set.original_column] if dataset_set.original_column else query_id
            judgments[query_id] = {}
            ids_by_judged_id.setdefault(judged_id, []).append(query_id)
    # The qrels alone are enough for the main set, whose queries may be in another release.
    elif dataset_set is not SETS["main"]:
        release.shards(dataset_set.queries, split)  # raises, because the release lacks the set
    if split == "test" and qrels_config == SETS["main"].qrels and (qrels_config, split) not in release.splits():
        raise InputError(NO_TEST_LABELS, path=release.path)

    for row_number, (judged_id, passage_id, score) in enumerate(_qrels_rows(release, qrels_config, split)):
        query_ids = [judged_id]
        if dataset_set.original_column:
            # A query without a translation, or a query that no rule could change, is not in the set.
            query_ids = ids_by_judged_id.get(judged_id, [])
        for query_id in query_ids:
            scores = judgments.setdefault(query_id, {})
            if passage_id in scores:
                problem = _describe_repeated_pair(judged_id, passage_id, scores[passage_id], score)
                raise InputError(problem, path=release.describe_row(qrels_config, split, row_number))
            scores[passage_id] = score
    return judgments


def _qrels_rows(release: Release, config: str, split: str) -> Iterator[tuple[str, str, int]]:
    """Yield (query id, corpus id, score) of every row of a config of judgments."""
    for batch in release.batches(config, split):
        columns = [batch[name].to_pylist() for name in ("query-id", "corpus-id", "score")]
        yield from zip(*columns, strict=True)


def _describe_repeated_pair(query_id: str, passage_id: str, first_score: int, second_score: int) -> str:
    """Return the message for a pair with two judgments."""
    scores = f"with {second_score} each time"
    if first_score != second_score:
        scores = f"with {first_score}, then with {second_score}"
    return f"query {query_id!r} and passage {passage_id!r} are judged twice ({scores}); expected one judgment per pair"


def _expect_unique_ids(release: Release, config: str, split: str, row_ids: list[str]) -> None:
    """Raise :class:`InputError` for the first repeated id. ``row_ids`` has the id of each row of the split."""
    earlier_ids = set[str]()
    for row, row_id in enumerate(row_ids):
        if row_id in earlier_ids:
            raise InputError(
                f"the id {row_id!r} is repeated; expected it once", path=release.describe_row(config, split, row)
            )
        earlier_ids.add(row_id)


def read_qrels(path: Path) -> Qrels:
    """Read a qrels file. A file that begins with "{" is official JSON, other files have columns.

    Raises :class:`InputError` with the file, and with the line if one line is wrong. Queries without a positive passage
    are only counted.

    TREC: ``query-id 0 corpus-id score``. BEIR: a header line, then ``query-id corpus-id score``. Official: JSON lines
    ``{question_id, question, answer_paragraphs: [{paragraph_id, paragraph_text}]}``, or ``{"data": [...]}`` with a list
    of such rows. Official rows of one question are merged. In TREC and BEIR files, a repeated pair is an error.
    """
    if first_character(path) == "{":
        judgments = _official_judgments(path)
    else:
        judgments = {}
        for line_number, query_id, passage_id, score in _column_rows(path):
            scores = judgments.setdefault(query_id, {})
            if passage_id in scores:
                problem = _describe_repeated_pair(query_id, passage_id, scores[passage_id], score)
                raise InputError(problem, path=path, line=line_number)
            scores[passage_id] = score
    return _select_positives(str(path), judgments)


def _official_judgments(path: Path) -> Judged:
    """Return the answer paragraphs of every question of an official file, each with grade 1."""
    judgments: Judged = {}
    for question in _official_questions(path):
        query_id = expect_id(question.question_id, path)
        grades = judgments.setdefault(query_id, {})
        for paragraph in question.answer_paragraphs:
            grades[expect_id(paragraph.paragraph_id, path)] = 1
    return judgments


def _select_positives(name: str, judgments: Judged) -> Qrels:
    """Split judgments into positives and negatives. Queries without a positive are only counted.

    ``name`` is the name of the judgments, for errors. Raises :class:`InputError` if no query has a positive, or a score
    is too high.
    """
    qrels = Qrels(name)
    for query_id, scores in judgments.items():
        positives = {passage_id: score for passage_id, score in scores.items() if score > 0}
        if not positives:
            qrels.without += 1
            continue
        highest = max(positives.values())
        if highest > _HIGHEST_GRADE:
            problem = f"query {query_id!r}: expected scores of at most {_HIGHEST_GRADE:,}, found {highest}"
            raise InputError(problem, path=name)
        qrels.positives[query_id] = positives
        negatives = scores.keys() - positives.keys()
        if negatives:
            qrels.negatives[query_id] = negatives
    if not qrels.positives:
        raise InputError("no query has a positive passage; expected judgments with a score above 0", path=name)
    if qrels.without:
        log.info("%s: %d queries without a positive passage are excluded from every mean", name, qrels.without)
    return qrels


def _column_rows(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line number, query id, corpus id, score) of every line that is not blank or BEIR's header."""
    expected_columns, column_count = _TREC_COLUMNS, 4
    is_first_line = True
    for line_number, line in raw_lines(path):
        fields = line.split()
        if not fields:
            continue
        is_header = is_first_line and fields == _BEIR_HEADER
        is_first_line = False
        if is_header:
            expected_columns, column_count = _BEIR_COLUMNS, 3
            continue
        if len(fields) != column_count:
            problem = f"expected {expected_columns}, found {len(fields)}"
            if fields[0].startswith(b"["):
                problem = "is a JSON list; expected TREC qrels, BEIR's TSV or official JSON lines (question_id ...)"
            raise InputError(problem, path=path, line=line_number)
        # The corpus id and the score are the last columns of both formats.
        score = parse_integer(fields[-1], "score", path, line_number)
        query_id = id_of(fields[0], path, line_number)
        passage_id = id_of(fields[-2], path, line_number)
        yield line_number, query_id, passage_id, score


class _Paragraph(msgspec.Struct):
    paragraph_id: str


class _Question(msgspec.Struct):
    """The fields that are read from a row of the official train.json and dev.json."""

    question_id: str
    answer_paragraphs: list[_Paragraph]


def _official_questions(path: Path) -> Iterator[_Question]:
    """Yield the rows of an official file, which has JSON lines or one object ``{"data": [...]}``."""
    expected = "expected {question_id, question, answer_paragraphs: [{paragraph_id, ...}]} with ids as strings"
    content = read_whole(path).removeprefix(codecs.BOM_UTF8)
    is_one_object = re.match(rb'\s*\{\s*"data"\s*:', content)
    if is_one_object:
        yield from json_of(content, dict[str, list[_Question]], path, remedy=expected)["data"]
        return
    for _, question in json_lines(path, _Question, expected):
        yield question
