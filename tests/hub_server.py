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
from pathlib import Path, PurePosixPath
from typing import Any

from loopback import Handler, Loopback

Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers
# Tokens of an account with write access to the organisation, and of an account without.
WRITE, READ = "hf_write", "hf_read"
ORG = "org"


@dataclass
class Blob:
    """The content of a file. ``lfs``: True if the content is stored in LFS, False if in Git."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """Return the id of the Git object, which is the content or an LFS pointer."""
        git_content = self.content
        if self.lfs:
            pointer_lines = [
                "version https://git-lfs.github.com/spec/v1",
                f"oid sha256:{self.sha256}",
                f"size {len(self.content)}",
            ]
            git_content = "".join(f"{line}\n" for line in pointer_lines).encode()
        return hashlib.sha1(b"blob %d\0" % len(git_content) + git_content).hexdigest()

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
    """A repository with its commits. ``files``: contents of the last commit by path."""

    kind: str  # "dataset" or "model"
    name: str
    private: bool = False
    commits: list[Commit] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.add("initial commit", {".gitattributes": Blob(b"*.parquet filter=lfs\n", False)})

    def add(self, message: str, files: dict[str, Blob]) -> Commit:
        """Add a commit with all files of the repository."""
        commit_text = f"{self.kind} {self.name} {len(self.commits)} {message}"
        commit = Commit(hashlib.sha1(commit_text.encode()).hexdigest(), message, files)
        self.commits.append(commit)
        return commit

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch or id. Raise :class:`Refused` if there is no such commit."""
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
    """A request that the hub answers by an error. ``code``: the hub's name of the error."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status = status
        self.code = code
        self.message = message


def entry_of(path: str, blob: Blob) -> dict[str, Any]:
    """Return the entry of a file in lists of files."""
    entry: dict[str, Any] = {"type": "file", "oid": blob.oid, "size": len(blob.content), "path": path}
    if blob.lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": 134}
    return entry


def _folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}


@dataclass
class Fault:
    """Requests that fail: the first ``skip`` matching requests pass, and the next ``times`` fail."""

    method: str
    path: re.Pattern[str]
    action: int | str  # an HTTP status, "break" (close before the request), or "lose" (do it, lose the response)
    skip: int
    times: int


class Hub(Loopback):
    """A hub with its repositories in memory."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.repos: dict[tuple[str, str], Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []  # method, path with query
        self.uploads: list[str] = []  # SHA-256 of every LFS object received
        self.faults: list[Fault] = []
        # Replaces responses: (method, path, response) -> response. None: no response is replaced.
        self.answer: Callable[[str, str, Answer], Answer] | None = None

    def create(self, name: str, kind: str = "dataset", private: bool = False) -> Repo:
        """Create a repository, or replace it by an empty one."""
        repo = Repo(kind, name, private)
        self.repos[kind, name] = repo
        return repo

    def fail(self, method: str, path: str, action: int | str, *, skip: int = 0, times: int = 10**9) -> None:
        """Let ``times`` matching requests fail, after the first ``skip`` of them.

        ``path``: a regular expression, which is searched in the path. ``action``: see :class:`Fault`.
        """
        self.faults.append(Fault(method, re.compile(path), action, skip, times))

    def environment(self, home: Path, token: str | None = WRITE) -> dict[str, str]:
        """Return the environment of a client that uses only this hub, with its caches under ``home``."""
        # Settings and proxies of this machine would lead to another hub.
        variables = dict(os.environ)
        for key in os.environ:
            if key.startswith(("HF_", "HUGGING_FACE_")) or key.lower() in ("http_proxy", "https_proxy", "all_proxy"):
                del variables[key]
        variables["HF_ENDPOINT"] = self.url
        variables["HF_HOME"] = str(home)
        variables["HF_HUB_DISABLE_XET"] = "1"
        # A machine whose cores are all busy may answer after the default of ten seconds.
        variables["HF_HUB_ETAG_TIMEOUT"] = variables["HF_HUB_DOWNLOAD_TIMEOUT"] = "120"
        variables["HF_HUB_DISABLE_TELEMETRY"] = "1"
        variables["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        variables.pop("SSL_CERT_FILE", None)  # it would take precedence over the folder
        variables["SSL_CERT_DIR"] = str(home)  # no certificates, because loading the system's takes 0.1 s per client
        if token:
            variables["HF_TOKEN"] = token
        return variables

    def fault(self, method: str, path: str) -> int | str | None:
        """Return the action of the first fault for a request, and count the request."""
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
    """Answers requests by ``ROUTES``. The method ``_NAME`` answers the requests of the route NAME."""

    def serve(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(address.path)
        self.query = urllib.parse.parse_qs(address.query)
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
            status, content, headers = self._route(path)
        except Refused as error:
            status, content, headers = self._error(error)
        if action == "lose":
            self._break()
            return
        if self.server.answer:
            status, content, headers = self.server.answer(self.command, path, (status, content, headers))
            headers = headers | {"Connection": "close"}  # so that no client waits for missing data
        self.reply(status, content, headers)

    def _route(self, path: str) -> Answer:
        """Call the method of the first route that matches, with the pattern's groups as arguments."""
        for method, pattern, name in ROUTES:
            match = re.fullmatch(pattern, path)
            if method == self.command and match:
                with self.server.lock:
                    return getattr(self, f"_{name}")(**match.groupdict())
        raise Refused(404, "", f"no route for {self.command} {path}")

    def _error(self, error: Refused) -> Answer:
        headers = {"X-Error-Message": error.message}
        if error.code:
            headers["X-Error-Code"] = error.code
        return error.status, json.dumps({"error": error.message}).encode(), headers

    def _break(self) -> None:
        """Reset the connection, so that the client sees an error instead of a normal end."""
        # With a linger time of 0, close() sends a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()
        self.close_connection = True

    def _user(self) -> str | None:
        """Return the token of the request, or None."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in (WRITE, READ):
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return token or None

    def _repo(self, kind: str | None, name: str, write: bool = False) -> Repo:
        """Return a repository. Refuse a user who may not read or write it. The kind None stands for a model."""
        user = self._user()
        repo = self.server.repos.get((kind or "model", name))
        # The hub hides private repositories from users who may not read them.
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
        role = "write" if user == WRITE else "read"
        organisation = {"type": "org", "name": ORG, "roleInOrg": role}
        account = {"type": "user", "name": "someone", "fullname": "Some One", "orgs": [organisation], "auth": {}}
        return self._json(account)

    def _create(self) -> Any:
        request = json.loads(self.body)
        name = f"{request.get('organization') or 'someone'}/{request['name']}"
        kind = request.get("type") or "model"
        if self._user() != WRITE:
            raise Refused(403, "", f"You don't have the rights to create a {kind} under this namespace")
        url = self._page_of(kind, name)
        # The client treats 409 as success if the repository may exist.
        if (kind, name) in self.server.repos:
            return self._json({"error": "You already created this repo", "url": url}, 409)
        is_private = request.get("private") or request.get("visibility") == "private"
        self.server.create(name, kind, bool(is_private))
        return self._json({"url": url, "name": name, "id": name})

    def _page_of(self, kind: str, name: str) -> str:
        folder = "datasets/" if kind == "dataset" else ""
        return f"{self.server.url}/{folder}{name}"

    def _validate(self) -> Any:
        warnings = []
        if not json.loads(self.body)["content"].startswith("---\n"):
            warnings.append({"message": "empty or missing yaml metadata"})
        return self._json({"errors": [], "warnings": warnings})

    def _info(self, kind: str, name: str, rev: str | None) -> Any:
        repo = self._repo(kind, name)
        commit = repo.at(rev or "main")
        siblings = [{"rfilename": path, "size": len(blob.content)} for path, blob in sorted(commit.files.items())]
        description = {
            "id": name,
            "_id": name,
            "sha": commit.oid,
            "private": repo.private,
            "siblings": siblings,
            "tags": [],
            "author": name.split("/")[0],
            "downloads": 0,
            "likes": 0,
            "gated": False,
            "disabled": False,
            "lastModified": "2026-01-01T00:00:00.000Z",
            "createdAt": "2026-01-01T00:00:00.000Z",
        }
        return self._json(description)

    def _refs(self, kind: str, name: str) -> Any:
        repo = self._repo(kind, name)
        branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.commits[-1].oid}
        return self._json({"branches": [branch], "converts": [], "tags": []})

    def _tree(self, kind: str, name: str, rev: str, path: str | None) -> Any:
        files = self._repo(kind, name).at(rev).files
        prefix = f"{path.strip('/')}/" if path else ""
        file_paths = sorted(file_path for file_path in files if file_path.startswith(prefix))
        if prefix and not file_paths:
            raise Refused(404, "EntryNotFound", f"{path} does not exist on {rev}")
        # Git has no folders: a folder exists if a file is inside.
        folders = set()
        for file_path in file_paths:
            for parent in PurePosixPath(file_path).parents:
                folders.add(parent.as_posix())
        folders.discard(".")
        entries = [entry_of(file_path, files[file_path]) for file_path in file_paths]
        entries += [_folder_entry(folder) for folder in sorted(folders) if folder.startswith(prefix)]
        if self.query.get("recursive", ["false"])[0].lower() not in ("true", "1"):
            entries = [entry for entry in entries if "/" not in entry["path"][len(prefix) :]]
        return self._json(entries)

    def _paths_info(self, kind: str, name: str, rev: str) -> Any:
        files = self._repo(kind, name).at(rev).files
        # Versions of the library send the paths as JSON or as a form.
        is_json = self.headers.get("Content-Type", "").startswith("application/json")
        request = json.loads(self.body) if is_json else urllib.parse.parse_qs(self.body.decode())
        requested_paths = request["paths"]
        if isinstance(requested_paths, str):
            requested_paths = [requested_paths]
        entries = []
        for path in requested_paths:
            if path in files:
                entries.append(entry_of(path, files[path]))
            elif any(file_path.startswith(f"{path}/") for file_path in files):
                entries.append(_folder_entry(path))
        return self._json(entries)

    def _preupload(self, kind: str, name: str, rev: str) -> Any:
        files = self._repo(kind, name, write=True).at(rev).files
        ignored_paths = files[".gitignore"].content.decode().split() if ".gitignore" in files else []
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            is_large = path.endswith(_LFS_SUFFIXES) or file["size"] > 10 << 20
            answer = {
                "path": path,
                "uploadMode": "lfs" if is_large else "regular",
                "shouldIgnore": path in ignored_paths,
            }
            # The client does not upload a file whose id the hub has already.
            earlier_file = files.get(path)
            if earlier_file:
                answer["oid"] = earlier_file.sha256 if earlier_file.lfs else earlier_file.oid
            answers.append(answer)
        return self._json({"files": answers})

    def _lfs_batch(self, kind: str | None, name: str) -> Any:
        self._repo(kind, name, write=True)
        answers = []
        for lfs_object in json.loads(self.body)["objects"]:
            oid = lfs_object["oid"]
            answer = {"oid": oid, "size": lfs_object["size"]}
            # Without an upload action, the client knows that the hub has the object.
            if oid not in self.server.lfs:
                answer["actions"] = {"upload": {"href": f"{self.server.url}/lfs/{oid}", "header": {}}}
            answers.append(answer)
        return self._json({"transfer": "basic", "objects": answers})

    def _lfs_put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "the content is not what its id says")
        self.server.lfs[oid] = self.body
        self.server.uploads.append(oid)
        return self._json({})

    def _commit(self, kind: str, name: str, rev: str) -> Any:
        repo = self._repo(kind, name, write=True)
        files = dict(repo.at(rev).files)
        header = {}
        # A commit is JSON lines: a header, then one line for each file.
        for line in self.body.splitlines():
            item = json.loads(line)
            value = item["value"]
            path = value.get("path", "")
            if item["key"] == "header":
                header = value
                # The client names the commit that it has seen, so that no other push is lost.
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
        url = f"{self._page_of(kind, name)}/commit/{commit.oid}"
        return self._json({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    def _resolve(self, kind: str | None, name: str, rev: str, path: str) -> Any:
        commit = self._repo(kind, name).at(rev)
        if path not in commit.files:
            raise Refused(404, "EntryNotFound", f"Entry not found: {path}")
        blob = commit.files[path]
        etag = blob.sha256 if blob.lfs else blob.oid
        headers = {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": commit.oid,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if blob.lfs:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(blob.content))}
        requested_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not requested_range:
            return 200, blob.content, headers
        size = len(blob.content)
        first_byte = int(requested_range[1])
        last_byte = min(int(requested_range[2] or size), size - 1)
        if first_byte >= size:
            raise Refused(416, "", "Range not satisfiable")
        headers["Content-Range"] = f"bytes {first_byte}-{last_byte}/{size}"
        return 206, blob.content[first_byte : last_byte + 1], headers
