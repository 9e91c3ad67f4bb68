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
import json
import os
import shutil
from pathlib import Path
from typing import Any

from baselines.hub.checkpoint import NAME, RECIPE, is_part, open_checkpoint
from builders.common.command import InputError, log
from builders.common.files import replace_directory, sha256_of
from builders.common.hub import clear_errors, need_hub, repo_name
from builders.store.draft import building_beside
from builders.store.layout import MANIFEST


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repo", type=repo_name, metavar="ORG/NAME", help="the model repository")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the checkpoint directory to write")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default: main)")


def run(args: argparse.Namespace) -> None:
    need_hub()
    out = Path(os.path.abspath(args.out))
    if out.exists() and not (out / RECIPE).is_file() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError("exists and is no checkpoint; expected a new path or an earlier checkpoint", path=out)
    with building_beside(out) as building:
        folder = fetch(args.repo, args.revision, building)
        open_checkpoint(folder)
        replace_directory(folder, out)
        shutil.rmtree(building)
    print(args.out)


def fetch(repo: str, revision: str, building: Path) -> Path:
    """The checkpoint at a revision, checked, in a folder of ``building``, which keeps it for the next run.

    Raises:
        InputError: the hub has no such repository or revision, or refuses; the repository is no checkpoint; a file is
            not what the manifest says.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

    api = HfApi()
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            info = api.model_info(repo, revision=revision)
        except RevisionNotFoundError:
            raise InputError(f"{repo} on {api.endpoint} has no revision {revision!r}") from None
        folder = building / str(info.sha)
        for other in building.iterdir():  # another repository's, or another revision's
            if other != folder:
                shutil.rmtree(other)
        log.info("%s at %s", repo, info.sha)
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=info.sha, local_dir=folder)
        except EntryNotFoundError:
            raise _no_checkpoint(repo, f"no {MANIFEST}") from None
        entries = _entries(Path(path), repo)
        snapshot_download(repo, revision=info.sha, allow_patterns=[e["path"] for e in entries], local_dir=folder)
    for entry in entries:
        file = folder / entry["path"]
        if not file.is_file():
            raise _no_checkpoint(repo, f"{entry['path']} is missing")
        if sha256_of(file) != entry["sha256"]:
            file.unlink()
            raise InputError(f"{repo}: {entry['path']} is not what its manifest says; run the same command again")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it fetched
    (folder / MANIFEST).unlink()
    return folder


def _entries(path: Path, repo: str) -> list[dict[str, Any]]:
    """The manifest's files; an :class:`InputError` where it is not one that push wrote."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries: list[dict[str, Any]] = content["files"]
        if content["name"] != NAME or not all(len(entry["sha256"]) == 64 for entry in entries):
            raise ValueError(f"not a manifest of a {NAME}")
        for entry in entries:
            if not is_part(entry["path"]) and entry["path"] != "README.md":
                raise InputError(f"{repo}: its manifest names {entry['path']}, which no checkpoint of ours holds")
    except (ValueError, KeyError, TypeError) as error:
        raise _no_checkpoint(repo, str(error)) from None
    return entries


def _no_checkpoint(repo: str, why: str) -> InputError:
    return InputError(
        f"{repo} is no checkpoint that `push` made ({why}); other models load by name: SentenceTransformer({repo!r})"
    )
