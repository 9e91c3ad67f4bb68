"""Turn off progress and log lines during one call from Python. Warnings stay."""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar

from builders.core.errors import log

# A context variable, so that a quiet call in one thread does not silence other threads.
_quiet_call: ContextVar[bool] = ContextVar("quiet_call", default=False)


@contextlib.contextmanager
def quiet_call(quiet: bool = True) -> Iterator[None]:
    """Log only warnings and errors inside the block, and show no progress. ``quiet=False`` changes nothing."""
    token = _quiet_call.set(quiet or _quiet_call.get())
    try:
        yield
    finally:
        _quiet_call.reset(token)


def is_quiet() -> bool:
    """True inside a :func:`quiet_call`."""
    return _quiet_call.get()


def _is_shown(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or not is_quiet()


log.addFilter(_is_shown)
