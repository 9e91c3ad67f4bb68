"""An in-memory hub on loopback with the API that huggingface_hub and datasets use, and faults on demand."""

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import struct
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import Handler, Loopback

Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers
# Tokens of an account with write access to the organisation, and of an account without.
WRITE, READ = "hf_write", "hf_read"
ORG = "org"


@dataclass
class Blob:
    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """Return the id of the Git object, which is the content or an LFS pointer."""
        data = self.content
        if self.lfs:
            data = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(data)}\n".encode()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class Commit:
    oid: str
    message: str
    files: dict[str, Blob]


@dataclass
class Repo:
    kind: str  # "dataset" or "model"
    name: str
    private: bool = False
    commits: list[Commit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add("initial commit", {".gitattributes": Blob(b"*.parquet filter=lfs\n", False)})

    def add(self, message: str, files: dict[str, Blob]) -> Commit:
        number = f"{self.kind} {self.name} {len(self.commits)} {message}"
        self.commits.append(Commit(hashlib.sha1(number.encode()).hexdigest(), message, files))
        return self.commits[-1]

    def at(self, revision: str) -> Commit:
        if revision in ("main", "HEAD"):
            return self.commits[-1]
        for commit in self.commits:
            if commit.oid == revision:
                return commit
        raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")

    @property
    def files(self) -> dict[str, bytes]:
        return {path: blob.content for path, blob in self.commits[-1].files.items()}


class Refused(Exception):
    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


def entry_of(path: str, blob: Blob) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": blob.oid, "size": len(blob.content), "path": path}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 134}
    return entry


@dataclass
class Fault:
    method: str
    path: re.Pattern[str]
    action: int | str  # an HTTP status, "break" (close before the request), or "lose" (do it, lose the response)
    skip: int
    times: int


class Hub(Loopback):
    def __init__(self) -> None:
        super().__init__(_Handler)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []  # method, path with query
        self.uploads: list[str] = []  # SHA-256 of every LFS object received
        self.faults: list[Fault] = []
        self.answer: Callable[[str, str, Answer], Answer] | None = None  # method, path, response

    def create(self, name: str, kind: str = "dataset", private: bool = False) -> Repo:
        repo = self.repos[kind, name] = Repo(kind, name, private)
        return repo

    def fail(self, method: str, path: str, action: int | str, *, skip: int = 0, times: int = 10**9) -> None:
        """Let ``times`` matching requests fail, after the first ``skip`` of them."""
        self.faults.append(Fault(method, re.compile(path), action, skip, times))

    def environment(self, home: Path, token: str | None = WRITE) -> dict[str, str]:
        """Return the environment of a client that uses only this hub, with its caches under ``home``."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING_FACE_"))}
        for key in ("http_proxy", "https_proxy", "all_proxy"):
            environment.pop(key, None)
            environment.pop(key.upper(), None)
        environment |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        environment.pop("SSL_CERT_FILE", None)  # it would take precedence over the folder
        environment["SSL_CERT_DIR"] = str(home)  # no certificates, because loading the system's takes 0.1 s per client
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


_LFS_SUFFIXES = (".parquet", ".safetensors", ".bin", ".gz", ".arrow", ".model")
_KIND = "(?P<kind>dataset|model)s"
_NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
ROUTES = [
    ("GET", r"/api/whoami-v2", "whoami"),
    ("POST", r"/api/repos/create", "create"),
    ("POST", r"/api/validate-yaml", "validate"),
    ("POST", rf"/api/{_KIND}/{_NAME}/preupload/(?P<rev>[^/]+)", "preupload"),
    ("POST", rf"/api/{_KIND}/{_NAME}/commit/(?P<rev>[^/]+)", "commit"),
    ("POST", rf"/api/{_KIND}/{_NAME}/paths-info/(?P<rev>[^/]+)", "paths_info"),
    ("GET", rf"/api/{_KIND}/{_NAME}/tree/(?P<rev>[^/]+)(?:/(?P<path>.*))?", "tree"),
    ("GET", rf"/api/{_KIND}/{_NAME}/refs", "refs"),
    ("GET", rf"/api/{_KIND}/{_NAME}(?:/revision/(?P<rev>[^/]+))?", "info"),
    ("POST", rf"/(?:(?P<kind>dataset)s/)?{_NAME}\.git/info/lfs/objects/batch", "lfs_batch"),
    ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", "lfs_put"),
    ("HEAD", rf"/(?:(?P<kind>dataset)s/)?{_NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
    ("GET", rf"/(?:(?P<kind>dataset)s/)?{_NAME}/resolve/(?P<rev>[^/]+)/(?P<path>.+)", "resolve"),
]


class _Handler(Handler):
    def serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        path, self.query = urllib.parse.unquote(address.path), urllib.parse.parse_qs(address.query)
        with self.server.lock:
            self.server.requests.append((self.command, self.path))
        action = self.server.fault(self.command, path)
        if action == "break":
            self._break()
            return
        self.body = self.read()
        try:
            if isinstance(action, int):
                raise Refused(action, "", "a fault was asked for")
            for method, pattern, name in ROUTES:
                if method == self.command and (match := re.fullmatch(pattern, path)):
                    with self.server.lock:
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
        if self.server.answer:
            status, content, headers = self.server.answer(self.command, path, (status, content, headers))
            headers = {**headers, "Connection": "close"}  # so that no client waits for missing data
        self.reply(status, content, headers)

    def _break(self) -> None:
        """Reset the connection, so that the client sees an error instead of a normal end."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()
        self.close_connection = True

    def _user(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in (WRITE, READ):
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return token or None

    def _repo(self, kind: str | None, name: str, write: bool = False) -> Repo:
        user, repo = self._user(), self.server.repos.get((kind or "model", name))
        if repo is None or (repo.private and user != WRITE):
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        if write and user != WRITE:
            raise Refused(403, "", f"You don't have the rights to write to {name}")
        return repo

    def _json(self, content: Any, status: int = 200, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        return status, json.dumps(content).encode(), headers

    def _whoami(self) -> Any:
        user = self._user()
        if user is None:
            raise Refused(401, "", "Invalid username or password.")
        orgs = [{"type": "org", "name": ORG, "roleInOrg": "write" if user == WRITE else "read"}]
        return self._json({"type": "user", "name": "someone", "fullname": "Some One", "orgs": orgs, "auth": {}})

    def _create(self) -> Any:
        wanted = json.loads(self.body)
        name, kind = f"{wanted.get('organization') or 'someone'}/{wanted['name']}", wanted.get("type") or "model"
        if self._user() != WRITE:
            raise Refused(403, "", f"You don't have the rights to create a {kind} under this namespace")
        url = f"{self.server.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if (kind, name) in self.server.repos:
            return self._json({"error": "You already created this repo", "url": url}, 409)
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.server.create(name, kind, bool(private))
        return self._json({"url": url, "name": name, "id": name})

    def _validate(self) -> Any:
        empty = not json.loads(self.body)["content"].startswith("---\n")
        return self._json({"errors": [], "warnings": [{"message": "empty or missing yaml metadata"}] * empty})

    def _info(self, kind: str, name: str, rev: str | None) -> Any:
        repo = self._repo(kind, name)
        commit = repo.at(rev or "main")
        siblings = [{"rfilename": path, "size": len(blob.content)} for path, blob in sorted(commit.files.items())]
        return self._json(
            {"id": name, "_id": name, "sha": commit.oid, "private": repo.private, "siblings": siblings, "tags": []}
            | {"author": name.split("/")[0], "downloads": 0, "likes": 0, "gated": False, "disabled": False}
            | {"lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z"}
        )

    def _refs(self, kind: str, name: str) -> Any:
        repo = self._repo(kind, name)
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.commits[-1].oid}
        return self._json({"branches": [branch], "converts": [], "tags": []})

    def _tree(self, kind: str, name: str, rev: str, path: str | None) -> Any:
        files = self._repo(kind, name).at(rev).files
        start = f"{path.strip('/')}/" if path else ""
        below = sorted(found for found in files if found.startswith(start))
        if start and not below:
            raise Refused(404, "EntryNotFound", f"{path} does not exist on {rev}")
        folders = {found.rsplit("/", depth)[0] for found in below for depth in range(1, found.count("/") + 1)}
        entries = [entry_of(found, files[found]) for found in below]
        entries += [{"type": "directory", "oid": "0" * 40, "size": 0, "path": each} for each in sorted(folders)]
        if self.query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
            entries = [entry for entry in entries if "/" not in entry["path"][len(start) :]]
        return self._json([entry for entry in entries if entry["path"].startswith(start)])

    def _paths_info(self, kind: str, name: str, rev: str) -> Any:
        files = self._repo(kind, name).at(rev).files
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        wanted = json.loads(self.body)["paths"] if is_json else urllib.parse.parse_qs(self.body.decode())["paths"]
        found = []
        for path in [wanted] if isinstance(wanted, str) else wanted:
            if path in files:
                found.append(entry_of(path, files[path]))
            elif any(each.startswith(f"{path}/") for each in files):
                found.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": path})
        return self._json(found)

    def _preupload(self, kind: str, name: str, rev: str) -> Any:
        files = self._repo(kind, name, write=True).at(rev).files
        answers = []
        ignored = files[".gitignore"].content.decode().split() if ".gitignore" in files else []
        for asked in json.loads(self.body)["files"]:
            lfs = asked["path"].endswith(_LFS_SUFFIXES) or asked["size"] > 10 << 20
            there = files.get(asked["path"])
            oid = there and (there.sha256 if there.lfs else there.oid)
            answers.append({"path": asked["path"], "uploadMode": "lfs" if lfs else "regular"})
            answers[-1]["shouldIgnore"] = asked["path"] in ignored
            answers[-1] |= {"oid": oid} if oid else {}
        return self._json({"files": answers})

    def _lfs_batch(self, kind: str | None, name: str) -> Any:
        self._repo(kind, name, write=True)
        answers = []
        for asked in json.loads(self.body)["objects"]:
            answers.append({"oid": asked["oid"], "size": asked["size"]})
            if asked["oid"] not in self.server.lfs:
                answers[-1]["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{asked['oid']}", "header": {}}}
        return self._json({"transfer": "basic", "objects": answers})

    def _lfs_put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "the content is not what its id says")
        self.server.lfs[oid] = self.body
        self.server.uploads.append(oid)
        return self._json({})

    def _commit(self, kind: str, name: str, rev: str) -> Any:
        repo = self._repo(kind, name, write=True)
        files, header = dict(repo.at(rev).files), {}
        for line in self.body.splitlines():
            item = json.loads(line)
            value, path = item["value"], item["value"].get("path", "")
            if item["key"] == "header":
                header = value
                if value.get("parentCommit", repo.commits[-1].oid) != repo.commits[-1].oid:
                    raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
            elif item["key"] == "file":
                files[path] = Blob(base64.b64decode(value["content"]), False)
            elif item["key"] == "lfsFile":
                if value["oid"] not in self.server.lfs:
                    raise Refused(400, "", f"LFS object {value['oid']} was not uploaded")
                files[path] = Blob(self.server.lfs[value["oid"]], True)
            elif item["key"] == "deletedFile" and files.pop(path, None) is None:
                raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {path}")
        commit = repo.add(header["summary"], files)
        url = f"{self.server.url}/{'datasets/' if kind == 'dataset' else ''}{name}/commit/{commit.oid}"
        return self._json({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    def _resolve(self, kind: str | None, name: str, rev: str, path: str) -> Any:
        commit = self._repo(kind, name).at(rev)
        if path not in commit.files:
            raise Refused(404, "EntryNotFound", f"Entry not found: {path}")
        blob = commit.files[path]
        etag = blob.sha256 if blob.lfs else blob.oid
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
        headers["Content-Type"] = "application/octet-stream"
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(blob.content))}
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return 200, blob.content, headers
        first, last = int(match[1]), min(int(match[2] or len(blob.content)), len(blob.content) - 1)
        if first >= len(blob.content):
            raise Refused(416, "", "Range not satisfiable")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(blob.content)}"
        return 206, blob.content[first : last + 1], headers
