"""Pack a run with all that is needed to check its figures.

Into one zip archive: the run, the values of each query, the figures, the fingerprint of each split of the release, the
recipe and record of each model behind the run, the commands, and the versions of all packages. A manifest lists every
file with its SHA-256. `verify` recomputes the figures. Printed is the SHA-256 of the bundle, as sha256sum does: whoever
publishes it beside the figures seals them.

The commands and models behind a run of `reproduce` are found by themselves; --model names those of any other run.

example:
  python -m baselines bundle --release build/sample --split dev build/runs/bm25.dev.run.gz --out build/bm25.zip
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_split, expect_main


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release that it was run on")
    add_split(parser)
    parser.add_argument(
        "--model", type=Path, nargs="+", default=[], metavar="DIR", help="checkpoints that the run was made by"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.zip", help="the bundle")
    parser.add_argument("run", type=Path, metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    from baselines.bundle.pack import pack

    queries = expect_main(args, "--queries", args.queries)
    qrels = expect_main(args, "--qrels-config", args.qrels_config)
    print(f"{pack(args.run, args.release, (args.set, args.split, queries, qrels), args.model, args.out)}  {args.out}")
