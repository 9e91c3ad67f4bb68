"""Repositories of the Hugging Face hub: filled in one commit, with its refusals and failures in one clear line.

What a commit puts there is listed in a manifest among its files. So the next one knows which files were the earlier
one's, and deletes those that it has not; files of others stay."""

from __future__ import annotations

import argparse
import contextlib
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError, Unfinished, log
from builders.core.files import sha256_of, temporary_folder
from builders.core.limits import full_disk
from builders.core.typed import read_json

OTHER_HUB = "; set HF_ENDPOINT to use a mirror or another hub"
_AGAIN = "run the same command again: what was received is not sent again"
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
_MODEL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # models of the hub's first years have no ORG/
COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = 1 << 20
_LONGEST = 300  # characters of what a library says, so that the advice after them is not cut
KEPT = {".gitattributes", "README.md", "stats.json"}  # never deleted, never strangers


def add_repository(parser: argparse.ArgumentParser, kind: str) -> None:
    """``--repo``, ``--create`` and ``--private``, for every command that fills a repository."""
    parser.add_argument("--repo", type=repo_name, required=True, metavar="ORG/NAME", help=f"the {kind} repository")
    parser.add_argument(
        "--create", action=argparse.BooleanOptionalAction, default=False, help="make the repository if it is missing"
    )
    parser.add_argument("--private", action="store_true", help="only into a private repository; --create makes one")


def repo_name(text: str) -> str:
    """An argparse type: the name of a repository."""
    if not _REPO.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected ORG/NAME, found {text}")
    return text


def check_models(*names: str | None) -> None:
    """Refuse what is neither a model's folder nor a name that a model on the hub can have.

    Called before the model libraries are imported, which takes many seconds. Raises :class:`InputError`.
    """
    for name in filter(None, names):
        path = Path(name)
        if path.is_dir() or (_MODEL.fullmatch(name) and not path.exists()):
            continue
        raise InputError("is neither a folder nor the name of a model on the hub (ORG/NAME)", path=name)


