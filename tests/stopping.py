"""Signals in tests: handlers as in a terminal, and exceptions of handlers that Python discards."""

import os
import signal
import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def heeded() -> Iterator[None]:
    """Set signal handlers as in a terminal, because a background process of a script ignores Ctrl-C."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class InDestructor:
    """An object that sends a signal on deletion, when Python discards exceptions of the handler."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0)
