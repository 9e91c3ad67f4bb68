"""Models on the hub: the commit that a name stands for, and the libraries' own output silenced."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any, TypeVar

from builders.core.errors import InputError, log
from builders.core.hub import COMMIT, clear_errors, commit_in

_ANSWER, _PATIENCE = 5.0, 8.0  # seconds for an answer, and for everything, names and certificates included
_FIRST = ("config.json", "modules.json")  # a model has one of them
Result = TypeVar("Result")


def quiet_libraries() -> None:
    """Silence the model libraries' own progress bars and hints: the command has its own bar and log."""
    import huggingface_hub  # noqa: F401 (hangs its own handler in)
    from transformers.utils import logging as transformers_logging

    of_transformers: Any = transformers_logging  # its functions have no types
    of_transformers.disable_progress_bar()
    of_transformers.set_verbosity_error()
    for name in ("sentence_transformers", "matplotlib", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("huggingface_hub").handlers.clear()  # it prints again what goes to the command's log


def commit_of(name: str, revision: str = "", option: str = "--revision") -> str:
    """Return the commit that a model on the hub stands for at ``revision`` (a commit, tag or branch; empty: main).

    Empty where ``name`` is a directory. Raises :class:`InputError` within seconds where neither the hub nor the
    libraries' cache has it; the libraries would ask, file by file, for minutes. ``option``: that gave the revision.
    """
    if revision and Path(name).is_dir():
        raise InputError(f"is a directory; {option} is of models on the hub", path=name)
    return model_commit(name, revision, "a directory needs no hub") or ""


@functools.lru_cache  # of a model that is opened, or started from, several times
def model_commit(model: str, revision: str, otherwise: str) -> str | None:
    """The commit that a model on the hub stands for now; None where ``model`` is a folder.

    Asked of the hub; where it cannot be, the libraries' cache says which one it holds. Raises :class:`InputError`, with
    what may be done ``otherwise``, where neither knows one.
    """
    from huggingface_hub import constants

    if Path(model).is_dir():
        return None
    if COMMIT.fullmatch(revision):
        return revision
    cached = cached_commit(model, revision)
    if constants.HF_HUB_OFFLINE:
        if cached is None:
            raise InputError(f"the model {model} is not in the cache, and HF_HUB_OFFLINE is set; {otherwise}")
        return cached
    try:
        return hub_commit(model, revision, otherwise)
    except ValueError:
        raise InputError(f"{model!r} is neither a folder nor the name of a model on the hub; {otherwise}") from None
    except InputError as error:
        if cached is None:
            raise
        log.warning("%s; the cache has the commit %s", error, cached)
        return cached


def cached_commit(model: str, revision: str = "") -> str | None:
    """The commit that the libraries' cache holds of a hub model's revision (empty: its main branch); None: nothing."""
    from huggingface_hub import try_to_load_from_cache

    for name in _FIRST:
        try:
            path = try_to_load_from_cache(model, name, revision=revision or None)
        except ValueError:  # no name of a repository
            return None
        if isinstance(path, str):
            return Path(path).parent.name  # .../snapshots/COMMIT/config.json
    return None


def hub_commit(model: str, revision: str, otherwise: str) -> str:
    """The commit that the hub has of a model's revision (empty: its main branch), asked for once, for seconds at most.

    Raises :class:`InputError`, with what may be done ``otherwise``, where the hub cannot be reached or has no such
    model or revision.
    """
    from huggingface_hub import HfApi

    api = HfApi()

    def ask() -> str:
        with clear_errors(model, api.endpoint, "model", "download"):
            info = api.model_info(model, revision=revision or None, timeout=_ANSWER)
            commit = commit_in(info, model)
            names = {sibling.rfilename for sibling in info.siblings or []}
            # A file asked for by the branch's name: without a hub, the cache knows then which commit the branch was at.
            for name in [name for name in _FIRST if name in names][:1]:
                return Path(api.hf_hub_download(model, name, revision=revision or None)).parent.name
            return commit

    why = f"the model {model} would come from the hub"
    try:
        return _within(_PATIENCE, ask)
    except TimeoutError:
        said = f"{api.endpoint} cannot be reached (no answer in {_PATIENCE:.0f} s)"
        raise InputError(f"{why}: {said}; {otherwise}") from None
    except InputError as error:
        raise InputError(f"{why}: {error}; {otherwise}") from error


def _within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return or raise the outcome of ``call``; TimeoutError after that long (name look-ups know no limit)."""
    answer: Future[Result] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(timeout=seconds)
