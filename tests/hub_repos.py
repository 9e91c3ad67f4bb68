"""The repositories of the hub on loopback (:mod:`hub_server`), with their commits and files, in memory."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

WRITE, READ = (
    "hf_write",
    "hf_read",
)  # tokens of an account with write access to the organisation, and of an account without
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
