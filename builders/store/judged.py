"""The judgments of a split, in memory: of millions of passages only those that somebody judged."""

from __future__ import annotations

from collections.abc import Mapping

from builders.core.errors import InputError
from builders.store.reader import Release

Judged = Mapping[str, Mapping[str, int]]  # by query id, by passage id: the score; above 0 the passage is a positive


def read_judged(release: Release, config: str, split: str) -> dict[str, dict[str, int]]:
    """The judgments of one split of a config of qrels, in its order; none where the release does not have it."""
    found: dict[str, dict[str, int]] = {}
    if (config, split) in release.splits():
        for batch in release.batches(config, split):
            columns = (batch.column(name).to_pylist() for name in ("query-id", "corpus-id", "score"))
            for query, passage, score in zip(*columns, strict=True):
                found.setdefault(query, {})[passage] = score
    return found


def texts_of_judged(release: Release, judged: Judged) -> dict[str, str]:
    """The texts of all judged passages, by id; :class:`InputError` where the corpus lacks one."""
    wanted = {passage for scores in judged.values() for passage in scores}
    found = release.texts("corpus", "corpus", wanted)
    if missing := wanted - found.keys():
        raise InputError(f"has no passage {min(missing)!r}, which was judged", path=release.path)
    return found


def joined_passage(docid: str, texts: Mapping[str, str]) -> dict[str, str]:
    """A passage as joined rows have it; titles are empty, because the benchmark drops them."""
    return {"docid": docid, "title": "", "text": texts[docid]}
