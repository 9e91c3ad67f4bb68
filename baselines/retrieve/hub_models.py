"""Models on the hub: the commit that a name stands for, and the libraries' own output silenced."""

from __future__ import annotations

import functools
import logging
import threading
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any

from builders.core.errors import InputError, log
from builders.core.hub import COMMIT, OTHER_HUB, clear_errors, commit_in

_ANSWER, _PATIENCE = 5.0, 8.0  # seconds for an answer, and for everything, names and certificates included
_FIRST = ("config.json", "modules.json")  # a model has one of them


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
    if constants.HF_HUB_OFFLINE and cached is None:
        raise InputError(f"the model {model} is not in the cache, and HF_HUB_OFFLINE is set; {otherwise}")
    try:
        return cached if constants.HF_HUB_OFFLINE else hub_commit(model, revision)
    except ValueError:
        raise InputError(f"{model!r} is neither a folder nor the name of a model on the hub; {otherwise}") from None
    except (InputError, TimeoutError) as error:
        said = str(error) or f"{constants.ENDPOINT} cannot be reached (no answer in {_PATIENCE:.0f} s){OTHER_HUB}"
        problem = f"the model {model} would come from the hub: {said}; {otherwise}"
        if cached is None:
            raise InputError(problem) from error
        log.warning("%s; the cache has the commit %s", problem, cached)
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


def hub_commit(model: str, revision: str) -> str:
    """The commit that the hub has of a model's revision (empty: its main branch), asked for once.

    Raises :class:`InputError` where the hub has no such model or revision, TimeoutError after some seconds.
    """
    from huggingface_hub import HfApi

    api, answer = HfApi(), Future[str]()

    def ask() -> None:
        try:
            with clear_errors(model, api.endpoint, "model", "download"):
                info = api.model_info(model, revision=revision or None, timeout=_ANSWER)
                commit = commit_in(info, model)
                names = {sibling.rfilename for sibling in info.siblings or []}
                # A file asked for by the branch's name: without a hub, the cache knows then where the branch was.
                for name in [name for name in _FIRST if name in names][:1]:
                    commit = Path(api.hf_hub_download(model, name, revision=revision or None)).parent.name
            answer.set_result(commit)
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()  # name look-ups know no limit
    return answer.result(timeout=_PATIENCE)
