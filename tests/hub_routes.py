"""The answers of the hub on loopback (:mod:`hub_server`): one method a route, each gives status, content, headers."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import urllib.parse
from typing import Any

from hub_repos import ORG, READ, WRITE, Blob, Refused, Repo, entry_of

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


class Routes:
    """The methods that ``ROUTES`` names, over the state of ``hub`` and a request: ``headers``, ``query``, ``body``."""

    hub: Any
    headers: Any
    query: dict[str, list[str]]
    body: bytes

    # Who asks, and for what

    def _user(self) -> str | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in (WRITE, READ):
            raise Refused(401, "", "Invalid credentials in Authorization header")
        return token or None

    def _repo(self, kind: str | None, name: str, write: bool = False) -> Repo:
        user, repo = self._user(), self.hub.repos.get((kind or "model", name))
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
        url = f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}"
        if (kind, name) in self.hub.repos:
            return self._json({"error": "You already created this repo", "url": url}, 409)
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.hub.create(name, kind, bool(private))
        return self._json({"url": url, "name": name, "id": name})

    def _validate(self) -> Any:
        if not json.loads(self.body)["content"].startswith("---\n"):
            return self._json({"errors": [], "warnings": [{"message": "empty or missing yaml metadata"}]})
        return self._json({"errors": [], "warnings": []})

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
            if asked["oid"] not in self.hub.lfs:
                answers[-1]["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}}}
        return self._json({"transfer": "basic", "objects": answers})

    def _lfs_put(self, oid: str) -> Any:
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refused(400, "", "the content is not what its id says")
        self.hub.lfs[oid] = self.body
        self.hub.uploads.append(oid)
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
                if value["oid"] not in self.hub.lfs:
                    raise Refused(400, "", f"LFS object {value['oid']} was not uploaded")
                files[path] = Blob(self.hub.lfs[value["oid"]], True)
            elif item["key"] == "deletedFile":
                if files.pop(path, None) is None:
                    raise Refused(404, "EntryNotFound", f"A file with this name doesn't exist: {path}")
            elif item["key"] == "deletedFolder":
                files = {each: blob for each, blob in files.items() if not each.startswith(f"{path.rstrip('/')}/")}
        commit = repo.add(header["summary"], files)
        url = f"{self.hub.url}/{'datasets/' if kind == 'dataset' else ''}{name}/commit/{commit.oid}"
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
