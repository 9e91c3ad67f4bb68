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
import json
import shutil
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from baselines.checkpoint import CARD, RECIPE, belongs, open_checkpoint
from builders.core.errors import InputError, log
from builders.core.files import sha256_of
from builders.core.folders import check_output, replace_directory, work_beside
from builders.core.hub import clear_errors, commit_in, need_hub, repo_name
from builders.core.typed import Count, Sha256, read_json
from builders.store.layout import MANIFEST

NAME: Literal["dureader_retrieval checkpoint"] = "dureader_retrieval checkpoint"


class File(Struct, frozen=True):
    """One file: its path in the repository, its size, its lower-case hex SHA-256."""

    path: str
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if not belongs(self.path) and self.path != CARD:
            raise ValueError(f"its manifest names {self.path}, which no checkpoint of ours holds")


class Manifest(Struct, frozen=True):
    """All files of a checkpoint on the hub but the manifest itself.

    ``results``: files of ``.eval_results``, no part of the checkpoint and never pulled; the next push replaces them.
    """

    files: list[File]
    results: list[dict[str, str]] = []
    name: Literal["dureader_retrieval checkpoint"] = NAME
    format: Literal[1] = 1

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False, indent=1) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="the model repository")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the checkpoint directory to write")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    need_hub()
    from huggingface_hub import HfApi

    out, api = check_output(args.out, "a checkpoint", RECIPE), HfApi()
    with clear_errors(args.repo, api.endpoint, "model", "download"):
        commit = commit_in(api.repo_info(args.repo, revision=args.revision), args.repo)
    log.info("%s at %s", args.repo, commit)
    with work_beside(out, commit) as folder:  # what was fetched of this commit before is there
        fetch(args.repo, commit, folder)
        open_checkpoint(folder)
        replace_directory(folder, out)
    print(args.out)


def fetch(repo: str, commit: str, folder: Path) -> None:
    """Fetch the files that the manifest of a commit lists into ``folder``, except those that are there.

    Within this process a file goes on where its connection broke; what another one has left of a file is fetched anew
    (huggingface_hub 2 keeps no parts). Raises :class:`InputError` where the hub refuses, the repository is no
    checkpoint that `push` made, or a file is not what the manifest says.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    api, other = HfApi(), f"other models load by name: SentenceTransformer({repo!r})"
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=folder)
            files = read_json(Path(path), Manifest).files
        except (EntryNotFoundError, InputError) as error:
            why = error if isinstance(error, InputError) else f"no {MANIFEST}"
            raise InputError(f"{repo} is no checkpoint that `push` made ({why}); {other}") from None
        names = [glob.escape(each.path) for each in files]  # no pattern: the hub's other files are not asked for
        snapshot_download(repo, revision=commit, allow_patterns=names, local_dir=folder)
    for each in files:
        if not (folder / each.path).is_file():
            raise InputError(f"{repo} is no checkpoint that `push` made ({each.path} is missing); {other}")
        if sha256_of(folder / each.path) != each.sha256:
            raise InputError(f"{repo}: {each.path} is not what its manifest says; run the same command again")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it fetched
    (folder / MANIFEST).unlink()
