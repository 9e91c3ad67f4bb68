"""People's answers to the queries (config ``answers``), and the passages that contain an answer.

Raw DuReader has up to three answers of people to each question, the type of the question, and the service where it was
asked (search or Zhidao). Test rows have no answers. A passage contains an answer if one of its spans reaches the
threshold of span-F1 with the answer (Section 2.2.2, Algorithm 1). The span may cross paragraphs.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
import pyarrow as pa

from builders.release.rows import RawRow
from builders.store.answer_rule import AnswerRule
from builders.store.draft import Draft
from builders.store.judgments import Judgments, texts_of_judged
from builders.store.layout import ANSWERS, FACT_OR_OPINION, QUESTION_TYPES
from builders.store.manifest import ANSWER_VERBS, Manifest
from builders.store.reader import Release
from builders.store.span_threshold import parse_threshold
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.span_options import SpanOptions

# The columns of `answers` that one raw row fills.
RAW = pa.struct([field for field in ANSWERS if field.name not in ("query_id", "answer_passages")])
_SERVICE = re.compile("(?<![a-z])(search|zhidao)(?![a-z])")
_TYPE_VALUES = {"question_type": QUESTION_TYPES, "fact_or_opinion": FACT_OR_OPINION}

Record = Mapping[str, Any]  # the fields of RAW


def record_of(raw_row: RawRow[Any], file_name: str) -> Record:
    """Return the answers and types of a raw row from the file ``file_name``, such as ``zhidao.train.json``."""
    # DuReader names its files after the service, and has no field for it.
    service_match = _SERVICE.search(file_name.lower())
    record = {
        "answers": raw_row.answers or [],
        "yesno_answers": raw_row.yesno_answers or [],
        "entity_answers": raw_row.entity_answers or [],
        "source": service_match[1] if service_match else "",
        "question_type": _known_value("question_type", raw_row.question_type),
        "fact_or_opinion": _known_value("fact_or_opinion", raw_row.fact_or_opinion),
    }
    return merge_records([record])  # drops repeated and blank answers


def _known_value(field_name: str, value: str | None) -> str:
    """Return a type of a question in capitals; empty for an unknown type."""
    value = (value or "").upper()
    return value if value in _TYPE_VALUES[field_name] else ""


def merge_records(records: Sequence[Record]) -> Record:
    """Merge the records of a question that has several raw rows. Repeated and blank answers are dropped.

    ``yesno_answers`` and ``entity_answers`` have one item for each answer, or are empty. The types and the service come
    from the first record that has them.
    """
    # The first occurrence of an answer decides on its yes or no, and on its entities.
    yesno_by_answer: dict[str, str] = {}
    entities_by_answer: dict[str, list[str]] = {}
    for record in records:
        for answer, yesno, entities in zip_longest(
            record["answers"], record["yesno_answers"], record["entity_answers"]
        ):
            if answer and answer.strip() and answer not in yesno_by_answer:
                yesno_by_answer[answer] = yesno or ""
                entities_by_answer[answer] = [entity for entity in entities or () if entity.strip()]
    yesno_answers = list(yesno_by_answer.values())
    entity_answers = list(entities_by_answer.values())
    return {
        "answers": list(yesno_by_answer),
        "yesno_answers": yesno_answers if any(yesno_answers) else [],
        "entity_answers": entity_answers if any(entity_answers) else [],
        "question_type": _first_value(records, "question_type"),
        "fact_or_opinion": _first_value(records, "fact_or_opinion"),
        "source": _first_value(records, "source"),
    }


def _first_value(records: Sequence[Record], field_name: str) -> Any:
    for record in records:
        if record[field_name]:
            return record[field_name]
    return ""


def answers_table(query_rows: Sequence[tuple[str, Record, Mapping[str, str]]], options: SpanOptions) -> pa.Table:
    """Return rows of the config ``answers``.

    ``query_rows`` has a tuple for each query: its id, its record, and its judged passages (id -> text).
    """
    # Each answer is compared with the passages as if it were the only answer of a question.
    compared_texts = []
    compared_answers = []
    for _, record, passages in query_rows:
        for answer in record["answers"]:
            compared_texts.append(list(passages.values()))
            compared_answers.append([answer])
    # One list of labels for each answer of each query, in the same order.
    labels = iter(contain_answer(compared_texts, compared_answers, options))
    answer_rows = []
    for query_id, record, passages in query_rows:
        answer_passages = []
        for _ in record["answers"]:
            passage_ids = []
            for passage_id, has_answer in zip(passages, next(labels), strict=True):
                if has_answer:
                    passage_ids.append(passage_id)
            answer_passages.append(passage_ids)
        answer_rows.append({"query_id": query_id, **record, "answer_passages": answer_passages})
    return pa.Table.from_pylist(answer_rows, ANSWERS)


def answers_of(
    release: Release, records: Iterable[tuple[str, Record]], judged: Judgments, options: SpanOptions
) -> Iterator[pa.Table]:
    """Yield the rows of ``answers`` for (query id, record) pairs. ``judged`` are the judgments of these queries."""
    query_records = list(records)
    record_judgments = {query_id: judged.get(query_id, {}) for query_id, _ in query_records}
    texts = texts_of_judged(release, record_judgments)  # one pass over the collection
    for start in range(0, len(query_records), AT_ONCE):
        rows = []
        for query_id, record in query_records[start : start + AT_ONCE]:
            passages = {passage_id: texts[passage_id] for passage_id in record_judgments[query_id]}
            rows.append((query_id, record, passages))
        yield answers_table(rows, options)


def renew_answers(
    draft: Draft, base_release: Release, split: str, judged: Judgments, query_ids: Collection[str] | None = None
) -> None:
    """Write the rows of ``answers`` for new judgments of a split, if ``base_release`` has answers.

    The options of span-F1 are those with which the answers of ``base_release`` were made. ``query_ids`` are the queries
    whose rows are kept (default: all). The rows of other queries are dropped from the split.
    """
    if ("answers", split) not in base_release.splits():
        return
    records = []
    for row in base_release.table("answers", split).to_pylist():
        if query_ids is None or row["query_id"] in query_ids:
            records.append((row["query_id"], {field.name: row[field.name] for field in RAW}))
    options = rule_of(base_release.manifest)
    draft.write("answers", split, answers_of(base_release, records, judged, options))


def rule_of(manifest: Manifest) -> SpanOptions:
    """Return the options of span-F1 with which a release's ``answers`` were made.

    Options that no build records have their defaults.
    """
    last_options: dict[str, Any] = {}
    # A later build replaces the answers of an earlier build.
    for build in manifest.builds:
        if build.verb in ANSWER_VERBS:
            last_options = build.options
    rule = msgspec.convert(last_options, AnswerRule)  # read_manifest has validated the options
    return SpanOptions(rule.unit, parse_threshold(rule.threshold), segmenter=rule.segmenter_name)
