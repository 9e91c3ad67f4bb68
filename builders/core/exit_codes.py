"""Report errors and signals as one line on stderr and an exit code."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

from builders.core.errors import InputError, UsageError, missing_library
from builders.core.limits import DiskFull, full_disk, reserve_little
from builders.core.redaction import redact

# Libraries report exhausted memory by different exceptions: MemoryError, duckdb.OutOfMemoryException, RuntimeError.
_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|outofmemory|(?:can't|cannot|unable to|failed to) allocate|can't start new thread|"
    r"failed to map segment|cannot apply additional memory protection|thread creation failed|cannot create thread",
    re.IGNORECASE,
)
_QUOTED = 200  # characters of an error of memory
_SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}  # default handlers
_TOGETHER = 0.05  # seconds; signals within this time count as one, because timeout(1) sends two
# Seconds from a signal to the end of the process, if the cleanup takes longer. The next command removes what is left,
# as after a kill.
_CLEANUP = 1.5
_came: list[int] = []  # the signal that stops this process; empty before a signal
_guarded = False  # True inside exit_code in the main thread
_resumable = False  # True while a command runs that resumes if it is called again


def exit_code(work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code, or the code of the error or signal that stops it.

    Errors are reported on stderr as one line. The code is 1 for wrong input or data, a full disk or another OSError, no
    memory, or a missing library; 2 for a wrong option; 130 after Ctrl-C; 143 after SIGTERM; and 141 if the reader of
    stdout closes the pipe. Other exceptions are raised. After a signal, the command cleans up, for at most
    ``_CLEANUP`` seconds. A second signal ends the command at once.
    """
    if not _guarded:
        set_resumable(False)
    _open_streams()
    say_once()
    redact_tracebacks()
    try:
        with _stoppable():
            reserve_little()
            try:
                code = work()
            except SystemExit:  # also after --help, which prints to stdout
                sys.stdout.flush()
                raise
            raise_if_stopped()
            sys.stdout.flush()
            return code
    except BaseException as error:
        # A signal may surface as another error: DuckDB replaces KeyboardInterrupt, and a worker process may die first.
        if _came or isinstance(error, KeyboardInterrupt):
            number = _came[0] if _came else signal.SIGINT
            if not _guarded:
                _came.clear()
            return _say(_interruption(), 128 + number)
        full = full_disk(error)
        if isinstance(error, DiskFull) or (isinstance(error, InputError) and not full):
            return _say(f"error: {error}", code=2 if isinstance(error, UsageError) else 1)
        if isinstance(error, BrokenPipeError):  # the reader of stdout (head, less) has closed the pipe
            _drop_stdout()
            return 141
        if full:
            _drop_stdout()  # Python would flush the buffered text again at exit, and fail again
            place = error if isinstance(error, InputError) else getattr(error, "filename", None) or "stdout"
            return _say(f"error: {place}: {full}")
        if isinstance(error, ModuleNotFoundError) and (line := missing_library(error)):
            return _say(f"error: {line}")
        if shortage := _memory_shortage(error):
            return _say(f"error: not enough memory ({shortage})")
        if isinstance(error, OSError):
            return _say(f"error: {error}")
        raise


def set_resumable(resumable: bool) -> None:
    """Declare that the command of this process resumes if it is called again, for the line after a signal."""
    global _resumable
    _resumable = resumable


def _interruption() -> str:
    """Return the line that reports a signal."""
    return "interrupted; the same command resumes" if _resumable else "interrupted"


def _memory_shortage(error: BaseException) -> str:
    """Return the line of an error, or of one of its causes, that reports exhausted memory; otherwise empty."""
    cause: BaseException | None = error
    while cause is not None:
        for line in f"{type(cause).__name__}: {cause}".splitlines():
            if _NO_MEMORY.search(line):
                return " ".join(redact(line).split())[:_QUOTED]
        if isinstance(cause, MemoryError):
            return " ".join(str(cause).split())[:_QUOTED] or "an allocation failed"
        cause = cause.__cause__ or cause.__context__
    return ""


def _say(line: str, code: int = 1) -> int:
    with contextlib.suppress(OSError):  # stderr is closed or its disk is full; the exit code still reports the error
        print(redact(line), file=sys.stderr, flush=True)
    return code


def end_soon(code: int) -> int:
    """Return the exit code of a program's main function, whose process ends within some seconds after a signal.

    Without this limit, the interpreter would wait for threads that wait for a server.
    """
    if code in (128 + number for number in _SIGNALS):
        _end_after(_CLEANUP, code)
    return code


