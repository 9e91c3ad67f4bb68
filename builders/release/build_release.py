"""Build a release from raw DuReader 2.0 (the paper's Section 2.2).

The input is JSON lines, plain or gzipped, in files, folders and zip archives. DuReader's search and zhidao files are
read, raw or preprocessed. The output has passages, queries, qrels, joined rows, a card and statistics. Labels follow
Algorithm 1 (span-F1). Passages and ids follow the rules of the official data. A file's split is read from its name, or
set by --train, --dev and --test. A complete new release replaces the old release in --out. To resume a killed build,
run the same command again.

example:
  python -m builders release --raw builders/sample --out build/sample
  python -m builders release --raw dureader_raw.zip --out dureader_retrieval --unit char --workers 8
  python -m builders release --engine ray --ray-address HEAD:6379 --raw /mnt/raw --out /mnt/release
"""

import argparse
import os
from pathlib import Path

from builders.core.command import add_format, whole_number
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.tables import print_result
from builders.store.layout import SPLITS
from builders.text.span_options import MIN_CHARS, Options, add_rule, raw_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--raw",
        nargs="+",
        type=raw_path,
        default=[],
        metavar="PATH",
        help="raw files and folders; the split is read from file names",
    )
    for split in SPLITS:
        add(
            f"--{split}", nargs="+", type=raw_path, default=[], metavar="PATH", help=f"raw files and folders of {split}"
        )
    add("--out", required=True, metavar="DIR", help="release directory to write")
    add_rule(parser)
    add(
        "--match",
        choices=["threshold", "best"],
        default="threshold",
        help="label every paragraph that reaches the threshold, or only the best for each answer (default: threshold)",
    )
    add(
        "--min-chars",
        type=whole_number(1),
        default=MIN_CHARS,
        metavar="N",
        help="join paragraphs until a passage has N characters (default: 256)",
    )
    add("--workers", type=whole_number(1), help="worker processes, or parallel tasks of ray (default: all cores)")
    add("--engine", choices=["local", "ray"], default="local", help="this machine or a Ray cluster (default: local)")
    add(
        "--ray-address",
        metavar="HOST:PORT",
        help="head of the cluster (default: RAY_ADDRESS, then a cluster on this machine, then a new cluster)",
    )
    add("--resume", action=argparse.BooleanOptionalAction, default=True, help="resume a killed build (default: on)")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.release.build import build_release
    from builders.release.rows import find_sources

    sources = find_sources(_paths(args, args.raw))
    for split in SPLITS:
        sources += find_sources(_paths(args, getattr(args, split)), split)
    if not sources:
        raise InputError("no input; give --raw, or --train, --dev, --test")
    options = Options(args.unit, args.threshold, args.match, args.min_chars, args.segmenter)
    out, workers = Path(args.out), args.workers or usable_cores()
    if args.engine == "ray":
        from builders.core.jobs_ray import RayEngine
        from builders.store.draft import check_release_output

        check_release_output(out)
        with RayEngine(args.ray_address, args.workers) as engine:
            stats = build_release(sources, out, options, resume=args.resume, engine=engine)
    else:
        stats = build_release(sources, out, options, workers, resume=args.resume)
    from builders.store.table3 import table3_text

    read = [
        f"{split}: {counts['questions']:,} questions read, {stats['table3'][split]['queries']:,} queries kept"
        for split, counts in stats["read"].items()
    ]
    print_result(stats, "\n".join([*read, table3_text(stats), f"release: {args.out}"]), args.format)


def _paths(args: argparse.Namespace, paths: list[Path]) -> list[Path]:
    # Machines of a cluster may have different working directories, so they need absolute paths.
    return [Path(os.path.abspath(path)) if args.engine == "ray" else path for path in paths]
