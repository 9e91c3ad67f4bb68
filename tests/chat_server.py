"""A server on loopback that speaks OpenAI's chat API, as far as a judge needs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | int | bytes  # what the model says; an HTTP status; the bytes of the whole answer


class Chat(ThreadingHTTPServer):
    """``asked``: (what was sent, the Authorization header) of every request."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[tuple[dict[str, Any], str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def prompts(self) -> list[str]:
        return [sent["messages"][0]["content"] for sent, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: Chat

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((sent, self.headers.get("Authorization", "")))
        found = self.server.answer(sent["messages"][0]["content"])
        status = found if isinstance(found, int) else 200
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": found}}
        content = found if isinstance(found, bytes) else json.dumps({"choices": [choice]}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def chat(answer: Callable[[str], Answer]) -> Iterator[Chat]:
    """A server whose model answers a prompt by ``answer``."""
    with Chat(answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
