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
    """Return the records as JSON lines."""
    return lines(records).encode()


def contents() -> dict[str, bytes]:
    """Return the files of a tiny archive in the published layout, with the rows of ``releases.tables``."""
    files = {"passage_collection": [{"paragraph_id": md5(text), "paragraph_text": text} for text in TEXTS]}
    for split in ("train", "dev"):
        files[split] = []
        for row in tables()[split, split]:
            passage_texts = [passage["text"] for passage in row["positive_passages"]]
            files[split].append(question(row["query"], passage_texts))
    return {f"{ROOT}/{name}.json": json_lines(records) for name, records in files.items()}


def rows_of_archive() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows by (config, split) of a release that is built from the tiny archive, which has no negatives."""
    rows_by_split = {key: rows for key, rows in tables().items() if key[1] != "test"}
    for split in ("train", "dev"):
        rows_by_split[split, split] = [row | {"negative_passages": []} for row in rows_by_split[split, split]]
    return rows_by_split


def member(name: str, content: bytes = b"", **values: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return the header and content of a tar member. ``values``: other fields of the header."""
    header = tarfile.TarInfo(name)
    header.size = len(content)
    for key, value in values.items():
        setattr(header, key, value)
    return header, content


def archive(files: dict[str, bytes] | None = None, extra: list[tuple[tarfile.TarInfo, bytes]] | None = None) -> bytes:
    """Return a tar.gz of the members ``extra`` and ``files`` (default: :func:`contents`)."""
    members = [member(ROOT, type=tarfile.DIRTYPE)] + (extra or [])
    content_by_name = contents() if files is None else files
    members += [member(name, content) for name, content in content_by_name.items()]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for header, content in members:
            tar.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


class ArchiveServer(Loopback):
    """A server of one archive, whose responses can be cut, refused or replaced."""

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
        """Serve another archive from now on, with another ETag."""
        self.content = content
        self.etag: str | None = f'"{hashlib.md5(content).hexdigest()}"'

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


class _Handler(Handler):
    """Answers each request with the archive, or with the next fault of the server."""

    def serve(self) -> None:
        server = self.server
        requested_range = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first_byte = int(requested_range[1]) if requested_range else 0
        server.requests.append(first_byte)
        failure = server.status.pop(0) if server.status else None
        if failure or self.path != PATH:
            self.send_error(failure or 404)
            return
        # As RFC 9110 says, a range is ignored if its condition names another version of the file.
        if server.ignore_range or self.headers.get("If-Range") not in (None, server.etag):
            first_byte = 0
        status, headers, body = self._answer(first_byte)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self._send_and_close(body)

    def _answer(self, first_byte: int) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the archive from this byte on."""
        server = self.server
        status = 200
        body = server.content[first_byte:]
        headers = {"Content-Type": "application/gzip", "Accept-Ranges": "bytes"}
        if server.etag:
            headers["ETag"] = server.etag
        if server.page is not None:
            headers["Content-Type"], body = server.page
        elif first_byte:
            status = 206 if body else 416
            sent_range = f"{first_byte}-{server.size - 1}" if body else "*"
            headers["Content-Range"] = f"bytes {sent_range}/{server.size}"
        if server.send_length or status != 200:
            headers["Content-Length"] = str(len(body))
        else:
            headers["Connection"] = "close"
        return status, headers, body

    def _send_and_close(self, body: bytes) -> None:
        """Send the body, or as much of it as the next fault allows."""
        server = self.server
        cut_at = server.break_after.pop(0) if server.break_after else None
        self.wfile.write(body[:cut_at])
        self.wfile.flush()
        self.close_connection = True
        if cut_at is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
