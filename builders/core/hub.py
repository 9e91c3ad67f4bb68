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
from builders.core.limits import full_disk
from builders.core.locks import temporary_folder
from builders.core.read_files import sha256_of
from builders.core.redaction import quote_reply, without_credentials
from builders.core.reply_limits import ReplyLimits, limit_replies
from builders.core.results import Report, Table
from builders.core.typed import read_json

OTHER_HUB = "; set HF_ENDPOINT to use a mirror or another hub"
# The names of the hub's oldest models have no "ORG/".
_MODEL_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
# Status codes of HTTP.
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_OTHER_COMMIT = 412  # the repository has a commit after ``parent_commit``
_TOO_MANY_REQUESTS = 429
_FIRST_SERVER_ERROR = 500
_LISTED_FILES = 3  # files that a warning lists
COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_FILE_BYTES = 1 << 20
# Errors that invalid file names cause. The library names files after a hub's ETags, which may be invalid names.
_BAD_NAME_ERRORS = {errno.ENOENT, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG}
# Characters of a library's message, so that the advice after the message is not cut.
_LONGEST_QUOTE = 300
# The longest answers are lists of the files of a repository. Downloads have no limit but a slowest speed.
REPLY_LIMITS = ReplyLimits(seconds=120, size=256 << 20, has_downloads=True)
_active_limits = 0  # the number of active limited_hub blocks
_active_limits_lock = threading.Lock()
# Never deleted, and never reported as foreign files.
KEPT = {".gitattributes", "README.md", "stats.json"}


def check_models(*names: str | None) -> None:
    """Raise :class:`InputError` for a name that is neither a folder nor a possible name of a model on the hub.

    Callers check names before they import the model libraries, because the import takes many seconds.
    """
    for name in names:
        if not name:
            continue
        path = Path(name)
        if not path.is_dir() and (path.exists() or not _MODEL_NAME.fullmatch(name)):
            raise InputError("is neither a folder nor the name of a model on the hub (ORG/NAME)", path=name)


def report_commit(commit_url: str) -> Report:
    """Return the result of a verb that has made a commit."""
    return Report(value={"commit": commit_url}, text=commit_url)


def report_planned_files(files: Mapping[str, tuple[Path, str]], repo: str) -> Report:
    """Return the result of a dry run: the files that an upload would send, with their sizes. No hub is asked.

    ``files`` are those of :func:`upload_files`.
    """
    file_sizes = {}
    for repo_path, (local_file, _) in sorted(files.items()):
        file_sizes[repo_path] = local_file.stat().st_size
    total_bytes = sum(file_sizes.values())
    lines = [f"{size:>15,}  {repo_path}" for repo_path, size in file_sizes.items()]
    lines.append(f"{total_bytes:>15,}  bytes in {len(file_sizes)} files for {repo}; nothing was sent")
    value = {"repo": repo, "files": file_sizes, "bytes": total_bytes}
    return Report(value, "\n".join(lines), [Table(["path", "bytes"], list(file_sizes.items()))])


def upload_files(
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
        manifest: path of the manifest in the repository.
        name: the manifest's field ``name``. Only files in an earlier manifest with this name are deleted.
        message: message of the commit.
        create: create a missing repository, which is private with ``private``.
        private: refuse a public repository.

    Raises:
        InputError: the hub reports an error, ``repo`` has a foreign ``.py`` file, or ``private`` refuses ``repo``.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, kind):
        whoami = api.whoami()
        user_name = whoami.get("name") if isinstance(whoami, dict) else whoami
        info = _open_repository(api, repo, kind, create=create, private=private)
        deletions = _plan_deletions(api, repo, kind, manifest, name, info, set(files))
        log.info("uploading to %s as %s: %d files, %d to delete", repo, user_name, len(files), len(deletions))
        additions = _send_files(api, repo, kind, files)
        # With parent_commit, the hub refuses this commit if somebody else has committed in the meantime. upload_folder
        # is not used, because it would split a large folder into several commits.
        commit = api.create_commit(
            repo,
            deletions + additions,
            commit_message=message,
            repo_type=kind,
            parent_commit=commit_in(info, repo),
        )
    # The hub makes no commit without a change, and returns the last one.
    if commit.oid == info.sha:
        log.info("%s is already up to date", repo)
    return without_credentials(str(commit.commit_url))


