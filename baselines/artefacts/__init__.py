"""Share embeddings, runs and mined negatives on the hub, checked.

Encoding 8 million passages takes days; so does searching them with many queries. What came out goes to a dataset
repository of its own, and comes back to whoever has the same release.

push: each PATH is a directory of embeddings (`encode`), a run or a file of hard negatives (`mine`; JSON lines). It must
be of the release: embeddings by the fingerprint that they keep, runs and negatives by the ids of their queries and
passages. In one commit, what the repository holds already stays, an artefact of the same name is replaced. The card
lists all of them.
list: what is there, with sizes, models, and what it is of.
pull: one artefact, by its name in the list. Every file is compared with the manifest, and with --release the artefact's
fingerprints with that release's. It is whole or not there.

Both ways: a broken connection goes on where it broke off; run again after an interruption: files that were received
(embeddings are many) are not sent or fetched again. The token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT
names another hub.

examples:
  python -m baselines artefacts push --repo ORG/NAME --create --release DIR build/de.passages build/de.dev.run.gz
  python -m baselines artefacts list ORG/NAME
  python -m baselines artefacts pull ORG/NAME embeddings/de.passages --release DIR --out build/de.passages
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.measure.qrels import add_set
from builders.common.command import add_format
from builders.common.hub import add_repository, need_hub, repo_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="push|list|pull")
    push = actions.add_parser("push", help="put artefacts into a repository", allow_abbrev=False)
    add_repository(push, "dataset")
    push.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release that they are of")
    add_set(push)
    push.add_argument("--dataset", type=repo_name, metavar="ORG/NAME", help="the release on the hub, for the card")
    push.add_argument("--license", default="other", metavar="ID", help="theirs, in the hub's words (default: other)")
    push.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="embeddings, runs, hard negatives")
    listing = actions.add_parser("list", help="say what a repository holds", allow_abbrev=False)
    pull = actions.add_parser("pull", help="fetch an artefact", allow_abbrev=False)
    for each in (push, listing, pull):
        each.add_argument(
            "--quiet", action="store_true", default=argparse.SUPPRESS, help="log warnings and errors only"
        )
    for each in (listing, pull):
        each.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="the dataset repository")
        each.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")
    add_format(listing)
    pull.add_argument("name", metavar="ARTEFACT", help="its name in the list: embeddings/..., runs/..., negatives/...")
    pull.add_argument("--release", type=Path, metavar="DIR", help="the release that it must be of")
    pull.add_argument("--out", type=Path, required=True, metavar="PATH", help="a directory for embeddings, else a file")


def run(args: argparse.Namespace) -> None:
    from baselines.artefacts.actions import ACTIONS

    need_hub()
    ACTIONS[args.action](args)
