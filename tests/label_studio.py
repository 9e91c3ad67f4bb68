"""A Label Studio on loopback, from its own package in an environment of its own, as people meet it.

Its database is made once, which takes longer than all the rest, and kept beside the environment.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from environments import clean_environ
from filelock import FileLock

OWNER, PASSWORD, TOKEN = "owner@example.com", "not-a-secret", "0123456789abcdef0123456789abcdef01234567"
SECONDS = 1_200  # for the migrations of a new database on a busy machine


class LabelStudio:
    """``with LabelStudio(commands) as server``: its ``url``; ``commands`` is the environment's."""

    def __init__(self, commands: Path) -> None:
        self.commands = commands
        self.kept = commands.parent / "database" / "label_studio.sqlite3"

    def __enter__(self) -> LabelStudio:
        # In memory, where there is such a place: hundreds of migrations wait for the disk one by one.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with contextlib.ExitStack() as opened:
            self.folder = Path(opened.enter_context(tempfile.TemporaryDirectory("", "label-studio-", memory)))
            data = self.folder / "data"
            data.mkdir()
            with FileLock(f"{self.kept.parent}.lock"):
                if not self.kept.is_file():
                    self._start(data)
                    self._stop()
                    self.kept.parent.mkdir(exist_ok=True)
                    shutil.copy(data / self.kept.name, self.kept.with_suffix(".part"))
                    self.kept.with_suffix(".part").rename(self.kept)
            shutil.copy(self.kept, data / self.kept.name)
            self._start(data)
            opened.callback(self._stop)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    def _start(self, data: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["start", "--no-browser", "--internal-host", "127.0.0.1", "-p", str(port), "--data-dir", str(data)]
        words += ["--username", OWNER, "--password", PASSWORD, "--user-token", TOKEN, "--enable-legacy-api-token"]
        words += ["--agree-fix-sqlite", "--log-level", "ERROR"]
        off = ("COLLECT_ANALYTICS", "LATEST_VERSION_CHECK", "LABEL_STUDIO_LATEST_VERSION_CHECK")
        quiet = dict.fromkeys(off, "false") | {"SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": "", "DEBUG": "false"}
        # A home of its own: what it finds in ~/.config is somebody else's.
        environment = clean_environ() | quiet | {"HOME": str(self.folder), "LABEL_STUDIO_BASE_DATA_DIR": str(data)}
        start = [self.commands / "label-studio", *words]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(start, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            self._wait(time.monotonic() + SECONDS)
        except BaseException:
            self._stop()
            raise

    def _wait(self, until: float) -> None:
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=30).close()
                return
            except OSError:
                said = (self.folder / "log").read_text(errors="replace")[-2_000:]
                assert self._process.poll() is None and time.monotonic() < until, said
                time.sleep(0.5)

    def owners(self, path: str, content: Any = None) -> Any:
        """What the API answers the owner."""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Token {TOKEN}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.url}{path}", data, headers), timeout=120) as answer:
            return json.load(answer)


class Person:
    """Somebody with an account, who has signed in with a browser's cookies."""

    def __init__(self, server: LabelStudio, email: str, new: bool = True) -> None:
        self.server = server
        self.jar = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.jar))
        path = "/user/signup/" if new else "/user/login/"
        page = self._open(path).decode()
        hidden = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
        assert hidden
        form = {"csrfmiddlewaretoken": hidden[1], "email": email, "password": PASSWORD}
        self._open(path, urllib.parse.urlencode(form | ({"how_find_us": "Other"} if new else {})).encode())
        assert "sessionid" in self.cookies, email

    @property
    def cookies(self) -> dict[str, str]:
        return {cookie.name: cookie.value or "" for cookie in self.jar}

    def _open(self, path: str, data: bytes | None = None, **headers: str) -> bytes:
        request = urllib.request.Request(f"{self.server.url}{path}", data, headers)
        with self.opener.open(request, timeout=120) as answer:
            return bytes(answer.read())

    def judge(self, task: int, label: int, note: str = "") -> None:
        """Hand in an annotation of a task, as the labelling page does."""
        result: list[dict[str, Any]] = [
            {"from_name": "label", "to_name": "passage", "type": "choices", "value": {"choices": [str(label)]}}
        ]
        if note:
            result.append({"from_name": "note", "to_name": "passage", "type": "textarea", "value": {"text": [note]}})
        headers = {"Content-Type": "application/json", "X-CSRFToken": self.cookies["csrftoken"]}
        data = json.dumps({"result": result, "lead_time": 1.5}).encode()
        self._open(f"/api/tasks/{task}/annotations/", data, Referer=self.server.url, **headers)


class SignedIn:
    """``with SignedIn(person) as url``: a proxy on loopback through which a browser is signed in as somebody."""

    def __init__(self, person: Person) -> None:
        self.person = person

    def __enter__(self) -> str:
        handler = type("Handler", (_Proxy,), {"person": self.person})
        self._proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        Thread(target=self._proxy.serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{self._proxy.server_port}"

    def __exit__(self, *_: object) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class _Proxy(BaseHTTPRequestHandler):
    person: Person
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        mine = ("host", "cookie", "connection", "accept-encoding", "content-length")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in mine}
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.person.cookies.items())
        request = urllib.request.Request(f"{self.person.server.url}{self.path}", body, headers, method=self.command)
        try:
            answer = urllib.request.build_opener(_NoRedirect).open(request, timeout=120)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            content = answer.read()
            self.send_response(answer.status or 500)
            for name, value in answer.headers.items():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "set-cookie"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do_OPTIONS = do_HEAD = _forward


def chromium() -> str | None:
    """The command of a Chromium or Chrome, where there is one."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for found in map(shutil.which, names) if found), None)


def look(command: str, url: str, profile: Path, screenshot: Path | None = None, size: str = "1280,800") -> str:
    """The HTML of a page when its scripts have run, or nothing and a screenshot of it."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    words += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    words += [f"--window-size={size}", "--virtual-time-budget=60000", "--hide-scrollbars"]
    words += [f"--screenshot={screenshot}"] if screenshot else ["--dump-dom"]
    return subprocess.run([command, *words, url], capture_output=True, text=True, timeout=400, check=True).stdout
