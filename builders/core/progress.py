"""Progress of long work: a bar on a terminal or in a notebook, otherwise log lines.

A signal stops the work at the next step.
"""

import io
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from tqdm import tqdm

from builders.core.errors import log
from builders.core.exit_codes import raise_if_stopped
from builders.core.quiet import is_quiet

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
        is_hidden = is_quiet() or (log.hasHandlers() and not log.isEnabledFor(logging.INFO))
        super().__init__(*args, **options, **fixed, disable=is_hidden)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log the state. An empty ``msg`` clears the bar and logs nothing."""
        if msg is not None:
            return
        if log.hasHandlers():
            log.info("%s", str(self))
        else:  # a script that has not set up logging
            print(str(self), file=sys.stderr, flush=True)


def progress(items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "") -> Any:
    """Return a progress bar on stderr. Outside terminals and notebooks, the bar logs a line every 30 seconds.

    Inside a :func:`.quiet.quiet_call`, nothing is shown. Every step of the loop raises KeyboardInterrupt if a signal
    has asked this process to stop.
    """
    options: dict[str, Any] = {"total": total, "unit": unit, "desc": label, "unit_scale": True}
    if not is_quiet() and (sys.stderr.isatty() or _is_notebook()):
        return Bar(items, **options, file=sys.stderr)
    return LogProgress(items, **options)


def _is_notebook() -> bool:
    """True if stderr is shown below a notebook's cell."""
    return type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
