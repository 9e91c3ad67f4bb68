"""Publish a release as a dataset of the Hugging Face hub.

The release must pass `check`. It must not contain .py files, .lock files, or files that its manifest does not list. All
files are published in one commit, which also deletes the files of an earlier release that the new release lacks.
Readers therefore see either the old or the new release. After an interruption, run the command again; uploaded files
are not sent twice. The token comes from `hf auth login` or HF_TOKEN. HF_ENDPOINT selects another hub. Set
HF_HUB_DISABLE_XET=1 if that hub has no xet storage.

The command also publishes an English and a Chinese card (README.md, README.zh.md) with an example row, histograms,
limitations, evaluation commands and scores. --scores reads the scores from the output of `python -m baselines
evaluate --format json`. The file eval.yaml registers the dataset as a benchmark, with a task for each measure of each
judged dev and test split. Each publication rewrites cards, histograms and eval.yaml.

examples:
  python -m builders publish --release build/sample --repo ORG/NAME --create --private
  python -m builders publish --release DIR --repo ORG/NAME --scores dev=dev.json
"""

import argparse
from pathlib import Path

from builders.check.check_release import add_accept
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
        help="output of `evaluate --format json` for a split (dev, cmedqa_test ...) to show on the card",
    )
    add("--framework", default="", metavar="ID", help="evaluation_framework in eval.yaml (default: no framework)")
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
