"""Re-rank a run by a cross-encoder: a TREC run of its scores.

The queries stay in the order of the given run. The best 50 passages of each query, pairs of at most 384 tokens if the
model was trained so (Sections 3.1, A.2). Scores are logits: the order of ``CrossEncoder.predict``, but without the ties
of a sigmoid that has reached 1. Pairs are scored in windows of queries, sorted by length; finished windows are kept, so
that the command started again after an interruption goes on where it was. One process a GPU.

Example:

  python -m baselines rerank --release build/sample --split dev --run build/runs/bm25.dev.run.gz \\
    --model build/models/ce-bm25-neg --out build/runs/ce.dev.run.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.models.options import add_device, add_pairs
from baselines.runs.sets import add_set
from builders.common.command import InputError, whole_number
from builders.common.files import real_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries (default: dev)")
    parser.add_argument("--run", type=Path, required=True, metavar="RUN", help="the run whose passages are re-ranked")
    parser.add_argument("--model", required=True, metavar="M", help="a cross-encoder: hub name or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="RUN2", help="gzipped where it ends in .gz")
    parser.add_argument("--top-k", type=whole_number(1), default=50, metavar="K", help="passages a query (default: 50)")
    add_pairs(parser)
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    if real_path(args.run) == real_path(args.out):
        raise InputError("is both --run and --out; expected another file for the re-ranked run", path=args.out)
    from baselines.rerank.windows import rerank

    rerank(args)
