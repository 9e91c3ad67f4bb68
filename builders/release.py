"""Raw DuReader 2.0 to a release directory: labels, passages, ids, qrels, card, statistics (Section 2.2 of the paper).

Reads JSON lines, plain or gzipped, in files, folders and zip archives, search and zhidao, the raw and the preprocessed
flavour. Labels follow Algorithm 1 (span-F1), passages and ids come out as the official ones do. Splits follow the file
names, or are given with --train, --dev and --test. An existing release in --out is replaced when the new one is whole;
a killed build goes on from its finished parts. Input and output may be addresses of object stores, such as s3://.

example:
  python -m builders release --raw builders/sample --out build/sample
  python -m builders release --raw dureader_raw.zip --out dureader_retrieval --unit char --workers 8
  python -m builders release --engine ray --ray-address HEAD:6379 --raw s3://bucket/raw --out s3://bucket/release
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from builders.addresses import finished_folders, is_address, names_in, place, remove_tree, replace_objects
from builders.blocks import Block, read_blocks
from builders.command import InputError, add_format, log, progress, whole_number
from builders.draft import Draft, building_beside, check_target, describe_files
from builders.files import replace_directory, sha256_of
from builders.options import MIN_CHARS, Options
from builders.processes import Engine, LocalEngine, WorkerDied
from builders.raw import SPLITS, find_sources
from builders.segment import SEGMENTERS
from builders.sources import Source
from builders.stats import table3_text
from builders.store import MANIFEST

_SMALL = 32 << 20  # below this many bytes of input starting worker processes costs more than it saves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--raw", nargs="+", default=[], metavar="PATH", help="raw rows; names tell the split")
    for split in SPLITS:
        parser.add_argument(f"--{split}", nargs="+", default=[], metavar="PATH", help=f"rows of {split}")
    parser.add_argument("--out", required=True, metavar="DIR", help="the release directory to write")
    parser.add_argument("--unit", choices=["word", "char"], default="word", help="unit of span-F1 (default: word)")
    parser.add_argument(
        "--segmenter",
        choices=SEGMENTERS,
        default=SEGMENTERS[0],
        help="cuts words where the rows carry none: rjieba, compiled, gives jieba's words (default: rjieba)",
    )
    parser.add_argument("--threshold", type=_threshold, default=Fraction(1, 2), help="span-F1 threshold (default: 0.5)")
    parser.add_argument(
        "--match",
        choices=["threshold", "best"],
        default="threshold",
        help="positive: every paragraph that reaches the threshold, or of these each answer's best (v2 of the paper)",
    )
    parser.add_argument(
        "--min-chars", type=whole_number(1), default=MIN_CHARS, help="characters of a full passage (default: 256)"
    )
    parser.add_argument(
        "--workers", type=whole_number(1), help="processes; tasks in flight with ray (default: all cores)"
    )
    parser.add_argument(
        "--engine", choices=["local", "ray"], default="local", help="this machine, or a Ray cluster (default: local)"
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="the cluster's head (default: RAY_ADDRESS, else a cluster that runs here, else one started for the build)",
    )
    parser.add_argument(
        "--object-store-memory",
        type=whole_number(128),
        default=1024,
        metavar="MB",
        help="what the build may hold in Ray's object stores, in all (default: 1024)",
    )
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True, help="go on from a killed build's parts"
    )
    add_format(parser)


def _threshold(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected a number such as 0.5 or 1/2, found {text}") from None
    # Six digits keep every product of the integer comparison within 64 bits.
    if not 0 < value <= 1 or value.denominator > 10**6:
        raise argparse.ArgumentTypeError(f"expected above 0, at most 1, of at most six decimals, found {text}")
    return value


def run(args: argparse.Namespace) -> None:
    sources = find_sources(_places(args, args.raw))
    for split in SPLITS:
        sources += find_sources(_places(args, getattr(args, split)), split)
    if not sources:
        raise InputError("nothing to read: give --raw, or --train, --dev, --test")
    options = Options(args.unit, args.threshold, args.match, args.min_chars, args.segmenter)
    out, workers = place(args.out), args.workers or len(os.sched_getaffinity(0))
    if args.engine == "ray":
        from builders.ray_engine import RayEngine

        check_target(out)
        with RayEngine(args.ray_address, args.workers, args.object_store_memory << 20) as engine:
            stats = build_release(sources, out, options, resume=args.resume, engine=engine)
    else:
        stats = build_release(sources, out, options, workers, resume=args.resume)
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return
    for split, counts in stats["read"].items():
        print(f"{split}: {counts['questions']:,} questions read, {stats['table3'][split]['queries']:,} queries kept")
    print(table3_text(stats))
    print(f"release: {args.out}")


def _places(args: argparse.Namespace, texts: list[str]) -> list[Path]:
    places = [place(text) for text in texts]
    # Other machines have other working directories.
    return [Path(os.path.abspath(p)) if args.engine == "ray" and not is_address(p) else p for p in places]


def build_release(
    sources: list[Source],
    out: Path,
    options: Options,
    workers: int = 1,
    *,
    resume: bool = True,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Build the release directory ``out`` from ``sources``; returns the content of its ``stats.json``.

    Everything is written beside ``out`` and renamed when it is whole. The same sources and options give the same
    bytes, whatever the number of workers and however often the build was killed and resumed. ``engine`` runs the tasks;
    ``workers`` processes of this machine where None. What it runs on must see the sources and ``out``.

    Raises:
        InputError: for wrong input, and where ``out`` exists and is not a release.
    """
    out = check_target(out)
    before = _states(sources)
    small = sum(size for _, size, _ in before) < _SMALL
    with (
        _work_directory(out, _key(before, sources, options), resume) as work,
        contextlib.nullcontext(engine) if engine else _local_engine(1 if small else workers) as engine,
        ThreadPoolExecutor(2) as threads,
    ):
        # The manifest's checksums are computed beside the labelling.
        described = threads.submit(describe_files, [(source.name.split("!")[0], source.path) for source in sources])
        assembly = threads.submit(importlib.import_module, "builders.assemble")  # and DuckDB, numba: takes a second
        if engine.workers == 1:  # two threads that import at the same time may get in each other's way
            assembly.result()
        _build_shards(sources, options, work, engine)
        folder = work / "release"
        remove_tree(folder)
        folder.mkdir()
        draft = Draft(folder)
        cut = assembly.result().assemble(sources, sorted(_finished(work)), work, draft, engine)
        build = {"verb": "release", "options": options.as_json(cut=cut), "sources": described.result()}
        if _states(sources) != before:
            raise InputError("the input changed while it was read; run again")
        draft.finish(build)
        if is_address(out):
            replace_objects(folder, out, last=MANIFEST)
        else:
            replace_directory(folder, out)
    return draft.stats


