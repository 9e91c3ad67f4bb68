"""A store that speaks S3, on loopback."""

from __future__ import annotations

import hashlib
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty bucket; its address works in this process and in those that it starts."""
    from moto.server import ThreadedMotoServer

    from builders.common.addresses import path_of

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        bucket = path_of("s3://bucket")
        bucket.fs.mkdir("bucket")  # type: ignore[attr-defined]
        yield bucket
    finally:
        server.stop()


def objects(address: Path) -> dict[str, str]:
    """Names below an address, with the hashes of what they hold."""
    store, start = address.fs, address.path  # type: ignore[attr-defined]
    return {
        name.removeprefix(start).lstrip("/"): hashlib.sha256(store.cat_file(name)).hexdigest()
        for name in (store.find(start) if store.exists(start) else [])
    }


def put(folder: Path, address: Path) -> Path:
    """Copy a folder's files to an address."""
    for file in folder.rglob("*"):
        if file.is_file():
            (address / file.relative_to(folder).as_posix()).write_bytes(file.read_bytes())
    return address
