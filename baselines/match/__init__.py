"""Find training questions that ask what dev or test asks.

A question-matching cross-encoder (`train question-matching`) scores pairs of a dev or test question and a training
question (Section 2.3). Not all pairs: the best --top-k training questions by words (BM25) and, with --encoder, by a
dual-encoder are candidates, and all of them are scored. --recall-sample N scores N questions against every training
question, too, and prints how many of the similar pairs the candidates hold. Written is a TREC run: a dev or test
question, a training question, and the probability that they ask the same, in [0, 1]. `python -m builders similar
--scores RUN` removes the training questions above its threshold. Finished parts are kept: the command started again
after an interruption goes on where it was.

Example:

  python -m baselines match --release build/sample --model build/models/question-matching \\
    --encoder intfloat/multilingual-e5-small --recall-sample 20 --out build/runs/similar.run.gz
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_set
from baselines.models.options import add_device, add_pairs
from builders.core.command import add_format, number_between, whole_number
from builders.core.errors import InputError
from builders.core.hub import check_models
from builders.similar.likeness import THRESHOLD


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument(
        "--split", nargs="+", metavar="S", help="whose questions are compared with those of train (default: dev test)"
    )
    parser.add_argument("--model", required=True, metavar="CE", help="a question-matching cross-encoder: hub or folder")
    parser.add_argument("--encoder", metavar="DE", help="candidates by this sentence-transformers model, too")
    parser.add_argument(
        "--encoder-revision", default="", metavar="R", help="of --encoder, as --revision is of --model (default: main)"
    )
    parser.add_argument(
        "--top-k", type=whole_number(1), default=50, metavar="K", help="candidates of each kind (default: 50)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="RUN", help="the run; gzipped where it ends in .gz")
    parser.add_argument(
        "--recall-sample",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="measure the candidates on N questions, each against every training question (default: 0, not)",
    )
    parser.add_argument(
        "--threshold",
        type=number_between(0, 1),
        default=THRESHOLD,
        metavar="X",
        help="above it a pair counts as similar in what is printed; the run has all (default: 0.5, the paper's)",
    )
    add_pairs(parser)
    add_device(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    if args.encoder_revision and not args.encoder:
        raise InputError("--encoder-revision goes with --encoder")
    check_models(args.model, args.encoder)
    from baselines.match.matching import match

    match(args)
