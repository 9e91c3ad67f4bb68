"""The steps of ``release``: label, select, write. Begin reading here.

Finished work is stored in a folder beside the release. The folder's name is a hash of the input, the options and the
code. A killed build resumes from this folder.
"""

import contextlib
from collections import deque
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from builders.core.errors import InputError, log
from builders.core.folders import key_of, work_beside
from builders.core.jobs import Engine, local_engine
from builders.core.limits import usable_cores
from builders.core.progress import show_progress
from builders.core.read_files import sha256_of
from builders.release.label import label_block
from builders.release.select import ReleaseSelection, select_rows
from builders.release.write import NewFile, configs_of, files_of, write_file
from builders.sources.lines import Block, read_blocks
from builders.sources.source_bars import total_bytes
from builders.sources.source_files import Source, states_of
from builders.store.draft import Draft, check_release_output, describe_files, draft_release
from builders.store.stored_answers import warn_of_gaps
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column
from builders.text.span_options import SpanOptions

_SMALL_INPUT_BYTES = 32 << 20  # with less input, worker processes cost more time than they save


def build_from_raw(
    sources: list[Source],
    out: Path,
    options: SpanOptions,
    workers: int = 1,
    *,
    resume: bool = True,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Build the release directory ``out`` from ``sources``, and return the content of its ``stats.json``.

    The release's bytes depend only on the sources and options, not on the number of workers or on interruptions. The
    tasks run on ``engine`` (default: ``workers`` processes on this machine, or one for a small input). With ``resume``,
    the finished work of a killed build is reused. Raises :class:`InputError` for wrong input, or if ``out`` exists and
    is not a release.
    """
    input_states = states_of(sources)
    input_bytes = sum(size for _, size, _ in input_states)
    if input_bytes < _SMALL_INPUT_BYTES:
        workers = 1
    out = check_release_output(out)
    with (
        contextlib.nullcontext(engine) if engine else local_engine(workers) as task_engine,
        work_beside(out, _work_key(input_states, sources, options), resume=resume) as work,
        ThreadPoolExecutor(1) as thread,
    ):
        # A thread computes the manifest's checksums while the blocks are labelled. The members of a zip archive have
        # the names ARCHIVE!MEMBER, and the manifest lists only the archive.
        source_files = [(source.name.split("!")[0], source.path) for source in sources]
        source_entries = thread.submit(describe_files, source_files)
        _label_sources(sources, options, work, task_engine)
        thread_count = min(task_engine.workers, usable_cores())
        selection = select_rows(sources, sorted(_labelled_blocks(work)), work, thread_count)
        with draft_release(out, work=work) as draft:
            _write_selection(selection, work, draft, task_engine, options)
            draft.stats |= _compute_stats(selection)
            draft.build = {
                "verb": "release",
                "options": options.as_json(),
                "sources": source_entries.result(),
            }
            if states_of(sources) != input_states:
                raise InputError("the input changed during the build; run the command again")
    warn_of_gaps(draft.stats["answers"])
    return draft.stats


def _label_sources(sources: list[Source], options: SpanOptions, work_folder: Path, engine: Engine) -> None:
    """Label all blocks that are not yet labelled under ``work_folder``. The bar counts bytes of the raw rows."""
    finished_blocks = _labelled_blocks(work_folder)
    if finished_blocks:
        log.info("resuming after %d finished blocks", len(finished_blocks))
    finished_bytes, blocks = _skip_finished(read_blocks(sources), finished_blocks)
    # Results come in the order of the blocks, but after further blocks are read. The queue has the bytes by which the
    # bar moves at each result: those of the block, and of the finished blocks that were skipped before it. The last
    # entry has the bytes that were skipped after the last block.
    running_bytes: deque[int] = deque()

    def unfinished_blocks() -> Iterator[Block]:
        skipped_bytes = 0
        for block in blocks:
            if block.number in finished_blocks:  # workers do not finish their blocks in order
                skipped_bytes += len(block.data)
                continue
            running_bytes.append(skipped_bytes + len(block.data))
            skipped_bytes = 0
            yield block
        running_bytes.append(skipped_bytes)

    with show_progress(total=total_bytes(sources), unit="B", label="label", done=finished_bytes) as bar:
        label = partial(label_block, options=options, work_folder=work_folder)
        for _ in engine.map(label, unfinished_blocks()):
            bar.update(running_bytes.popleft())
        bar.update(running_bytes.popleft())


def _skip_finished(blocks: Iterator[Block], finished_blocks: Container[int]) -> tuple[int, Iterator[Block]]:
    """Return the bytes of the finished blocks before the first unfinished block, and the blocks from there."""
    finished_bytes = 0
    for block in blocks:
        if block.number not in finished_blocks:
            return finished_bytes, chain([block], blocks)
        finished_bytes += len(block.data)
    return finished_bytes, blocks


def _labelled_blocks(work_folder: Path) -> set[int]:
    return {int(path.name) for path in work_folder.iterdir() if path.name.isdigit()}


def _write_selection(
    selection: ReleaseSelection, work_folder: Path, draft: Draft, engine: Engine, options: SpanOptions
) -> None:
    """Write the files of the release and add them to the draft. The bar counts queries and passages."""
    # Each split has a writer, which numbers the shards that it adopts.
    writers = {("corpus", "corpus"): draft.writer("corpus", "corpus")}
    for split, rows in selection.splits.items():
        log.info("%s: %d queries, %d judgments", split, rows.queries.size, rows.passages.size)
        for config in configs_of(split, rows):
            writers[config, split] = draft.writer(config, split)
    # Answers take the most time, so their files are written first.
    files = sorted(files_of(selection), key=lambda file: file.config != "answers")
    text_counts = [_text_count(file) for file in files]
    (work_folder / "files").mkdir(exist_ok=True)
    with show_progress(total=sum(text_counts), unit="text", label="write") as bar:
        write = partial(write_file, work_folder=work_folder, options=options)
        written_files = engine.map(write, files)
        # Shards must be adopted in the order of the rows. engine.map keeps the order of the tasks.
        for file, (path, entry) in zip(files, bar.follow(written_files, text_counts), strict=True):
            writers[file.config, file.split].adopt(path, entry)


def _text_count(new_file: NewFile) -> int:
    """Return the number of queries and passages in a file, which determines the time of writing."""
    return len(new_file.queries) + len(new_file.passages)


def _compute_stats(selection: ReleaseSelection) -> dict[str, Any]:
    """Return the content of ``stats.json``: Table 3, the lengths of passages, and counts of the raw rows."""
    table3 = {}
    histograms = {}
    for split, rows in selection.splits.items():
        # Every positive judgment counts, so passages.size is the number of pairs.
        table3[split] = table3_column(
            query_count=rows.queries.size,
            query_chars=rows.query_chars,
            positive_count=rows.passages.size,
            passage_lengths=rows.passage_chars,
        )
        if rows.passages.size:
            positives_per_query = np.bincount(rows.judged_queries, minlength=rows.queries.size)
            histograms[split] = LengthCounter(positives_per_query).histogram(POSITIVES_EDGES)
    return {
        "table3": table3,
        "collections": {"corpus": selection.corpus_chars.summary()},
        "read": selection.read,
        "positives_per_query": histograms,
    }


def _work_key(input_states: list[tuple[str, int, list[int]]], sources: list[Source], options: SpanOptions) -> str:
    """Return a hash of the input, the options and the code. Finished work is reused only under the same hash."""
    # All modules of this package count, because any of them may change the result.
    code_hashes = [sha256_of(path) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    source_names = [(str(source.path), source.member, source.split) for source in sources]
    return key_of([input_states, source_names, options.as_json(), code_hashes])
