"""Upload files to a repository of the Hugging Face hub in one commit, and report errors of the hub in one line.

Each commit contains a manifest that lists the published files. The next commit deletes the files of this manifest that
are no longer published. Files that the manifest does not list are never deleted."""

import contextlib
import errno
import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError, Unfinished, log
from builders.core.files import sha256_of, temporary_folder
from builders.core.limits import full_disk
from builders.core.redaction import quote_reply, without_credentials
from builders.core.reply_limits import ReplyLimits, limit_replies
from builders.core.results import Report, Table
from builders.core.typed import read_json

OTHER_HUB = "; set HF_ENDPOINT to use a mirror or another hub"
_MODEL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)  # the oldest models of the hub have no ORG/
COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL = 1 << 20
# Errors that invalid file names cause. The library names files after a hub's ETags, which may be invalid names.
_BAD_NAMES = {errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}
_LONGEST = 300  # characters of a library's message, so that the advice after the message is not cut
# The longest answers are lists of the files of a repository. Downloads have no limit but a slowest speed.
REPLY_LIMITS = ReplyLimits(seconds=120, size=256 << 20, has_downloads=True)
_limited_calls = 0  # the number of active limited_hub blocks
_limited_lock = threading.Lock()
KEPT = {".gitattributes", "README.md", "stats.json"}  # never deleted, and never reported as foreign files


def check_models(*names: str | None) -> None:
    """Raise :class:`InputError` for a name that is neither a folder nor a possible name of a model on the hub.

    Callers check names before they import the model libraries, because the import takes many seconds.
    """
    for name in filter(None, names):
        path = Path(name)
        if not path.is_dir() and (path.exists() or not _MODEL.fullmatch(name)):
            raise InputError("is neither a folder nor the name of a model on the hub (ORG/NAME)", path=name)


def report_commit(commit_url: str) -> Report:
    """Return the result of a verb that has made a commit."""
    return Report(value={"commit": commit_url}, text=commit_url)


