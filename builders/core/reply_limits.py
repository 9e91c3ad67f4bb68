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
_WINDOW = 30.0  # seconds in which a download must reach the slowest speed


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


def run_within(seconds: float, function: Callable[[], Result]) -> Result:
    """Return ``function()``. Raise TimeoutError if the call takes longer; its thread then goes on by itself.

    A signal ends the wait at once. The thread does not delay the end of the process.
    """
    answer: Future[Result] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            answer.set_result(context.run(function))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return answer.result(timeout=seconds)


def in_daemon_threads(
    function: Callable[[Task], Result], tasks: Sequence[Task], threads: int
) -> Iterator[tuple[int, Result]]:
    """Yield (number of the task, ``function(task)``) in the order in which the tasks end.

    Unlike an executor's threads, these threads do not delay the end of the process after a signal or an error. Raises
    the first exception of a task.
    """
    waiting: queue.SimpleQueue[tuple[int, Task]] = queue.SimpleQueue()
    for numbered_task in enumerate(tasks):
        waiting.put(numbered_task)
    ended: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()
    is_stopped = threading.Event()

    def work() -> None:
        while not is_stopped.is_set():
            try:
                number, task = waiting.get_nowait()
            except queue.Empty:
                return
            outcome: Future[Result] = Future()
            try:
                outcome.set_result(function(task))
            except BaseException as error:
                is_stopped.set()
                outcome.set_exception(error)
            ended.put((number, outcome))

    try:
        for _ in range(min(threads, len(tasks))):
            context = contextvars.copy_context()  # a context runs in one thread at a time
            threading.Thread(target=context.run, args=(work,), daemon=True).start()
        for _ in tasks:
            number, outcome = ended.get()
            yield number, outcome.result()
    finally:
        is_stopped.set()


def limit_replies(client: Any, limits: ReplyLimits) -> Any:
    """Return a client of httpx or httpx2 whose replies have limits.

    The client raises the library's ReadTimeout for a slow reply, and its RequestError for a reply that is too long.
    """
    base_class = next(base for base in type(client).__mro__ if base.__name__ == "Client")
    http = importlib.import_module(base_class.__module__.partition(".")[0])
    plain_send = client.send

    def send(request: Any, *, stream: bool = False, **options: Any) -> Any:
        # A compressed reply could be short, and endless when decompressed.
        request.headers["Accept-Encoding"] = "identity"
        upload_bytes = int(request.headers.get("Content-Length") or 0)

        def fetch() -> Any:
            response = plain_send(request, stream=True, **options)
            if not stream:
                with contextlib.closing(response):
                    response.read()
            return response

        try:
            return run_within(limits.seconds + upload_bytes / SLOWEST, fetch)
        except TimeoutError:
            problem = f"no complete reply within {limits.seconds:.0f} seconds"
            raise http.ReadTimeout(problem, request=request) from None

    def limit_stream(response: Any) -> None:
        if response.headers.get("Content-Encoding", "identity").strip() not in ("", "identity"):
            raise http.RequestError("the reply is compressed, which was not requested", request=response.request)
        response.stream = _limited_stream(response, limits, http)

    client.event_hooks["response"].append(limit_stream)
    client.send = send
    return client


def _limited_stream(response: Any, limits: ReplyLimits, http: Any) -> Any:
    """Return the byte stream of a response, which raises an error when the response exceeds the limits."""
    request, stream = response.request, response.stream
    is_api = request.url.path.startswith("/api/") or "/info/lfs/" in request.url.path
    is_download = limits.has_downloads and not is_api and response.headers.get("Content-Length", "").isdecimal()

    def read() -> Iterator[bytes]:
        started = window_start = time.monotonic()
        size = window_bytes = 0
        for part in stream:
            yield part
            now = time.monotonic()
            size += len(part)
            window_bytes += len(part)
            if not is_download and size > limits.size:
                raise http.RequestError(f"the reply has over {limits.size:,} bytes", request=request)
            if not limits.has_downloads and now - started > limits.seconds:
                raise http.ReadTimeout(f"no complete reply within {limits.seconds:.0f} seconds", request=request)
            if now - window_start > _WINDOW:
                if window_bytes < SLOWEST * (now - window_start):
                    # Not a timeout, after which the hub's library would begin again without end.
                    raise http.RequestError(f"less than {SLOWEST:,} bytes a second", request=request)
                window_start, window_bytes = now, 0

    class LimitedStream(http.SyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            return read()

        def close(self) -> None:
            stream.close()

    return LimitedStream()