def _plan_deletions(
    api: Any, repo: str, kind: str, manifest: str, name: str, info: Any, new_paths: set[str]
) -> list[Any]:
    """Return the deletions of files that the last upload sent, and that this upload does not send.

    Files that no upload has sent are reported. Raises :class:`InputError` if a script is among these files. ``api`` is
    huggingface_hub's HfApi, ``info`` is the hub's description of the repository, ``new_paths`` are the paths of this
    upload, and the other parameters are those of :func:`upload_files`.
    """
    from huggingface_hub import CommitOperationDelete

    # Find the files of the last upload. Types are checked, because the hub's answer is not trusted.
    present_paths = {file.rfilename for file in info.siblings or [] if isinstance(file.rfilename, str)}
    earlier_paths = set()
    if manifest in present_paths:
        earlier_paths = _paths_in_manifest(api, repo, kind, manifest, name, info.sha) & present_paths
    protected_paths = KEPT | {manifest}
    # Report files that are from neither upload.
    foreign_paths = sorted(present_paths - earlier_paths - new_paths - protected_paths)
    for foreign_path in foreign_paths:
        if foreign_path.endswith(".py"):
            repository = _describe_repository(api.endpoint, repo)
            problem = f"has the script {foreign_path}, so libraries refuse to load it; delete the script"
            raise InputError(f"{repository} {problem}")
    if foreign_paths:
        log.warning("%s keeps %d foreign files: %s", repo, len(foreign_paths), ", ".join(foreign_paths[:_LISTED_FILES]))
    return [CommitOperationDelete(path) for path in sorted(earlier_paths - new_paths - protected_paths)]


def _send_files(api: Any, repo: str, kind: str, files: Mapping[str, tuple[Path, str]]) -> list[Any]:
    """Send large files to the hub's storage, and return the additions for a commit. Small files go with the commit.

    Raises :class:`Unfinished` if a file changed after its SHA-256 was computed, and :class:`InputError` if the
    repository ignores a file.
    """
    from huggingface_hub import CommitOperationAdd

    # List the additions of the commit.
    additions = []
    for repo_path, (local_file, sha256) in sorted(files.items()):
        # The library reads a large file only when it sends the file.
        content: bytes | str = str(local_file)
        if local_file.stat().st_size < _SMALL_FILE_BYTES:
            content = local_file.read_bytes()
        addition = CommitOperationAdd(repo_path, content)
        # So that the library need not hash the file again.
        addition.upload_info.sha256 = bytes.fromhex(sha256)
        additions.append(addition)
    try:
        api.preupload_lfs_files(repo, additions, repo_type=kind)
    finally:  # a changed file may cause an error of the hub; the change is reported instead of this error
        for local_file, sha256 in files.values():
            if not local_file.is_file() or sha256_of(local_file) != sha256:
                raise Unfinished("changed during the upload; nothing is committed; upload again", path=local_file)
    # The library silently skips files that the repository's .gitignore matches. Only this attribute shows the skip
    # (huggingface_hub 1.x and 2.x).
    for addition in additions:
        if addition._should_ignore:
            repository = _describe_repository(api.endpoint, repo)
            problem = f"ignores {addition.path_in_repo}, probably by its .gitignore; nothing is committed"
            raise InputError(f"{repository} {problem}")
    return additions


def _open_repository(api: Any, repo: str, kind: str, *, create: bool, private: bool) -> Any:
    """Return the hub's description of a repository, which is created if it is missing and ``create`` is True.

    With ``private``, a new repository is private, and a public one raises :class:`InputError`.
    """
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
        repository = _describe_repository(api.endpoint, repo)
        raise InputError(f"{repository} is public; make it private in its settings, or remove --private")
    return info


class _Listed(msgspec.Struct):
    path: str


class _Listing(msgspec.Struct):
    name: str
    files: list[_Listed]
    results: list[_Listed] = []


def _paths_in_manifest(api: Any, repo: str, kind: str, manifest: str, name: str, revision: str) -> set[str]:
    """Return the files that the repository's file ``manifest`` lists at a commit (``revision``).

    The result is empty if the manifest is invalid or its field ``name`` is not ``name``.
    """
    with temporary_folder() as folder:
        manifest_path = api.hf_hub_download(repo, manifest, repo_type=kind, revision=revision, local_dir=folder)
        try:
            listing = read_json(Path(manifest_path), _Listing)
        except InputError:
            return set()
    if listing.name != name:
        return set()
    return {entry.path for entry in listing.files + listing.results}


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
    global _active_limits
    from huggingface_hub import close_session, set_client_factory
    from huggingface_hub.utils import _http

    # The library has no public function that returns the present factory (huggingface_hub 1.x and 2.x).
    default_factory: Any = getattr(_http, "default_client_factory", None)

    def make_limited_client() -> Any:
        return limit_replies(default_factory(), REPLY_LIMITS)

    with _active_limits_lock:
        _active_limits += 1
        is_default = default_factory is not None and _http._GLOBAL_CLIENT_FACTORY is default_factory
        if _active_limits == 1 and is_default:
            close_session()  # otherwise the library would reuse its client without limits
            set_client_factory(make_limited_client)
    try:
        yield
    finally:
        with _active_limits_lock:
            _active_limits -= 1
            # False if the caller has set another factory. An outer block may have set this module's factory, so the
            # module is compared and not the function.
            is_limited = getattr(_http._GLOBAL_CLIENT_FACTORY, "__module__", "") == __name__
            if _active_limits == 0 and is_limited:
                set_client_factory(default_factory)


