"""A Label Studio server, through its API: projects, tasks, users, exports.

Address and token are those of its own SDK: LABEL_STUDIO_URL, LABEL_STUDIO_API_KEY (a legacy token, or a personal access
token, which is changed for a short-lived one). Nothing of them is written anywhere, and no redirect is followed: it
could lead the token elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from builders.annotate.studio import Account, rows_of
from builders.common.command import InputError, Unfinished
from builders.common.typed import Count, json_of

if TYPE_CHECKING:
    from builders.annotate.questions import Question
    from builders.annotate.rounds import Round
    from builders.annotate.sheets import Row

_SECONDS = 300
_PAGE = 100  # projects
T = TypeVar("T")


class Project(msgspec.Struct, frozen=True):
    id: Count
    title: str = ""
    description: str | None = None
    task_number: Count | None = None


class _Page(msgspec.Struct, frozen=True):
    results: list[Project]
    count: Count = 0


class _Made(msgspec.Struct, frozen=True):
    id: Count


class _Taken(msgspec.Struct, frozen=True):
    task_count: Count


class _Access(msgspec.Struct, frozen=True):
    access: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the answer itself is then an error


@dataclass
class Server:
    """A server at ``url``; ``authorization`` is the header that it asks for."""

    url: str
    authorization: str = ""

    def ask(self, path: str, kind: type[T], content: Any = None) -> T:
        """What the server answers, as ``kind``; with ``content`` it is a POST. Errors as of :meth:`bytes_of`."""
        return json_of(self.bytes_of(path, content), kind, f"{self.url}{path}")

    def bytes_of(self, path: str, content: Any = None) -> bytes:
        """The bytes of an answer. :class:`Unfinished` where none comes, :class:`InputError` where it is a refusal."""
        data = None if content is None else content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            said = error.read(500).decode(errors="replace")
            hint = "; is LABEL_STUDIO_API_KEY a token of this server?" if error.code in (401, 403) else ""
            raise InputError(f"answered {error.code} to {path}: {said}{hint}", path=self.url) from None
        except (OSError, ValueError) as error:
            raise Unfinished(f"cannot be reached ({getattr(error, 'reason', error)})", path=self.url) from error

    def people(self) -> dict[int, str]:
        """The e-mail addresses of its users, by id."""
        return {account.id: account.email for account in self.ask("/api/users/", list[Account])}

    def projects(self) -> Iterator[Project]:
        """Every project that the token may see."""
        number, seen = 1, 0
        while True:
            query = f"/api/projects/?page={number}&page_size={_PAGE}&include=id,title,description,task_number"
            page = self.ask(query, _Page)
            yield from page.results
            seen += len(page.results)
            if not page.results or seen >= page.count:
                return
            number += 1

    def make_project(self, title: str, description: str, config: str) -> int:
        """A new project; returns its id."""
        content = {"title": title, "description": description, "label_config": config, "show_collab_predictions": True}
        return self.ask("/api/projects/", _Made, content).id

    def add_tasks(self, project: int, tasks: bytes) -> int:
        """Import tasks, the JSON list that :func:`.studio.write_tasks` wrote; returns their number."""
        return self.ask(f"/api/projects/{project}/import", _Taken, tasks).task_count

    def judged(self, project: Project, people: dict[int, str], question: Question) -> Iterator[tuple[int, Row]]:
        """(number, row) of what people have judged in a project."""
        path = f"/api/projects/{project.id}/export?exportType=JSON"
        return rows_of(self.bytes_of(path), f"{self.url}{path}", people, question)


def open_server() -> Server:
    """The server that the environment names. :class:`InputError` where it names none."""
    url, key = (os.environ.get(name, "").strip() for name in ("LABEL_STUDIO_URL", "LABEL_STUDIO_API_KEY"))
    if not url.startswith(("http://", "https://")) or not key.isprintable() or not key:
        raise InputError("expected a server's address in LABEL_STUDIO_URL, and a token of it in LABEL_STUDIO_API_KEY")
    server = Server(url.rstrip("/"))
    if key.count(".") == 2:  # a personal access token: a JSON web token that asks for others
        server.authorization = f"Bearer {server.ask('/api/token/refresh', _Access, {'refresh': key}).access}"
    else:
        server.authorization = f"Token {key}"
    return server


def mark_of(found: Round) -> str:
    """What tells a round's projects from others': the start of their description."""
    about = [found.pool, found.fingerprint, found.split, msgspec.to_builtins(found.rule), len(found.packages)]
    return f"dureader_retrieval {hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]} "


def projects_of(server: Server, found: Round) -> list[Project]:
    """The projects of a round, the oldest first."""
    mark = mark_of(found)
    return sorted((p for p in server.projects() if (p.description or "").startswith(mark)), key=lambda p: p.id)