def _local_engine(workers: int) -> LocalEngine:
    return LocalEngine(workers, preload=["builders.warm"])


def _states(sources: list[Source]) -> list[tuple[str, int, int]]:
    """Path, size and time of change of the files that are read: what tells one input from another before it is read."""
    states = []
    for path in dict.fromkeys(source.path for source in sources):
        try:
            found = path.stat()
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror})", path=path) from error
        states.append((str(path) if is_address(path) else os.path.abspath(path), found.st_size, found.st_mtime_ns))
    return states


def _key(states: list[tuple[str, int, int]], sources: list[Source], options: Options) -> str:
    """Names what the finished parts of a build depend on: the input, the options, and this program itself."""
    code = [
        sha256_of(Path(__file__).with_name(f"{name}.py"))
        for name in (
            "sources",
            "blocks",
            "raw",
            "json_texts",
            "segment",
            "span_f1",
            "spans",
            "passages",
            "ids",
            "repeats",
            "arrow_files",
            "shard_files",
            "shards",
        )
    ]
    names = [(str(source.path), source.member, source.split) for source in sources]
    return hashlib.sha256(json.dumps([states, names, options.as_json(), code]).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _work_directory(out: Path, key: str, resume: bool) -> Iterator[Path]:
    """The build's own folder beside ``out``: kept after a failure or a kill, removed after success."""
    with building_beside(out) as building:
        try:
            for other in names_in(building):  # what an earlier input, or earlier options, left behind
                if other.name != key or not resume:
                    remove_tree(other)
            work = building / key
            work.mkdir(exist_ok=True)
            yield work
        except WorkerDied:
            raise
        except InputError:
            remove_tree(building)
            raise
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
    from builders.shards import build_shard  # with numba: not needed where nothing is labelled

    return build_shard(block, options, work)
