"""Report the finished share of a running task to the bar of the task's caller. This module imports no bars."""

from collections.abc import Callable
from contextvars import ContextVar

from builders.core.exit_codes import raise_if_stopped

# The function that moves the bar, set by Bar.task. A new thread has none, so only the thread of the bar moves the bar.
share_receiver: ContextVar[Callable[[float], None] | None] = ContextVar("share_receiver", default=None)


def report_share(share: float) -> None:
    """Move the bar of the running task to a share of the task, from 0 to 1. Without a task, no bar moves.

    Like a step of a bar, raise KeyboardInterrupt if a signal has asked this process to stop.
    """
    receive = share_receiver.get()
    if receive is None:
        raise_if_stopped()
    else:
        receive(share)
