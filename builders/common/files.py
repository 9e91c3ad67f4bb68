"""Files and directories that are never half-written: write beside, fsync, rename."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from builders.common.addresses import is_address
from builders.common.command import InputError, log

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    import tomli as tomllib

_BLOCK = 1 << 20


def sha256_of(path: Path) -> str:
    """Lower-case hex SHA-256 of the bytes of one file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fsync_directory(path: Path) -> None:
    """Make the names in a directory durable (a rename is only safe once its directory is synced)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Make a file's content durable; that of an object in a store is when it is there."""
    if is_address(path):
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` in the block; waits for another process that holds it."""
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another process that builds the same (%s)", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """Open ``path`` for writing UTF-8 text with ``\\n`` line ends (gzipped where it ends in ``.gz``).

    The file appears under its name only when the block ends without an error, whole and synced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            # mtime=0 and no file name in the header: the same text gives the same bytes.
            target = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
            text = io.TextIOWrapper(target, encoding="utf-8", newline="\n")  # type: ignore[type-var]
            yield text
            text.flush()
            if target is not raw:
                target.close()
            else:
                text.detach()
            raw.flush()
            os.fsync(raw.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
        fsync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file, or object, atomically."""
    if is_address(path):
        path.write_bytes(text.encode())
        return
    with atomic_text(path) as file:
        file.write(text)


def read_utf8(path: Path) -> str:
    """The text of a (possibly gzipped) file; an :class:`InputError` naming the line where it is not UTF-8."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"not a whole gzip file ({error})", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("expected UTF-8 text", path=path, line=data.count(b"\n", 0, error.start) + 1) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; an :class:`InputError` where it is none."""
    try:
        content: dict[str, Any] = tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"expected TOML ({error})", path=path) from error
    return content


def replace_directory(new: Path, target: Path) -> None:
    """Put the finished directory ``new`` in the place of ``target``, which may exist (an older release).

    A kill between the two renames leaves no ``target``, never a mixture; the old one's leftovers are removed by
    the next call.
    """
    for folder, _, names in os.walk(new):
        for name in names:
            fsync_file(Path(folder) / name)
        fsync_directory(Path(folder))
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    fsync_directory(target.parent)
    if old.exists():
        log.info("replaced the earlier %s", target)
        shutil.rmtree(old, ignore_errors=True)
