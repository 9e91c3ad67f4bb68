"""Progress of long work: a bar on a terminal, else a line in the log now and then. A signal stops the work."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from builders.core.errors import log
from builders.core.exit_codes import raise_if_stopped

EVERY = 30.0  # seconds


class Bar(tqdm):  # type: ignore[misc]
    """tqdm's bar, whose every step raises KeyboardInterrupt where a signal has asked this process to stop."""

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            raise_if_stopped()
            yield item

    def update(self, n: float = 1) -> None:
        """Count ``n`` steps more."""
        raise_if_stopped()
        super().update(n)


class LogProgress(Bar):
    """A bar that draws nothing, and logs its state every :data:`EVERY` seconds. Shorter work logs nothing."""

    monitor_interval = 0  # tqdm's own thread has nothing to do

    def __init__(self, *args: Any, **options: Any) -> None:
        rhythm = {"mininterval": EVERY, "delay": EVERY, "miniters": 1, "leave": False}
        quiet = not log.isEnabledFor(logging.INFO)
        super().__init__(*args, **options, **rhythm, file=io.StringIO(), ncols=0, disable=quiet)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log the state; nothing where the bar would be cleared."""
        if msg is None:
            log.info("%s", str(self))


def progress(items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "") -> Any:
    """A progress bar on stderr; where that is no terminal, a line in the log every 30 seconds.

    Every step of the loop raises KeyboardInterrupt where a signal has asked this process to stop.
    """
    options: dict[str, Any] = {"total": total, "unit": unit, "desc": label, "unit_scale": True}
    return Bar(items, **options, file=sys.stderr) if sys.stderr.isatty() else LogProgress(items, **options)
