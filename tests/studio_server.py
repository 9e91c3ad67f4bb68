"""A server on loopback that answers as Label Studio does, as far as the commands ask (a real one: label_studio.py)."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from builders.annotate.rounds import open_round
from builders.annotate.server import mark_of

_TIME = "2024-05-01T12:00:00Z"


def _annotation(who: str, label: int) -> dict[str, Any]:
    choice = {"from_name": "label", "type": "choices", "value": {"choices": [str(label)]}}
    return {"result": [choice], "completed_by": {"id": 1, "email": who}, "updated_at": _TIME}


class Studio:
    """``with Studio() as server``: its ``projects``, each with its tasks, and the ``requests`` that came."""

    def __init__(self) -> None:
        self.projects: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"studio": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Studio:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path) -> dict[str, str]:
        return {**os.environ, "LABEL_STUDIO_URL": self.url, "LABEL_STUDIO_API_KEY": "token"}

    def content(self) -> dict[str, bytes]:
        """The projects by what tells them from others, but for the order in which they were made."""
        kept = sorted(json.dumps({**project, "id": 0}, sort_keys=True) for project in self.projects)
        return {"projects": "\n".join(kept).encode()}

    def forget(self) -> None:
        self.projects.clear()
        self.requests.clear()

    def tasks(self, project: int) -> list[dict[str, Any]]:
        """The tasks of a project, as whoever labels it sees them: numbered."""
        return [{**task, "id": number} for number, task in enumerate(self.projects[project - 1]["tasks"])]

    def judge(self, who: str, project: int, task: int, label: int) -> None:
        """Somebody judges a task."""
        self.projects[project - 1]["tasks"][task].setdefault("annotations", []).append(_annotation(who, label))

    def hold(self, round_: Path, who: str, label: Callable[[dict[str, Any]], int]) -> None:
        """Have the packages of a round, which somebody has judged whole."""
        for path in sorted((round_ / "label-studio").glob("*.json")):
            tasks = json.loads(path.read_bytes())
            for task in tasks:
                task["annotations"] = [_annotation(who, label(task["data"]))]
            about = f"{mark_of(open_round(round_))}label-studio/{path.stem}"
            self.projects.append({"id": len(self.projects) + 1, "description": about, "tasks": tasks})

    def answer(self, path: str, content: Any) -> Any:
        """What the API answers; None where there is nothing."""
        place = urllib.parse.urlsplit(path).path
        if place == "/api/users/":
            return []
        if place == "/api/projects/" and content is None:
            shown = [{**project, "task_number": len(project["tasks"])} for project in self.projects]
            return {"count": len(shown), "results": [{**each, "tasks": None} for each in shown]}
        if place == "/api/projects/":
            self.projects.append({"id": len(self.projects) + 1, "tasks": [], **content})
            return {"id": len(self.projects)}
        found = re.fullmatch(r"/api/projects/(\d+)/(import|export)", place)
        if not found:
            return None
        tasks = self.projects[int(found[1]) - 1]["tasks"]
        if found[2] == "export":
            return [{"annotations": [], **task} for task in tasks]
        tasks += content
        return {"task_count": len(content)}


class _Handler(BaseHTTPRequestHandler):
    studio: Studio

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        if len(body) < size:  # whoever asked is gone
            return
        with self.studio.lock:
            self.studio.requests.append(self.path)
            found = self.studio.answer(self.path, json.loads(body) if size else None)
        content = json.dumps(found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None: ...
