"""The second half of ``release``: finished shards to a release directory.

Which passages and which questions have come before is decided on ids alone, in parts or on disk where the memory does
not suffice: neither the number of passages nor the number of questions decides how much memory a build needs. Then each
Parquet file is a task. Order is always that of the input: of a text that comes several times the first place counts,
with all its judgments.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from builders.common.columns import values_of
from builders.common.command import InputError, log, progress
from builders.common.files import fsync_file
from builders.common.jobs import Engine
from builders.release.dedupe import count_ids, find_repeats, parts
from builders.release.select import make_plan
from builders.release.shard_files import remove_passages, shard_path
from builders.release.write import CorpusFile, Slice, SplitFile, read_plan, write_file
from builders.sources.files import Source
from builders.store import layout
from builders.store.draft import Draft
from builders.store.layout import schema_of
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column
from builders.store.writer import SplitWriter

_FILES = "files"
# A file on its way: whose it is, the task, and the shards whose passages it needs.
File = tuple[SplitWriter, CorpusFile | SplitFile, list[int]]


class _Spent:
    """Removes the passages of each shard once no file is left that needs them."""

    def __init__(self, work: Path, files: Iterable[Sequence[int]]) -> None:
        self._work, self._all_known = work, False
        self._needed = Counter(shard for shards in files for shard in shards)
        self._thread = ThreadPoolExecutor(1)

    def expect(self, files: Iterable[Sequence[int]]) -> None:
        """Further files; there are no others."""
        self._needed.update(shard for shards in files for shard in shards)
        self._all_known = True
        self._remove(list(self._needed))

    def written(self, shards: Sequence[int]) -> None:
        """A file that needs these is finished."""
        self._needed.subtract(shards)
        self._remove(shards)

    def _remove(self, shards: Sequence[int]) -> None:
        for shard in shards:
            if self._all_known and not self._needed[shard]:
                self._thread.submit(remove_passages, self._work, shard)

    def close(self) -> None:
        self._thread.shutdown()


def assemble(sources: Sequence[Source], shards: Sequence[int], work: Path, draft: Draft, engine: Engine) -> bool:
    """Merge the ``shards`` under ``work`` into ``draft``: its configs and its figures.

    Returns whether there was a row whose words the build had to cut itself.

    Raises:
        InputError: for one question id with two texts, and for input without a single passage.
    """
    (work / _FILES).mkdir(exist_ok=True)
    corpus = draft.writer("corpus", "corpus")
    with ThreadPoolExecutor(1) as thread:
        threads = min(engine.workers, len(os.sched_getaffinity(0)))
        planning = thread.submit(make_plan, sources, shards, work, threads)  # while the corpus is written
        passages = deque((corpus, file, [s.shard for s in file.slices]) for file in _corpus_files(shards, work, engine))
        spent = _Spent(work, (shards for _, _, shards in passages))

        def files() -> Iterator[File]:
            while passages and not planning.done():
                yield passages.popleft()
            planned: list[File] = []
            for split, sizes in planning.result().sizes.items():
                planned += _split_files(draft, work, split, sizes)
            spent.expect(shards for _, _, shards in planned)
            yield from planned  # they take longest, so they do not come last
            yield from passages

        with contextlib.closing(spent):
            lengths = _write_files(files(), engine, spent)
        plan = planning.result()
    draft.stats["read"] = plan.read
    draft.stats["collections"]["corpus"] = lengths["corpus"].summary()
    draft.stats["positives_per_query"] = {}
    for split, sizes in plan.sizes.items():
        draft.stats["table3"][split] = table3_column(
            sizes["queries"], _query_chars(work, split), sizes["judgments"], lengths[split]
        )
        if sizes["judgments"]:
            draft.stats["positives_per_query"][split] = _positives_per_query(work, split)
    return plan.cut


def _write_files(files: Iterable[File], engine: Engine, spent: _Spent) -> dict[str, LengthCounter]:
    """Write the files, each for its writer; returns how long the passages of each config are."""
    lengths: dict[str, LengthCounter] = defaultdict(LengthCounter)
    under_way: deque[tuple[SplitWriter, list[int]]] = deque()

    def tasks() -> Iterator[CorpusFile | SplitFile]:
        for writer, file, shards in files:
            under_way.append((writer, shards))
            yield file

    with progress(unit="file", label="write") as bar:
        for done in engine.map(write_file, tasks()):
            writer, shards = under_way.popleft()
            lengths[writer.config].add(np.arange(done.lengths.size), done.lengths)
            writer.adopt(done.path, done.entry)
            # Both while the workers go on: at the end nothing is left to wait for.
            fsync_file(done.path)
            spent.written(shards)
            bar.update()
    return lengths


def _new_file(work: Path, config: str, split: str, number: int) -> Path:
    """The folder of a finished file of the release."""
    return work / _FILES / f"{config}-{split}-{number:05d}"


def _corpus_files(shards: Sequence[int], work: Path, engine: Engine) -> list[CorpusFile]:
    """The files of the corpus: every passage at its first place."""
    passages = {shard: count_ids(shard_path(work, shard) / "ids") for shard in shards}
    repeats = np.sort(np.concatenate([*engine.map(find_repeats, parts(work, shards, sum(passages.values())))]))
    files: list[CorpusFile] = []
    room = 0
    for shard, rows in passages.items():
        low, high = np.searchsorted(repeats, [shard << 32, (shard + 1) << 32])
        own = repeats[low:high] - (shard << 32)
        start, end = 0, rows - own.size
        while start < end:
            if not room:
                files.append(CorpusFile(_new_file(work, "corpus", "corpus", len(files)), work, []))
                room = layout.ROWS_PER_SHARD
            taken = min(room, end - start)
            files[-1].slices.append(Slice(shard, own, start, start + taken))
            start, room = start + taken, room - taken
    if not files:
        raise InputError("the input holds no passage: every document is empty")
    return files


def _split_files(draft: Draft, work: Path, split: str, sizes: dict[str, int]) -> list[File]:
    """The files of one split; no qrels where the split carries no labels."""
    log.info("%s: %d queries, %d judgments", split, sizes["queries"], sizes["judgments"])
    judgments = read_plan(work, split, "judgments")
    places, shards = values_of(judgments["place"]), values_of(judgments["passage"]) >> 32
    # Where the judgments of each row of a config begin.
    firsts = {split: np.searchsorted(places, np.arange(sizes["queries"] + 1)), "qrels": np.arange(places.size + 1)}
    files: list[File] = []
    for config, rows in {split: sizes["queries"], "queries": sizes["queries"], "qrels": sizes["judgments"]}.items():
        if config == "qrels" and not rows:
            continue
        writer, room = draft.writer(config, split), layout.rows_per_shard(schema_of(config))
        for number, start in enumerate(range(0, rows, room)):
            end = min(start + room, rows)
            low, high = firsts[config][[start, end]] if config in firsts else (0, 0)
            task = SplitFile(_new_file(work, config, split, number), work, config, split, start, end)
            files.append((writer, task, np.unique(shards[low:high]).tolist()))
    return files


def _query_chars(work: Path, split: str) -> int:
    return pc.sum(pc.utf8_length(read_plan(work, split, "queries")["text"])).as_py() or 0


def _positives_per_query(work: Path, split: str) -> list[dict[str, int | None]]:
    counter = LengthCounter()
    counter.add(np.unique(read_plan(work, split, "judgments")["place"].to_numpy(), return_counts=True)[1])
    return counter.histogram(POSITIVES_EDGES)
