"""The model libraries kept in hand: what they print, and whether what they will fetch can be reached."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any, TypeVar

from builders.common.command import InputError
from builders.common.hub import clear_errors

_ANSWER, _PATIENCE = 5.0, 8.0  # seconds for an answer, and for everything, names and certificates included
Result = TypeVar("Result")


def quiet_libraries() -> None:
    """One progress bar is enough, and one line a warning: the libraries' own bars and hints are left out of the log."""
    import huggingface_hub  # noqa: F401 (hangs its own handler in)
    from transformers.utils import logging as transformers_logging

    of_transformers: Any = transformers_logging  # its functions have no types
    of_transformers.disable_progress_bar()
    of_transformers.set_verbosity_error()
    for name in ("sentence_transformers", "matplotlib", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("huggingface_hub").handlers.clear()  # it prints again what goes to the command's log


def expect_hub(model: str, otherwise: str) -> None:
    """Ask the hub once for a model that is to be fetched from it: the libraries would ask, file by file, for minutes.

    Nothing is asked where ``model`` is a path, or in the libraries' cache, or HF_HUB_OFFLINE is set. Raises
    :class:`InputError`, with what may be done ``otherwise``, where the hub cannot be reached or has no such model.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(model).exists() or constants.HF_HUB_OFFLINE:
        return
    try:
        if any(isinstance(try_to_load_from_cache(model, name), str) for name in ("config.json", "modules.json")):
            return
    except HFValidationError:
        return  # no name of a repository: whoever opens it says so
    api = HfApi()

    def ask() -> None:
        with clear_errors(model, api.endpoint, "model", "download"):
            api.model_info(model, timeout=_ANSWER)

    why = f"the model {model} would come from the hub"
    try:
        _within(_PATIENCE, ask)
    except TimeoutError:
        said = f"{api.endpoint} cannot be reached (no answer in {_PATIENCE:.0f} s)"
        raise InputError(f"{why}: {said}; {otherwise}") from None
    except InputError as error:
        raise InputError(f"{why}: {error}; {otherwise}") from error


def _within(seconds: float, call: Callable[[], Result]) -> Result:
    """What ``call`` returns or raises; TimeoutError after that long (looking a name up knows no limit of its own)."""
    answer: Future[Result] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return answer.result(timeout=seconds)
