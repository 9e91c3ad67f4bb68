"""The qrels that a round's accepted packages make of a release, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from builders.annotate.judgments import JUDGMENTS, Pair
from builders.annotate.labels import settled_labels
from builders.annotate.rounds import ROUND, fingerprint_of, open_round
from builders.common.command import InputError, log
from builders.stats.relabelled import relabelled
from builders.store.draft import describe_files, draft_release
from builders.store.judged import Judged, read_judged
from builders.store.layout import BEFORE, PASSAGES, QRELS, SETS, Set, schema_of
from builders.store.reader import Release
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column

Texts = Mapping[str, str]  # of passages, by id


def merge(round_: Path, base: Release, out: Path) -> dict[str, dict[str, Any]]:
    """Write the release ``out``: ``base`` with the judgments of a round; returns ``relabelled`` of its ``stats.json``.

    Raises :class:`InputError` where the round is of other queries or passages, or has nothing that is settled.
    """
    found = open_round(round_)
    split = found.split
    if found.fingerprint != fingerprint_of(base, split):
        raise InputError(f"is of other queries or passages than those of {base.path} {split}", path=round_ / ROUND)
    settled = settled_labels(round_, found)
    waiting = [package.name for package in found.packages if package.state != "accepted"]
    if not settled.labels:
        states = f"{len(waiting)} of {len(found.packages)} packages are not accepted"
        raise InputError(f"has no pair with a label that counts: {states}; `annotate check` says why", path=round_)
    if waiting:
        log.warning("left out, not accepted: %s", ", ".join(waiting))
    if settled.undecided:
        log.warning("%d pairs are undecided and stay as they were: `annotate adjudicate`", len(settled.undecided))
    old = read_judged(base, "qrels", split)
    new = corrected(old, settled.labels)
    build = {
        "verb": "annotate merge",
        "options": {"split": split, "pool": found.pool, "packages": len(found.packages) - len(waiting)},
        "sources": describe_files(
            (path.relative_to(round_).as_posix(), path)
            for path in [round_ / ROUND, *sorted((round_ / JUDGMENTS).glob("*.jsonl"))]
        ),
    }
    with draft_release(out, build, base) as draft:
        draft.write("qrels", split, [_table(new)])
        if old and (BEFORE, split) not in base.splits():
            draft.write(BEFORE, split, [_table(old)])
        texts = _texts(base, new)
        for configs in (SETS["main"], SETS["crosslingual"]):
            if (configs.joined[split], split) in base.splits():
                draft.write(configs.joined[split], split, _joined(base, configs, split, new, texts))
        before = read_judged(base, BEFORE, split) or old
        _count(draft.stats, base, split, before, new, texts)
        figures: dict[str, dict[str, Any]] = draft.stats["relabelled"]
    return figures


def corrected(judged: Judged, labels: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """The judgments with people's ``labels``: 1 makes a positive of a pair that is none, 0 takes it away.

    The order stays; pairs that were not there stand behind the others of their query.
    """
    found = {query: dict(scores) for query, scores in judged.items()}
    for (query, passage), label in labels.items():
        scores = found.setdefault(query, {})
        if not label:
            scores[passage] = 0
        elif scores.get(passage, 0) <= 0:
            scores[passage] = 1
    return found


def _table(judged: Judged) -> pa.Table:
    rows = [(query, passage, score) for query, scores in judged.items() for passage, score in scores.items()]
    return pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=QRELS)


def _texts(base: Release, judged: Judged) -> Texts:
    """The texts of all judged passages; :class:`InputError` where the corpus lacks one."""
    wanted = pa.array(sorted({passage for scores in judged.values() for passage in scores}), pa.string())
    found: dict[str, str] = {}
    for batch in base.batches("corpus", "corpus", ["_id", "text"]):
        chosen = batch.filter(pc.is_in(batch["_id"], value_set=wanted))
        found |= dict(zip(chosen["_id"].to_pylist(), chosen["text"].to_pylist(), strict=True))
    if missing := next((passage for passage in wanted.to_pylist() if passage not in found), None):
        raise InputError(f"has no passage {missing!r}, which was judged", path=base.path)
    return found


def _joined(base: Release, configs: Set, split: str, judged: Judged, texts: Texts) -> Iterator[pa.Table]:
    """The joined rows of a split with the passages as they are judged now."""
    zh_ids: dict[str, str] = {}
    if configs.translated:
        rows = base.table(configs.queries, split)
        zh_ids = dict(zip(rows["_id"].to_pylist(), rows["zh_id"].to_pylist(), strict=True))
    config = configs.joined[split]
    for batch in base.batches(config, split):
        columns = {name: batch[name] for name in schema_of(config).names}
        positive, negative = [], []
        for query, kept in zip(batch["query_id"].to_pylist(), batch["negative_passages"].to_pylist(), strict=True):
            scores = judged.get(zh_ids.get(query, query), {})
            positive.append([_passage(each, texts) for each, score in scores.items() if score > 0])
            refuted = [_passage(each, texts) for each, score in scores.items() if score <= 0]
            known = {each["docid"] for each in kept}
            kept = [each for each in kept if scores.get(each["docid"], 0) <= 0]
            negative.append([*kept, *(each for each in refuted if each["docid"] not in known)])
        columns |= {
            "positive_passages": pa.array(positive, PASSAGES),
            "negative_passages": pa.array(negative, PASSAGES),
        }
        yield pa.table(columns, schema=schema_of(config))


def _passage(docid: str, texts: Texts) -> dict[str, str]:
    return {"docid": docid, "title": "", "text": texts[docid]}


def _count(stats: dict[str, Any], base: Release, split: str, before: Judged, after: Judged, texts: Texts) -> None:
    """Put the figures of the new judgments into ``stats``, which becomes ``stats.json``."""
    queries = base.table("queries", split)
    positives = [passage for scores in after.values() for passage, score in scores.items() if score > 0]
    lengths, per_query = LengthCounter(), LengthCounter()
    lengths.add(np.array([len(texts[passage]) for passage in positives], np.int64))
    counts = [sum(score > 0 for score in scores.values()) for scores in after.values()]
    per_query.add(np.array([count for count in counts if count], np.int64))
    chars = sum(map(len, queries["text"].to_pylist()))
    stats["table3"][split] = table3_column(len(queries), chars, len(positives), lengths)
    stats.setdefault("positives_per_query", {})[split] = per_query.histogram(POSITIVES_EDGES)
    stats.setdefault("relabelled", {})[split] = relabelled(queries["_id"].to_pylist(), before, after)
