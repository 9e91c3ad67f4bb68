"""Progress of long work: a bar on a terminal or in a notebook, otherwise log lines.

A signal stops the work at the next step.

A bar counts what takes the time (texts, tokens or bytes), and moves with every batch. For a long task, the caller runs
the task inside :meth:`Bar.task` or :meth:`Bar.follow`, and the task calls :func:`.report_share` after each batch. A
task in a worker process cannot move the bar of the caller, which then moves when the task ends.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

from builders.core.errors import log
from builders.core.exit_codes import raise_if_stopped
from builders.core.quiet import is_quiet
from builders.core.shares import share_receiver

Result = TypeVar("Result")
EVERY = 30.0  # seconds
_BAR_DELAY = 0.5  # shorter work draws no bar


class Bar(tqdm):  # type: ignore[misc]
    """A tqdm bar whose steps raise KeyboardInterrupt if a signal has asked this process to stop."""

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            raise_if_stopped()
            yield item

    def update(self, n: float = 1) -> None:
        raise_if_stopped()
        super().update(n)

    @contextlib.contextmanager
    def task(self, amount: int) -> Iterator[None]:
        """Move the bar by ``amount`` during a block: by :func:`.report_share`, and at the end by the rest.

        The bar never moves back, so of several parts of a task, the longest should report its share first.
        """
        reported_amount = 0

        def receive_share(share: float) -> None:
            """Move the bar to ``share`` of the amount, unless it is there already."""
            nonlocal reported_amount
            # Never negative: a part of the task may report a smaller share than the part before.
            step = max(0, int(amount * share) - reported_amount)
            reported_amount += step
            self.update(step)

        token = share_receiver.set(receive_share)
        try:
            yield
        finally:
            share_receiver.reset(token)
        self.update(amount - reported_amount)

    def follow(self, results: Iterable[Result], amounts: Iterable[int]) -> Iterator[Result]:
        """Yield the results of tasks. ``amounts`` are the amounts of the tasks, see :meth:`task`."""
        result_iterator = iter(results)
        for amount in amounts:
            # A generator of results may run the task in ``next``.
            with self.task(amount):
                result = next(result_iterator)
            yield result
        # Lets a generator of results end here, with its processes.
        surplus_result = next(result_iterator, None)
        assert surplus_result is None


class LogProgress(Bar):
    """A bar that is not drawn but logged every :data:`EVERY` seconds, and at the end. Shorter work logs nothing."""

    monitor_interval = 0  # disables tqdm's monitor thread

    def __init__(self, *args: Any, **options: Any) -> None:
        is_log_silent = log.hasHandlers() and not log.isEnabledFor(logging.INFO)
        # tqdm decides when to call display(), which logs the text without a bar (ncols=0). tqdm itself writes nothing
        # of use, so its file is a buffer.
        super().__init__(
            *args,
            **options,
            mininterval=EVERY,
            delay=EVERY,
            miniters=1,
            leave=False,
            ncols=0,
            file=io.StringIO(),
            disable=is_quiet() or is_log_silent,
        )

    def close(self) -> None:
        """Log the end if an earlier state is logged."""
        is_logged = not self.disable and self.last_print_n > self.initial
        if is_logged and self.last_print_n < self.n:
            self.refresh()
        super().close()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Log the state. An empty ``msg`` clears the bar and logs nothing."""
        if msg is not None:
            return
        if log.hasHandlers():
            log.info("%s", str(self))
        else:  # a script that has not set up logging
            print(str(self), file=sys.stderr, flush=True)


def show_progress(
    items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "", done: int = 0
) -> Any:
    """Return a progress bar on stderr. Outside terminals and notebooks, the bar logs a line every 30 seconds.

    ``label`` is shown before the bar, and ``unit`` behind the number of items. The bar yields ``items`` and moves with
    each. Without items, the caller moves the bar by ``update``. ``done`` is the part of ``total`` that an interrupted
    call has finished. It does not count for the speed. Inside a :func:`.quiet.quiet_call`, nothing is shown. Every step
    of the loop raises KeyboardInterrupt if a signal has asked this process to stop.
    """
    options: dict[str, Any] = {"total": total, "unit": unit, "desc": label, "unit_scale": True, "initial": done}
    # A LogProgress of a quiet call logs nothing, but its steps still stop after a signal.
    if is_quiet():
        return LogProgress(items, **options)
    if sys.stderr.isatty() or _is_notebook():
        return Bar(items, **options, delay=_BAR_DELAY, file=sys.stderr)
    return LogProgress(items, **options)


def slices_with_progress(item_count: int, slice_size: int, *, unit: str, label: str) -> Iterator[slice]:
    """Yield the slices of ``slice_size`` items that divide ``item_count`` items, with a bar that counts items."""
    with show_progress(total=item_count, unit=unit, label=label) as bar:
        for start in range(0, item_count, slice_size):
            stop = min(start + slice_size, item_count)
            yield slice(start, stop)
            bar.update(stop - start)


def _is_notebook() -> bool:
    """True if stderr is shown below a notebook's cell."""
    return type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
