"""Writes a release without its similar training questions, and with the configs that keep them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import log
from builders.store.draft import Draft
from builders.store.judgments import joined_passage, read_judged, texts_of_judged
from builders.store.layout import BEFORE, JOINED, QUERIES, REMOVED, TOLD_APART
from builders.store.reader import Release
from builders.store.rejudge import count_judged
from builders.store.table3 import round_stat


def write(
    draft: Draft,
    release: Release,
    removed: Collection[str],
    tested: Mapping[str, Mapping[str, str]],
    duplicated: Mapping[str, Collection[str]],
) -> None:
    """Put the release without its ``removed`` training questions into ``draft``.

    Args:
        tested: by split, the texts of the development and test questions, by id.
        duplicated: by split, those that a removed question is similar to.
    """
    before = release.batches(REMOVED, "train") if (REMOVED, "train") in release.splits() else ()
    draft.write(REMOVED, "train", [*map(_table, before), *_joined(release, removed)])
    for config, column in (("queries", "_id"), ("qrels", "query-id"), (BEFORE, "query-id"), ("train", "query_id")):
        _leave_out(draft, release, config, column, removed)
    _leave_out_english(draft, release, removed)
    for split, texts in tested.items():
        for config, wanted in zip(TOLD_APART, (True, False), strict=True):
            rows = [(each, text) for each, text in texts.items() if (each in duplicated[split]) is wanted]
            columns = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 1)]
            draft.write(config, split, [pa.table(columns, schema=QUERIES)])
    _drop_samples(draft, release)
    _count(draft, release, removed)


def _drop_samples(draft: Draft, release: Release) -> None:
    """Leave out the samples for extrapolation evaluation: they were drawn from all training questions."""
    samples = sorted({config for config, _ in release.splits() if config.startswith(("restrain-", "resttest-"))})
    for config in samples:
        draft.drop(config)
    draft.stats.pop("extrapolation", None)
    if samples:
        log.warning("left out: %s; draw them again (`python -m builders extrapolate`)", ", ".join(samples))


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _kept(release: Release, config: str, column: str, ids: Collection[str]) -> Iterator[pa.Table]:
    """The rows of a config's train split without those of some questions."""
    out = pa.array(sorted(ids), pa.string())
    for batch in release.batches(config, "train"):
        table = _table(batch)
        yield table.filter(pc.invert(pc.is_in(table[column], out)))


def _leave_out(draft: Draft, release: Release, config: str, column: str, ids: Collection[str]) -> None:
    """Write a config's train split without the rows of some questions; where there is none, nothing."""
    if (config, "train") in release.splits():
        draft.write(config, "train", _kept(release, config, column, ids))


def _leave_out_english(draft: Draft, release: Release, removed: Collection[str]) -> None:
    """Leave out the translations of removed questions."""
    if ("crosslingual-queries", "train") not in release.splits():
        return
    english = {
        each
        for table in release.rows_with("crosslingual-queries", "train", "zh_id", removed)
        for each in table["_id"].to_pylist()
    }
    _leave_out(draft, release, "crosslingual-queries", "zh_id", removed)
    _leave_out(draft, release, "crosslingual", "query_id", english)


def _joined(release: Release, removed: Collection[str]) -> Iterator[pa.Table]:
    """The removed questions with their passages: their rows in `train`; joined here where there is no such config."""
    if ("train", "train") in release.splits():
        yield from release.rows_with("train", "train", "query_id", removed)
        return
    judged = {query: own for query, own in read_judged(release, "qrels", "train").items() if query in removed}
    texts = texts_of_judged(release, judged)
    for table in release.rows_with("queries", "train", "_id", removed):
        rows = []
        for row in table.to_pylist():
            own = [(joined_passage(each, texts), score > 0) for each, score in judged.get(row["_id"], {}).items()]
            rows.append(
                {
                    "query_id": row["_id"],
                    "query": row["text"],
                    "positive_passages": [passage for passage, positive in own if positive],
                    "negative_passages": [passage for passage, positive in own if not positive],
                }
            )
        yield pa.Table.from_pylist(rows, JOINED)


def _count(draft: Draft, release: Release, removed: Collection[str]) -> None:
    """The figures of the training questions that are left, in the place of the release's."""
    if "train" in draft.stats["table3"]:
        judged = {query: own for query, own in read_judged(release, "qrels", "train").items() if query not in removed}
        left = _texts_without(release, "queries", "_id", removed)
        count_judged(draft, "train", left, judged, texts_of_judged(release, judged))
    if "train" in draft.stats.get("english", {}):
        texts = _texts_without(release, "crosslingual-queries", "zh_id", removed)
        words = round_stat(sum(len(text.split()) for text in texts) / len(texts)) if texts else None
        draft.stats["english"]["train"] = {"queries": len(texts), "words_per_query": words}


def _texts_without(release: Release, config: str, column: str, ids: Collection[str]) -> list[str]:
    return [text for table in _kept(release, config, column, ids) for text in table["text"].to_pylist()]
