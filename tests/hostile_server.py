"""A server on loopback that never answers, answers slowly or endlessly, or repeats the secrets of a request."""

from __future__ import annotations

import json
import time
from typing import Any

from loopback import Handler, Loopback

STALLS = ("silent", "drip-head", "drip-body", "endless", "endless-chunks")
ECHOES = ("reason", "text", "json", "chunked", "header", "choice")
_PAUSE = 0.5  # seconds between the bytes of a dripping answer
BLOCK = b" " * (1 << 20)
ENDLESS_BYTES = 8 << 30  # more than any client may read


class HostileServer(Loopback):
    """A server whose answers have the kind ``mode``, of :data:`STALLS` or :data:`ECHOES`.

    ``is_asked`` is True after the first request. ``sent`` counts the bytes of endless answers.
    """

    def __init__(self, mode: str, status: int = 401) -> None:
        super().__init__(_HostileHandler)
        self.mode = mode
        self.status = status
        self.is_asked = False
        self.sent = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections, because the client leaves a server that never ends."""


class _HostileHandler(Handler):
    def serve(self) -> None:
        self.read()
        self.server.is_asked = True
        self.close_connection = True
        if self.server.mode in STALLS:
            self._stall(self.server.mode)
        else:
            self._echo(self.server.mode)

    def _stall(self, mode: str) -> None:
        """Answer in a way that a client without limits waits for."""
        if mode == "silent":
            time.sleep(300)
        elif mode == "drip-head":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self._drip()
        elif mode == "drip-body":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n")
            self._drip()
        elif mode == "endless":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
            self._flood(BLOCK)
        else:
            # An error's body, which a client reads for its message.
            head = b"HTTP/1.1 500 Wrong\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            self.wfile.write(head)
            self._flood(b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK))

    def _drip(self) -> None:
        for _ in range(600):
            self.wfile.write(b"a")
            time.sleep(_PAUSE)

    def _flood(self, block: bytes) -> None:
        while self.server.sent < ENDLESS_BYTES:
            self.wfile.write(block)
            self.server.sent += len(block)

    def _echo(self, mode: str) -> None:
        """Answer with the request's Authorization header, where the mode puts it."""
        secret = self.headers.get("Authorization", "")
        target = f"{secret} {self.path}"
        # A choice is a success, whose text may end in an output.
        status = 200 if mode == "choice" else self.server.status
        reason = target if mode == "reason" else "Wrong"
        content = self._content_with_secret(mode, secret, target)
        self.send_response(status, reason)
        if mode == "header":
            self.send_header("X-Error-Message", target)
            self.send_header("X-Request-Id", secret)
        if mode == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            # The secret is split between two chunks.
            for chunk in (content[:40], content[40:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _content_with_secret(self, mode: str, secret: str, target: str) -> bytes:
        """Return the body of an answer with the secret: an error, or for the mode choice a chat model's reply."""
        if mode == "json":
            error = {"message": secret, "headers": dict(self.headers)}
            return json.dumps({"error": error}).encode()
        if mode == "choice":
            message = {"role": "assistant", "content": f"最终得分：2 {secret}"}
            return json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
        return f"you sent Authorization: {target}".encode()
