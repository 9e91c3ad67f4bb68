"""Models on the hub: resolve revisions to commits. Silence the output of the model libraries."""

import functools
import logging
import os
import threading
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.hub import COMMIT, OTHER_HUB, clear_errors, commit_in

_ANSWER_SECONDS = 8.0  # time limit of a question to the hub, with DNS and TLS
# Beginning of the name of a model's folder in the cache of huggingface_hub.
_REPOSITORY = "models--"
_USUAL_FILES = ("config.json", "modules.json")  # every model has at least one of these files


def name_of_folder(model_folder: Path) -> str:
    """Return the name of the model in a folder: its name on the hub if a download made the folder, else the last part.

    ``snapshot_download`` makes models--ORG--NAME/snapshots/COMMIT. ModelScope writes a dot of a name as three
    underscores.
    """
    absolute_path = Path(os.path.abspath(model_folder))  # does not follow links
    # A link to a snapshot counts as the snapshot.
    for path in (absolute_path, absolute_path.resolve()):
        repository = path.parent.parent.name
        is_snapshot = path.parent.name == "snapshots" and repository.startswith(_REPOSITORY)
        if is_snapshot and COMMIT.fullmatch(path.name):
            return repository.removeprefix(_REPOSITORY).replace("--", "/", 1)
    return absolute_path.name.replace("___", ".")


def quiet_libraries() -> None:
    """Silence the progress bars and hints of the model libraries. The verbs have their own progress bar and log."""
    import huggingface_hub  # noqa: F401 (adds a log handler, which is removed below)
    from transformers.utils import logging as transformers_logging

    untyped_logging: Any = transformers_logging  # its functions have no types
    untyped_logging.disable_progress_bar()
    untyped_logging.set_verbosity_error()
    for logger_name in ("sentence_transformers", "matplotlib", "accelerate"):
        logging.getLogger(logger_name).setLevel(logging.ERROR)
    # With this handler, messages would be printed twice.
    logging.getLogger("huggingface_hub").handlers.clear()


def commit_of(model_name: str, revision: str = "") -> str:
    """Return the commit of a model on the hub at ``revision`` (commit, tag or branch; empty: main), or "" for a folder.

    A full commit is returned unchanged, without a check. Raises :class:`InputError` if neither the hub nor the
    libraries' cache has the model. The hub has some seconds to answer.
    """
    if revision and Path(model_name).is_dir():
        raise InputError("is a directory; expected --revision only with a model on the hub", path=model_name)
    return model_commit(model_name, revision, "a directory needs no hub") or ""


@functools.lru_cache  # a run resolves its model several times
def model_commit(model_name: str, revision: str, other_advice: str) -> str | None:
    """Return the commit of a model on the hub at ``revision`` (empty: main), or None if ``model_name`` is a folder.

    A full commit is returned unchanged, without a check. If the hub fails, the commit in the libraries' cache is
    returned, with a warning. With HF_HUB_OFFLINE, it is returned without a question to the hub. Raises
    :class:`InputError` if the cache lacks the model, too. ``other_advice`` is advice at the end of messages.
    """
    from huggingface_hub import constants

    if Path(model_name).is_dir():
        return None
    if COMMIT.fullmatch(revision):
        return revision
    cached = cached_commit(model_name, revision)
    if constants.HF_HUB_OFFLINE and cached is None:
        raise InputError(f"the model {model_name} is not in the cache, and HF_HUB_OFFLINE is set; {other_advice}")
    try:
        if constants.HF_HUB_OFFLINE:
            return cached
        return hub_commit(model_name, revision)
    except ValueError:
        raise InputError(
            f"{model_name!r} is neither a folder nor the name of a model on the hub; {other_advice}"
        ) from None
    except (InputError, TimeoutError) as error:
        reason = str(error)
        if not reason:  # a timeout has no message
            reason = f"{constants.ENDPOINT} cannot be reached (no answer in {_time_limit():.0f} s){OTHER_HUB}"
        problem = f"the model {model_name} would come from the hub: {reason}; {other_advice}"
        if cached is None:
            raise InputError(problem) from error
        log.warning("%s; the cache has the commit %s", problem, cached)
        return cached


def cached_commit(model_name: str, revision: str = "") -> str | None:
    """Return the commit of a model's revision (empty: main branch) in the libraries' cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    for file_name in _USUAL_FILES:
        try:
            cached_path = try_to_load_from_cache(model_name, file_name, revision=revision or None)
        except ValueError:  # ``model_name`` is no valid name of a repository
            return None
        if isinstance(cached_path, str):
            return Path(cached_path).parent.name  # .../snapshots/COMMIT/config.json
    return None


def hub_commit(model_name: str, revision: str) -> str:
    """Ask the hub for the commit of a model's revision (empty: main branch), without retries.

    One small file of the model is downloaded, too, so that the libraries' cache has the commit of a branch for later
    calls without a hub. Raises :class:`InputError` if the hub lacks the model or the revision, and TimeoutError after
    some seconds.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    answer = Future[str]()

    def request_commit() -> str:
        with clear_errors(model_name, api.endpoint, "model", "download"):
            info = api.model_info(model_name, revision=revision or None, timeout=_time_limit())
            commit = commit_in(info, model_name)
            repository_files = {sibling.rfilename for sibling in info.siblings or []}
            usual_files = [file_name for file_name in _USUAL_FILES if file_name in repository_files]
            if not usual_files:
                return commit
            # The download stores the branch's commit in the cache.
            downloaded_path = api.hf_hub_download(model_name, usual_files[0], revision=revision or None)
            return Path(downloaded_path).parent.name

    def set_answer() -> None:
        try:
            answer.set_result(request_commit())
        except BaseException as error:  # raised in the caller's thread
            answer.set_exception(error)

    # In a thread, because DNS look-ups have no timeout.
    threading.Thread(target=set_answer, daemon=True).start()
    return answer.result(timeout=_time_limit())


def _time_limit() -> float:
    """Return the time limit of a question to the hub in seconds: 8, or the value of HF_HUB_ETAG_TIMEOUT.

    With this variable, huggingface_hub limits its own questions.
    """
    from huggingface_hub import constants

    if "HF_HUB_ETAG_TIMEOUT" in os.environ:
        return float(constants.HF_HUB_ETAG_TIMEOUT)
    return _ANSWER_SECONDS
