"""Publish a release as a dataset of the Hugging Face hub.

It is published in one commit. The release must pass `check` and hold nothing that its manifest does not list; no .py
and no .lock file ever. Files of an earlier release that this one has not are deleted in the same commit; so readers
find the one or the other, whole. Run again after an interruption: what the hub has received is not sent again. The
token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub (HF_HUB_DISABLE_XET=1 where that has no xet
storage).

Beside the release go a card in English and one in Chinese (README.md, README.zh.md) with a row as an example,
histograms, limitations, how to evaluate, and scores (--scores: what `python -m baselines evaluate --format json` prints
of runs); eval.yaml, which registers the dataset as a benchmark, a task for each measure of each judged dev and test
split. All of them are made anew at each publication.

examples:
  python -m builders publish --release build/sample --repo ORG/NAME --create --private
  python -m builders publish --release DIR --repo ORG/NAME --scores dev=dev.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.check import add_accept
from builders.core.hub import add_repository


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_repository(parser, "dataset")
    add(
        "--scores",
        type=_scores,
        nargs="+",
        default=[],
        metavar="SPLIT=FILE",
        help="what `evaluate --format json` printed of dev, cmedqa_test ...",
    )
    add("--framework", default="", metavar="ID", help="evaluation_framework of eval.yaml")
    add_accept(parser)


def run(args: argparse.Namespace) -> None:
    from builders.core.hub import need_hub
    from builders.publish.upload import publish
    from builders.store.reader import open_release

    need_hub()
    print(publish(open_release(args.release), args))


def _scores(text: str) -> tuple[str, Path]:
    split, _, path = text.partition("=")
    if not (split and path):
        raise argparse.ArgumentTypeError(f"expected SPLIT=FILE, found {text}")
    return split, Path(path)
