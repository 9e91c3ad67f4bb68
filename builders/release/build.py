"""The steps of ``release``: label, select, write. Begin reading here.

Finished work is stored in a folder beside the release. The folder's name is a hash of the input, the options and the
code. A killed build resumes from this folder.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from builders.core.errors import InputError, log
from builders.core.files import sha256_of
from builders.core.folders import key_of, work_beside
from builders.core.jobs import Engine, local_engine
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.release.label import label_block
from builders.release.select import Selection, select
from builders.release.write import NewFile, configs_of, files_of, write_file
from builders.sources.lines import read_blocks
from builders.sources.source_files import Source, states_of
from builders.store.draft import Draft, check_release_output, describe_files, draft_release
from builders.store.stored_answers import warn_of_gaps
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column
from builders.text.span_options import Options

_SMALL = 32 << 20  # bytes; with less input, worker processes cost more time than they save


def build_from_raw(
    sources: list[Source],
    out: Path,
    options: Options,
    workers: int = 1,
    *,
    resume: bool = True,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Build the release directory ``out`` from ``sources``, and return the content of its ``stats.json``.

    The release's bytes depend only on the sources and options, not on the number of workers or on interruptions. The
    tasks run on ``engine`` (default: ``workers`` processes on this machine). Raises :class:`InputError` for wrong
    input, or if ``out`` exists and is not a release.
    """
    before = states_of(sources)
    small = sum(size for _, size, _ in before) < _SMALL
    out = check_release_output(out)
    with (
        contextlib.nullcontext(engine) if engine else local_engine(1 if small else workers) as engine,
        work_beside(out, _key(before, sources, options), resume=resume) as work,
        ThreadPoolExecutor(1) as thread,
    ):
        # A thread computes the manifest's checksums while the blocks are labelled.
        described = thread.submit(describe_files, [(source.name.split("!")[0], source.path) for source in sources])
        _label(sources, options, work, engine)
        selection = select(sources, sorted(_labelled_blocks(work)), work, min(engine.workers, usable_cores()))
        with draft_release(out, work=work) as draft:
            _write(selection, work, draft, engine, options)
            draft.stats |= _figures(selection)
            draft.build = {
                "verb": "release",
                "options": options.as_json(),
                "sources": described.result(),
            }
            if states_of(sources) != before:
                raise InputError("the input changed during the build; run the command again")
    warn_of_gaps(draft.stats["answers"])
    return draft.stats


def _label(sources: list[Source], options: Options, work: Path, engine: Engine) -> None:
    done = _labelled_blocks(work)
    if done:
        log.info("resuming after %d finished blocks", len(done))
    with progress(unit="question", label="label") as bar:
        for rows in engine.map(partial(label_block, options=options, work=work), read_blocks(sources, done=done)):
            bar.update(rows)


def _labelled_blocks(work: Path) -> set[int]:
    return {int(path.name) for path in work.iterdir() if path.name.isdigit()}


def _write(selection: Selection, work: Path, draft: Draft, engine: Engine, options: Options) -> None:
    writers = {("corpus", "corpus"): draft.writer("corpus", "corpus")}
    for split, rows in selection.splits.items():
        log.info("%s: %d queries, %d judgments", split, rows.queries.size, rows.passages.size)
        for config in configs_of(split, rows):
            writers[config, split] = draft.writer(config, split)
    # Answers take the most time, so their files are written first.
    files = sorted(files_of(selection), key=lambda file: file.config != "answers")
    (work / "files").mkdir(exist_ok=True)
    with progress(total=sum(map(_text_count, files)), unit="text", label="write") as bar:
        written = engine.map(partial(write_file, work=work, options=options), files)
        for file, (path, entry) in zip(files, written, strict=True):
            writers[file.config, file.split].adopt(path, entry)
            bar.update(_text_count(file))


def _text_count(file: NewFile) -> int:
    """Return the number of queries and passages in a file, which determines the time of writing."""
    return len(file.queries) + len(file.passages)


def _figures(selection: Selection) -> dict[str, Any]:
    splits = selection.splits
    return {
        "table3": {
            split: table3_column(rows.queries.size, rows.query_chars, rows.passages.size, rows.passage_chars)
            for split, rows in splits.items()
        },
        "collections": {"corpus": selection.corpus_chars.summary()},
        "read": selection.read,
        "positives_per_query": {
            split: LengthCounter(np.bincount(rows.judged, minlength=rows.queries.size)).histogram(POSITIVES_EDGES)
            for split, rows in splits.items()
            if rows.passages.size
        },
    }


def _key(states: list[tuple[str, int, list[int]]], sources: list[Source], options: Options) -> str:
    """Return a hash of the input, the options and the code. Finished work is reused only under the same hash."""
    code = [sha256_of(path) for path in sorted(Path(__file__).parents[1].rglob("*.py"))]
    names = [(str(source.path), source.member, source.split) for source in sources]
    return key_of([states, names, options.as_json(), code])
