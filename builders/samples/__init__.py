"""Add nested samples of the collection, to search in their place.

On a small machine 8 million passages take too long, and a sample gives other figures than the whole: fewer passages are
in the way of the positives. docs/samples.md says how far off they are.

For every size, a config sample-SIZE holds the ids of so many passages: all positives of the --split's queries, and
others drawn by lot. With --hard RUN... there is a sample-SIZE-hard, too: all positives, then what the runs rank first
for any query, then second, and so on (of the last rank, and where the runs hold too few, by lot). A smaller sample is
part of a larger one of its kind. Earlier samples of the release are replaced. The same seed and runs give the same
samples, in whatever order the passages are.

--extract CONFIG writes a small release: the sample's passages with their texts and the --split's queries, for all verbs
and tools; without the training questions, whose positives are not in a sample.

`bm25` and `search` of baselines take such a config (--sample) in the place of the collection.

example:
  python -m builders samples --release build/sample --sizes 100 --hard build/runs/bm25.run.gz --out build/samples
  python -m builders samples --release DIR --sizes 10K 100K 1M --seed 0 --out DIR
  python -m builders samples --release DIR --extract sample-100K-hard --out SMALL
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from builders.common.command import add_format, whole_number

_TIMES = {"K": 1_000, "M": 1_000_000}


def size(text: str) -> int:
    """An argparse type: a number of passages, ``10K`` for 10,000, ``1M`` for a million."""
    times = _TIMES.get(text[-1:].upper(), 1)
    value = int(text[:-1] if times > 1 else text) * times
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least one passage, found {text}")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to start from")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sizes", type=size, nargs="+", metavar="N", help="passages a sample: 10K, 1M or any number")
    what.add_argument("--extract", metavar="CONFIG", help="write a release of this sample alone: sample-10K-hard")
    parser.add_argument(
        "--hard",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN",
        help="runs of the queries: also samples of their best",
    )
    parser.add_argument(
        "--split",
        nargs="+",
        default=["dev"],
        metavar="SPLIT",
        help="whose positives are in every sample (default: dev)",
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, metavar="N", help="of the lots (default: 0)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the new release (may be --release)")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    from builders.samples.draw import sample_name, write_samples
    from builders.samples.extract import write_extract
    from builders.store.reader import open_release

    if args.extract:
        found = write_extract(open_release(args.release), sample_name(args.extract), args.out)
        print(f"{args.out}: {found['passages']:,} passages, the queries of {', '.join(found['splits'])}")
        return
    rows = write_samples(open_release(args.release), args)
    if args.format == "json":
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        hard = f", {row['hard']:,} that the runs rank high" if row["hard"] is not None else ""
        print(f"{row['config']}: {row['passages']:,} passages, {row['positives']:,} positives{hard}")
