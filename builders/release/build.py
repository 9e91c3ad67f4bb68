"""The steps of ``release``: blocks of raw rows to finished shards, shards to a release directory.

Parts are written to a folder of the build's own beside the release, under a name that says what they depend on: a
killed build goes on from those that are finished.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from builders.common.command import InputError, log, progress
from builders.common.files import sha256_of
from builders.common.folders import finished_tasks, work_beside
from builders.common.jobs import Engine
from builders.release.options import Options
from builders.sources.files import Source, states_of
from builders.sources.lines import Block, read_blocks
from builders.store.draft import check_release_output, describe_files, draft_release


def build(sources: list[Source], out: Path, options: Options, resume: bool, engine: Engine) -> dict[str, Any]:
    """What :func:`builders.release.build_release` does, on ``engine``."""
    out = check_release_output(out)
    before = states_of(sources)
    with (
        work_beside(out, _key(before, sources, options), resume=resume) as work,
        ThreadPoolExecutor(2) as threads,
    ):
        # The manifest's checksums are computed beside the labelling.
        described = threads.submit(describe_files, [(source.name.split("!")[0], source.path) for source in sources])
        assembly = threads.submit(importlib.import_module, "builders.release.assemble")
        if engine.workers == 1:  # two threads that import at the same time may get in each other's way
            assembly.result()
        _build_shards(sources, options, work, engine)
        with draft_release(out, work=work) as draft:
            cut = assembly.result().assemble(sources, sorted(_finished(work)), work, draft, engine)
            draft.build = {"verb": "release", "options": options.as_json(cut=cut), "sources": described.result()}
            if states_of(sources) != before:
                raise InputError("the input changed while it was read; run again")
    return draft.stats


def _key(states: list[tuple[str, int, int]], sources: list[Source], options: Options) -> str:
    """Names what the finished parts of a build depend on: the input, the options, and this program itself."""
    package = Path(__file__).parents[1]
    code = [sha256_of(path) for path in sorted(package.rglob("*.py"))]
    names = [(str(source.path), source.member, source.split) for source in sources]
    return hashlib.sha256(json.dumps([states, names, options.as_json(), code]).encode()).hexdigest()[:16]


def _finished(work: Path) -> set[int]:
    return {int(name) for name in finished_tasks(work) if name.isdigit()}


def _build_shards(sources: list[Source], options: Options, work: Path, engine: Engine) -> None:
    done = _finished(work)
    if done:
        log.info("going on after %d finished parts", len(done))
    blocks = read_blocks(sources, done=done)
    with progress(unit="question", label="label") as bar:
        for rows in engine.map(partial(_build_shard, options=options, work=work), blocks):
            bar.update(rows)


def _build_shard(block: Block, options: Options, work: Path) -> int:
    from builders.release.label import build_shard  # with numba: not needed where nothing is labelled

    return build_shard(block, options, work)
