"""A loopback server of the published archive with simulated faults, and a tiny archive to serve."""

import contextlib
import hashlib
import io
import re
import socket
import tarfile
from typing import Any

from loopback import Handler, Loopback
from official_archives import lines, question
from releases import TEXTS, md5, tables

PATH = "/qianyan/dureader_retrieval-data.v0.tar.gz"
ROOT = "dureader_retrieval-data"


def json_lines(records: list[Any]) -> bytes:
    return lines(records).encode()


def contents() -> dict[str, bytes]:
    """Return the files of a tiny archive in the published layout, with the rows of ``releases.tables``."""
    files = {"passage_collection": [{"paragraph_id": md5(text), "paragraph_text": text} for text in TEXTS]}
    for split in ("train", "dev"):
        rows = tables()[split, split]
        files[split] = [question(row["query"], [p["text"] for p in row["positive_passages"]]) for row in rows]
    return {f"{ROOT}/{name}.json": json_lines(records) for name, records in files.items()}


def rows_of_archive() -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows = {key: value for key, value in tables().items() if key[1] != "test"}
    for split in ("train", "dev"):
        rows[split, split] = [{**row, "negative_passages": []} for row in rows[split, split]]
    return rows


def member(name: str, content: bytes = b"", **values: Any) -> tuple[tarfile.TarInfo, bytes]:
    found = tarfile.TarInfo(name)
    for key, value in {"size": len(content), **values}.items():
        setattr(found, key, value)
    return found, content


def archive(files: dict[str, bytes] | None = None, extra: list[tuple[tarfile.TarInfo, bytes]] | None = None) -> bytes:
    """Return a tar.gz of the members ``extra`` and ``files`` (default: :func:`contents`)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        listed = [member(name, content) for name, content in (contents() if files is None else files).items()]
        for header, content in [member(ROOT, type=tarfile.DIRTYPE), *(extra or []), *listed]:
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


class ArchiveServer(Loopback):
    def __init__(self, content: bytes) -> None:
        super().__init__(_Handler)
        self.url += "/"
        self.replace(content)
        # For each request in turn: the number of bytes after which the response is cut (None: never), and the HTTP
        # status of a failure (None: no failure).
        self.break_after: list[int | None] = []
        self.status: list[int | None] = []
        self.page: tuple[str, bytes] | None = None  # sent with status 200 instead of the archive
        self.ignore_range = False  # ignore the requested range and send everything with status 200
        self.send_length = True  # without a length, the end of the connection ends the body
        self.requests: list[int] = []  # first byte of the range of each request so far

    @property
    def size(self) -> int:
        return len(self.content)

    def replace(self, content: bytes) -> None:
        self.content = content
        self.etag: str | None = f'"{hashlib.md5(content).hexdigest()}"'

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


class _Handler(Handler):
    def serve(self) -> None:
        server = self.server
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(asked[1]) if asked else 0
        server.requests.append(start)
        failure = server.status.pop(0) if server.status else None
        if failure or self.path != PATH:
            self.send_error(failure or 404)
            return
        headers = {"Content-Type": "application/gzip", "Accept-Ranges": "bytes"}
        if server.etag:
            headers["ETag"] = server.etag
        if server.ignore_range or self.headers.get("If-Range") not in (None, server.etag):
            start = 0
        status, body = 200, server.content[start:]
        if server.page is not None:
            headers["Content-Type"], body = server.page
        elif start:
            status = 206 if body else 416
            span = f"{start}-{server.size - 1}" if body else "*"
            headers["Content-Range"] = f"bytes {span}/{server.size}"
        whole = server.send_length or status != 200
        headers |= {"Content-Length": str(len(body))} if whole else {"Connection": "close"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        cut = server.break_after.pop(0) if server.break_after else None
        self.wfile.write(body[:cut])
        self.wfile.flush()
        self.close_connection = True
        if cut is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
