"""Warn about runs of another release, set or split, by the manifest beside a run and by the run's passage ids.

Passages that a release lacks count as not relevant, so a run of another release can score 0 without an error.
"""

from collections.abc import Sequence

import msgspec

from baselines.core.run_manifest import manifest_path
from baselines.measure.measures import LIST_DEPTH
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError, log
from builders.core.typed import read_json, typed
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run


class _RunFile(msgspec.Struct):
    bytes: int


class RunRecord(msgspec.Struct):
    """The fields of a run's manifest that name its source (:func:`baselines.core.run_manifest.describe_search`).

    Attributes:
        set: the set of the queries and passages.
        split: the split of the queries.
        release: config -> fingerprint, for the config of the passages and the config of the queries.
        run: the file that the manifest describes, None for a run in memory.
    """

    set: str = ""
    split: str = ""
    release: dict[str, str] = {}
    run: _RunFile | None = None


def read_record(run: Run) -> RunRecord | None:
    """Return the record of a run, or None if the run has no manifest, or the manifest of an earlier file.

    Raises :class:`InputError` for a manifest with other content.
    """
    if run.is_in_memory:
        return typed(run.manifest, RunRecord, run.path) if run.manifest else None
    path = manifest_path(run.path)
    if not path.is_file():
        return None
    record = read_json(path, RunRecord)
    is_of_this_file = record.run is not None and run.path.is_file() and record.run.bytes == run.path.stat().st_size
    return record if is_of_this_file else None


def warn_of_origins(
    runs: Sequence[Run], qrels: Qrels, release: Release | None, *, set_name: str, split: str, qrels_config: str = ""
) -> None:
    """Warn about each run of another release, set or split, and about passages that the release lacks.

    Args:
        qrels: the judgments that the runs are measured with.
        release: the release of the judgments. None if the judgments are a file without passages.
        set_name, split: the set and the split of the judgments.
        qrels_config: the config of the judgments, if it is not the set's. A config of `add resttest` has splits of its
            own, which no manifest names.
    """
    if release is None:
        for run in runs:
            _warn_of_unjudged_run(run, qrels)
        return
    expected_split = "" if qrels_config.startswith("resttest") else split
    # The passages of a run need no check if the run's manifest has the fingerprint of the release's passages.
    unchecked_runs = [run for run in runs if not _warn_of_record(run, release, set_name, expected_split)]
    try:
        _warn_of_unknown_passages(unchecked_runs, qrels, release, SETS[set_name].corpus)
    except InputError as error:  # the figures do not need the passages
        log.warning("%s; the passage ids of the runs are not checked", error)


def _warn_of_record(run: Run, release: Release, set_name: str, split: str) -> bool:
    """Warn if the run's manifest names another source. Return True if the manifest names the release's passages."""
    try:
        record = read_record(run)
    except InputError as error:
        log.warning("%s; the release of the run is not checked", error)
        return False
    if record is None or record.set not in SETS:
        return False
    for name, recorded, measured in (("set", record.set, set_name), ("split", record.split, split)):
        if measured and recorded != measured:
            log.warning(
                "%s: the run's manifest names the %s %s, but %s is measured", run.path, name, recorded, measured
            )
    corpus = SETS[record.set].corpus
    other_configs = []
    for config, fingerprint in record.release.items():
        if fingerprint != _fingerprint(release, config, "corpus" if config == corpus else record.split):
            other_configs.append(config)
    if other_configs:
        log.warning(
            "%s: the run's manifest names another release than %s (other %s); search this release again",
            *(run.path, release.path, ", ".join(other_configs)),
        )
    return corpus == SETS[set_name].corpus and corpus in record.release and corpus not in other_configs


def _fingerprint(release: Release, config: str, split: str) -> str | None:
    """Return the fingerprint of a split, or None if the release lacks the split."""
    return release.fingerprint(config, split) if (config, split) in release.splits() else None


def _warn_of_unknown_passages(runs: Sequence[Run], qrels: Qrels, release: Release, corpus: str) -> None:
    if (corpus, "corpus") not in release.splits():
        return
    ids_by_run = [_top_passages(run, qrels) for run in runs]
    missing_ids = set(release.missing(corpus, "corpus", set[str]().union(*ids_by_run)))
    for run, passage_ids in zip(runs, ids_by_run, strict=True):
        unknown_ids = passage_ids & missing_ids
        if unknown_ids:
            log.warning(
                "%s: %d of %d passages in the top %d are not in %s of %s, for example %r; they count as not relevant",
                *(run.path, len(unknown_ids), len(passage_ids), LIST_DEPTH, corpus, release.path, min(unknown_ids)),
            )


def _warn_of_unjudged_run(run: Run, qrels: Qrels) -> None:
    """Warn if no passage of the run is judged for any query, because the ids are probably of another collection."""
    judged_ids = {passage_id for judgments in qrels.judged().values() for passage_id in judgments}
    passage_ids = _top_passages(run, qrels)
    if passage_ids and passage_ids.isdisjoint(judged_ids):
        log.warning(
            "%s: none of %d passages in the top %d is judged in %s, for example %r; expected passage ids of the "
            "judgments",
            *(run.path, len(passage_ids), LIST_DEPTH, qrels.name, min(passage_ids)),
        )


def _top_passages(run: Run, qrels: Qrels) -> set[str]:
    """Return the ids of the first 50 passages of the measured queries."""
    passage_ids = set[str]()
    for query_id in qrels.positives:
        passage_ids.update(run.rankings.get(query_id, ())[:LIST_DEPTH])
    return passage_ids
