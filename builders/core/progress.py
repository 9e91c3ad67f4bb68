"""Progress of long work: a bar on a terminal, else a line in the log now and then. A signal stops the work."""

from __future__ import annotations

import io
import logging
import sys
import threading
import weakref
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
    """A bar that draws nothing, and logs its state every :data:`EVERY` seconds until it is closed.

    A thread does so, because one step may take minutes. Work that takes less than that logs nothing.
    """

    monitor_interval = 0  # tqdm's own thread has nothing to do

    def __init__(self, *args: Any, **options: Any) -> None:
        quiet = not log.isEnabledFor(logging.INFO)
        super().__init__(*args, **options, file=io.StringIO(), ncols=0, miniters=1, disable=quiet)
        self._closed = threading.Event()
        if not quiet:
            threading.Thread(target=_tell, args=(weakref.ref(self), self._closed), daemon=True).start()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """Stop logging."""
        if closed := getattr(self, "_closed", None):  # missing where __init__ has failed
            closed.set()
        super().close()


def _tell(bar: weakref.ref[LogProgress], closed: threading.Event) -> None:
    # A weak reference: a bar that an exception has left open ends with it.
    while not closed.wait(EVERY):
        if (found := bar()) is None:
            return
        log.info("%s", str(found))  # now, not when a handler writes it
        del found


def progress(items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "") -> Any:
    """A progress bar on stderr; where that is no terminal, a line in the log every 30 seconds.

    Every step of the loop raises KeyboardInterrupt where a signal has asked this process to stop.
    """
    options: dict[str, Any] = {"total": total, "unit": unit, "desc": label, "unit_scale": True}
    return Bar(items, **options, file=sys.stderr) if sys.stderr.isatty() else LogProgress(items, **options)
