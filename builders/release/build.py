"""The steps of ``release``: blocks of raw rows to finished shards, shards to a release directory.

Parts are written to a folder of the build's own beside the release, under a name that says what they depend on: a
killed build goes on from those that are finished.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from builders.common.addresses import finished_folders, is_address, names_in, remove_tree, replace_objects
from builders.common.command import InputError, log, progress
from builders.common.files import replace_directory, sha256_of
from builders.common.jobs import Engine, WorkerDied
from builders.release.options import Options
from builders.sources.files import Source, states_of
from builders.sources.lines import Block, read_blocks
from builders.store.draft import Draft, building_beside, check_target, describe_files
from builders.store.layout import MANIFEST


def build(sources: list[Source], out: Path, options: Options, resume: bool, engine: Engine) -> dict[str, Any]:
    """What :func:`builders.release.build_release` does, on ``engine``."""
    out = check_target(out)
    before = states_of(sources)
    with (
        _work_directory(out, _key(before, sources, options), resume) as work,
        ThreadPoolExecutor(2) as threads,
    ):
        # The manifest's checksums are computed beside the labelling.
        described = threads.submit(describe_files, [(source.name.split("!")[0], source.path) for source in sources])
        assembly = threads.submit(importlib.import_module, "builders.release.assemble")
        if engine.workers == 1:  # two threads that import at the same time may get in each other's way
            assembly.result()
        _build_shards(sources, options, work, engine)
        folder = work / "release"
        remove_tree(folder)
        folder.mkdir()
        draft = Draft(folder)
        cut = assembly.result().assemble(sources, sorted(_finished(work)), work, draft, engine)
        build = {"verb": "release", "options": options.as_json(cut=cut), "sources": described.result()}
        if states_of(sources) != before:
            raise InputError("the input changed while it was read; run again")
        draft.finish(build)
        if is_address(out):
            replace_objects(folder, out, last=MANIFEST)
        else:
            replace_directory(folder, out)
    return draft.stats


def _key(states: list[tuple[str, int, int]], sources: list[Source], options: Options) -> str:
    """Names what the finished parts of a build depend on: the input, the options, and this program itself."""
    package = Path(__file__).parents[1]
    code = [sha256_of(path) for path in sorted(package.rglob("*.py"))]
    names = [(str(source.path), source.member, source.split) for source in sources]
    return hashlib.sha256(json.dumps([states, names, options.as_json(), code]).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _work_directory(out: Path, key: str, resume: bool) -> Iterator[Path]:
    """The build's own folder beside ``out``: kept after a failure or a kill, removed after success."""
    with building_beside(out) as building:
        work = building / key
        try:
            for other in names_in(building):  # what an earlier input, or earlier options, left behind
                if other.name != key or not resume:
                    remove_tree(other)
            work.mkdir(exist_ok=True)
            yield work
        except WorkerDied:
            raise
        except InputError:
            _discard(building, work)
            raise
        _discard(building, work)


def _discard(building: Path, work: Path) -> None:
    """Remove all of a build; killed meanwhile, it leaves nothing that looks like finished parts."""
    if not is_address(work) and work.exists():
        work.rename(building / "discarded")
    remove_tree(building)


def _finished(work: Path) -> set[int]:
    return {int(name) for name in finished_folders(work) if name.isdigit()}


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
