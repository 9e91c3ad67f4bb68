"""The second half of ``release``: finished shards to a release directory.

Which passages and which questions have come before is decided on ids alone, in parts or on disk where the memory does
not suffice: neither the number of passages nor the number of questions decides how much memory a build needs. Then each
Parquet file is a task. Order is always that of the input: of a text that comes several times the first place counts,
with all its judgments.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from builders import store
from builders.command import InputError, log, progress
from builders.draft import Draft
from builders.files import fsync_file
from builders.pieces import CorpusFile, Slice, SplitFile, read_plan, write_file
from builders.plan import make_plan
from builders.processes import Engine
from builders.repeats import count_ids, find_repeats, parts
from builders.shard_files import remove_passages, shard_path
from builders.sources import Source
from builders.stats import POSITIVES_EDGES, LengthCounter, round_stat
from builders.store import SplitWriter

_FILES = "files"
# A file on its way: whose it is, the task, and the shards whose passages nobody needs once it is written.
File = tuple[SplitWriter, CorpusFile | SplitFile, list[int]]


def assemble(sources: Sequence[Source], shards: Sequence[int], work: Path, draft: Draft, engine: Engine) -> bool:
    """Merge the ``shards`` under ``work`` into ``draft``: its configs and its figures.

    Returns whether there was a row whose words the build had to cut itself.

    Raises:
        InputError: for one question id with two texts, and for input without a single passage.
    """
    (work / _FILES).mkdir(exist_ok=True)
    corpus = draft.writer("corpus", "corpus")
    joined: dict[str, SplitWriter] = {}
    with ThreadPoolExecutor(1) as thread:
        threads = min(engine.workers, len(os.sched_getaffinity(0)))
        planning = thread.submit(make_plan, sources, shards, work, threads)  # while the corpus is written
        passages = deque(_corpus_files(shards, work, engine))

        def files() -> Iterator[File]:
            spent: list[int] = []
            while passages and not planning.done():
                file, ended = passages.popleft()
                spent += ended
                yield corpus, file, []
            # Those of the splits take longest, so they do not come last. They need passages of all shards.
            for split, sizes in planning.result().sizes.items():
                for writer, found in _split_files(draft, work, split, sizes):
                    if writer.config == split:
                        joined[split] = writer
                    yield from ((writer, file, []) for file in found)
            for file, ended in passages:
                yield corpus, file, spent + ended
                spent = []

        lengths = _write_files(files(), engine, work)
        plan = planning.result()
    draft.stats["read"] = plan.read
    draft.stats["collections"]["corpus"] = lengths[corpus].summary()
    draft.stats["positives_per_query"] = {}
    for split, sizes in plan.sizes.items():
        draft.stats["table3"][split] = _table3(work, split, sizes, lengths[joined[split]])
        if sizes["judgments"]:
            draft.stats["positives_per_query"][split] = _positives_per_query(work, split)
    return plan.cut


def _write_files(files: Iterable[File], engine: Engine, work: Path) -> dict[SplitWriter, LengthCounter]:
    """Write the files, each for its writer; returns how long the passages of each writer are."""
    lengths: dict[SplitWriter, LengthCounter] = defaultdict(LengthCounter)
    under_way: deque[tuple[SplitWriter, list[int]]] = deque()

    def tasks() -> Iterator[CorpusFile | SplitFile]:
        for writer, file, spent in files:
            under_way.append((writer, spent))
            yield file

    with progress(unit="file", label="write") as bar, ThreadPoolExecutor(1) as thread:
        for done in engine.map(write_file, tasks()):
            writer, spent = under_way.popleft()
            lengths[writer].add(np.arange(done.lengths.size), done.lengths)
            writer.adopt(done.path, done.entry)
            # Both while the workers go on: at the end nothing is left to wait for.
            fsync_file(done.path)
            for shard in spent:
                thread.submit(remove_passages, work, shard)
            bar.update()
    return lengths


def _new_file(work: Path, config: str, split: str, number: int) -> Path:
    """The folder of a finished file of the release."""
    return work / _FILES / f"{config}-{split}-{number:05d}"


def _corpus_files(shards: Sequence[int], work: Path, engine: Engine) -> list[tuple[CorpusFile, list[int]]]:
    """The files of the corpus, every passage at its first place, each with the shards that it brings to an end."""
    passages = {shard: count_ids(shard_path(work, shard) / "ids") for shard in shards}
    repeats = np.sort(np.concatenate([*engine.map(find_repeats, parts(work, shards, sum(passages.values())))]))
    files: list[tuple[CorpusFile, list[int]]] = []
    room = 0
    for shard, rows in passages.items():
        low, high = np.searchsorted(repeats, [shard << 32, (shard + 1) << 32])
        own = repeats[low:high] - (shard << 32)
        start, end = 0, rows - own.size
        while start < end:
            if not room:
                files.append((CorpusFile(_new_file(work, "corpus", "corpus", len(files)), work, []), []))
                room = store.ROWS_PER_SHARD
            file, ended = files[-1]
            taken = min(room, end - start)
            file.slices.append(Slice(shard, own, start, start + taken))
            start, room = start + taken, room - taken
            if start == end:
                ended.append(shard)
    if not files:
        raise InputError("the input holds no passage: every document is empty")
    return files


def _split_files(
    draft: Draft, work: Path, split: str, sizes: dict[str, int]
) -> Iterator[tuple[SplitWriter, list[SplitFile]]]:
    """The files of one split; no qrels where the split carries no labels."""
    log.info("%s: %d queries, %d judgments", split, sizes["queries"], sizes["judgments"])
    configs = {split: "queries", "queries": "queries"} | ({"qrels": "judgments"} if sizes["judgments"] else {})
    for config, counted in configs.items():
        writer, rows = draft.writer(config, split), sizes[counted]
        room = store.rows_per_shard(store.schema_of(config))
        starts = range(0, rows, room)
        ends = (min(start + room, rows) for start in starts)
        yield (
            writer,
            [
                SplitFile(_new_file(work, config, split, number), work, config, split, start, end)
                for number, (start, end) in enumerate(zip(starts, ends, strict=True))
            ],
        )


def _table3(work: Path, split: str, sizes: dict[str, int], lengths: LengthCounter) -> dict[str, float | int | None]:
    chars = pc.sum(pc.utf8_length(read_plan(work, split, "queries")["text"])).as_py()
    return {
        "queries": sizes["queries"],
        "positive_passages": sizes["judgments"] or None,  # None: the split carries no labels
        "passages_per_query": round_stat(sizes["judgments"] / sizes["queries"]) if sizes["judgments"] else None,
        "chars_per_query": round_stat(chars / sizes["queries"]) if sizes["queries"] else None,
        "chars_per_passage": round_stat(lengths.mean),
    }


def _positives_per_query(work: Path, split: str) -> list[dict[str, int | None]]:
    counter = LengthCounter()
    counter.add(np.unique(read_plan(work, split, "judgments")["place"].to_numpy(), return_counts=True)[1])
    return counter.histogram(POSITIVES_EDGES)
