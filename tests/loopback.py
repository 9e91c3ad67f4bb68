"""An HTTP server on loopback, the base of all test servers, and a server of OpenAI's chat API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class Loopback(ThreadingHTTPServer):
    """A server for a ``with`` block that serves ``url`` by ``handler``."""

    daemon_threads = True

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.RLock()

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """A request's handler. Subclasses answer a request of any method in ``serve``."""

    server: Any
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        """Answer a request."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self.serve()

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def read(self) -> bytes:
        """Return the request's body."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            body_size = int(self.headers.get("Content-Length") or 0)
            return self.rfile.read(body_size)
        # A chunk is its size in hexadecimal digits, a line end, its bytes, and a line end. A chunk of 0 bytes is last.
        chunks = []
        while True:
            chunk_size = int(self.rfile.readline(), 16)
            chunks.append(self.rfile.read(chunk_size))
            self.rfile.readline()
            if chunk_size == 0:
                return b"".join(chunks)

    def reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        """Send an answer. ``headers`` replace the default headers of a JSON answer."""
        default_headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        self.send_response(status)
        for key, value in (default_headers | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


Answer = str | int  # the model's reply, or an HTTP status


class Chat(Loopback):
    """A server whose model replies to a prompt with ``answer(prompt)``.

    ``asked``: the body and the Authorization header of every request.
    """

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        super().__init__(_ChatHandler)
        self.url += "/v1"
        self.answer = answer
        self.asked: list[tuple[dict[str, Any], str]] = []

    @property
    def prompts(self) -> list[str]:
        """The prompt of every request."""
        return [body["messages"][0]["content"] for body, _ in self.asked]


class _ChatHandler(Handler):
    def serve(self) -> None:
        body = json.loads(self.read())
        self.server.asked.append((body, self.headers.get("Authorization", "")))
        prompt = body["messages"][0]["content"]
        answer = self.server.answer(prompt)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        content = json.dumps({"choices": [choice]}).encode()
        status = answer if isinstance(answer, int) else 200
        # The client waits one millisecond before it repeats a refused request.
        self.reply(status, content, {"retry-after-ms": "1"})
