"""Which rows of the tables a release can give: its sets, configs and splits, its labels and hard negatives."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from baselines.reproduce.matrix import Row
from builders.core.errors import InputError, log
from builders.store.layout import SETS
from builders.store.reader import Release

_MADE_BY = "`python -m builders similar` makes train-similar, duplicated and others, `annotate merge` qrels-before"


def runnable(
    rows: Sequence[Row], release: Release, split: str, *, scratch: bool, asked: bool, named: bool
) -> list[Row]:
    """The rows that the release has queries and negatives for; the others are said in the log.

    Args:
        rows: what was chosen.
        release: what they are run on.
        split: the split of the rows that have none of their own.
        scratch: whether recipes without pretrained weights stand in for the others.
        asked: the user named tables or rows: a set that is missing is an error.
        named: the user named the row: whatever is missing is an error.

    Raises:
        InputError: nothing is left, or what was asked for is missing.
    """
    have = release.splits()
    kept = [row for row in rows if (SETS[row.set].queries, row.split or split) in have]
    if lacking := sorted({row.set for row in rows if row not in kept}):
        words = f"has no queries of {', '.join(lacking)} to measure on; `python -m builders VERB --release` adds sets"
        if not kept or asked:
            raise InputError(words, path=release.path)
        log.warning("%s %s; those rows are left out", release.path, words)
    if unsaid := [row for row in kept if _absent(row, release, split)]:
        missing = ", ".join(sorted({each for row in unsaid for each in _absent(row, release, split)}))
        shown = ", ".join(dict.fromkeys(row.name for row in unsaid))
        words = f"has no {missing}, without which {shown} cannot be measured; {_MADE_BY}"
        kept = [row for row in kept if row not in unsaid]
        if not kept or asked:
            raise InputError(words, path=release.path)
        log.warning("%s %s; those rows are left out", release.path, words)
    official = [row for row in kept if row.official_negatives]
    if official and (scratch or not _has_official_negatives(release)):
        shown = ", ".join(dict.fromkeys(row.name for row in official))
        words = "has no hard negatives that came with the data (`python -m builders official` brings them)"
        words = f"--scratch: no pretrained weights for {shown}" if scratch else f"{release.path}: {shown}: {words}"
        if named:
            raise InputError(words)
        log.log(logging.INFO if scratch else logging.WARNING, "%s; left out", words)
        kept = [row for row in kept if row not in official]
    return kept


def _absent(row: Row, release: Release, split: str) -> list[str]:
    """The configs of the quality strategies (Section 2.3) that a row needs and the release lacks."""
    wanted = {*row.needs, row.queries, row.qrels} - {""}
    if not wanted:
        return []
    split, have = row.split or split, release.splits()
    configs = {config for config, _ in have}
    found = [config for config in row.needs if config not in configs]
    own = [config for config in (row.queries, row.qrels or SETS[row.set].qrels) if config]
    return sorted({*found, *(f"{config}/{split}" for config in own if (config, split) not in have)})


def is_labelled(row: Row, release: Release, split: str) -> bool:
    """Whether a row can be measured: the labels of the official test split were never published."""
    return (SETS[row.set].qrels, row.split or split) in release.splits()


def _has_official_negatives(release: Release) -> bool:
    config, split = SETS["main"].joined["train"], "train"
    if (config, split) not in release.splits():
        return False
    batches = release.batches(config, split, ["negative_passages.list.element.docid"])
    return any(len(batch.column(0).flatten()) for batch in batches)
