"""Warn about runs of another release, set or split, by the manifest beside a run and by the run's passage ids.

Passages that a release lacks count as not relevant, so a run of another release can score 0 without an error.
"""

from collections.abc import Container, Iterable, Sequence

import msgspec

from baselines.core.run_manifest import manifest_path
from baselines.measure.measures import LIST_DEPTH
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError, log
from builders.core.typed import convert_to, read_json
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run


class _RunFile(msgspec.Struct):
    bytes: int


class _Latency(msgspec.Struct):
    """The entry of :meth:`baselines.core.latency.Latency.to_json`."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries: int


class RunRecord(msgspec.Struct):
    """The fields of a run's manifest that name its source (:func:`baselines.core.run_manifest.describe_search`).

    Attributes:
        set: the set of the queries and passages.
        split: the split of the queries.
        release: config -> fingerprint (:meth:`builders.store.reader.Release.fingerprint`, a hash of the split's files),
            for the config of the passages and the config of the queries.
        run: the file that the manifest describes, None for a run in memory.
        query_latency: the latency of a query, None if it was not measured.
    """

    set: str = ""
    split: str = ""
    release: dict[str, str] = {}
    run: _RunFile | None = None
    query_latency: _Latency | None = None


def read_record(run: Run) -> RunRecord | None:
    """Return the record of a run, or None if the run has no manifest, or the manifest of an earlier file.

    Raises :class:`InputError` for a manifest with other content.
    """
    if run.is_in_memory:
        return convert_to(run.manifest, RunRecord, run.path) if run.manifest else None
    path = manifest_path(run.path)
    if not path.is_file():
        return None
    record = read_json(path, RunRecord)
    # The run may have been written again without a manifest. The size tells, without reading a large file.
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
    # The set and the split of the manifest are compared. "" is a split that is not compared.
    expected_split = split
    if qrels_config.startswith("resttest"):
        expected_split = ""
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
    _warn_of_difference(run, "set", record.set, set_name)
    _warn_of_difference(run, "split", record.split, split)

    # Compare the fingerprints of the searched passages and queries with those of the release.
    searched_corpus = SETS[record.set].corpus
    differing_configs = []
    for config, recorded_fingerprint in record.release.items():
        split_of_config = "corpus" if config == searched_corpus else record.split
        if recorded_fingerprint != _fingerprint(release, config, split_of_config):
            differing_configs.append(config)
    if differing_configs:
        log.warning(
            "%s: the run's manifest names another release than %s (other %s); search this release again",
            run.path,
            release.path,
            ", ".join(differing_configs),
        )
    has_recorded_passages = searched_corpus in record.release and searched_corpus not in differing_configs
    return searched_corpus == SETS[set_name].corpus and has_recorded_passages


def _warn_of_difference(run: Run, name: str, recorded: str, measured: str) -> None:
    """Warn if the manifest names another set or split than the measured one. "": any value is right.

    The split of a run of own queries is "".
    """
    if measured and recorded and recorded != measured:
        log.warning("%s: the run's manifest names the %s %s, but %s is measured", run.path, name, recorded, measured)


def _fingerprint(release: Release, config: str, split: str) -> str | None:
    """Return the fingerprint of a split, or None if the release lacks the split."""
    return release.fingerprint(config, split) if (config, split) in release.splits() else None


def _warn_of_unknown_passages(runs: Sequence[Run], qrels: Qrels, release: Release, corpus: str) -> None:
    """Warn about each run with passages in the top 50 that the release's config ``corpus`` lacks."""
    if (corpus, "corpus") not in release.splits():
        return
    ids_by_run = [_top_passages(run, qrels) for run in runs]
    missing_ids = set(release.missing_ids(corpus, "corpus", set[str]().union(*ids_by_run)))
    for run, passage_ids in zip(runs, ids_by_run, strict=True):
        unknown_ids = passage_ids & missing_ids
        if unknown_ids:
            log.warning(
                "%s: %d of %d passages in the top %d are not in %s of %s, for example %r; they count as not relevant",
                run.path,
                len(unknown_ids),
                len(passage_ids),
                LIST_DEPTH,
                corpus,
                release.path,
                min(unknown_ids),
            )


def expect_passages(run: Run, passage_ids: Iterable[str], texts: Container[str], corpus: str) -> None:
    """Raise :class:`InputError` for the first passage of a run without a text in the config ``corpus``."""
    for passage_id in passage_ids:
        if passage_id not in texts:
            raise InputError(f"has a passage {passage_id!r} that the release's {corpus} lacks", path=run.path)


def _warn_of_unjudged_run(run: Run, qrels: Qrels) -> None:
    """Warn if no passage of the run is judged for any query, because the ids are probably of another collection."""
    judged_ids = set[str]().union(*qrels.judged().values())
    passage_ids = _top_passages(run, qrels)
    if passage_ids and passage_ids.isdisjoint(judged_ids):
        log.warning(
            "%s: none of %d passages in the top %d is judged in %s, for example %r; expected passage ids of the "
            "judgments",
            run.path,
            len(passage_ids),
            LIST_DEPTH,
            qrels.name,
            min(passage_ids),
        )


def _top_passages(run: Run, qrels: Qrels) -> set[str]:
    """Return the ids of the first 50 passages of the measured queries."""
    passage_ids = set[str]()
    for query_id in qrels.positives:
        passage_ids.update(run.rankings.get(query_id, ())[:LIST_DEPTH])
    return passage_ids
