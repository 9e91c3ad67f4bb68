"""Limits of time and size for the replies of servers, and threads that do not delay the end of a command.

A server may never answer, send a byte every second, or send without end. The time limit of an HTTP library counts from
one byte to the next, and its replies have no maximum size.
"""

import contextlib
import contextvars
import importlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
SLOWEST = 1 << 10  # bytes a second; a slower upload or download is stopped
_WINDOW_SECONDS = 30.0  # in this time, a download must reach the slowest speed


@dataclass(frozen=True)
class ReplyLimits:
    """Limits of each reply.

    Attributes:
        seconds: until a reply is complete. A download may last longer, but must begin in this time.
        size: bytes of a reply, except of downloads with a declared length.
        has_downloads: True if a reply may be a download, which is written to a file.
    """

    seconds: float
    size: int
    has_downloads: bool = False


def run_within(time_limit: float, function: Callable[[], Result]) -> Result:
    """Return ``function()``. Raise TimeoutError after ``time_limit`` seconds; the call's thread then goes on by itself.

    A signal ends the wait at once. The thread does not delay the end of the process.
    """
    outcome: Future[Result] = Future()
    caller_context = contextvars.copy_context()

    def run_function() -> None:
        try:
            outcome.set_result(caller_context.run(function))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run_function, daemon=True).start()
    return outcome.result(timeout=time_limit)


def in_daemon_threads(
    function: Callable[[Task], Result], tasks: Sequence[Task], thread_count: int
) -> Iterator[tuple[int, Result]]:
    """Yield (number of the task, ``function(task)``) in the order in which the tasks end.

    Unlike an executor's threads, these threads do not delay the end of the process after a signal or an error. Raises
    the first exception of a task.
    """
    # The threads take numbered tasks from one queue, and put the outcomes into the other.
    waiting_tasks: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
    for numbered_task in enumerate(tasks):
        waiting_tasks.put(numbered_task)
    ended_tasks: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()
    is_stopped = threading.Event()

    def work_until_empty() -> None:
        """Run waiting tasks until none is left, a task fails, or the caller stops."""
        while not is_stopped.is_set():
            try:
                task_number, task = waiting_tasks.get_nowait()
            except queue.Empty:
                return
            outcome: Future[Result] = Future()
            try:
                outcome.set_result(function(task))
            except BaseException as error:
                is_stopped.set()
                outcome.set_exception(error)
            ended_tasks.put((task_number, outcome))

    try:
        for _ in range(min(thread_count, len(tasks))):
            caller_context = contextvars.copy_context()  # a context runs in one thread at a time
            threading.Thread(target=caller_context.run, args=(work_until_empty,), daemon=True).start()
        for _ in tasks:
            task_number, outcome = ended_tasks.get()
            yield task_number, outcome.result()
    finally:
        is_stopped.set()


def http_library_of(client: Any) -> Any:
    """Return httpx or httpx2: the module of the library that a client belongs to."""
    # The library is found by the client's base class, because huggingface_hub and openai use httpx or httpx2, depending
    # on their versions.
    client_class = next(base for base in type(client).__mro__ if base.__name__ == "Client")
    return importlib.import_module(client_class.__module__.partition(".")[0])


def limit_replies(client: Any, limits: ReplyLimits) -> Any:
    """Return a client of httpx or httpx2 whose replies have limits.

    The client raises the library's ReadTimeout for a slow reply, and its RequestError for a reply that is too long.
    """
    http_library = http_library_of(client)
    send_unlimited = client.send

    def send_limited(request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request, and read the answer within the time limit. With ``stream``, the caller reads the content."""
        # A compressed reply could be short, and endless when decompressed.
        request.headers["Accept-Encoding"] = "identity"
        # A large request may take long to send, at the slowest speed.
        upload_bytes = int(request.headers.get("Content-Length") or 0)
        upload_seconds = upload_bytes / SLOWEST

        def fetch_response() -> Any:
            response = send_unlimited(request, stream=True, **options)
            if not stream:
                with contextlib.closing(response):
                    response.read()
            return response

        try:
            return run_within(limits.seconds + upload_seconds, fetch_response)
        except TimeoutError:
            raise http_library.ReadTimeout(_describe_timeout(limits), request=request) from None

    def limit_stream(response: Any) -> None:
        """Limit the content of a response whose headers have come."""
        encoding = response.headers.get("Content-Encoding", "identity").strip()
        if encoding not in ("", "identity"):
            problem = "the reply is compressed, which was not requested"
            raise http_library.RequestError(problem, request=response.request)
        response.stream = _limited_stream(response, limits, http_library)

    client.event_hooks["response"].append(limit_stream)
    client.send = send_limited
    return client


def _describe_timeout(limits: ReplyLimits) -> str:
    return f"no complete reply within {limits.seconds:.0f} seconds"


def _limited_stream(response: Any, limits: ReplyLimits, http_library: Any) -> Any:
    """Return the byte stream of a response, which raises an error when the response exceeds the limits."""
    request = response.request
    stream = response.stream
    # The hub's own answers are no downloads.
    url_path = request.url.path
    is_api_reply = url_path.startswith("/api/") or "/info/lfs/" in url_path
    has_declared_length = response.headers.get("Content-Length", "").isdecimal()
    is_download = limits.has_downloads and not is_api_reply and has_declared_length

    def read_limited() -> Iterator[bytes]:
        """Yield the blocks of the stream while they keep within the limits."""
        start_time = window_start = time.monotonic()
        total_bytes = window_bytes = 0
        for block in stream:
            yield block
            now = time.monotonic()
            total_bytes += len(block)
            window_bytes += len(block)
            # A download has no limit of size and time. Every reply has a slowest speed, checked in each window of time.
            # Where there are downloads, send_limited alone limits the time of the other replies.
            if not is_download and total_bytes > limits.size:
                raise http_library.RequestError(f"the reply has over {limits.size:,} bytes", request=request)
            if not limits.has_downloads and now - start_time > limits.seconds:
                raise http_library.ReadTimeout(_describe_timeout(limits), request=request)
            window_seconds = now - window_start
            if window_seconds > _WINDOW_SECONDS:
                if window_bytes < SLOWEST * window_seconds:
                    # Not a timeout, after which the hub's library would begin again without end.
                    raise http_library.RequestError(f"less than {SLOWEST:,} bytes a second", request=request)
                window_start = now
                window_bytes = 0

    class LimitedStream(http_library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            return read_limited()

        def close(self) -> None:
            stream.close()

    return LimitedStream()
