"""The splits of the official archives as configs of the release: queries, qrels, joined rows, Table 3's figures."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from builders.official.corpus import Corpus, Step
from builders.official.queries import Split
from builders.official.text_pool import TextPool, as_keys, hex_ids
from builders.store.layout import JOINED, PASSAGES, QRELS, QUERIES
from builders.store.table3 import round_stat

_BATCH = 2_048


def write_split(step: Step, split: Split, pool: TextPool, corpus: Corpus) -> None:
    """``queries``, ``qrels`` (of passages that the collection holds), joined rows and Table 3's row of one split."""
    draft, name = step.draft, split.name
    queries, joined = draft.writer("queries", name), draft.writer(name, name)
    ids = hex_ids(as_keys(b"".join(split.ids)))
    pairs = [(row, key) for row, found in enumerate(split.positives) for key, _ in found]
    if split.labelled:
        _write_qrels(step, split, corpus, ids, pairs)
    digests = pool.keys()
    for low in range(0, len(ids), _BATCH):
        high = min(low + _BATCH, len(ids))
        texts = pool.get(np.array(split.texts[low:high], np.int64))
        queries.write(pa.table([ids[low:high], texts], schema=QUERIES))
        good = [[(key.hex(), text) for key, text in found] for found in split.positives[low:high]]
        flat = np.array([text for found in split.negatives[low:high] for text in found], np.int64)
        names = iter(hex_ids(corpus.id_of(digests[flat])))
        bad = [[(next(names), text) for text in found] for found in split.negatives[low:high]]
        joined.write(pa.table([ids[low:high], texts, _lists(good, pool), _lists(bad, pool)], schema=JOINED))
    lengths = pool.lengths()
    chars = [int(lengths[text]) for found in split.positives for _, text in found]
    draft.stats["table3"][name] = {
        "queries": len(ids),
        "positive_passages": len(pairs) or None,
        "passages_per_query": round_stat(len(pairs) / len(ids)) if pairs else None,
        "chars_per_query": round_stat(float(lengths[split.texts].mean())),
        "chars_per_passage": round_stat(sum(chars) / len(chars)) if chars else None,
    }


def _write_qrels(step: Step, split: Split, corpus: Corpus, ids: list[str], pairs: list[tuple[int, bytes]]) -> None:
    rows, keys = [row for row, _ in pairs], as_keys(b"".join(key for _, key in pairs))
    if (empty := len(ids) - len(set(rows))) > 0:
        step.findings.add(f"questions of {split.name} without a positive passage", empty)
    there = np.ones(len(keys), np.bool_)
    if corpus.present:
        there = corpus.ids.find(keys) >= 0
        if not there.all():
            step.findings.add(
                f"judgments of {split.name} whose passage the collection lacks (left out of the qrels)",
                int((~there).sum()),
                hex_ids(keys[~there])[0],
            )
    kept = [(ids[row], key) for row, key, held in zip(rows, hex_ids(keys), there.tolist(), strict=True) if held]
    score = pa.repeat(pa.scalar(1, pa.int64()), len(kept))
    columns = [pa.array([pair[n] for pair in kept], pa.string()) for n in (0, 1)]
    step.draft.writer("qrels", split.name).write(pa.table([*columns, score], schema=QRELS))


def _lists(found: list[list[tuple[str, int]]], pool: TextPool) -> pa.ListArray:
    flat = [pair for pairs in found for pair in pairs]
    texts = pool.get(np.array([text for _, text in flat], np.int64))
    offsets = np.cumsum([0, *(len(pairs) for pairs in found)], dtype=np.int32)
    structs = pa.StructArray.from_arrays(
        [
            pa.array([key for key, _ in flat], pa.string()),
            pa.array([""] * len(flat), pa.string()),
            pa.array(texts, pa.string()),
        ],
        fields=list(PASSAGES.value_type),
    )
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=PASSAGES)
