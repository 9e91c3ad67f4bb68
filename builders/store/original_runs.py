"""Translate runs with the original ids of a copy into runs with the ids of a release.

``official --copy`` gives passages and queries the MD5 of the text as their id. The config ``original-ids`` of the
release has the ids of the copied files. A run may have either.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from builders.core.errors import log
from builders.store.layout import ORIGINAL_IDS_CONFIG
from builders.store.reader import Release
from builders.store.runs import Hit, Run, read_run

# The (config, split) pairs that a translation reads, for the record of a verb's inputs.
ORIGINAL_ID_SPLITS = ((ORIGINAL_IDS_CONFIG, "corpus"), (ORIGINAL_IDS_CONFIG, "queries"))


def read_release_run(run: Run | Path, release: Release | None) -> Run:
    """Read a run as :func:`.runs.read_run` does, with the ids of a release.

    Without a release, the ids are those of the file.
    """
    opened_run = read_run(run)
    return opened_run if release is None else translate_run(opened_run, release)


def translate_run(run: Run, release: Release) -> Run:
    """Return a run with the ids of the release in place of original ids. Other ids are unchanged.

    Several passages of a copy may have become one passage. If a ranking has more than one of them, the best rank is
    kept. If the run has two queries that became one query, the first ranking is kept. A warning counts both.
    """
    if not any(config == ORIGINAL_IDS_CONFIG for config, _ in release.splits()):
        return run
    passage_ids = set[str]()
    for ranking in run.rankings.values():
        passage_ids.update(ranking)
    new_passage_ids = _read_ids(release, "corpus", passage_ids)
    new_query_ids = _read_ids(release, "queries", run.rankings.keys())
    if not new_passage_ids and not new_query_ids:
        return run

    hits_by_query: dict[str, Sequence[Hit]] = {}
    merged_hits = 0
    merged_queries = 0
    for query_id, hits in run.hits.items():
        new_query_id = new_query_ids.get(query_id, query_id)
        if new_query_id in hits_by_query:
            merged_queries += 1
            continue
        new_hits = _translate_hits(hits, new_passage_ids)
        merged_hits += len(hits) - len(new_hits)
        hits_by_query[new_query_id] = new_hits
    if merged_hits:
        log.warning(
            "%s: %d hits are passages whose text has a better rank under another original id; the better rank is kept",
            run.path,
            merged_hits,
        )
    if merged_queries:
        log.warning(
            "%s: %d queries have the text of another query of the run; the first ranking is kept",
            run.path,
            merged_queries,
        )
    log.info("%s: original ids are translated to those of %s", run.path, release.path)
    translated_run = Run(run.path, hits_by_query)
    translated_run.is_in_memory = run.is_in_memory
    translated_run.manifest = run.manifest
    return translated_run


def _read_ids(release: Release, split: str, original_ids: Collection[str]) -> dict[str, str]:
    """Return the ids of the release by original id, for those of ``original_ids`` that the release has."""
    new_ids: dict[str, str] = {}
    if (ORIGINAL_IDS_CONFIG, split) in release.splits():
        for table in release.rows_with(ORIGINAL_IDS_CONFIG, split, "original-id", original_ids):
            new_ids.update(zip(table["original-id"].to_pylist(), table["_id"].to_pylist(), strict=True))
    return new_ids


def _translate_hits(hits: Sequence[Hit], new_ids: Mapping[str, str]) -> list[Hit]:
    """Return hits with new ids. Of several ids that became one passage, the first is kept."""
    new_hits: list[Hit] = []
    first_ids: dict[str, str] = {}  # new id -> the first id of the run that stands for it
    for passage_id, score in hits:
        new_id = new_ids.get(passage_id, passage_id)
        # A repeated hit of the run itself stays, because the measures warn about it.
        if first_ids.setdefault(new_id, passage_id) == passage_id:
            new_hits.append((new_id, score))
    return new_hits
