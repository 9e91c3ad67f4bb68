"""The hub's refusals and failures in one clear line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from builders.command import InputError

_AGAIN = "run the same command again: what was received is not sent again"


def need_hub() -> None:
    """:class:`InputError` where huggingface_hub is not installed."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise InputError("publishing needs huggingface_hub: pip install huggingface_hub") from error


@contextlib.contextmanager
def clear_errors(repo: str, endpoint: str) -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an :class:`InputError` that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError

    # The HTTP library's own base class, whatever that library is in this version.
    network = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    try:
        yield
    except LocalTokenNotFoundError as error:
        raise InputError("no token: log in with `hf auth login`, or set HF_TOKEN") from error
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, network):
            cause = cause.__cause__  # a failed upload comes wrapped
        if cause is None:
            if isinstance(error, OSError) and error.filename is None:
                # Large files go by another library, hf_xet, which words its errors itself.
                raise InputError(
                    f"{endpoint}: the upload failed ({_last_line(error)}); {_AGAIN};"
                    " set HF_HUB_DISABLE_XET=1 if that hub has no xet storage"
                ) from error
            raise
        status = getattr(getattr(cause, "response", None), "status_code", None)
        said = _last_line(cause)
        if isinstance(cause, RepositoryNotFoundError) and status != 403:
            message = f"there is no dataset {repo} on {endpoint} that this token may see; --create makes it"
        elif status == 401:
            message = f"{endpoint} refuses the token; log in with `hf auth login`, or set HF_TOKEN"
        elif status == 403:
            message = f"this token has no right to write to {repo} on {endpoint} ({said})"
        elif status == 412:
            message = f"{repo} has got another commit in the meantime; run the same command again"
        elif status is None:
            message = f"{endpoint} cannot be reached, or broke the connection ({said}); {_AGAIN}"
        elif status == 429 or status >= 500:
            message = f"{endpoint} answered with status {status}, also after retries; {_AGAIN}"
        else:
            message = f"{endpoint} refused: {said} (status {status})"
        raise InputError(message) from error


def _last_line(error: BaseException) -> str:
    words = str(error).strip().splitlines()
    return words[-1] if words else type(error).__name__
