"""Describe releases and runs as inputs of verbs, for :mod:`builders.core.finished_outputs`."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from builders.core.finished_outputs import VerbInput, file_input
from builders.core.folders import key_of
from builders.store.reader import Release
from builders.store.runs import Run


def release_input(release: Release, splits: Iterable[tuple[str, str]]) -> VerbInput:
    """Describe the (config, split) pairs that a verb reads. Pairs that the release lacks are skipped.

    The verb itself reports a missing split, with a message that fits its options.
    """
    release_splits = set(release.splits())
    hashes = {}
    for config, split in splits:
        if (config, split) in release_splits:
            hashes[f"{config}/{split}"] = release.fingerprint(config, split)
    return VerbInput(f"the release {release.path}", hashes)


def run_input(run: Run | Path) -> VerbInput:
    """Describe a run. A run in memory has no bytes, so its hits are hashed."""
    if isinstance(run, Run) and run.is_in_memory:
        return VerbInput(f"the run {run.path}", {"": key_of(run.hits)})
    path = run.path if isinstance(run, Run) else run
    return file_input(f"the run {path}", path)


def runs_input(label: str, runs: Sequence[Run | Path]) -> VerbInput:
    """Describe several runs as one input. Its parts are the numbers of the runs, from 1."""
    hashes = {}
    for number, run in enumerate(runs, start=1):
        hashes[str(number)] = run_input(run).hashes[""]  # "" is the only part of a single run
    return VerbInput(label, hashes)
