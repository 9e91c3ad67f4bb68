"""The configs crosslingual-queries and crosslingual (Section 2.5), beside those of the release that they translate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.annotate.quality import Verdict
from builders.collection.write import described
from builders.common.command import log
from builders.crosslingual.pairs import Pair
from builders.crosslingual.queries import English, english_queries
from builders.sources.files import Source
from builders.store.draft import draft_release
from builders.store.layout import CROSSLINGUAL, CROSSLINGUAL_QUERIES, SPLITS
from builders.store.reader import Release
from builders.store.table3 import round_stat


def build_crosslingual(
    pairs: Sequence[Pair],
    splits: Mapping[str, Mapping[str, str]],
    base: Release,
    out: Path,
    options: dict[str, Any],
    sources: Sequence[Source],
    verdicts: Sequence[Verdict] = (),
) -> dict[str, Any]:
    """Write the release ``out``: ``base`` and the cross-lingual configs.

    Returns ``english`` and ``crosslingual`` of its ``stats.json``.
    """
    queries, counts = english_queries(pairs, splits)
    with draft_release(out, {"verb": "crosslingual", "options": options, "sources": described(sources)}, base) as draft:
        draft.drop("crosslingual-queries")
        draft.drop("crosslingual")
        figures: dict[str, Any] = {}
        for split in SPLITS:
            rows = [(*row, zh_id) for zh_id in splits.get(split, ()) for row in queries.get(zh_id, ())]
            if not rows:
                continue
            table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=CROSSLINGUAL_QUERIES)
            draft.write("crosslingual-queries", split, [table])
            joined = draft.write("crosslingual", split, _joined(base, split, queries))
            if joined != len(rows):
                log.warning("%s: %d of %d English queries have a joined row", split, joined, len(rows))
            words = sum(len(text.split()) for _, text, _ in rows)
            figures[split] = {"queries": len(rows), "words_per_query": round_stat(words / len(rows))}
        draft.stats["english"] = figures
        draft.stats["crosslingual"] = counts | ({"packages": as_stats(verdicts)} if verdicts else {})
    return {key: draft.stats[key] for key in ("english", "crosslingual")}


def as_stats(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """The packages as ``stats.json`` has them."""
    return [
        {
            "package": verdict.package,
            "queries": verdict.size,
            "reviews": [{"right": right, "judged": judged} for right, judged in verdict.reviews.values()],
            "accuracy": None if verdict.accuracy is None else round_stat(float(verdict.accuracy)),
            "accepted": not verdict.refusal,
        }
        for verdict in verdicts
    ]


def _joined(release: Release, split: str, queries: English) -> Iterator[pa.Table]:
    """A row for each English query: that of its Chinese one in the split's joined config, in this config's order."""
    if (split, split) not in release.splits():
        return
    for batch in release.batches(split, split):
        rows = [
            (row, english_id, text)
            for row, zh_id in enumerate(batch.column("query_id").to_pylist())
            for english_id, text in queries.get(zh_id, ())
        ]
        if rows:
            chosen, ids, texts = zip(*rows, strict=True)
            table = pa.Table.from_batches([batch]).take(pa.array(chosen))
            columns = [pa.array(ids), pa.array(texts), table["positive_passages"], table["negative_passages"]]
            yield pa.table([*columns, table["query"]], schema=CROSSLINGUAL)
