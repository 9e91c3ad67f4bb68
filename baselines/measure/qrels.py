"""Read queries and relevance judgments from a release or a file (TREC qrels, BEIR's TSV or an official dev.json)."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from builders.core.errors import InputError, UsageError, log
from builders.core.files import expect_id, first_character, id_of, integer, raw_lines, read_whole
from builders.core.typed import json_lines, json_of
from builders.store.layout import JOINED, SETS, Set, schema_of, set_of
from builders.store.reader import Release, open_release

_HIGHEST = 1_000_000  # ir-measures allocates memory for every grade up to the highest
_BEIR_HEADER = [b"query-id", b"corpus-id", b"score"]

Judged = dict[str, dict[str, int]]  # scores by query and passage
NO_TEST_LABELS = (
    "has no judgments of the split test, because the benchmark's test labels are unpublished. What remains: --split "
    "dev; --set cmedqa or ccovid, whose test labels are public; own judgments (--qrels FILE without --release); a "
    "submission (`python -m builders export --format official --runs-only --run RUN --release DIR --out DIR`)"
)


@dataclass
class Qrels:
    """The reference judgments. ``positives`` maps a query's id to the grades (>= 1) of its positive passages.

    ``without`` is the number of queries without a positive, which are excluded because every measure would be 0.
    ``negatives`` has the judged passages with a score of 0 or less. Most benchmarks publish no negatives.
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
        return {
            query: positive | dict.fromkeys(sorted(self.negatives.get(query, ())), 0)
            for query, positive in self.positives.items()
        }


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
    assert qrels is not None
    return read_qrels(qrels)


def release_qrels(release: Release, split: str, name: str = "main", queries: str = "", qrels: str = "") -> Qrels:
    """Read the judgments of one split of a release's set. Raises :class:`InputError` if the split has no positive.

    ``queries`` and ``qrels`` are used instead of the set's configs, as in :func:`read_judgments`.
    """
    shown = f"{release.path} {split}" + f" of {name}" * (name != "main") + f" of {queries}" * bool(queries)
    shown += f" by {qrels}" * bool(qrels)
    return _positives(shown, read_judgments(release, set_of(name), split, queries, qrels))


def read_queries(release: Release, split: str, config: str = "queries") -> list[tuple[str, str]]:
    """Return (id, text) of every query of a split, in the release's order.

    Raises :class:`InputError` for a repeated id.
    """
    found: list[tuple[str, str]] = []
    names = ["query_id", "query"] if schema_of(config) == JOINED else ["_id", "text"]
    for batch in release.batches(config, split, names):
        found += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    _expect_once(release, config, split, [query for query, _ in found])
    return found


def read_judgments(release: Release, configs: Set, split: str, queries: str = "", qrels: str = "") -> Judged:
    """Return the scores of the judged passages of every query of a split. An unjudged query has an empty dict.

    Args:
        configs: the configs of the set.
        queries: a config of ``builders.store.names.QUESTION_CONFIGS`` to use instead of the set's queries. The
            removed training questions (Section 2.3) are in no qrels, so their judgments are the positive passages of
            their joined rows.
        qrels: a config to use instead of the set's qrels.

    Raises:
        InputError: the release lacks a config or split, or an id or a judged pair is repeated.
    """
    if queries and schema_of(queries) == JOINED:
        columns = ["query_id", "positive_passages.list.element.docid"]
        rows = [row for batch in release.batches(queries, split, columns) for row in batch.to_pylist()]
        _expect_once(release, queries, split, [row["query_id"] for row in rows])
        return {row["query_id"]: {each["docid"]: 1 for each in row["positive_passages"]} for row in rows}
    every = _judgments(release, configs, split, qrels or configs.qrels)
    if not queries:
        return every
    return {query: every.get(query, {}) for query, _ in read_queries(release, split, queries)}


def _judgments(release: Release, configs: Set, split: str, qrels: str) -> Judged:
    every: Judged = {}
    judged: dict[str, list[str]] = {}  # query id in the qrels -> ids of this query or of its translations
    if (configs.queries, split) in release.splits():
        rows = release.table(configs.queries, split).to_pylist()
        _expect_once(release, configs.queries, split, [row["_id"] for row in rows])
        for row in rows:
            every[row["_id"]] = {}
            judged.setdefault(row["zh_id"] if configs.translated else row["_id"], []).append(row["_id"])
    elif configs is not SETS["main"]:
        release.shards(configs.queries, split)  # raises, because the release lacks the set
    if split == "test" and qrels == SETS["main"].qrels and (qrels, split) not in release.splits():
        raise InputError(NO_TEST_LABELS, path=release.path)
    names = ("query-id", "corpus-id", "score")
    columns = ([batch[name].to_pylist() for name in names] for batch in release.batches(qrels, split))
    for row, (query, corpus, score) in enumerate(pair for batch in columns for pair in zip(*batch, strict=True)):
        # A query without a translation is not in the cross-lingual set.
        for target in judged.get(query, []) if configs.translated else [query]:
            scores = every.setdefault(target, {})
            if corpus in scores:
                problem = _judged_again(query, corpus, scores[corpus], score)
                raise InputError(problem, path=release.place(qrels, split, row))
            scores[corpus] = score
    return every


