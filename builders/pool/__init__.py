"""Pool runs for judging: their union, the best of it (2.3).

`candidates` writes the union of the best 50 passages of any number of runs (the paper: BM25 and four neural retrievers)
as a run, which `baselines rerank` scores by each re-ranker of an ensemble. `select` takes those runs of scores, their
mean (A.1), and writes the best 5 passages of each query as a pool, the pairs that people judge: JSON lines of query-id,
corpus-id, rank and score in the ensemble's order, runs (the rank in each run that has it) and judged (its score in the
release's qrels, or null).

Re-rankers must have scored every candidate. `baselines rerank` writes logits: each becomes a probability by a sigmoid
before the mean is taken, as one re-ranker's logits may be far larger than another's. `--scale none` takes the mean of
scores as they are: of probabilities, say.

Both print how many pairs each run found alone, how many nobody has judged, and how many of the known positives are
among the best 1, 2, 5 ... of the runs. With `--pool`, a new system tops up an earlier pool: `candidates` leaves out
what that has, `select` orders both together and writes the new pairs among the best. Where the re-rankers are the same,
the two pools together are the pool of all runs.

example:
  python -m builders annotate pool candidates --release build/sample --split dev \\
      --out build/pool/candidates.dev.run.gz --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz
  python -m builders annotate pool select --release build/sample --split dev --out build/pool/dev.jsonl.gz \\
      --runs build/runs/bm25.dev.run.gz build/runs/de-bm25-neg.dev.run.gz \\
      --scores build/pool/ce-one.dev.run.gz build/pool/ce-two.dev.run.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from builders.core.command import add_format, whole_number
from builders.store.layout import SPLITS

DEPTH, TOP = 50, 5  # of each run; of each query (Section 2.3)
SCALES = ("sigmoid", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["candidates", "select"])
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--split", choices=SPLITS, default="dev", help="whose queries (default: dev)")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, metavar="RUN", help="TREC runs to pool")
    add_names(parser)
    parser.add_argument(
        "--depth", type=whole_number(1), default=DEPTH, metavar="K", help=f"passages of each run (default: {DEPTH})"
    )
    parser.add_argument("--pool", type=Path, metavar="OLD", help="an earlier pool, to be topped up")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="gzipped where it ends in .gz")
    select = parser.add_argument_group("select")
    select.add_argument("--scores", type=Path, nargs="+", metavar="RUN", help="the candidates, by each re-ranker")
    select.add_argument("--scale", choices=SCALES, default=SCALES[0], help="of each score before the mean (sigmoid)")
    select.add_argument(
        "--top", type=whole_number(1), default=TOP, metavar="N", help=f"passages of each query (default: {TOP})"
    )
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def add_names(parser: argparse._ActionsContainer) -> None:
    """``--names``, for every command that tells runs apart; see :func:`check_names`."""
    parser.add_argument("--names", nargs="+", metavar="NAME", help="of the runs (default: their files' to the first .)")


def check_names(args: argparse.Namespace, runs: Sequence[Path]) -> None:
    """End the command as one of wrong usage where it has other than one name a run."""
    if args.names and len(args.names) != len(runs):
        args.usage_error(f"--names: expected {len(runs)}, one a run, found {len(args.names)}")


def run(args: argparse.Namespace) -> None:
    if args.action == "select" and not args.scores:
        args.usage_error("select needs --scores")
    check_names(args, args.runs)
    from builders.pool.actions import ACTIONS

    ACTIONS[args.action](args)
