"""The splits of the official archives as configs of the release: queries, qrels, joined rows, Table 3's figures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from builders.official.numbered import Keys, as_keys, hex_ids
from builders.official.questions import Question, Split
from builders.official.work import Work
from builders.store.layout import JOINED, QRELS, QUERIES
from builders.store.table3 import LengthCounter, table3_column

_BATCH = 2_048


def write_split(work: Work, split: Split) -> None:
    """``queries``, ``qrels``, joined rows and Table 3's row of one split."""
    queries, joined = work.draft.writer("queries", split.name), work.draft.writer(split.name, split.name)
    if split.labelled:
        _write_qrels(work, split)
    ids = work.passages.ids_of(work.texts.digests())
    for start in range(0, len(split.questions), _BATCH):
        rows = _joined(work, split.questions[start : start + _BATCH], ids)
        queries.write(pa.table([rows["query_id"], rows["query"]], schema=QUERIES))
        joined.write(rows)
    work.draft.stats["table3"][split.name] = _table3(work, split)


def _joined(work: Work, questions: list[Question], ids: Keys) -> pa.Table:
    """The questions with their passages, as the configs train, dev and test have them; ``ids``: of texts, by number."""
    positives = [positive for question in questions for positive in question.positives]
    negatives = np.array([text for question in questions for text in question.negatives], np.int64)
    good = _passages([each.key.hex() for each in positives], work.texts.get(np.array([p.text for p in positives], int)))
    bad = _passages(hex_ids(ids[negatives]), work.texts.get(negatives))
    rows = [
        {
            "query_id": question.key.hex(),
            "query": text,
            "positive_passages": [next(good) for _ in question.positives],
            "negative_passages": [next(bad) for _ in question.negatives],
        }
        for question, text in zip(questions, work.texts.get(np.array([q.text for q in questions])), strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=JOINED)


def _passages(ids: list[str], texts: list[str]) -> Iterator[dict[str, str]]:
    return ({"docid": key, "title": "", "text": text} for key, text in zip(ids, texts, strict=True))


def _write_qrels(work: Work, split: Split) -> None:
    """The judgments of passages that the collection holds; of all, where the archives hold no collection."""
    pairs = [(question.key, positive.key) for question in split.questions for positive in question.positives]
    if empty := sum(not question.positives for question in split.questions):
        work.findings.add(f"questions of {split.name} without a positive passage", empty)
    keys = as_keys(b"".join(key for _, key in pairs))
    held = work.passages.has(keys) if work.passages.given else np.ones(len(keys), np.bool_)
    what = f"judgments of {split.name} whose passage the collection lacks (left out of the qrels)"
    work.findings.add_ids(what, keys, ~held)
    rows = [
        {"query-id": query.hex(), "corpus-id": passage.hex(), "score": 1}
        for (query, passage), there in zip(pairs, held.tolist(), strict=True)
        if there
    ]
    work.draft.write("qrels", split.name, [pa.Table.from_pylist(rows, schema=QRELS)])


def _table3(work: Work, split: Split) -> dict[str, float | int | None]:
    """The split's column of Table 3. A passage counts once for every question that it is a positive of."""
    lengths, questions, passages = work.texts.lengths(), split.questions, LengthCounter()
    positives = [positive.text for question in questions for positive in question.positives]
    passages.add(lengths[np.array(positives, np.int64)])
    query_chars = int(lengths[[question.text for question in questions]].sum())
    return table3_column(len(questions), query_chars, len(positives), passages)
