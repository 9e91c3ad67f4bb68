"""Run the project's commands in this process as clients of the loopback hub."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from commands import Done, run
from hub_server import WRITE, Hub
from huggingface_hub import close_session, constants


@contextlib.contextmanager
def as_client(hub: Hub, home: Path, token: str | None) -> Iterator[None]:
    """Reload ``huggingface_hub``'s environment variables, which it reads on import, before and after the block."""
    with contextlib.ExitStack() as stack:
        stack.callback(importlib.reload, constants)
        stack.enter_context(mock.patch.dict(os.environ, hub.environment(home, token), clear=True))
        importlib.reload(constants)
        stack.enter_context(mock.patch("time.sleep"))  # the library waits 1, 2, 4, 8 and 8 seconds between retries
        stack.callback(close_session)
        yield


def run_at(hub: Hub, home: Path, program: str, *words: object, token: str | None = WRITE, code: int | None = 0) -> Done:
    """Like :func:`commands.run`, but with this hub, and with caches under ``home``."""
    with as_client(hub, home, token):
        return run(program, words, code=code)
