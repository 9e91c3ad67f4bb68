"""Files: read with one clear error, written so that none is ever half there; locks, and temporary folders.

Directories that appear whole are made by :mod:`.folders`."""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import io
import lzma
import os
import re
import secrets
import shutil
import stat
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from builders.core.errors import InputError, log
from builders.core.limits import writing

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    import tomli as tomllib

_BLOCK = 1 << 20
# OSError: without a number it is no error of the system, but one of Arrow or gzip about what it reads.
_DAMAGE = (EOFError, OSError, ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error)
_STDOUT = {Path("-"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1")}


_copies: dict[tuple[int, int], Path] = {}  # of pipes, by device and inode


def rereadable(path: Path) -> Path:
    """The file to open for ``path``, which is read more than once: a copy of what a pipe holds, else ``path`` itself.

    A pipe (``<(zcat RUN)``, ``/dev/stdin``) gives its bytes once: whoever opens it again goes on in the middle. Its
    copy lasts as long as this process.
    """
    found = path.stat()
    if not stat.S_ISFIFO(found.st_mode):
        return path
    key = found.st_dev, found.st_ino
    if key not in _copies:
        held = contextlib.ExitStack()
        copy = held.enter_context(temporary_folder()) / "pipe"
        atexit.register(held.close)
        with writing(copy.parent), open(path, "rb") as pipe, open(copy, "wb") as file:
            shutil.copyfileobj(pipe, file, _BLOCK)
        _copies[key] = copy
    return _copies[key]


def sha256_of(path: Path) -> str:
    """Lower-case hex SHA-256 of the bytes of one file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def real_path(path: Path) -> Path:
    """``path``, absolute; where it is a link, that to which it leads: what is written there does not replace the link.

    :class:`InputError` for a link that leads back to itself, and for the address of an object store.
    """
    if re.match(r"[a-z0-9]{2,}:/", str(path)):
        raise InputError("is an address; expected a path, which another tool copies from or to", path=path)
    real = Path(os.path.abspath(path))
    if real.is_symlink() and (real := Path(os.path.realpath(real))).is_symlink():
        raise InputError("is a link that leads back to itself", path=path)
    return real


def kind_of(path: Path) -> str:
    """Name the kind of thing that stands in the place of an output; empty for a file, or for nothing yet.

    ``stream`` (a terminal, ``/dev/null``, a pipe; stdout, whatever it is: ``-``, ``/dev/stdout``), ``directory``,
    ``disk`` or ``socket``.
    """
    if path in _STDOUT:
        return "stream"
    try:
        mode = path.stat().st_mode
    except OSError:  # it is not there, or cannot be: what opens it says so
        return ""
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return "stream"
    if stat.S_ISDIR(mode):
        return "directory"
    return "" if stat.S_ISREG(mode) else "disk" if stat.S_ISBLK(mode) else "socket"


def link(file: Path, name: Path) -> None:
    """Give ``file``, which is never written to again, another name; where that cannot be, ``name`` becomes a copy."""
    try:
        os.link(os.path.realpath(file), name)  # not the link to it, where it is one (as in the hub's cache)
    except OSError:
        shutil.copyfile(file, name)


_TEMPORARY = "dureader-"


@contextlib.contextmanager
def alone(place: Path, shown: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of ``place`` for the block, which writes there: :class:`DiskFull` where that disk is full.

    The lock is a file beside ``place``, whose parent folder is made. A killed process lets go of it: the next one takes
    it, and removes it at the end. ``shown``: the place in errors. ``wait`` for another process; where False, that is an
    :class:`InputError`.
    """
    from filelock import FileLock, Timeout

    path, owner = place.with_name(f".{place.name.lstrip('.')}.lock"), os.getpid()
    lock = FileLock(path)
    with writing(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise InputError("is being built by another process", path=shown) from None
            log.info("waiting for another process that builds the same (%s)", shown)
            lock.acquire()
        try:
            yield
        finally:
            if os.getpid() == owner:  # a forked process has no part in it
                # Before it is let go: whoever waits for the removed file sees that, and begins again with a new one.
                path.unlink(missing_ok=True)
                lock.release()


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """A folder for the block in ``inside``, or in TMPDIR, removed at its end. :class:`DiskFull` where that is full.

    It is locked as long as its process lives. So one that a killed process has left is told from one in use: the next
    command that needs a temporary folder removes it.
    """
    home = Path(tempfile.gettempdir() if inside is None else inside)
    for lock in home.glob(f".{_TEMPORARY}*.lock"):
        left = home / lock.stem[1:]
        with contextlib.suppress(InputError, OSError), alone(left, left):  # in use; another user's
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as held:
        while True:
            folder = home / f"{_TEMPORARY}{secrets.token_hex(4)}"
            with contextlib.suppress(InputError):  # another process has just taken it for a left one
                held.enter_context(alone(folder, folder))
                break
        folder.mkdir(0o700)
        owner = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner:  # a forked process that lets go of it has no part in it
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to: the file ``path`` appears when the block ends without an error, whole and synced.

    The path is ``.NAME.tmp`` beside the file, whose name it takes at the end; where the file is a link, beside that to
    which it leads. A killed process leaves it, and the next one writes it anew. For a stream, which nothing may
    replace, it is a temporary file until it is whole. :class:`InputError` where ``path`` is none of these
    (:func:`kind_of`), and where another process writes the same file.
    """
    check_file(path)
    if kind_of(path) == "stream":
        with temporary_folder() as folder:
            whole = folder / path.name
            yield whole
            stdout = path in _STDOUT
            if stdout:
                sys.stdout.flush()
            # Opened by its name, a file that the shell has opened (`> FILE`) would be emptied, and begun anew.
            with open(whole, "rb") as file, open(os.dup(1) if stdout else path, "wb") as stream:
                shutil.copyfileobj(file, stream)
        return
    path = real_path(path)
    beside = path.with_name(f".{path.name}.tmp")
    with alone(beside, path):
        try:
            beside.unlink(missing_ok=True)
            yield beside
            fsync(beside)
            os.replace(beside, path)
            fsync(path.parent)
        finally:
            beside.unlink(missing_ok=True)


def check_file(path: Path) -> None:
    """Raise :class:`InputError` where :func:`new_file` could not write ``path``; for what works long before it does."""
    kind = kind_of(path)
    if kind not in ("", "stream"):
        raise InputError(f"is a {kind}; expected the name of a file", path=path)
    if not kind:
        check_place(path)


def check_place(path: Path) -> None:
    """Raise :class:`InputError` where no file or directory ``path`` can be made."""
    folder = next(parent for parent in real_path(path).parents if parent.exists())
    if not folder.is_dir():
        raise InputError("is a file; expected a directory", path=folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("nothing can be written there", path=folder)


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """Write UTF-8 text with ``\\n`` line ends (gzipped where ``path`` ends in ``.gz``): see :func:`new_file`."""
    with new_file(path) as beside, open(beside, "wb") as raw:
        # mtime=0 and no file name in the header: the same text gives the same bytes.
        target = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        with io.TextIOWrapper(target, encoding="utf-8", newline="\n") as text:  # type: ignore[type-var]
            yield text


def write_text(path: Path, text: str) -> None:
    """Write a small text file: see :func:`atomic_text`."""
    with atomic_text(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small file: see :func:`new_file`."""
    with new_file(path) as beside:
        beside.write_bytes(content)


def fsync(path: Path) -> None:
    """Make the content of a file durable, or the names in a directory: a rename is only safe once they are."""
    windows = os.name == "nt"  # it syncs what is open for writing alone, and keeps a journal of names by itself
    if not (windows and path.is_dir()):
        handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def reading(
    path: Path | str, line: int | None = None, *, damaged: str = "is damaged or cut short", remedy: str = ""
) -> Iterator[None]:
    """Turn an error of reading a file in the block into an :class:`InputError`: one line that names the file.

    These are the errors of the system, of gzip and zip, of Arrow, and of bytes that are no text; their own words are
    part of the line. ``damaged``: the words for a file that is not whole; ``remedy`` ends the line.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            said = f"cannot be read ({error.strerror})"
        elif isinstance(error, _DAMAGE) or type(error).__module__ == "pyarrow.lib":
            said = f"{damaged} ({error})"
        elif isinstance(error, RuntimeError | NotImplementedError):  # zipfile: a password, an unknown compression
            said = f"cannot be unpacked ({error})"
        else:
            raise
        raise InputError(f"{said}; {remedy}" if remedy else said, path=path, line=line) from error


def read_whole(path: Path) -> bytes:
    """Return the bytes of a (possibly gzipped) file; an :class:`InputError` where it cannot be read."""
    with reading(path, damaged="not a whole gzip file"):
        data = rereadable(path).read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data


def read_utf8(path: Path) -> str:
    """The text of a (possibly gzipped) file; an :class:`InputError` naming the line where it is not UTF-8."""
    data = read_whole(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("expected UTF-8 text", path=path, line=data.count(b"\n", 0, error.start) + 1) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file; an :class:`InputError` where it is none."""
    try:
        content: dict[str, Any] = tomllib.loads(read_utf8(path))
    except ValueError as error:  # not TOML's own error alone: a number may be too long for Python
        raise InputError(f"expected TOML ({error})", path=path) from error
    except RecursionError:
        raise InputError("expected TOML, found lists or tables nested too deep", path=path) from None
    return content


BOM = b"\xef\xbb\xbf"
_SHOWN = 40  # bytes of a column that an error quotes
_DIGITS = 18  # of a number: 64 bits hold them


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, the line's bytes without its end) of a file, gzipped where it ends in ``.gz``.

    Lines end at ``\\n`` only: ids and texts may hold the other characters that Python calls line ends. A byte order
    mark is dropped. Raises :class:`InputError` for a file that cannot be read, or is not whole.
    """
    with reading(path, damaged="not a whole gzip file"):
        found = rereadable(path)
        with io.BufferedReader(gzip.GzipFile(found)) if path.suffix == ".gz" else open(found, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, (line.removeprefix(BOM) if number == 1 else line).rstrip(b"\r\n")


def first_character(path: Path) -> str:
    """The first character that is not blank; an :class:`InputError` where there is none."""
    for _, line in raw_lines(path):
        if text := line.strip():
            return text[:1].decode("utf-8", errors="replace")
    raise InputError("is empty", path=path)


def id_of(field: bytes, path: Path, line: int) -> str:
    """A column as an id; an :class:`InputError` naming the line where it is none (:func:`expect_id`)."""
    try:
        return expect_id(field.decode("utf-8"), path, line)
    except UnicodeDecodeError as error:
        raise InputError("expected UTF-8 text", path=path, line=line) from error


def expect_id(text: str, path: Path, line: int | None = None) -> str:
    """``text``; :class:`InputError` where a null character is in it: to the libraries that measure, it ends there."""
    if "\0" in text:
        raise InputError(f"expected ids without null characters, found {text[:_SHOWN]!r}", path=path, line=line)
    return text


def integer(field: bytes, what: str, path: Path, line: int) -> int:
    """A column as a whole number; an :class:`InputError` naming the line and ``what`` it is where it is none."""
    try:
        if len(field) > _DIGITS:
            raise ValueError
        return int(field)
    except ValueError:
        raise InputError(f"expected a whole number as the {what}, found {shown(field)}", path=path, line=line) from None


def shown(field: bytes) -> str:
    """A column as an error quotes it."""
    return repr(field[:_SHOWN].decode(errors="replace"))
