"""A run re-ranked, a window of queries at a time: one file of scores a window, kept until the run is written."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from baselines.measure.qrels import read_queries
from baselines.models.cross import CrossJob, Group, cross_job, score_groups, scorer
from baselines.models.devices import devices_of, over_devices
from baselines.passages import open_passages
from baselines.run.record import asked_of, record, write_manifest
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.folders import key_of, work_beside
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

_WINDOW = 256  # queries scored together
_ASKED = 16  # queries that an endpoint is asked about: what a kill may lose costs money


def rerank(args: argparse.Namespace) -> None:
    """Write the run that the options of `rerank` ask for."""
    release, configs = open_release(args.release), SETS[args.set]
    given = read_run(args.run)
    groups = _groups(release, args, given.rankings)
    passages = open_passages(release, configs.corpus)
    passages.expect((corpus for _, ids in groups.values() for corpus in ids), args.run)
    # What an endpoint is asked, no device of this machine computes.
    devices = ["cpu"] if args.kind == "listwise" else devices_of(args.device)
    job = cross_job(args, args.model, release, configs.corpus, devices)
    window = _ASKED if job.kind == "listwise" else None
    about = _about(args, job, release)
    with work_beside(args.out, key_of(about)) as work:
        scores = kept_scores(job, list(groups.values()), work, devices, "rerank", window)
        hits = (
            (query, zip(ids, own, strict=True)) for (query, (_, ids)), own in zip(groups.items(), scores, strict=True)
        )
        lines = write_run(args.out, hits, tag=job.kind)
    given_run = {"file": args.run.name, "sha256": about["run"]}
    found = record(about["model"], {**asked_of(args, release, job.kind), "reranked": given_run})
    write_manifest(args.out, found, job.kind, len(groups), lines)
    precision = about["model"].get("computed_in", "the endpoint's own")
    log.info("%s: %d lines for %d queries; precision: %s", args.out, lines, len(groups), precision)


def kept_scores(
    job: CrossJob, groups: Sequence[Group], work: Path, devices: list[str], label: str, window: int | None = None
) -> list[list[float]]:
    """The scores of each group's passages, in their order; finished windows are kept in the folder ``work``.

    ``window``: queries scored together. The folder is of these groups, this job and this window alone.
    """
    window = window or _WINDOW
    if done := len(list(work.glob("window-*.json"))):
        log.info("%d windows of %d queries are done already", done, window)
    scores: list[list[float]] = []
    try:
        with progress(total=len(groups), unit="query", label=label) as bar:
            for found in over_devices(_score_window, _windows(job, work, groups, window), devices):
                scores += found
                bar.update(len(found))
    finally:
        scorer.cache_clear()
    return scores


def _groups(release: Release, args: argparse.Namespace, rankings: dict[str, list[str]]) -> dict[str, Group]:
    """By query id, in the run's order: its text, and the ``--top-k`` best passages that the run gives it, each once."""
    config = SETS[args.set].queries
    texts = dict(read_queries(release, args.split, config))
    for query in rankings:
        if query not in texts:
            raise InputError(f"has a query {query!r} that {config}/{args.split} lacks", path=args.run)
    return {query: (texts[query], list(dict.fromkeys(ids))[: args.top_k]) for query, ids in rankings.items()}


def _about(args: argparse.Namespace, job: CrossJob, release: Release) -> dict[str, Any]:
    """What the scores depend on: what must be equal for finished windows to be kept."""
    configs = SETS[args.set]
    return {
        "run": sha256_of(args.run),
        "model": job.reranker("cpu").about(),
        "corpus": release.fingerprint(configs.corpus, "corpus"),
        "queries": release.fingerprint(configs.queries, args.split),
        "options": [args.top_k, job.dtype, job.settings.max_length, job.tokens, _WINDOW],
    }


def _windows(
    job: CrossJob, folder: Path, groups: Sequence[Group], window: int
) -> Iterator[tuple[CrossJob, Path, Sequence[Group]]]:
    for number, start in enumerate(range(0, len(groups), window)):
        yield job, folder / f"window-{number:06d}.json", groups[start : start + window]


def _score_window(task: tuple[CrossJob, Path, Sequence[Group]], device: str) -> list[list[float]]:
    """The scores of a window's passages, query by query: computed, or found done."""
    job, path, groups = task
    with contextlib.suppress(FileNotFoundError, InputError):  # not done yet; damaged
        kept = read_json(path, list[list[float]])
        if [len(own) for own in kept] == [len(ids) for _, ids in groups]:
            return kept
    # 32-bit scores by their shortest digits.
    scores = [[float(f"{score:.9g}") for score in own] for own in score_groups(job, device, groups)]
    write_text(path, json.dumps(scores))
    return scores
