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
import glob
import shutil
from pathlib import Path

from baselines.hub.checkpoint import RECIPE, open_checkpoint
from baselines.hub.manifest import read_manifest
from builders.common.command import InputError, log
from builders.common.files import sha256_of
from builders.common.folders import check_output, replace_directory, work_beside
from builders.common.hub import clear_errors, commit_in, need_hub, repo_name
from builders.store.layout import MANIFEST


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
        fetch(args.repo, commit, folder)
        open_checkpoint(folder)
        replace_directory(folder, out)
    print(args.out)


def commit_of(repo: str, revision: str) -> str:
    """The commit that a branch or tag of a repository names. Raises as :func:`fetch`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    api = HfApi()
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            return commit_in(api.model_info(repo, revision=revision), repo)
        except RevisionNotFoundError:
            raise InputError(f"{repo} on {api.endpoint} has no revision {revision!r}") from None


def fetch(repo: str, commit: str, folder: Path) -> None:
    """Fetch the checkpoint of a commit into ``folder``, what is there already excepted, and check it.

    Raises:
        InputError: the hub has no such repository or commit, or refuses; the repository is no checkpoint; a file is
            not what the manifest says.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=folder)
        except EntryNotFoundError:
            raise _no_checkpoint(repo, f"no {MANIFEST}") from None
        try:
            wanted = read_manifest(Path(path)).files
        except InputError as error:
            raise _no_checkpoint(repo, str(error)) from None
        names = [glob.escape(each.path) for each in wanted]  # no pattern: the hub's other files are not asked for
        for last in (False, True):  # what arrives damaged is fetched once more
            snapshot_download(repo, revision=commit, allow_patterns=names, local_dir=folder)
            for each in wanted:
                if not (folder / each.path).is_file():
                    raise _no_checkpoint(repo, f"{each.path} is missing")
            wrong = [each.path for each in wanted if sha256_of(folder / each.path) != each.sha256]
            if not wrong:
                break
            if last:
                raise InputError(f"{repo}: {wrong[0]} is not what its manifest says, fetched twice")
            for name in wrong:
                (folder / name).unlink()
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it fetched
    (folder / MANIFEST).unlink()


def _no_checkpoint(repo: str, why: str) -> InputError:
    return InputError(
        f"{repo} is no checkpoint that `push` made ({why}); other models load by name: SentenceTransformer({repo!r})"
    )