def _end_after(seconds: float, code: int) -> None:
    """End this process after some seconds, whatever it does then."""

    def wait() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=wait, daemon=True).start()


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt if a signal has asked this process to stop. Long loops call this at every step.

    The signal's handler also raises KeyboardInterrupt, but Python drops exceptions that are raised in a destructor.
    """
    if _came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Make SIGTERM stop the block in the same way as Ctrl-C. A nested block changes nothing."""
    global _guarded
    if _guarded or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Other handlers, and a parent's choice to ignore a signal, are not replaced.
    replaced = {number: usual for number, usual in _SIGNALS.items() if signal.getsignal(number) == usual}
    _came.clear()
    _guarded = True
    try:
        with _limited_cleanup():
            for number in replaced:
                signal.signal(number, _stop)
            yield
    finally:
        for number, usual in replaced.items():
            signal.signal(number, usual)
        _guarded = False


@contextlib.contextmanager
def _limited_cleanup() -> Iterator[None]:
    """End the process if the block runs for more than ``_CLEANUP`` seconds after a signal.

    Python calls :func:`_stop` only between two instructions of the main thread, which may be inside a library for
    minutes. The interpreter therefore also writes the number of each signal to a socket, which a thread reads.
    """
    if os.name == "nt":
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    ended = threading.Event()

    def watch() -> None:
        while number := reader.recv(1):
            if number[0] in _SIGNALS and not ended.wait(_CLEANUP):
                # The main thread may hold the lock of sys.stderr, and the reader of stderr may be busy.
                with contextlib.suppress(OSError, ValueError):
                    if select.select([], [2], [], 0)[1]:
                        os.write(2, f"{_interruption()}\n".encode())
                os._exit(128 + number[0])

    earlier = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(earlier)
        writer.close()  # ends the thread
        watcher.join(_CLEANUP)
        reader.close()


def _stop(number: int, _: FrameType | None) -> None:
    if _came:
        return
    _came.append(number)
    time.sleep(_TOGETHER)
    signal.raise_signal(number)  # makes Python handle all pending signals here, before the handler is replaced
    for other in _SIGNALS:
        if signal.getsignal(other) == _stop:
            signal.signal(other, signal.SIG_DFL)  # the next signal ends the process at once
    raise KeyboardInterrupt


def _forget_wakeup_socket() -> None:
    """Keep signals of a forked process from the socket of its parent, which would end."""
    with contextlib.suppress(ValueError):  # not the main thread
        if _guarded:
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_wakeup_socket)


def _open_streams() -> None:
    """Connect closed standard streams to the null device, and escape characters that the streams cannot encode.

    If a stream stayed closed, the first file that is opened would get the number of the stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free file number, which is ``number``
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("escape", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Write \uXXXX for a character that the stream's encoding (GBK, ASCII) lacks, so that printed JSON stays valid.

    Python's own handler (backslashreplace) also writes \xXX and \UXXXXXXXX, which JSON does not have.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4)), error.end


def say_once() -> None:
    """Suppress Python's messages about two errors in destructors, which are also reported elsewhere.

    The first is a full disk, when a destructor tries again to close a file. The second is KeyboardInterrupt, which
    :func:`raise_if_stopped` raises again. The suppression applies to the whole process.
    """
    before = sys.unraisablehook
    if before.__module__ == __name__:
        return

    def report(event: sys.UnraisableHookArgs) -> None:
        dropped = bool(_came) and isinstance(event.exc_value, KeyboardInterrupt)
        if dropped or (event.exc_value is not None and full_disk(event.exc_value)):
            return
        if before is not sys.__unraisablehook__:
            before(event)
            return
        with contextlib.suppress(OSError):
            print(redact(f"{event.err_msg or 'Exception ignored in'}: {event.object!r}"), file=sys.stderr)
        _print_traceback(event.exc_type, event.exc_value, event.exc_traceback)

    sys.unraisablehook = report


def redact_tracebacks() -> None:
    """Hide secrets in the tracebacks of unexpected errors. The change applies to the whole process."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_traceback
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_thread_traceback


def _print_traceback(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    with contextlib.suppress(OSError):
        print(redact(text), end="", file=sys.stderr, flush=True)


def _print_thread_traceback(event: threading.ExceptHookArgs) -> None:
    if event.exc_type is not SystemExit:
        name = event.thread.name if event.thread else "without a name"
        with contextlib.suppress(OSError):
            print(f"Exception in thread {name}:", file=sys.stderr)
        _print_traceback(event.exc_type, event.exc_value, event.exc_traceback)


def _drop_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):  # ValueError: stdout has no file number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