def report_planned_files(files: Mapping[str, tuple[Path, str]], repo: str) -> Report:
    """Return the result of a dry run: the files that an upload would send, with their sizes. No hub is asked.

    ``files`` are those of :func:`upload`.
    """
    sizes = [(path, file.stat().st_size) for path, (file, _) in sorted(files.items())]
    total_bytes = sum(size for _, size in sizes)
    lines = [f"{size:>15,}  {path}" for path, size in sizes]
    lines.append(f"{total_bytes:>15,}  bytes in {len(sizes)} files for {repo}; nothing was sent")
    value = {"repo": repo, "files": dict(sizes), "bytes": total_bytes}
    return Report(value, "\n".join(lines), [Table(["path", "bytes"], sizes)])


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
    """Upload ``files`` to the repository in one commit. Return the commit's URL.

    Args:
        files: path in the repository -> (local file, SHA-256). One of the paths is ``manifest``.
        repo: ORG/NAME.
        kind: ``dataset`` or ``model``.
        name: the manifest's field ``name``. Only files in an earlier manifest with this name are deleted.
        create: create a missing repository, which is private with ``private``.
        private: refuse a public repository.

    Raises:
        InputError: the hub reports an error, ``repo`` has a foreign ``.py`` file, or ``private`` refuses ``repo``.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    place = _at(api.endpoint, repo)
    with clear_errors(repo, api.endpoint, kind):
        answer = api.whoami()
        user = answer.get("name") if isinstance(answer, dict) else answer
        info = _repository(api, repo, kind, create=create, private=private)
        # Types are checked, because the hub's answer is not trusted.
        present = {file.rfilename for file in info.siblings or [] if isinstance(file.rfilename, str)}
        earlier = _earlier(api, repo, kind, manifest, name, info.sha) & present if manifest in present else set()
        kept = {*KEPT, manifest}
        foreign = sorted(present - earlier - set(files) - kept)
        if scripts := [path for path in foreign if path.endswith(".py")]:
            raise InputError(f"{place} has the script {scripts[0]}, so libraries refuse to load it; delete the script")
        if foreign:
            log.warning("%s keeps %d foreign files: %s", repo, len(foreign), ", ".join(foreign[:3]))
        deletions = [CommitOperationDelete(path) for path in sorted(earlier - set(files) - kept)]
        log.info("uploading to %s as %s: %d files, %d to delete", repo, user, len(files), len(deletions))
        additions = []
        for path, (file, digest) in sorted(files.items()):
            # The library reads large files only when it sends them.
            additions.append(CommitOperationAdd(path, file.read_bytes() if file.stat().st_size < _SMALL else str(file)))
            additions[-1].upload_info.sha256 = bytes.fromhex(digest)  # so that the library need not hash the file again
        try:
            api.preupload_lfs_files(repo, additions, repo_type=kind)
        finally:  # a changed file may cause an error of the hub; the change is reported instead of this error
            for file, digest in files.values():
                if not file.is_file() or sha256_of(file) != digest:
                    raise Unfinished("changed during the upload; nothing is committed; upload again", path=file)
        # The library silently skips files that the repository's .gitignore matches. Only this attribute shows the skip.
        if ignored := [addition.path_in_repo for addition in additions if addition._should_ignore]:
            raise InputError(f"{place} ignores {ignored[0]}, probably by its .gitignore; nothing is committed")
        # upload_folder would split a large folder into several commits. With parent_commit, the hub refuses this commit
        # if somebody else has committed in the meantime.
        parent = commit_in(info, repo)
        commit = api.create_commit(
            repo, [*deletions, *additions], commit_message=message, repo_type=kind, parent_commit=parent
        )
    if commit.oid == info.sha:
        log.info("%s is already up to date", repo)
    return without_credentials(str(commit.commit_url))


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
        raise InputError(f"{_at(api.endpoint, repo)} is public; make it private in its settings, or remove --private")
    return info


class _Listed(msgspec.Struct):
    path: str


class _Listing(msgspec.Struct):
    name: str
    files: list[_Listed]
    results: list[_Listed] = []


def _earlier(api: Any, repo: str, kind: str, manifest: str, name: str, revision: str) -> set[str]:
    """Return the files in a repository's manifest. Empty if the manifest is invalid or has another ``name``."""
    with temporary_folder() as folder:
        path = api.hf_hub_download(repo, manifest, repo_type=kind, revision=revision, local_dir=folder)
        try:
            content = read_json(Path(path), _Listing)
        except InputError:
            return set()
    return {entry.path for entry in [*content.files, *content.results]} if content.name == name else set()


def commit_in(answer: Any, repo: str) -> str:
    """Return the commit in the hub's answer. Raise :class:`InputError` if the commit is not a hash.

    The commit is checked because callers use it as the name of a folder.
    """
    if not COMMIT.fullmatch(str(answer.sha)):
        raise InputError(f"the hub gives {repo} the commit {answer.sha!r}; expected 40 hex digits{OTHER_HUB}")
    return str(answer.sha)


def as_yaml(content: Any) -> str:
    """Format lists and objects as YAML for a file on the hub. The order of keys is preserved."""
    from huggingface_hub import utils

    return str(utils.yaml_dump(content, sort_keys=False))  # type: ignore[attr-defined]


def need_hub() -> None:
    """Fail before any work if huggingface_hub is not installed."""
    import huggingface_hub  # noqa: F401


@contextlib.contextmanager
def limited_hub() -> Iterator[None]:
    """Limit the time and size of the hub's replies in the block (:data:`REPLY_LIMITS`), for all threads.

    A client that the caller has set by ``huggingface_hub.set_client_factory`` is not replaced.
    """
    global _limited_calls
    from huggingface_hub import close_session, set_client_factory
    from huggingface_hub.utils import _http

    usual: Any = getattr(_http, "default_client_factory", None)
    with _limited_lock:
        _limited_calls += 1
        if _limited_calls == 1 and usual is not None and _http._GLOBAL_CLIENT_FACTORY is usual:
            close_session()
            set_client_factory(lambda: limit_replies(usual(), REPLY_LIMITS))
    try:
        yield
    finally:
        with _limited_lock:
            _limited_calls -= 1
            if _limited_calls == 0 and getattr(_http._GLOBAL_CLIENT_FACTORY, "__module__", "") == __name__:
                set_client_factory(usual)


