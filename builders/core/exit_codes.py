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
_LONGEST_QUOTE = 200  # characters of an error of memory
_DEFAULT_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
_SIGNAL_EXIT_CODE = 128  # a shell adds the number of the signal
_SIGPIPE = 13  # Windows has no signal.SIGPIPE
_STDERR_NUMBER = 2
_DIGITS_PER_UNIT = 4  # hex digits of one unit of UTF-16 in JSON: \uXXXX
_SIGNAL_GROUP_SECONDS = 0.05  # signals within this time count as one, because timeout(1) sends two
# Seconds from a signal to the end of the process, if the cleanup takes longer. The next command removes what is left,
# as after a kill.
_CLEANUP_SECONDS = 1.5
_received_signals: list[int] = []  # the signal that stops this process; empty before a signal
_is_guarded = False  # True inside exit_code in the main thread
_is_resumable = False  # True while a command runs that resumes if it is called again


def exit_code(work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code, or the code of the error or signal that stops it.

    Errors are reported on stderr as one line. The code is 1 for wrong input or data, a full disk or another OSError, no
    memory, or a missing library; 2 for a wrong option; 130 after Ctrl-C; 143 after SIGTERM; and 141 if the reader of
    stdout closes the pipe. Other exceptions are raised. After a signal, the command cleans up, for at most
    ``_CLEANUP_SECONDS`` seconds. A second signal ends the command at once.
    """
    # A call inside another call (_is_guarded) leaves the state of the outer call alone.
    if not _is_guarded:
        set_resumable(False)
    # Prepare the process: streams that can be written, no repeated messages, and no secrets in tracebacks.
    _open_streams()
    say_once()
    redact_tracebacks()
    try:
        with _handle_signals():
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
        if _received_signals or isinstance(error, KeyboardInterrupt):
            signal_number = _received_signals[0] if _received_signals else signal.SIGINT
            if not _is_guarded:
                _received_signals.clear()
            return _report_error(_describe_interruption(), _SIGNAL_EXIT_CODE + signal_number)
        # The reader of stdout (head, less) has closed the pipe.
        if isinstance(error, BrokenPipeError):
            _drop_stdout()
            return _SIGNAL_EXIT_CODE + _SIGPIPE
        disk_problem = ""
        if not isinstance(error, DiskFull):  # its message has the problem already
            disk_problem = full_disk(error)
        if disk_problem:
            _drop_stdout()  # Python would flush the buffered text again at exit, and fail again
        message = _describe_error(error, disk_problem)
        if message is None:
            raise
        is_usage_error = isinstance(error, UsageError) and not disk_problem
        return _report_error(f"error: {message}", code=2 if is_usage_error else 1)


def _describe_error(error: BaseException, disk_problem: str) -> str | None:
    """Return the line that reports an error; None for an unexpected error, which needs a traceback.

    ``disk_problem`` is the system's message about a full disk that caused the error; otherwise empty.
    """
    if isinstance(error, InputError):
        return f"{error}: {disk_problem}" if disk_problem else str(error)
    if disk_problem:
        file_name = getattr(error, "filename", None) or "stdout"
        return f"{file_name}: {disk_problem}"
    if isinstance(error, ModuleNotFoundError):
        advice = missing_library(error)
        if advice:
            return advice
    memory_problem = _find_memory_shortage(error)
    if memory_problem:
        return f"not enough memory ({memory_problem})"
    if isinstance(error, OSError):
        return str(error)
    return None


def set_resumable(resumable: bool) -> None:
    """Declare if the command of this process resumes when it is called again, for the line after a signal."""
    global _is_resumable
    _is_resumable = resumable


def _describe_interruption() -> str:
    """Return the line that reports a signal."""
    return "interrupted; the same command resumes" if _is_resumable else "interrupted"


def _find_memory_shortage(error: BaseException) -> str:
    """Return the line of an error, or of one of its causes, that reports exhausted memory; otherwise empty."""
    cause: BaseException | None = error
    while cause is not None:
        for line in f"{type(cause).__name__}: {cause}".splitlines():
            if _NO_MEMORY.search(line):
                one_line = " ".join(redact(line).split())
                return one_line[:_LONGEST_QUOTE]
        if isinstance(cause, MemoryError):
            one_line = " ".join(str(cause).split())
            return one_line[:_LONGEST_QUOTE] or "an allocation failed"
        cause = cause.__cause__ or cause.__context__
    return ""


def _report_error(line: str, code: int = 1) -> int:
    """Print a line on stderr without secrets, and return ``code``."""
    # stderr is closed or its disk is full; the exit code still reports the error.
    with contextlib.suppress(OSError):
        print(redact(line), file=sys.stderr, flush=True)
    return code


def end_soon(code: int) -> int:
    """Return ``code``, the exit code of a program. If a signal caused it, the process ends within some seconds.

    Without this limit, the interpreter would wait for threads that wait for a server.
    """
    if code - _SIGNAL_EXIT_CODE in _DEFAULT_HANDLERS:
        _end_after(_CLEANUP_SECONDS, code)
    return code


def _end_after(seconds: float, code: int) -> None:
    """End this process after some seconds, whatever it does then."""

    def wait_and_end() -> None:
        time.sleep(seconds)
        os._exit(code)

    threading.Thread(target=wait_and_end, daemon=True).start()


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt if a signal has asked this process to stop. Long loops call this at every step.

    The signal's handler also raises KeyboardInterrupt, but Python drops exceptions that are raised in a destructor.
    """
    if _received_signals:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _handle_signals() -> Iterator[None]:
    """Make SIGTERM stop the block in the same way as Ctrl-C. A nested block changes nothing."""
    global _is_guarded
    if _is_guarded or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Replace only default handlers: other handlers, and a parent's choice to ignore a signal, are not replaced.
    replaced_handlers = {}
    for signal_number, default_handler in _DEFAULT_HANDLERS.items():
        if signal.getsignal(signal_number) == default_handler:
            replaced_handlers[signal_number] = default_handler
    _received_signals.clear()
    _is_guarded = True
    try:
        with _limit_cleanup():
            for signal_number in replaced_handlers:
                signal.signal(signal_number, _handle_stop)
            yield
    finally:
        for signal_number, default_handler in replaced_handlers.items():
            signal.signal(signal_number, default_handler)
        _is_guarded = False


@contextlib.contextmanager
def _limit_cleanup() -> Iterator[None]:
    """End the process if the block runs for more than ``_CLEANUP_SECONDS`` seconds after a signal.

    Python calls :func:`_handle_stop` only between two instructions of the main thread, which may be inside a library
    for minutes. The interpreter therefore also writes the number of each signal to a socket, which a thread reads.
    """
    if os.name == "nt":
        yield
        return
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    block_ended = threading.Event()

    def watch_signals() -> None:
        """Read signals from the socket, and end the process if the block is still running some time after a signal."""
        while True:
            received_byte = reader.recv(1)
            if not received_byte:  # the socket is closed
                return
            signal_number = received_byte[0]
            if signal_number in _DEFAULT_HANDLERS and not block_ended.wait(_CLEANUP_SECONDS):
                _write_interruption()
                os._exit(_SIGNAL_EXIT_CODE + signal_number)

    earlier_number = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch_signals, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        block_ended.set()
        signal.set_wakeup_fd(earlier_number)
        writer.close()  # ends the thread
        watcher.join(_CLEANUP_SECONDS)
        reader.close()


def _write_interruption() -> None:
    """Report a signal on stderr without waiting.

    The main thread may hold the lock of sys.stderr, so this function does not use sys.stderr. The reader of stderr may
    be busy, so nothing is written if the write would block.
    """
    with contextlib.suppress(OSError, ValueError):
        _, writable_files, _ = select.select([], [_STDERR_NUMBER], [], 0)
        if writable_files:
            os.write(_STDERR_NUMBER, f"{_describe_interruption()}\n".encode())


def _handle_stop(signal_number: int, _: FrameType | None) -> None:
    """Record the first signal, wait for signals that come with it, and raise KeyboardInterrupt."""
    if _received_signals:
        return
    _received_signals.append(signal_number)
    time.sleep(_SIGNAL_GROUP_SECONDS)
    # Makes Python handle all pending signals here (each returns above), before the handler is replaced.
    signal.raise_signal(signal_number)
    for handled_signal in _DEFAULT_HANDLERS:
        if signal.getsignal(handled_signal) == _handle_stop:
            # The next signal ends the process at once.
            signal.signal(handled_signal, signal.SIG_DFL)
    raise KeyboardInterrupt


def _forget_wakeup_socket() -> None:
    """Keep signals of a forked process from the socket of its parent, which would end."""
    with contextlib.suppress(ValueError):  # not the main thread
        if _is_guarded:
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_wakeup_socket)


