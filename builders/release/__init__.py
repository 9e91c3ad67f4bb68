"""Make a release from raw DuReader 2.0 (Section 2.2 of the paper).

Written are passages, labels, ids, qrels, a card and statistics. Read are JSON lines, plain or gzipped, in files,
folders and zip archives, search and zhidao, the raw and the preprocessed flavour. Labels follow Algorithm 1 (span-F1),
passages and ids come out as the official ones do. Splits follow the file names, or are given with --train, --dev and
--test. An existing release in --out is replaced when the new one is whole; a killed build goes on from its finished
parts.

example:
  python -m builders release --raw builders/sample --out build/sample
  python -m builders release --raw dureader_raw.zip --out dureader_retrieval --unit char --workers 8
  python -m builders release --engine ray --ray-address HEAD:6379 --raw /mnt/raw --out /mnt/release
"""

from __future__ import annotations

import argparse
import os
from fractions import Fraction
from pathlib import Path

from builders.core.command import add_format, whole_number
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.tables import print_result
from builders.core.words import SEGMENTERS
from builders.release.options import MIN_CHARS, THRESHOLD, Options
from builders.store.layout import SPLITS


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
    parser.add_argument("--threshold", type=_threshold, default=THRESHOLD, help="span-F1 threshold (default: 0.5)")
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
        raise argparse.ArgumentTypeError(
            f"expected above 0, at most 1, with a denominator of at most 1,000,000, found {text}"
        )
    return value


def run(args: argparse.Namespace) -> None:
    from builders.release.build import build_release
    from builders.release.rows import find_sources

    sources = find_sources(_paths(args, args.raw))
    for split in SPLITS:
        sources += find_sources(_paths(args, getattr(args, split)), split)
    if not sources:
        raise InputError("nothing to read: give --raw, or --train, --dev, --test")
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


def _paths(args: argparse.Namespace, texts: list[str]) -> list[Path]:
    # Other machines have other working directories.
    return [Path(os.path.abspath(text) if args.engine == "ray" else text) for text in texts]
