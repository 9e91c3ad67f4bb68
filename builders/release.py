"""Raw DuReader 2.0 to a release directory: labels, passages, ids, qrels, card, statistics (Section 2.2 of the paper).

Reads JSON lines, plain or gzipped, in files, folders and zip archives, search and zhidao, the raw and the preprocessed
flavour. Labels follow Algorithm 1 (span-F1), passages and ids come out as the official ones do. Splits follow the file
names, or are given with --train, --dev and --test. An existing release in --out is replaced when the new one is whole;
a killed build goes on from its finished parts.

example:
  python -m builders release --raw builders/sample --out build/sample
  python -m builders release --raw dureader_raw.zip --out dureader_retrieval --unit char --workers 8
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from builders.assemble import assemble
from builders.command import InputError, add_format, log, progress, whole_number
from builders.draft import Draft, building_beside, check_target, describe_files
from builders.files import replace_directory, sha256_of
from builders.passages import MIN_CHARS
from builders.processes import Pool, WorkerDied, in_order, process_pool
from builders.raw import SPLITS, find_sources, read_blocks
from builders.segment import SEGMENTERS
from builders.shards import Options, any_was_cut, build_shard, shard_path
from builders.sources import Source
from builders.stats import table3_text

_SMALL = 32 << 20  # below this many bytes of input starting worker processes costs more than it saves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--raw", nargs="+", type=Path, default=[], metavar="PATH", help="raw rows; names tell the split"
    )
    for split in SPLITS:
        parser.add_argument(f"--{split}", nargs="+", type=Path, default=[], metavar="PATH", help=f"rows of {split}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release directory to write")
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
        "--workers", type=whole_number(1), default=len(os.sched_getaffinity(0)), help="processes (default: all cores)"
    )
    parser.add_argument("--engine", choices=["local"], default="local", help="where the work runs")
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
    sources = find_sources(args.raw)
    for split in SPLITS:
        sources += find_sources(getattr(args, split), split)
    if not sources:
        raise InputError("nothing to read: give --raw, or --train, --dev, --test")
    options = Options(args.unit, args.threshold, args.match, args.min_chars, args.segmenter)
    stats = build_release(sources, args.out, options, args.workers, resume=args.resume)
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return
    for split, counts in stats["read"].items():
        print(f"{split}: {counts['questions']:,} questions read, {stats['table3'][split]['queries']:,} queries kept")
    print(table3_text(stats))
    print(f"release: {args.out}")


def build_release(
    sources: list[Source], out: Path, options: Options, workers: int = 1, *, resume: bool = True
) -> dict[str, Any]:
    """Build the release directory ``out`` from ``sources``; returns the content of its ``stats.json``.

    Everything is written beside ``out`` and renamed when it is whole. The same sources and options give the same
    bytes, whatever the number of workers and however often the build was killed and resumed.

    Raises:
        InputError: for wrong input, and where ``out`` exists and is not a release.
    """
    out = check_target(out)
    described = describe_files((source.name.split("!")[0], source.path) for source in sources)
    small = sum(source["bytes"] for source in described) < _SMALL
    with _work_directory(out, _key(described, sources, options), resume) as work:
        # The workers go before the assembly, which has its own: the two do not hold memory at the same time.
        with process_pool(1 if small else workers) as pool:
            _build_shards(sources, options, work, workers, pool)
        folder = work / "release"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        draft = Draft(folder)
        assemble(work, draft, workers)
        used = options.as_json(cut=any_was_cut(work))
        draft.finish({"verb": "release", "options": used, "sources": described})
        replace_directory(folder, out)
    return draft.stats


def _key(described: list[dict[str, Any]], sources: list[Source], options: Options) -> str:
    """Names what the finished parts of a build depend on: the input, the options, and this program itself."""
    code = [
        sha256_of(Path(__file__).with_name(f"{name}.py"))
        for name in ("sources", "raw", "segment", "span_f1", "passages", "shards")
    ]
    names = [(str(source.path), source.member, source.split) for source in sources]
    return hashlib.sha256(json.dumps([described, names, options.as_json(), code]).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _work_directory(out: Path, key: str, resume: bool) -> Iterator[Path]:
    """The build's own folder beside ``out``: kept after a failure or a kill, removed after success."""
    with building_beside(out) as building:
        try:
            for other in building.iterdir():  # what an earlier input, or earlier options, left behind
                if other.name != key or not resume:
                    shutil.rmtree(other)
            work = building / key
            work.mkdir(exist_ok=True)
            yield work
        except WorkerDied:
            raise
        except InputError:
            shutil.rmtree(building, ignore_errors=True)
            raise
        shutil.rmtree(building)


def _build_shards(sources: list[Source], options: Options, work: Path, workers: int, pool: Pool | None) -> None:
    done = {path.name for path in work.glob("[0-9]*") if not path.name.endswith(".half")}
    if done:
        log.info("going on after %d finished parts", len(done))
    blocks = (block for block in read_blocks(sources) if shard_path(work, block.number).name not in done)
    with progress(unit="question", label="label") as bar:
        # A few blocks in flight bound the memory.
        for rows in in_order(pool, functools.partial(build_shard, options=options, work=work), blocks, 2 * workers):
            bar.update(rows)
