"""Files of a repository of the hub that a manifest lists, fetched into a folder: each checked, none twice."""

from __future__ import annotations

import glob
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.core.hub import clear_errors, commit_in
from builders.store.layout import MANIFEST


class Listed(Protocol):
    """What a manifest says of a file: its path in the repository, its lower-case hex SHA-256."""

    @property
    def path(self) -> str: ...
    @property
    def sha256(self) -> str: ...


def commit_of(repo: str, revision: str, kind: str = "model") -> str:
    """The commit that a branch or tag of a repository (``kind``: model or dataset) names. Raises as :func:`fetch`."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RevisionNotFoundError

    api = HfApi()
    with clear_errors(repo, api.endpoint, kind, "download"):
        try:
            return commit_in(api.repo_info(repo, revision=revision, repo_type=kind), repo)
        except RevisionNotFoundError:
            raise InputError(f"{repo} on {api.endpoint} has no revision {revision!r}") from None


def fetch(
    repo: str,
    commit: str,
    folder: Path,
    wanted: Callable[[Path], Sequence[Listed]],
    refusal: Callable[[str], InputError],
) -> None:
    """Fetch what ``wanted`` picks of the manifest of a commit into ``folder``, what is there already excepted.

    Within this process a file goes on where its connection broke; what another one has left of a file is fetched anew
    (huggingface_hub 2 keeps no parts). What arrives damaged is fetched once more.

    Args:
        repo: ORG/NAME.
        commit: of the repository.
        folder: where they go, under their paths in the repository.
        wanted: reads a manifest that was fetched; the files of it to fetch.
        refusal: the error for a repository that is none of ours, from the reason.

    Raises:
        InputError: the hub has no such repository or commit, or refuses; the repository is none of ours; a file is
            not what the manifest says.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            path = api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=folder)
        except EntryNotFoundError:
            raise refusal(f"no {MANIFEST}") from None
        try:
            files = wanted(Path(path))
        except InputError as error:
            raise refusal(str(error)) from None
        names = [glob.escape(each.path) for each in files]  # no pattern: the hub's other files are not asked for
        for last in (False, True):
            snapshot_download(repo, revision=commit, allow_patterns=names, local_dir=folder)
            for each in files:
                if not (folder / each.path).is_file():
                    raise refusal(f"{each.path} is missing")
            wrong = [each.path for each in files if sha256_of(folder / each.path) != each.sha256]
            if not wrong:
                break
            if last:
                raise InputError(f"{repo}: {wrong[0]} is not what its manifest says, fetched twice")
            for name in wrong:
                (folder / name).unlink()
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the library's notes on what it fetched
    (folder / MANIFEST).unlink()
