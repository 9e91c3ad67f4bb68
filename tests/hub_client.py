"""The project's commands as clients of the loopback hub, in this process."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from commands import Done, run
from hub_repos import WRITE
from hub_server import Hub
from huggingface_hub import close_session, constants


@contextlib.contextmanager
def as_client(hub: Hub, home: Path, token: str | None) -> Iterator[None]:
    """``huggingface_hub`` reads its variables when it is imported: here it reads them again, and once more after."""
    with contextlib.ExitStack() as stack:
        stack.callback(importlib.reload, constants)
        stack.enter_context(mock.patch.dict(os.environ, hub.environment(home, token), clear=True))
        importlib.reload(constants)
        stack.enter_context(mock.patch("time.sleep"))  # the library waits 1, 2, 4, 8 and 8 seconds between its tries
        stack.callback(close_session)
        yield


def run_at(hub: Hub, home: Path, program: str, *words: object, token: str | None = WRITE, code: int | None = 0) -> Done:
    """As :func:`commands.run`, with the hub as the only one, and with caches under ``home``."""
    with as_client(hub, home, token):
        return run(program, *words, code=code)


def error_of(done: Done) -> str:
    """The error of a failed command: one line, the last."""
    assert done.code == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.stderr.splitlines()[-1] == line
    return line
