"""Pull a checkpoint from the Hugging Face hub, every file checked.

Every file is compared with the manifest that `push` wrote. The directory is whole or not there. Run again after an
interruption: what is there is not fetched again. No script and no pickle is ever taken. The optimizer's state is not on
the hub: `train --start DIR` goes on from the weights. The token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT
names another hub.

example:
  python -m baselines pull ORG/NAME --out build/models/de-bm25-neg
"""

from __future__ import annotations

import argparse
from pathlib import Path

from baselines.hub.checkpoint import RECIPE, open_checkpoint
from baselines.hub.fetch import commit_of, fetch
from baselines.hub.manifest import read_manifest
from builders.core.errors import InputError, log
from builders.core.folders import check_output, replace_directory, work_beside
from builders.core.hub import need_hub, repo_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="the model repository")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the checkpoint directory to write")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    need_hub()
    out = check_output(args.out, "a checkpoint", RECIPE)
    commit = commit_of(args.repo, args.revision)
    log.info("%s at %s", args.repo, commit)
    with work_beside(out, commit) as folder:  # what was fetched of this commit before is there
        fetch_checkpoint(args.repo, commit, folder)
        open_checkpoint(folder)
        replace_directory(folder, out)
    print(args.out)


def fetch_checkpoint(repo: str, commit: str, folder: Path) -> None:
    """Fetch the checkpoint of a commit into ``folder``. Raises as :func:`baselines.hub.fetch.fetch`."""
    fetch(repo, commit, folder, lambda manifest: read_manifest(manifest).files, lambda why: _no_checkpoint(repo, why))


def _no_checkpoint(repo: str, why: str) -> InputError:
    return InputError(
        f"{repo} is no checkpoint that `push` made ({why}); other models load by name: SentenceTransformer({repo!r})"
    )
