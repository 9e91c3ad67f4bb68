"""What a command measures runs against: the options that name it, its judgments, its queries' texts."""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.runs.qrels import Qrels, read_qrels, release_qrels
from baselines.runs.sets import QRELS, add_queries, add_set, expect_main, read_queries
from builders.core.errors import InputError
from builders.store.layout import DRAWN, SETS, is_config
from builders.store.reader import open_release


def add_reference(parser: argparse.ArgumentParser) -> None:
    """A split of a release, its set, queries and judgments; or a file of judgments."""
    reference = parser.add_mutually_exclusive_group(required=True)
    reference.add_argument("--release", type=Path, metavar="DIR", help="the release whose judgments are the reference")
    reference.add_argument("--qrels", type=Path, metavar="FILE", help="TREC qrels, BEIR's TSV or an official dev.json")
    add_split(parser)


def add_split(parser: argparse.ArgumentParser) -> None:
    """What of a release: the split, the set, its queries and judgments."""
    parser.add_argument("--split", default="dev", help="the release's split (default: dev)")
    add_set(parser)
    add_queries(parser)
    parser.add_argument(
        "--qrels-config",
        type=judgments,
        metavar="CONFIG",
        help=f"the judgments of this config of the release: {', '.join(QRELS)}, resttest-bucketN (default: the set's)",
    )


def judgments(text: str) -> str:
    """An argparse type: a config that judges main's questions."""
    if text not in QRELS and not (text.startswith(DRAWN) and is_config(text)):
        raise argparse.ArgumentTypeError(f"expected {', '.join(QRELS)} or resttest-bucketN, found {text!r}")
    return text


def reference_qrels(args: argparse.Namespace) -> Qrels:
    """The judgments that the options of :func:`add_reference` name."""
    queries = expect_main(args, "--queries", args.queries)
    config = expect_main(args, "--qrels-config", args.qrels_config)
    if args.release:
        return release_qrels(open_release(args.release), args.split, args.set, queries, config)
    if queries or config:
        raise InputError("--queries and --qrels-config name configs of a release: they go with --release DIR")
    return read_qrels(args.qrels)


def reference_texts(args: argparse.Namespace) -> dict[str, str]:
    """The queries' texts by their ids; none where the reference is a file of judgments, which has ids alone."""
    if not args.release:
        return {}
    return dict(read_queries(open_release(args.release), args.split, args.queries or SETS[args.set].queries))