def _judged_again(query: str, corpus: str, before: int, score: int) -> str:
    scores = f"with {before}, then with {score}" if before != score else f"with {score} each time"
    return f"query {query!r} and passage {corpus!r} are judged twice ({scores}); expected one judgment per pair"


def _expect_once(release: Release, config: str, split: str, ids: list[str]) -> None:
    seen = set[str]()
    for row, id_ in enumerate(ids):
        if id_ in seen:
            raise InputError(f"the id {id_!r} is repeated; expected it once", path=release.place(config, split, row))
        seen.add(id_)


def read_qrels(path: Path) -> Qrels:
    """Read a qrels file. The format is detected from the first line. Errors are :class:`InputError` with the line.

    TREC: ``query-id 0 corpus-id score``. BEIR: a header line, then ``query-id corpus-id score``. Official: JSON lines
    ``{question_id, question, answer_paragraphs: [{paragraph_id, paragraph_text}]}``, or ``{"data": [...]}`` with a list
    of such rows. Official rows of one question are merged. In TREC and BEIR files, a repeated pair is an error.
    """
    every: Judged = {}
    if first_character(path) == "{":
        for row in _official(path):
            passages = (expect_id(each.paragraph_id, path) for each in row.answer_paragraphs)
            every.setdefault(expect_id(row.question_id, path), {}).update(dict.fromkeys(passages, 1))
    else:
        for number, query, corpus, score in _columns(path):
            scores = every.setdefault(query, {})
            if corpus in scores:
                raise InputError(_judged_again(query, corpus, scores[corpus], score), path=path, line=number)
            scores[corpus] = score
    return _positives(str(path), every)


def _positives(name: str, every: Judged) -> Qrels:
    qrels = Qrels(name)
    for query, scores in every.items():
        if positive := {corpus: score for corpus, score in scores.items() if score > 0}:
            if (found := max(positive.values())) > _HIGHEST:
                raise InputError(f"query {query!r}: expected scores of at most {_HIGHEST:,}, found {found}", path=name)
            qrels.positives[query] = positive
            if negative := scores.keys() - positive.keys():
                qrels.negatives[query] = negative
        else:
            qrels.without += 1
    if not qrels.positives:
        raise InputError("no query has a positive passage; expected judgments with a score above 0", path=name)
    if qrels.without:
        log.info("%s: %d queries without a positive passage are excluded from every mean", name, qrels.without)
    return qrels


def _columns(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """Yield (line number, query id, corpus id, score) of every line that is not blank."""
    beir, is_first = False, True
    for number, line in raw_lines(path):
        fields = line.split()
        if not fields:
            continue
        if is_first and fields == _BEIR_HEADER:
            beir, is_first = True, False
            continue
        is_first = False
        if len(fields) != (3 if beir else 4):
            expected = "3 columns (query-id corpus-id score)" if beir else "4 columns (query-id 0 corpus-id score)"
            problem = f"expected {expected}, found {len(fields)}"
            if fields[0].startswith(b"["):
                problem = "is a JSON list; expected TREC qrels, BEIR's TSV or official JSON lines (question_id ...)"
            raise InputError(problem, path=path, line=number)
        score = integer(fields[-1], "score", path, number)
        yield number, id_of(fields[0], path, number), id_of(fields[-2], path, number), score


class _Paragraph(msgspec.Struct):
    paragraph_id: str


class _Question(msgspec.Struct):
    """The fields that are read from a row of the official train.json and dev.json."""

    question_id: str
    answer_paragraphs: list[_Paragraph]


def _official(path: Path) -> Iterator[_Question]:
    expected = "expected {question_id, question, answer_paragraphs: [{paragraph_id, ...}]} with ids as strings"
    content = read_whole(path).removeprefix(codecs.BOM_UTF8)
    if re.match(rb'\s*\{\s*"data"\s*:', content):
        yield from json_of(content, dict[str, list[_Question]], path, remedy=expected)["data"]
        return
    yield from (row for _, row in json_lines(path, _Question, expected))
