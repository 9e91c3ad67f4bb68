"""A hub on loopback: what huggingface_hub, datasets and the like need of one, in memory, for tests.

Dataset and model repositories with commits, LFS uploads, downloads with ETag and Range, private repositories, tokens
with and without the right to write, and faults on demand. Clients find it by ``HF_ENDPOINT``, which they read when
they are imported: run them as subprocesses, in the environment that :meth:`Hub.environment` gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import threading
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hub_repos import WRITE, Refused, Repo
from hub_routes import ROUTES, Routes

Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers


@dataclass
class Fault:
    """``action`` for requests whose method and path match: a status, ``break`` (the connection, before anything is
    done) or ``lose`` (the answer, after all is done)."""

    method: str
    path: re.Pattern[str]
    action: int | str
    skip: int
    times: int


class Hub:
    """The hub's state, and the server around it: ``with Hub() as hub``."""

    def __init__(self) -> None:
        self.repos: dict[tuple[str, str], Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []  # method, path with query
        self.uploads: list[str] = []  # the SHA-256 of every LFS object that was received
        self.faults: list[Fault] = []
        self.answer: Callable[[str, str, Answer], Answer] | None = None  # (method, path, what it would answer)
        self.lock = threading.RLock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def create(self, name: str, kind: str = "dataset", private: bool = False) -> Repo:
        repo = self.repos[kind, name] = Repo(kind, name, private)
        return repo

    def fail(self, method: str, path: str, action: int | str, *, skip: int = 0, times: int = 10**9) -> None:
        """Let requests fail: after ``skip`` ones that match, for ``times`` ones."""
        self.faults.append(Fault(method, re.compile(path), action, skip, times))

    def environment(self, home: Path, token: str | None = WRITE) -> dict[str, str]:
        """The environment of a client: this hub, no other, and caches of its own under ``home``."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING_FACE_"))}
        for key in ("http_proxy", "https_proxy", "all_proxy"):
            environment.pop(key, None)
            environment.pop(key.upper(), None)
        environment |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        environment.pop("SSL_CERT_FILE", None)  # which goes before the folder
        environment["SSL_CERT_DIR"] = str(home)  # no certificates: the system's take 0.1 s a client
        return environment | ({"HF_TOKEN": token} if token else {})

    def fault(self, method: str, path: str) -> int | str | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.path.search(path):
                    if fault.skip:
                        fault.skip -= 1
                    elif fault.times:
                        fault.times -= 1
                        return fault.action
        return None


class _Handler(Routes, BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        path, self.query = urllib.parse.unquote(address.path), urllib.parse.parse_qs(address.query)
        with self.hub.lock:
            self.hub.requests.append((self.command, self.path))
        action = self.hub.fault(self.command, path)
        if action == "break":
            self._break()
            return
        self.body = self._read()
        try:
            if isinstance(action, int):
                raise Refused(action, "", "a fault was asked for")
            for method, pattern, name in ROUTES:
                if method == self.command and (match := re.fullmatch(pattern, path)):
                    with self.hub.lock:
                        status, content, headers = getattr(self, f"_{name}")(**match.groupdict())
                    break
            else:
                raise Refused(404, "", f"no route for {self.command} {path}")
        except Refused as error:
            status, content = error.status, json.dumps({"error": error.message}).encode()
            headers = {"X-Error-Message": error.message} | ({"X-Error-Code": error.code} if error.code else {})
        if action == "lose":
            self._break()
            return
        if self.hub.answer:
            status, content, headers = self.hub.answer(self.command, path, (status, content, headers))
            headers = {**headers, "Connection": "close"}  # no client waits for what does not come
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_HEAD = _serve

    def _break(self) -> None:
        """Reset the connection: the client sees an error, not an end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()
        self.close_connection = True

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)
