"""Report the errors of the model libraries as one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

from baselines.core.checkpoint import check_hashes
from builders.core.errors import InputError
from builders.core.hub import OTHER_HUB, limited_hub
from builders.core.redaction import quote_reply

_QUOTED_CHARACTERS = 300  # of a library's error message


@contextlib.contextmanager
def convert_library_errors(problem: str, model_name: str = "") -> Iterator[None]:
    """Convert any error that a library raises inside the block to an :class:`InputError`.

    A MemoryError, Ctrl-C and an exit pass through.

    Args:
        problem: the beginning of the error message, for example ``DIR: cannot be opened as a CrossEncoder``.
        model_name: the model's name or folder. The block is entered only if the files of a checkpoint of this project
            have the hashes that the checkpoint records (default: no check).
    """
    if model_name:
        check_hashes(Path(model_name))
    try:
        with limited_hub():
            yield
    except (InputError, MemoryError):
        raise
    except BaseException as error:  # the libraries raise many types of errors for damaged files
        # A panic in a Rust library, for example tokenizers, is not a subclass of Exception.
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        reason = type(error).__name__
        message = quote_reply(str(error), _QUOTED_CHARACTERS)
        if message:
            reason += f": {message}"
        advice = OTHER_HUB if constants.ENDPOINT in str(error) else ""
        raise InputError(f"{problem} ({reason}){advice}") from error