@contextlib.contextmanager
def clear_errors(repo: str, endpoint: str, kind: str, way: str = "upload") -> Iterator[None]:
    """Convert errors of huggingface_hub in the block into an :class:`InputError` with advice.

    ``kind`` is ``dataset`` or ``model``, and ``way`` is ``upload`` or ``download``.
    """
    from huggingface_hub import errors

    again = f"run the same command again; complete files are not {'sent' if way == 'upload' else 'fetched'} again"
    # HTTPError of the HTTP library: httpx or httpx2, depending on the version of huggingface_hub.
    network = next(kind for kind in errors.HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    endpoint = without_credentials(endpoint)
    try:
        with limited_hub():
            yield
    except errors.HFValidationError:  # a ValueError for an invalid repository name, raised before any request
        raise
    except errors.LocalTokenNotFoundError as error:
        raise InputError(f"no token: log in with `hf auth login`, or set HF_TOKEN{OTHER_HUB}") from error
    except Exception as error:
        if full_disk(error):
            raise
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, network):
            cause = cause.__cause__  # the library wraps errors of uploads
        if cause is None:
            if isinstance(error, OSError) and error.filename is None:
                # hf_xet transfers large files and raises a plain OSError.
                raise Unfinished(
                    f"{endpoint}: the {way} failed ({_last_line(error)}); {again};"
                    f" set HF_HUB_DISABLE_XET=1 if that hub has no xet storage{OTHER_HUB}"
                ) from error
            bad_name = way == "download" and isinstance(error, OSError) and error.errno in _BAD_NAMES
            if bad_name or _in_the_library(error):
                words = f"{type(error).__name__}: {quote_reply(str(error), _LONGEST)}"
                raise Unfinished(f"{endpoint} sent an unexpected answer ({words}); {again}{OTHER_HUB}") from error
            raise
        status = getattr(getattr(cause, "response", None), "status_code", None)
        passes = status is None or status in (412, 429) or status >= 500  # the same command may succeed later
        reason = _last_line(cause)
        if isinstance(cause, errors.RepositoryNotFoundError) and status != 403:
            message = f"{endpoint} has no {kind} {repo}, or the token may not read it"
            message += "; --create creates it" * (way == "upload")
        else:
            right = "write to" if way == "upload" else "read"
            failed = f"answered with status {status}, also after retries; {again}"
            message = {
                401: f"{endpoint} refuses the token; log in with `hf auth login`, or set HF_TOKEN",
                403: f"the token has no permission to {right} {_at(endpoint, repo)}: {reason}",
                412: f"{_at(endpoint, repo)} received another commit; run the same command again",
                None: f"{endpoint} cannot be reached, or broke the connection ({reason}); {again}",
            }.get(status, f"{endpoint} {failed if passes else f'refused: {reason} (status {status})'}")
        advice = "" if status in (403, 412) else OTHER_HUB  # another hub would not help
        # The library's error has the whole reply, which may repeat the token.
        raise (Unfinished if passes else InputError)(message + advice) from None


def _at(endpoint: str, repo: str) -> str:
    return f"{repo} on {without_credentials(endpoint)} (HF_ENDPOINT)"


def _in_the_library(error: Exception) -> bool:
    """True if huggingface_hub raised the error while it processed an unexpected answer.

    Errors of the machine (disk, memory, imports) and bugs of this project do not count.
    """
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = any(module.split(".")[0] == "huggingface_hub" for module in modules)
    return inside and not isinstance(error, OSError | MemoryError | ImportError)


def _last_line(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return quote_reply(words[-1], _LONGEST) if words else type(error).__name__
