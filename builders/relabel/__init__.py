"""Move training negatives that an ensemble holds positive (4).

Hard negatives are passages that nobody judged, and some answer the question: of what the paper's models rank first,
14.8 % are such false negatives (Section 4). As RLHN does, they are found by models that are stronger than the one to be
trained, and become positives.

`candidates` writes the negatives (of a file that `mine` wrote, or those of the release's training rows) as a run, which
`baselines rerank` scores by each re-ranker of an ensemble. `move` takes those runs; a negative whose mean score reaches
--threshold, with --agree all also each single one, becomes a positive (score 1 in qrels) of a new release, and is no
negative of it any more. `train` passes over it in the old file of negatives, too. What moved is listed in the new
release, relabelled.train.jsonl: query-id, corpus-id, score (the mean) and scores (each re-ranker's).

`baselines rerank` writes logits: of each the probability, its sigmoid, is taken. `--scale none` takes scores as they
are. Models' judgments stand for no person's: dev and test are judged by people (`annotate`).

example:
  python -m builders annotate relabel candidates --release build/sample --negatives build/negatives/bm25.jsonl.gz \\
      --out build/relabel/candidates.run.gz
  python -m builders annotate relabel move --release build/sample --negatives build/negatives/bm25.jsonl.gz \\
      --scores build/relabel/ce-one.run.gz build/relabel/ce-two.run.gz --threshold 0.9 --out build/relabelled
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from builders.core.command import add_format, number_between
from builders.pool import SCALES, add_names, check_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["candidates", "move"])
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    parser.add_argument("--negatives", type=Path, metavar="F", help="of `mine` (default: those of the training rows)")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT", help="candidates: a run; move: a release")
    move = parser.add_argument_group("move")
    move.add_argument("--scores", type=Path, nargs="+", metavar="RUN", help="the candidates, by each re-ranker")
    add_names(move)
    move.add_argument("--scale", choices=SCALES, default=SCALES[0], help="of each score before the mean (sigmoid)")
    move.add_argument(
        "--threshold",
        type=number_between(-math.inf, math.inf),
        default=0.5,
        metavar="X",
        help="a mean score that makes a positive (default: 0.5)",
    )
    move.add_argument("--agree", choices=["mean", "all"], default="mean", help="what must reach it (default: mean)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if args.action == "move" and not args.scores:
        args.usage_error("move needs --scores")
    check_names(args, args.scores or [])
    from builders.relabel.actions import ACTIONS

    ACTIONS[args.action](args)
