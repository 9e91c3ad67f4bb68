"""Signals in tests: as a terminal's command finds them, and where Python drops what their handlers raise."""

import os
import signal
import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def heeded() -> Iterator[None]:
    """Signals as a terminal's command finds them: one that a script puts into the background ignores Ctrl-C."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class InDestructor:
    """A signal that comes while this is freed; Python drops what its handler raises there."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0)
