"""The verb `release`: build a release from raw DuReader."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from builders.core.errors import UsageError
from builders.core.options import Again, AtLeastOne, Excludes, Needs, Placeholder, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.core.words import SEGMENTERS
from builders.store.release_options import NewRelease
from builders.text.span_options import MIN_CHARS, THRESHOLD, RawPath, Segmenter, SpanOptions, SpanThreshold, Unit

if TYPE_CHECKING:
    from builders.store.written_release import WrittenRelease

# Raise this number if the same call gives another release than before.
RESULT_VERSION = 1


@verb(formats=TABLE_FORMATS, resumes=True)
def build_release(
    raw: Sequence[RawPath] = (),
    *,
    out: NewRelease,
    train: Sequence[RawPath] = (),
    dev: Sequence[RawPath] = (),
    test: Sequence[RawPath] = (),
    unit: Unit = "word",
    segmenter: Segmenter = SEGMENTERS[0],
    threshold: SpanThreshold = THRESHOLD,
    match: Literal["threshold", "best"] = "threshold",
    min_chars: Annotated[AtLeastOne, Placeholder("N"), Excludes("whole_documents")] = MIN_CHARS,
    whole_documents: bool = False,
    workers: Annotated[AtLeastOne, Placeholder("N")] | None = None,
    engine: Literal["local", "ray"] = "local",
    ray_address: Annotated[str, Placeholder("HOST:PORT"), Needs("engine=ray")] | None = None,
    resume: Annotated[bool, Use.WITH_NO] = True,
    again: Again = False,
) -> "WrittenRelease":
    """Build a release from raw DuReader 2.0 (the paper's Section 2.2).

    The input is JSON lines, plain or gzipped, in files, folders and zip archives. DuReader's search and zhidao files
    are read, raw or preprocessed. The output has passages, queries, qrels, joined rows, a card and statistics. Labels
    follow Algorithm 1 (span-F1). Passages and ids follow the rules of the official data. A file's split is read from
    its name, or set by --train, --dev and --test. A complete new release replaces the old release in --out. To resume a
    killed build, run the same command again.

    Args:
        raw: raw files and folders; the split is read from file names
        train: raw files and folders of train
        dev: raw files and folders of dev
        test: raw files and folders of test
        match: label every paragraph that reaches the threshold, or only the best for each answer
        min_chars: join paragraphs until a passage has N characters
        whole_documents: join all paragraphs of a document
        workers: worker processes, or parallel tasks of ray (default: all cores)
        engine: this machine or a Ray cluster
        ray_address: head of the cluster (default: RAY_ADDRESS, then a cluster on this machine, then a new cluster)
        resume: resume a killed build

    Returns:
        The release. Its ``report`` has the statistics, for example Table 3.

    Raises:
        InputError: there is no input, a row is wrong, or ``out`` exists and is not a release.

    Examples:
        python -m builders release --raw builders/sample --out build/sample
        python -m builders release --raw dureader_raw.zip --out build/release --unit char --workers 8
        python -m builders release --engine ray --ray-address HEAD:6379 --raw /mnt/raw --out /mnt/release
    """
    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, known_checksums, record_finished
    from builders.core.limits import usable_cores
    from builders.release.rows import find_sources
    from builders.sources.source_files import sources_input
    from builders.store.draft import check_release_output
    from builders.store.manifest import read_stats
    from builders.store.reader import open_release

    sources = []
    for split, paths in ((None, raw), ("train", train), ("dev", dev), ("test", test)):
        if engine == "ray":
            # Machines of a cluster may have different working directories, so they need absolute paths.
            paths = [Path(os.path.abspath(path)) for path in paths]
        sources += find_sources(paths, split)
    if not sources:
        raise UsageError("no input; give --raw, or --train, --dev, --test")
    options = SpanOptions(unit, threshold, match, min_chars, segmenter, whole_documents)
    call = None
    if is_kept(out):
        # The other parameters change no result: workers and engines share the work, and a killed build gives the same
        # bytes if it resumes.
        call = VerbCall("release", RESULT_VERSION, options.as_json(), {"raw": sources_input(sources)})
    finished = find_finished(out, call, again=again)
    if finished:
        return _open_reported(finished.path, read_stats(finished.path))

    # Imported here, because the libraries of the build take seconds to import and a finished release needs none.
    from builders.release.build import build_from_raw

    if engine == "ray":
        from builders.core.jobs_ray import RayEngine

        check_release_output(out)
        with RayEngine(ray_address, workers) as ray_engine:
            stats = build_from_raw(sources, out, options, resume=resume, engine=ray_engine)
    else:
        stats = build_from_raw(sources, out, options, workers or usable_cores(), resume=resume)

    record_finished(out, call, checksums=known_checksums(out, open_release(out).manifest.files))
    return _open_reported(out, stats)


def _open_reported(out: Path, stats: dict[str, Any]) -> "WrittenRelease":
    """Open the new release with a report of its statistics."""
    from builders.core.results import Report
    from builders.store.table3 import table3_tables, table3_text
    from builders.store.written_release import open_written

    lines = []
    # Show how many questions were dropped, because they have no positive passage or are repeated.
    for split, counts in stats["read"].items():
        query_count = stats["table3"][split]["queries"]
        lines.append(f"{split}: {counts['questions']:,} questions read, {query_count:,} queries kept")
    lines.append(table3_text(stats))
    lines.append(f"release: {out}")
    return open_written(out, Report(stats, "\n".join(lines), table3_tables(stats)))
