"""The qrels that a round's accepted packages make of a release, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builders.annotate.judgments import JUDGMENTS, Pair
from builders.annotate.labels import settled_labels
from builders.annotate.rounds import ROUND, fingerprint_of, open_round
from builders.check.count import relabelled
from builders.core.errors import InputError, log
from builders.store.draft import describe_files, draft_release
from builders.store.judged import Judged, read_judged
from builders.store.layout import BEFORE
from builders.store.reader import Release
from builders.store.rejudge import qrels_table, rejudge


def merge(round_: Path, base: Release, out: Path) -> dict[str, dict[str, Any]]:
    """Write the release ``out``: ``base`` with the judgments of a round; returns ``relabelled`` of its ``stats.json``.

    Raises :class:`InputError` where the round is of other queries or passages, or has nothing that is settled.
    """
    found = open_round(round_, "relevance")
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
        rejudge(draft, base, split, new)
        if old and (BEFORE, split) not in base.splits():
            draft.write(BEFORE, split, [qrels_table(old)])
        before = read_judged(base, BEFORE, split) or old
        queries = base.table("queries", split, ["_id"])["_id"].to_pylist()
        figures: dict[str, dict[str, Any]] = draft.stats.setdefault("relabelled", {})
        figures[split] = relabelled(queries, before, new)
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
