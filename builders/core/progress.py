"""Progress of long work: a bar on a terminal, otherwise log lines. A signal stops the work at the next step."""

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
    """A tqdm bar whose steps raise KeyboardInterrupt if a signal has asked this process to stop."""

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            raise_if_stopped()
            yield item

    def update(self, n: float = 1) -> None:
        raise_if_stopped()
        super().update(n)


class LogProgress(Bar):
    """A bar that is not drawn but logged every :data:`EVERY` seconds. Shorter work logs nothing."""

    monitor_interval = 0  # disables tqdm's monitor thread

    def __init__(self, *args: Any, **options: Any) -> None:
        fixed = {"mininterval": EVERY, "delay": EVERY, "miniters": 1, "leave": False, "ncols": 0, "file": io.StringIO()}
        super().__init__(*args, **options, **fixed, disable=not log.isEnabledFor(logging.INFO))

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log the state. An empty ``msg`` clears the bar and logs nothing."""
        if msg is None:
            log.info("%s", str(self))


def progress(items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "") -> Any:
    """Return a progress bar on stderr. If stderr is not a terminal, the bar logs a line every 30 seconds.

    Every step of the loop raises KeyboardInterrupt if a signal has asked this process to stop.
    """
    options: dict[str, Any] = {"total": total, "unit": unit, "desc": label, "unit_scale": True}
    return Bar(items, **options, file=sys.stderr) if sys.stderr.isatty() else LogProgress(items, **options)
