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

NAME = "dureader_retrieval checkpoint"


class File(Struct, frozen=True):
    """One file: its path in the repository, its size, its lower-case hex SHA-256."""

    path: str
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if not belongs(self.path) and self.path != CARD:
            raise ValueError(f"its manifest names {self.path}, which no checkpoint of ours holds")


class Result(Struct, frozen=True):
    """A file of ``.eval_results``: no part of the checkpoint, and never pulled; the next push replaces it."""

    path: str


class Manifest(Struct, frozen=True):
    """All files of a checkpoint on the hub but the manifest itself; ``results``: what is beside the checkpoint."""

    files: list[File]
    results: list[Result] = []
    name: str = NAME
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.name != NAME:
            raise ValueError(f"its manifest is not one of a {NAME}")

    def text(self) -> str:
        """The content of the file."""
        content = {"name": self.name, "format": self.format, "files": msgspec.to_builtins(self.files)}
        if self.results:
            content["results"] = msgspec.to_builtins(self.results)
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="the model repository")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the checkpoint directory to write")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    need_hub()
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    out, api = check_output(args.out, "a checkpoint", RECIPE), HfApi()
    with clear_errors(args.repo, api.endpoint, "model", "download"):
        try:
            commit = commit_in(api.repo_info(args.repo, revision=args.revision), args.repo)
        except RevisionNotFoundError:
            raise InputError(f"{args.repo} on {api.endpoint} has no revision {args.revision!r}") from None
    log.info("%s at %s", args.repo, commit)
    with work_beside(out, commit) as folder:  # what was fetched of this commit before is there
        fetch(args.repo, commit, folder)
        open_checkpoint(folder)
        replace_directory(folder, out)
    print(args.out)


def fetch(repo: str, commit: str, folder: Path) -> None:
    """Fetch the files that the manifest of a commit lists into ``folder``, except those that are there.

    Within this process a file goes on where its connection broke; what another one has left of a file is fetched anew
    (huggingface_hub 2 keeps no parts). What arrives damaged is fetched once more. Raises :class:`InputError` where the
    hub refuses, the repository is no checkpoint that `push` made, or a file is not what the manifest says.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    def refusal(why: str) -> InputError:
        other = f"other models load by name: SentenceTransformer({repo!r})"
        return InputError(f"{repo} is no checkpoint that `push` made ({why}); {other}")

    api = HfApi()
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=folder)
            files = read_json(Path(path), Manifest).files
        except EntryNotFoundError:
            raise refusal(f"no {MANIFEST}") from None
        except InputError as error:
            raise refusal(str(error)) from None
        names = [glob.escape(each.path) for each in files]  # no pattern: the hub's other files are not asked for
        for last in (False, True):
            snapshot_download(repo, revision=commit, allow_patterns=names, local_dir=folder)
            if missing := [each.path for each in files if not (folder / each.path).is_file()]:
                raise refusal(f"{missing[0]} is missing")
            wrong = [each.path for each in files if sha256_of(folder / each.path) != each.sha256]
            if wrong and last:
                raise InputError(f"{repo}: {wrong[0]} is not what its manifest says, fetched twice")
            for name in wrong:
                (folder / name).unlink()
            if not wrong:
                break
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it fetched
    (folder / MANIFEST).unlink()