@contextlib.contextmanager
def clear_errors(repo: str, endpoint: str, kind: str, way: str = "upload") -> Iterator[None]:
    """Convert errors that the hub causes in the block into an :class:`InputError` with advice.

    Invalid repository names, full disks and errors of this machine are raised as they are. ``endpoint`` is the hub's
    address, ``kind`` is ``dataset`` or ``model``, and ``way`` is ``upload`` or ``download``.
    """
    from huggingface_hub import errors

    # HTTPError of the HTTP library: httpx or httpx2, depending on the version of huggingface_hub.
    http_error_class = next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
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
        # Look for an error of the HTTP library among the causes, because its status tells the reason.
        http_error: BaseException | None = error
        while http_error is not None and not isinstance(http_error, http_error_class):
            http_error = http_error.__cause__  # the library wraps errors of uploads
        if http_error is not None:
            # The library's error has the whole reply, which may repeat the token.
            raise _convert_http_error(http_error, repo, without_credentials(endpoint), kind, way) from None
        clear_error = _convert_other_error(error, without_credentials(endpoint), way)
        if clear_error is None:
            raise
        raise clear_error from error


def _convert_http_error(error: BaseException, repo: str, endpoint: str, kind: str, way: str) -> InputError:
    """Return the error for a reply of the hub with an error status, or for a broken connection.

    ``error`` is of the HTTP library. The other parameters are those of :func:`clear_errors`.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    # None: the connection failed.
    status = getattr(getattr(error, "response", None), "status_code", None)
    reason = _last_line(error)
    advice = OTHER_HUB
    if status in (_FORBIDDEN, _OTHER_COMMIT):
        advice = ""  # another hub would not help
    # The same command may succeed later.
    is_temporary = status is None or status in (_OTHER_COMMIT, _TOO_MANY_REQUESTS) or status >= _FIRST_SERVER_ERROR
    # A hub hides private repositories: it reports a missing repository also if the token may not read it.
    if isinstance(error, RepositoryNotFoundError) and status != _FORBIDDEN:
        message = f"{endpoint} has no {kind} {repo}, or the token may not read it"
        if way == "upload":
            message += "; --create creates it"
    elif status == _UNAUTHORIZED:
        message = f"{endpoint} refuses the token; log in with `hf auth login`, or set HF_TOKEN"
    elif status == _FORBIDDEN:
        permission = "write to" if way == "upload" else "read"
        message = f"the token has no permission to {permission} {_describe_repository(endpoint, repo)}: {reason}"
    elif status == _OTHER_COMMIT:
        message = f"{_describe_repository(endpoint, repo)} received another commit; run the same command again"
    elif status is None:
        message = f"{endpoint} cannot be reached, or broke the connection ({reason}); {_advise_retry(way)}"
    elif is_temporary:
        message = f"{endpoint} answered with status {status}, also after retries; {_advise_retry(way)}"
    else:
        message = f"{endpoint} refused: {reason} (status {status})"
    if is_temporary:
        return Unfinished(message + advice)
    return InputError(message + advice)


def _convert_other_error(error: Exception, endpoint: str, way: str) -> InputError | None:
    """Return the error for a reply that the library could not process; None if the hub did not cause the error.

    ``endpoint`` is the hub's address, and ``way`` is ``upload`` or ``download``.
    """
    if isinstance(error, OSError) and error.filename is None:
        # hf_xet transfers large files and raises a plain OSError.
        return Unfinished(
            f"{endpoint}: the {way} failed ({_last_line(error)}); {_advise_retry(way)};"
            f" set HF_HUB_DISABLE_XET=1 if that hub has no xet storage{OTHER_HUB}"
        )
    is_bad_name = way == "download" and isinstance(error, OSError) and error.errno in _BAD_NAME_ERRORS
    if is_bad_name or _was_raised_in_library(error):
        reason = f"{type(error).__name__}: {quote_reply(str(error), _LONGEST_QUOTE)}"
        return Unfinished(f"{endpoint} sent an unexpected answer ({reason}); {_advise_retry(way)}{OTHER_HUB}")
    return None


def _advise_retry(way: str) -> str:
    sent = "sent" if way == "upload" else "fetched"
    return f"run the same command again; complete files are not {sent} again"


def _describe_repository(endpoint: str, repo: str) -> str:
    return f"{repo} on {without_credentials(endpoint)} (HF_ENDPOINT)"


def _was_raised_in_library(error: Exception) -> bool:
    """True if the error was raised inside huggingface_hub, which has then probably met an unexpected answer.

    Errors of the machine (disk, memory, imports) and bugs of this project do not count.
    """
    if isinstance(error, OSError | MemoryError | ImportError):
        return False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package, _, _ = frame.f_globals.get("__name__", "").partition(".")
        if package == "huggingface_hub":
            return True
    return False


def _last_line(error: BaseException) -> str:
    """Return the last line of an error's message without secrets, or the error's class if the message is empty."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return quote_reply(lines[-1], _LONGEST_QUOTE)
