"""Exit codes: whatever stops a command ends it with one line and a code, and leaves nothing half-way."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from builders.core.errors import InputError, extra_of, install
from builders.core.limits import DiskFull, full_disk, reserve_little

# Libraries have kinds of their own for it (MemoryError, duckdb.OutOfMemoryException, torch's RuntimeError).
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|outofmemory|(?:can't|cannot|unable to|failed to) allocate|can't start new thread",
    re.IGNORECASE,
)
_SIGNALS = ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))  # with usual handlers
_TOGETHER = 0.05  # seconds in which a signal may come twice and be one: timeout(1) stops a process, then its group
_came: list[int] = []  # the signal that stops this process, where one has come
_guarded = False  # inside of exit_code, in the main thread


def exit_code(work: Callable[[], int]) -> int:
    """Do the work of a command, which returns its exit code.

    What stops it is said on stderr: 1 where input, data, disk, memory or a missing library are the reason, 130 after
    Ctrl-C, 143 after SIGTERM (both let it clean up; a second signal ends the process at once), 141 where the reader of
    stdout is gone. A fault of the program is raised.
    """
    _open_streams()
    say_once()
    try:
        with _stoppable():
            reserve_little()
            try:
                code = work()
            except SystemExit:  # --help has printed, too
                sys.stdout.flush()
                raise
            raise_if_stopped()
            sys.stdout.flush()
            return code
    except BaseException as error:
        # Not by the error alone: DuckDB, say, makes one of its own of it, and a worker may be stopped first.
        if _came or isinstance(error, KeyboardInterrupt):
            number = _came[0] if _came else signal.SIGINT
            if not _guarded:
                _came.clear()
            return _say("interrupted", 128 + number)
        full = full_disk(error)
        if isinstance(error, DiskFull) or (isinstance(error, InputError) and not full):
            return _say(f"error: {error}")
        if isinstance(error, BrokenPipeError):  # the reader of stdout (head, less) has seen enough
            _drop_stdout()
            return 141
        if full:
            _drop_stdout()  # what did not go there would be tried once more at the end
            place = error if isinstance(error, InputError) else getattr(error, "filename", None) or "stdout"
            return _say(f"error: {place}: {full}")
        if isinstance(error, ModuleNotFoundError) and (extra := extra_of(error.name or "")):
            return _say(f"error: {error.name} is not installed: {install(extra)}")
        if isinstance(error, MemoryError) or _NO_MEMORY.search(f"{type(error).__name__}: {error}"):
            return _say(f"error: not enough memory ({' '.join(str(error).split())[:200] or 'an allocation failed'})")
        if isinstance(error, OSError):
            # Permissions, a path that is a directory: the system's own words name the file.
            return _say(f"error: {error}")
        raise


def _say(line: str, code: int = 1) -> int:
    with contextlib.suppress(OSError):  # nobody reads it, or its disk is full: the code says it, too
        print(line, file=sys.stderr, flush=True)
    return code


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt where a signal has asked this process to stop. For loops, at every step.

    The signal's handler raises it, too, but Python drops what is raised inside a destructor.
    """
    if _came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM stop the block as Ctrl-C does. A block inside another's leaves that to it."""
    global _guarded
    if _guarded or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.getsignal(number) for number, _ in _SIGNALS]
    _came.clear()
    _guarded = True
    try:
        for (number, usual), found in zip(_SIGNALS, before, strict=True):
            if found == usual:  # else whoever started this process wants it ignored, or handles it
                signal.signal(number, _stop)
        yield
    finally:
        for (number, _), found in zip(_SIGNALS, before, strict=True):
            signal.signal(number, found)
        _guarded = False


def _stop(number: int, _: FrameType | None) -> None:
    if _came:
        return
    _came.append(number)
    time.sleep(_TOGETHER)
    signal.raise_signal(number)  # has Python call this for all that have come by now, before it forgets the handler
    for each, _usual in _SIGNALS:
        if signal.getsignal(each) == _stop:
            signal.signal(each, signal.SIG_DFL)  # the next one ends the process, whatever it is at
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Have closed streams lead nowhere: else the first file that is opened takes the place of stdout.

    What stdout and stderr cannot encode is escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Write the characters that a stream's encoding (GBK, ASCII) lacks as \uXXXX.

    JSON stays JSON: of Python's own escapes (backslashreplace), \xXX and \UXXXXXXXX are none of JSON's.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)), error.end


def say_once() -> None:
    """Leave out what Python prints of an error in a destructor that is reported elsewhere.

    That is a file that a full disk did not take and that is closed, or freed, once more; and a signal, which
    :func:`raise_if_stopped` raises again. For this process.
    """
    before = sys.unraisablehook
    if before.__module__ == __name__:
        return

    def say(found: sys.UnraisableHookArgs) -> None:
        dropped = bool(_came) and isinstance(found.exc_value, KeyboardInterrupt)
        if not dropped and (found.exc_value is None or not full_disk(found.exc_value)):
            before(found)

    sys.unraisablehook = say


def _drop_stdout() -> None:
    """Discard whatever is still to be printed."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
