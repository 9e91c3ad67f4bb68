"""Pull a checkpoint from the Hugging Face hub; verify every file.

Every file is compared with the manifest that `push` wrote. The directory appears when it is complete. After an
interruption, run the same command again: complete files are not fetched again. Scripts and pickles are never fetched.
The hub has no optimizer state, so `train --start DIR` starts a new training from the weights. The access token comes
from `hf auth login` or HF_TOKEN. HF_ENDPOINT names another hub.

example:
  python -m baselines pull ORG/NAME --out build/models/de-bm25-neg
"""

import argparse
import glob
import json
import shutil
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from baselines.core.checkpoint import CARD, RECIPE, belongs, open_checkpoint
from builders.core.errors import InputError, log
from builders.core.files import sha256_of
from builders.core.folders import check_output, replace_directory, work_beside
from builders.core.hub import OTHER_HUB, clear_errors, commit_in, need_hub, repo_name
from builders.core.typed import Count, Sha256, read_json
from builders.store.layout import MANIFEST

NAME: Literal["dureader_retrieval checkpoint"] = "dureader_retrieval checkpoint"


class File(Struct, frozen=True):
    """A file's path in the repository, its size, and its SHA-256 in lower-case hex."""

    path: str
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if not belongs(self.path) and self.path != CARD:
            raise ValueError(f"its manifest names {self.path}, which is no file of a checkpoint")


class Manifest(Struct, frozen=True):
    """The manifest of a checkpoint on the hub. It lists all other files.

    ``results`` lists the files of ``.eval_results``, which are never pulled. The next push replaces these files.
    """

    files: list[File]
    results: list[dict[str, str]] = []
    name: Literal["dureader_retrieval checkpoint"] = NAME
    format: Literal[1] = 1

    def text(self) -> str:
        """Return the content of the manifest's file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False, indent=1) + "\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="model repository")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="checkpoint directory to write")
    parser.add_argument("--revision", default="main", help="branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    need_hub()
    from huggingface_hub import HfApi

    out, api = check_output(args.out, "a checkpoint", RECIPE), HfApi()
    with clear_errors(args.repo, api.endpoint, "model", "download"):
        commit = commit_in(api.repo_info(args.repo, revision=args.revision), args.repo)
    log.info("%s at %s", args.repo, commit)
    with work_beside(out, commit) as folder:  # may have files of this commit from an earlier run
        fetch(args.repo, commit, folder)
        open_checkpoint(folder)
        replace_directory(folder, out)
    print(args.out)


def fetch(repo: str, commit: str, folder: Path) -> None:
    """Fetch into ``folder`` the files that the manifest of a commit lists, except files that are already complete.

    After a broken connection, the download of a file resumes. After a restart, an incomplete file is fetched from its
    beginning, because huggingface_hub 2 keeps no incomplete files. Raises :class:`InputError` if the hub refuses, if
    `push` did not make the checkpoint, or if a file differs from the manifest.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    api, other = HfApi(), f"other models load by name: SentenceTransformer({repo!r}){OTHER_HUB}"
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=folder)
            files = read_json(Path(path), Manifest).files
        except (EntryNotFoundError, InputError) as error:
            why = error if isinstance(error, InputError) else f"no {MANIFEST}"
            raise InputError(f"{repo} is no checkpoint that `push` made ({why}); {other}") from None
        names = [glob.escape(each.path) for each in files]  # escaped, so that no name matches other files as a pattern
        snapshot_download(repo, revision=commit, allow_patterns=names, local_dir=folder)
    for each in files:
        if not (folder / each.path).is_file():
            raise InputError(f"{repo} is no checkpoint that `push` made ({each.path} is missing); {other}")
        if sha256_of(folder / each.path) != each.sha256:
            raise InputError(f"{repo}: {each.path} differs from its manifest; run the same command again{OTHER_HUB}")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's download records
    (folder / MANIFEST).unlink()
