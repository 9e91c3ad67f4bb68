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

from builders.release.rows import Row
from builders.store.answer_rule import AnswerRule
from builders.store.draft import Draft
from builders.store.judgments import Judged, texts_of_judged
from builders.store.layout import ANSWERS, FACT_OR_OPINION, QUESTION_TYPES
from builders.store.manifest import ANSWER_VERBS, Manifest
from builders.store.reader import Release
from builders.store.span_threshold import parse_threshold
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.span_options import Options

# The fields that one raw row has.
RAW = pa.struct([field for field in ANSWERS if field.name not in ("query_id", "answer_passages")])
_SERVICE = re.compile("(?<![a-z])(search|zhidao)(?![a-z])")
_TYPES = {"question_type": QUESTION_TYPES, "fact_or_opinion": FACT_OR_OPINION}

Record = Mapping[str, Any]  # the fields of RAW


def record_of(row: Row[Any], file: str) -> Record:
    """Return the answers and types of a raw row. ``file`` is the name of its file, such as ``zhidao.train.json``."""
    service = _SERVICE.search(file.lower())
    types = {"question_type": row.question_type, "fact_or_opinion": row.fact_or_opinion}
    return merged(
        [
            {
                "answers": row.answers or [],
                "yesno_answers": row.yesno_answers or [],
                "entity_answers": row.entity_answers or [],
                "source": service[1] if service else "",
                **{
                    name: value if (value := (types[name] or "").upper()) in known else ""
                    for name, known in _TYPES.items()
                },
            }
        ]
    )


def merged(records: Sequence[Record]) -> Record:
    """Merge the records of a question that has several raw rows. Repeated and blank answers are dropped.

    ``yesno_answers`` and ``entity_answers`` have one item for each answer, or are empty. The types and the service come
    from the first record that has them.
    """
    found: dict[str, tuple[str, list[str]]] = {}
    for record in records:
        for answer, yesno, entities in zip_longest(*(record[f"{name}answers"] for name in ("", "yesno_", "entity_"))):
            if answer and answer.strip():
                found.setdefault(answer, (yesno or "", [each for each in entities or () if each.strip()]))
    yesno_answers, entity_answers = ([*values] for values in zip(*found.values(), strict=True)) if found else ([], [])
    return {
        "answers": [*found],
        "yesno_answers": yesno_answers if any(yesno_answers) else [],
        "entity_answers": entity_answers if any(entity_answers) else [],
        **{name: next((r[name] for r in records if r[name]), "") for name in (*_TYPES, "source")},
    }


def answers_table(rows: Sequence[tuple[str, Record, Mapping[str, str]]], options: Options) -> pa.Table:
    """Return rows of the config ``answers``.

    ``rows`` has a tuple for each query: its id, its record, and its judged passages (id -> text).
    """
    # Each answer is compared with the passages as if it were the only answer of a question.
    pairs = [(answer, passages) for _, record, passages in rows for answer in record["answers"]]
    labels = iter(contain_answer([[*own.values()] for _, own in pairs], [[answer] for answer, _ in pairs], options))
    found = []
    for query, record, passages in rows:
        inside = [
            [docid for docid, label in zip(passages, next(labels), strict=True) if label] for _ in record["answers"]
        ]
        found.append({"query_id": query, **record, "answer_passages": inside})
    return pa.Table.from_pylist(found, ANSWERS)


def answers_of(
    release: Release, records: Iterable[tuple[str, Record]], judged: Judged, options: Options
) -> Iterator[pa.Table]:
    """Yield the rows of ``answers`` for (query id, record) pairs. ``judged`` are the judgments of these queries."""
    waiting = [(query, record, judged.get(query, {})) for query, record in records]
    texts = texts_of_judged(release, {query: own for query, _, own in waiting})  # one pass over the collection
    for start in range(0, len(waiting), AT_ONCE):
        some = waiting[start : start + AT_ONCE]
        rows = [(query, record, {docid: texts[docid] for docid in own}) for query, record, own in some]
        yield answers_table(rows, options)


def renew_answers(
    draft: Draft, base: Release, split: str, judged: Judged, queries: Collection[str] | None = None
) -> None:
    """Write the rows of ``answers`` for new judgments of a split. Nothing is written if ``base`` has no answers.

    The options of span-F1 are those with which the answers of ``base`` were made. ``queries`` limits the rows to these
    queries (default: all).
    """
    if ("answers", split) in base.splits():
        rows = base.table("answers", split).to_pylist()
        records = (
            (row["query_id"], {field.name: row[field.name] for field in RAW})
            for row in rows
            if queries is None or row["query_id"] in queries
        )
        draft.write("answers", split, answers_of(base, records, judged, rule_of(base.manifest)))


def rule_of(manifest: Manifest) -> Options:
    """Return the options of span-F1 with which a release's ``answers`` were made."""
    recorded: dict[str, Any] = {}
    for build in manifest.builds:
        if build.verb in ANSWER_VERBS:
            recorded = build.options
    rule = msgspec.convert(recorded, AnswerRule)  # read_manifest has validated the options
    return Options(rule.unit, parse_threshold(rule.threshold), segmenter=rule.segmenter_name)