def _open_streams() -> None:
    """Connect closed standard streams to the null device, and escape characters that the streams cannot encode.

    If a stream stayed closed, the first file that is opened would get the number of the stream.
    """
    for file_number, stream_name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(file_number)
        except OSError:
            # Gets the lowest free file number, which is ``file_number``.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, stream_name) is None:
            open_mode = "r" if stream_name == "stdin" else "w"
            setattr(sys, stream_name, open(os.devnull, open_mode, encoding="utf-8"))  # noqa: SIM115
    codecs.register_error("escape", _escape_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="escape")


def _escape_characters(error: UnicodeError) -> tuple[str, int]:
    r"""Write \uXXXX for a character that the stream's encoding (GBK, ASCII) lacks, so that printed JSON stays valid.

    Python's own handler (backslashreplace) also writes \xXX and \UXXXXXXXX, which JSON does not have.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    hex_digits = characters.encode("utf-16-be", "surrogatepass").hex()
    escapes = []
    for start in range(0, len(hex_digits), _DIGITS_PER_UNIT):
        escapes.append(f"\\u{hex_digits[start : start + _DIGITS_PER_UNIT]}")
    return "".join(escapes), error.end


def say_once() -> None:
    """Suppress Python's messages about two errors in destructors, which are also reported elsewhere.

    The first is a full disk, when a destructor tries again to close a file. The second is KeyboardInterrupt, which
    :func:`raise_if_stopped` raises again. Messages about other errors have no secrets. The change applies to the whole
    process.
    """
    earlier_hook = sys.unraisablehook
    if earlier_hook.__module__ == __name__:  # an earlier call of this function has installed it
        return

    def report_error(event: sys.UnraisableHookArgs) -> None:
        """Print an exception in a destructor as Python does, except the two that are suppressed."""
        if _received_signals and isinstance(event.exc_value, KeyboardInterrupt):
            return
        if event.exc_value is not None and full_disk(event.exc_value):
            return
        if earlier_hook is not sys.__unraisablehook__:
            earlier_hook(event)
            return
        heading = event.err_msg or "Exception ignored in"
        with contextlib.suppress(OSError):
            print(redact(f"{heading}: {event.object!r}"), file=sys.stderr)
        _print_traceback(event.exc_type, event.exc_value, event.exc_traceback)

    sys.unraisablehook = report_error


def redact_tracebacks() -> None:
    """Hide secrets in the tracebacks of unexpected errors. The change applies to the whole process."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_traceback
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _print_thread_traceback


def _print_traceback(
    error_class: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Print a traceback without secrets."""
    text = "".join(traceback.format_exception(error_class, error, trace))
    with contextlib.suppress(OSError):
        print(redact(text), end="", file=sys.stderr, flush=True)


def _print_thread_traceback(event: threading.ExceptHookArgs) -> None:
    """Print the traceback of an error that ended a thread, without secrets."""
    if event.exc_type is not SystemExit:
        thread_name = event.thread.name if event.thread else "without a name"
        with contextlib.suppress(OSError):
            print(f"Exception in thread {thread_name}:", file=sys.stderr)
        _print_traceback(event.exc_type, event.exc_value, event.exc_traceback)


def _drop_stdout() -> None:
    """Connect stdout to the null device, so that the text still in its buffer is discarded at exit."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: stdout has no file number
        null_device = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null_device, sys.stdout.fileno())
