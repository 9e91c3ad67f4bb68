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
    server: Any
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.serve()

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
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
        return [sent["messages"][0]["content"] for sent, _ in self.asked]


class _ChatHandler(Handler):
    def serve(self) -> None:
        sent = json.loads(self.read())
        self.server.asked.append((sent, self.headers.get("Authorization", "")))
        found = self.server.answer(sent["messages"][0]["content"])
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": found}}
        content = json.dumps({"choices": [choice]}).encode()
        self.reply(found if isinstance(found, int) else 200, content, {"retry-after-ms": "1"})
