"""Publish a release as a dataset of the Hugging Face hub.

It is published in one commit. The release must pass `check` and hold nothing that its manifest does not list; no .py
and no .lock file ever. Files of an earlier release that this one has not are deleted in the same commit; so readers
find the one or the other, whole. Run again after an interruption: what the hub has received is not sent again. The
token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub (HF_HUB_DISABLE_XET=1 where that has no xet
storage). The repository's card shows the histograms, too.

example:
  python -m builders publish --release build/sample --repo ORG/NAME --create --private
"""

from __future__ import annotations

import argparse
from pathlib import Path

from builders.check import add_accept
from builders.common.command import add_tmp
from builders.common.hub import add_repository


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_repository(parser, "dataset")
    add_accept(parser)
    add_tmp(parser)


def run(args: argparse.Namespace) -> None:
    from builders.common.hub import need_hub
    from builders.publish.upload import publish
    from builders.store.reader import open_release

    need_hub()
    accepted = frozenset(args.accept)
    release = open_release(args.release)
    print(publish(release, args.repo, accepted, create=args.create, private=args.private, tmp=args.tmp))
