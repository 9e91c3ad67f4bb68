"""A page to search a release: BM25, a dual-encoder, a re-ranker.

One column a system: ranks, scores, the positives marked, the terms highlighted that a passage has in common with the
query. The query is one of a split's or one's own; of the latter nobody knows the positives. --model and --passages
(its embeddings, by `encode`) add the dual-encoder, --reranker the cross-encoder, which re-ranks what the dual-encoder
has found, or else BM25. Without any of them: BM25 alone. Without --release, or where build/sample is missing, the
embedded sample is built first.

The page is a Gradio app on this machine alone (--host 0.0.0.0: for others, too). So many searches as --at-once run at
a time, the others wait for their turn. --assemble DIR writes a folder that is ready to be pushed as a Hugging Face
Space, and starts nothing.

Example:

  python -m baselines space --release build/sample
  python -m baselines space --release DIR --model M --passages build/embeddings/passages --reranker M2
  python -m baselines space --release DIR --assemble build/space
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.reproduce import SAMPLE
from baselines.retrieve.settings import add_device
from baselines.runs.sets import add_set
from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.hub import check_models
from builders.core.limits import usable_cores

_MISSING = "the page needs Gradio: pip install 'gradio>=6.20'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release", type=Path, default=SAMPLE, metavar="DIR", help=f"default: {SAMPLE}, built where it is missing"
    )
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose queries and positives (default: dev)")
    parser.add_argument("--model", metavar="M", help="a dual-encoder: hub name or folder; with --passages")
    parser.add_argument("--passages", type=Path, metavar="DIR", help="the passages' embeddings by --model")
    parser.add_argument("--reranker", metavar="M", help="a cross-encoder: hub name or folder")
    parser.add_argument("--top-k", type=whole_number(1), default=10, metavar="K", help="passages shown (default: 10)")
    parser.add_argument(
        "--candidates", type=whole_number(1), default=50, metavar="N", help="that --reranker reads (default: 50)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="where it listens (default: 127.0.0.1)")
    parser.add_argument("--port", type=whole_number(0), metavar="P", help="default: the first free from 7860")
    parser.add_argument(
        "--at-once", type=whole_number(1), default=usable_cores(), metavar="N", help="searches (default: the cores)"
    )
    parser.add_argument("--waiting", type=whole_number(1), default=256, metavar="N", help="at most (default: 256)")
    parser.add_argument("--assemble", type=Path, metavar="DIR", help="write a Hugging Face Space's folder instead")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    if (args.model is None) != (args.passages is None):
        raise InputError("--model M and --passages DIR, its embeddings of the passages, go together")
    if args.assemble:
        from baselines.space.assemble import assemble

        assemble(args)  # a Space builds the sample for itself
        return
    check_models(args.model, args.reranker)
    try:
        from baselines.space.page import serve
    except ImportError as error:
        raise InputError(f"{_MISSING} ({error})") from error
    from baselines.space.searching import open_searcher

    _have_sample(args)
    serve(open_searcher(args), args)


def _have_sample(args: argparse.Namespace) -> None:
    """Build the embedded sample where it is asked for and missing, as `reproduce` does."""
    if args.release == SAMPLE and not args.release.exists():
        from baselines.reproduce.commands import sample_command
        from baselines.reproduce.steps import call

        log.info("%s is missing: building the embedded sample", args.release)
        call(sample_command(args.release), args.quiet, here=True)