def upload(
    files: Mapping[str, tuple[Path, str]],
    repo: str,
    *,
    kind: str,
    manifest: str,
    name: str,
    message: str,
    create: bool,
    private: bool,
) -> str:
    """Make the repository hold ``files``, in one commit; returns the commit's address.

    Args:
        files: path in the repository -> (file, SHA-256); one of them is the manifest, ``manifest``.
        repo, kind: ORG/NAME; ``dataset`` or ``model``.
        name: ``name`` of the manifest: only files that an earlier one of this name lists are deleted.
        create, private: make the repository where it is missing; refuse a public one.

    Raises:
        InputError: the hub refuses or fails, ``repo`` is public where ``private``, or holds a foreign ``.py`` file.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, kind):
        answer = api.whoami()
        user = answer.get("name") if isinstance(answer, dict) else answer
        info = _repository(api, repo, kind, create=create, private=private)
        named = [sibling.rfilename for sibling in info.siblings or []]
        there = {path for path in named if isinstance(path, str)}  # a hub may list anything
        earlier = _earlier(api, repo, kind, manifest, name, info.sha) & there if manifest in there else set()
        kept = {*KEPT, manifest}
        strangers = sorted(there - earlier - set(files) - kept)
        if scripts := [path for path in strangers if path.endswith(".py")]:
            raise InputError(f"{repo} holds {scripts[0]}, with which no library loads it safely; delete it there")
        if strangers:
            log.warning("%s keeps %d files that are not ours: %s", repo, len(strangers), ", ".join(strangers[:3]))
        deletions = [CommitOperationDelete(path) for path in sorted(earlier - set(files) - kept)]
        log.info("%s, as %s: %d files, %d to delete", repo, user, len(files), len(deletions))
        additions = []
        for path, (file, digest) in sorted(files.items()):
            # Small files are read now, large ones by the library when it sends them.
            additions.append(CommitOperationAdd(path, file.read_bytes() if file.stat().st_size < _SMALL else str(file)))
            additions[-1].upload_info.sha256 = bytes.fromhex(digest)  # known: spares reading everything once more
        try:
            api.preupload_lfs_files(repo, additions, repo_type=kind)
        finally:  # said before what the hub says of it
            for file, digest in files.values():
                if not file.is_file() or sha256_of(file) != digest:
                    raise Unfinished(
                        "has changed since the upload began; nothing is committed, run it again", path=file
                    )
        # The library leaves out, without a word, what the repository's .gitignore names; it says so here alone.
        if ignored := [each.path_in_repo for each in additions if each._should_ignore]:
            raise InputError(f"{repo} takes no {ignored[0]}: its .gitignore, most likely; nothing is committed")
        # Not upload_folder, which makes several commits of a large folder. The parent: nobody's commit is undone.
        changes: list[Any] = [*deletions, *additions]
        commit = api.create_commit(
            repo, changes, commit_message=message, repo_type=kind, parent_commit=commit_in(info, repo)
        )
    if commit.oid == info.sha:
        log.info("%s holds all this already", repo)
    return str(commit.commit_url)


def _repository(api: Any, repo: str, kind: str, *, create: bool, private: bool) -> Any:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.repo_info(repo, repo_type=kind)
    except RepositoryNotFoundError:
        if not create:
            raise
        api.create_repo(repo, repo_type=kind, private=True if private else None)
        log.info("created %s", repo)
        return api.repo_info(repo, repo_type=kind)
    if private and not info.private:
        raise InputError(f"{repo} is public; make it private in its settings, or leave out --private")
    return info


class _Listed(msgspec.Struct):
    path: str


class _Listing(msgspec.Struct):
    """The fields that the manifests of releases and of checkpoints share."""

    name: str
    files: list[_Listed]
    results: list[_Listed] = []


def _earlier(api: Any, repo: str, kind: str, manifest: str, name: str, revision: str) -> set[str]:
    with temporary_folder() as folder:
        path = api.hf_hub_download(repo, manifest, repo_type=kind, revision=revision, local_dir=folder)
        try:
            content = read_json(Path(path), _Listing)
        except InputError:
            return set()
    return {entry.path for entry in [*content.files, *content.results]} if content.name == name else set()


def commit_in(answer: Any, repo: str) -> str:
    """The commit that the hub's answer about a repository names; :class:`InputError` for one that is none.

    It becomes the name of folders.
    """
    if not COMMIT.fullmatch(str(answer.sha)):
        raise InputError(f"the hub gives {repo} the commit {answer.sha!r}; expected 40 hex digits{OTHER_HUB}")
    return str(answer.sha)


def as_yaml(content: Any) -> str:
    """Lists and objects as the YAML of a file on the hub, in their own order."""
    from huggingface_hub import utils

    return str(utils.yaml_dump(content, sort_keys=False))  # type: ignore[attr-defined]


def need_hub() -> None:
    """Fail before any work is done where huggingface_hub is not installed."""
    import huggingface_hub  # noqa: F401


@contextlib.contextmanager
def clear_errors(repo: str, endpoint: str, kind: str, way: str = "upload") -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an :class:`InputError` that says what to do.

    ``kind``: dataset or model; ``way``: upload or download.
    """
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
    )

    again = _AGAIN if way == "upload" else _AGAIN.replace("sent", "fetched")

    # The HTTP library's own base class, whatever that library is in this version.
    network = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        yield
    except HFValidationError:  # a ValueError: ``repo`` can be no name, and nothing was asked
        raise
    except LocalTokenNotFoundError as error:
        raise InputError(f"no token: log in with `hf auth login`, or set HF_TOKEN{OTHER_HUB}") from error
    except Exception as error:
        if full_disk(error):
            raise
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, network):
            cause = cause.__cause__  # a failed upload comes wrapped
        if cause is None:
            if isinstance(error, OSError) and error.filename is None:
                # Large files go by another library, hf_xet, which words its errors itself.
                raise Unfinished(
                    f"{endpoint}: the {way} failed ({_last_line(error)}); {again};"
                    f" set HF_HUB_DISABLE_XET=1 if that hub has no xet storage{OTHER_HUB}"
                ) from error
            if _in_the_library(error):
                words = f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
                message = f"{endpoint} gave an answer that is none of a hub's ({words}); {again}{OTHER_HUB}"
                raise Unfinished(message) from error
            raise
        status = getattr(getattr(cause, "response", None), "status_code", None)
        passes = status is None or status in (412, 429) or status >= 500  # the same command may succeed
        said = _last_line(cause)
        if isinstance(cause, RepositoryNotFoundError) and status != 403:
            message = f"there is no {kind} {repo} on {endpoint} that this token may see"
            message += "; --create makes it" * (way == "upload")
        else:
            right = "write to" if way == "upload" else "read"
            failed = f"answered with status {status}, also after retries; {again}"
            message = {
                401: f"{endpoint} refuses the token; log in with `hf auth login`, or set HF_TOKEN",
                403: f"this token has no right to {right} {repo} on {endpoint} ({said})",
                412: f"{repo} has got another commit in the meantime; run the same command again",
                None: f"{endpoint} cannot be reached, or broke the connection ({said}); {again}",
            }.get(status, f"{endpoint} {failed if passes else f'refused: {said} (status {status})'}")
        raise (Unfinished if passes else InputError)(message + OTHER_HUB) from error


def _in_the_library(error: Exception) -> bool:
    """True if huggingface_hub failed on an answer that it did not expect.

    Errors of the machine (disk, memory, imports) and faults of this project do not count.
    """
    frames = traceback.walk_tb(error.__traceback__)
    inside = any(frame.f_globals.get("__name__", "").split(".")[0] == "huggingface_hub" for frame, _ in frames)
    return inside and not isinstance(error, OSError | MemoryError | ImportError)


def _last_line(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return words[-1][:_LONGEST] if words else type(error).__name__
