"""Read files with clear errors, write files atomically, lock folders, and make temporary folders.

The module :mod:`.folders` writes directories atomically."""

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
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from builders.core.errors import InputError, log
from builders.core.file_formats import (
    GZIP,
    HEAD_BYTES,
    PARQUET,
    decompressed,
    describe_encoding,
    expect_utf8,
)
from builders.core.limits import writing

_BLOCK = 1 << 20
# An OSError without errno comes from Arrow or gzip and means damaged content.
_DAMAGE = (EOFError, OSError, ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error)
_STDOUT = {Path("-"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1")}
_TEMPORARY = "dureader-"
_PATTERN = re.compile(r"[*?\[=\\]")  # characters that DuckDB does not take literally in a path
BOM = b"\xef\xbb\xbf"
# Limits for the memory of readers. A few megabytes of gzip may contain gigabytes.
LONGEST_LINE = 64 << 20  # bytes of a line
LARGEST_WHOLE = 512 << 20  # bytes of a file that is read as a whole, for example of JSON that is not JSON lines
_SHOWN = 40  # maximum length of a quoted column in an error message
_DIGITS = 18  # a number of at most 18 digits fits into 64 bits
_copies: dict[tuple[int, int], Path] = {}  # copies of pipes by device and inode


def rereadable(path: Path) -> Path:
    """Return a path that can be read more than once: a temporary copy for a pipe, else ``path`` itself.

    A pipe (``<(zcat RUN)``, ``/dev/stdin``) can be read only once. The copy is removed when this process ends.
    """
    found = path.stat()
    if not stat.S_ISFIFO(found.st_mode):
        return path
    key = found.st_dev, found.st_ino
    if key not in _copies:
        stack = contextlib.ExitStack()
        copy = stack.enter_context(temporary_folder()) / "pipe"
        atexit.register(stack.close)
        with writing(copy.parent), open(path, "rb") as pipe, open(copy, "wb") as file:
            shutil.copyfileobj(pipe, file, _BLOCK)
        _copies[key] = copy
    return _copies[key]


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def real_path(path: Path) -> Path:
    """Return the absolute path of ``path``. For a link, return the path of its target, so that writing keeps the link.

    Raises :class:`InputError` for a link that leads back to itself, and for the address of an object store.
    """
    if re.match(r"[a-z0-9]{2,}:/", str(path)):
        raise InputError("is an address; expected a local path: copy the files with another tool", path=path)
    real = Path(os.path.abspath(path))
    if real.is_symlink() and (real := Path(os.path.realpath(real))).is_symlink():
        raise InputError("is a link that leads back to itself", path=path)
    return real


def expect_inside(file: Path, folder: Path) -> Path:
    """Return ``file``. Raise :class:`InputError` for a link that leads out of the folder that is copied.

    Such a link could copy any file of this machine into an output. The hub's cache has links from each
    ``snapshots/COMMIT`` to the folder ``blobs`` beside ``snapshots``, which are allowed.
    """
    target, root = Path(os.path.realpath(file)), Path(os.path.realpath(folder))
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    if not any(target.is_relative_to(place) for place in allowed):
        raise InputError(f"is a link to {target}, outside of {folder}; copy the folder with `cp -rL`", path=file)
    return file


def kind_of(path: Path) -> str:
    """Return the kind of an output path: ``stream``, ``directory``, ``disk``, ``socket``, or empty.

    A ``stream`` is a terminal, a pipe, ``/dev/null`` or stdout (``-``, ``/dev/stdout``). Empty means a regular file or
    a path that does not exist.
    """
    if path in _STDOUT:
        return "stream"
    try:
        mode = path.stat().st_mode
    except OSError:  # missing, or not accessible, which the caller's open() reports
        return ""
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return "stream"
    if stat.S_ISDIR(mode):
        return "directory"
    return "" if stat.S_ISREG(mode) else "disk" if stat.S_ISBLK(mode) else "socket"


def link(file: Path, name: Path) -> None:
    """Make ``name`` a hard link to ``file``, which must not change later. If links are impossible, copy the file."""
    try:
        os.link(os.path.realpath(file), name)  # the hub's cache contains symbolic links
    except OSError:
        shutil.copyfile(file, name)


@contextlib.contextmanager
def alone(place: Path, shown: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock the path ``place`` while the block writes to it. Raise :class:`DiskFull` if the disk is full.

    The lock is a file beside ``place``. The parent folder is created if necessary. A killed process leaves the lock
    file behind, unlocked, and the next process locks and removes this file. Messages name the path ``shown``. With
    ``wait``, the call waits for the lock. Otherwise, a locked path raises :class:`InputError`.
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
            log.info("waiting for another process that is building %s", shown)
            lock.acquire()
        try:
            yield
        finally:
            if os.getpid() == owner:  # a forked process must not release its parent's lock
                # Removed before the release: a waiting process notices the removal and makes a new lock file.
                path.unlink(missing_ok=True)
                lock.release()


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder in ``inside`` (default: TMPDIR), which is removed at the end of the block.

    The folder is locked while its process lives. The next command that needs a temporary folder removes the unlocked
    folders of killed processes. Raises :class:`DiskFull` if the disk is full.
    """
    home = Path(tempfile.gettempdir() if inside is None else inside)
    for lock in home.glob(f".{_TEMPORARY}*.lock"):
        left = home / lock.stem[1:]
        with contextlib.suppress(InputError, OSError), alone(left, left):  # the folder is in use or another user's
            shutil.rmtree(left, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        while True:
            folder = home / f"{_TEMPORARY}{secrets.token_hex(4)}"
            with contextlib.suppress(InputError):  # another process has locked the folder to remove it
                stack.enter_context(alone(folder, folder))
                break
        folder.mkdir(0o700)
        owner = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner:  # a forked process must not remove its parent's folder
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[Path]:
    """Yield an absolute path of ``folder`` without the characters that DuckDB does not take literally.

    DuckDB reads ``*``, ``?`` and ``[`` of a path as a pattern, cuts the name of a database at ``?``, replaces a
    backslash by a slash, and reads a folder ``NAME=VALUE`` as a column of the files inside it. A folder with such a
    character gets a temporary link, which is removed at the end of the block. The path is absolute, because DuckDB
    also expands ``~`` and obeys prefixes such as ``s3:``.

    Raises :class:`InputError` if the system makes no links.
    """
    absolute = Path(os.path.abspath(folder))
    if not has_pattern(absolute):
        yield absolute
        return
    home = Path(tempfile.gettempdir())
    with temporary_folder(Path("/tmp") if has_pattern(home) else home) as work:
        link_path = work / "folder"
        try:
            os.symlink(absolute, link_path, target_is_directory=True)
        except OSError as error:
            problem = f"has one of the characters * ? [ = \\ in its path, and cannot be linked ({error.strerror})"
            raise InputError(f"{problem}; rename the folder", path=folder) from error
        yield link_path


def has_pattern(path: Path) -> bool:
    """True if DuckDB does not take ``path`` literally (:func:`plain_folder`)."""
    return _PATTERN.search(path.as_posix()) is not None


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which is synced and renamed to ``path`` if the block ends without an error.

    The temporary file is ``.NAME.tmp`` beside ``path``, or beside the target of a link. A killed process leaves this
    file behind, and the next process removes it. A stream cannot be replaced, so the content is written to a temporary
    file first, and copied to the stream at the end.

    Raises :class:`InputError` if ``path`` is neither a file nor a stream (:func:`kind_of`), and if another process
    writes the same file.
    """
    check_file(path)
    if kind_of(path) == "stream":
        with temporary_folder() as folder:
            whole = folder / path.name
            yield whole
            stdout = path in _STDOUT
            if stdout:
                sys.stdout.flush()
            # stdout is duplicated. If the shell redirects stdout (`> FILE`), opening /dev/stdout would truncate FILE.
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
    """Raise :class:`InputError` if :func:`new_file` could not write ``path``. Call this function before long work."""
    kind = kind_of(path)
    if kind not in ("", "stream"):
        raise InputError(f"is a {kind}; expected the name of a file", path=path)
    if not kind:
        check_place(path)


def check_place(path: Path) -> None:
    """Raise :class:`InputError` if neither a file nor a directory can be created at ``path``."""
    folder = next(parent for parent in real_path(path).parents if parent.exists())
    if not folder.is_dir():
        raise InputError("is a file; expected a directory", path=folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("is not writable; choose another directory", path=folder)


@contextlib.contextmanager
def atomic_text(path: Path) -> Iterator[IO[str]]:
    """Write UTF-8 text with ``\\n`` line ends by :func:`new_file`. If ``path`` ends in ``.gz``, the text is gzipped."""
    with new_file(path) as beside, open(beside, "wb") as raw:
        # Without a time and a file name in the gzip header, the same text gives the same bytes.
        target = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix.lower() == ".gz" else raw
        with io.TextIOWrapper(target, encoding="utf-8", newline="\n") as text:  # type: ignore[type-var]
            yield text


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically (:func:`atomic_text`)."""
    with atomic_text(path) as file:
        file.write(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a small binary file atomically (:func:`new_file`)."""
    with new_file(path) as beside:
        beside.write_bytes(content)


def fsync(path: Path) -> None:
    """Sync a file's content, or a directory's names, to disk. A rename is durable only after the sync."""
    windows = os.name == "nt"  # Windows syncs only files open for writing, and cannot open directories
    if not (windows and path.is_dir()):
        handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def reading(path: Path | str, *, damaged: str = "is damaged or cut short", remedy: str = "") -> Iterator[None]:
    """Convert the block's errors in reading the file ``path`` into a one-line :class:`InputError`.

    Errors of the operating system, gzip, zip, Arrow and UTF-8 decoding are converted. The new message quotes the
    original message. For damaged content, the new message begins with ``damaged``. Every new message ends with the
    advice ``remedy``.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            problem = f"cannot be read ({error.strerror})"
        elif isinstance(error, _DAMAGE) or type(error).__module__ == "pyarrow.lib":
            problem = f"{damaged} ({error})"
        elif isinstance(error, RuntimeError | NotImplementedError):  # zipfile: a password, an unknown compression
            problem = f"cannot be unpacked ({error})"
        else:
            raise
        raise InputError(f"{problem}; {remedy}" if remedy else problem, path=path) from error


def is_gzipped(path: Path) -> bool:
    """True if the file is gzipped. Only its first bytes are read."""
    return _head_of(path).startswith(GZIP)


def is_parquet(path: Path) -> bool:
    """True if the name ends in ``.parquet``, or a file of another name begins as Parquet does."""
    return path.suffix.lower() == ".parquet" or (path.is_file() and _head_of(path).startswith(PARQUET))


def _head_of(path: Path) -> bytes:
    with reading(path), open(rereadable(path), "rb") as file:
        return file.read(HEAD_BYTES)


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[bytes]]:
    """Yield the bytes of a file of UTF-8 text. A gzipped file is decompressed, whatever its name.

    Raises :class:`InputError` for a damaged file, another compression, and UTF-16.
    """
    with reading(path), open(rereadable(path), "rb") as file:
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        damaged = "is a damaged or incomplete gzip file" if head.startswith(GZIP) else "is damaged or cut short"
        with reading(path, damaged=damaged):
            stream = decompressed(file, path)
            expect_utf8(stream.peek(HEAD_BYTES)[:HEAD_BYTES], path)  # type: ignore[attr-defined]
            yield stream


def read_whole(path: Path) -> bytes:
    """Return the content of a file, decompressed if gzipped. Raise :class:`InputError` if it cannot be read."""
    with open_text(path) as file:
        return read_all(file, path)


def read_all(file: IO[bytes], shown_path: Path | str) -> bytes:
    """Return the content of an open file. Raise :class:`InputError` for more than ``LARGEST_WHOLE`` bytes."""
    content = file.read(LARGEST_WHOLE + 1)
    if len(content) > LARGEST_WHOLE:
        raise InputError(f"has over {LARGEST_WHOLE >> 20} MiB, which is too long for one JSON value", path=shown_path)
    return content


def numbered_lines(file: IO[bytes], shown_path: Path | str) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line with its end) of an open file.

    Raises :class:`InputError` for a line of more than ``LONGEST_LINE`` bytes.
    """
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise line_too_long(shown_path, number)
        yield number, line


def line_too_long(shown_path: Path | str, number: int) -> InputError:
    """Return the error for a line of more than ``LONGEST_LINE`` bytes."""
    problem = f"has a line of over {LONGEST_LINE >> 20} MiB; expected shorter lines that end with \\n"
    return InputError(problem, path=shown_path, line=number)


def read_utf8(path: Path) -> str:
    """Return the text of a file, decompressed if gzipped. Raise :class:`InputError` with the line if not UTF-8."""
    data = read_whole(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(describe_encoding(data), path=path, line=line) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file. Raise :class:`InputError` if the content is not TOML."""
    try:
        return tomllib.loads(read_utf8(path))
    except ValueError as error:  # TOMLDecodeError, or a number too long for Python
        raise InputError(f"expected TOML ({error})", path=path) from error
    except RecursionError:
        raise InputError("expected TOML, found lists or tables nested too deep", path=path) from None


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes of the line without its end) of a file, decompressed if gzipped.

    Lines end only at ``\\n``, because ids and texts may contain other characters that Python treats as line ends. A
    byte order mark is dropped from every line, because files with a mark may have been joined. Raises
    :class:`InputError` for an unreadable or incomplete file.
    """
    with open_text(path) as file:
        for number, line in numbered_lines(file, path):
            yield number, line.removeprefix(BOM).rstrip(b"\r\n")


def first_character(path: Path) -> str:
    """Return the first character that is not blank. Raise :class:`InputError` if there is none."""
    is_start = True
    # The file is read in blocks, because a JSON file may be one line of any length.
    with open_text(path) as file:
        while block := file.read(_BLOCK):
            text = (block.removeprefix(BOM) if is_start else block).strip()
            is_start = False
            if text:
                return text[:1].decode("utf-8", errors="replace")
    raise InputError("is empty", path=path)


def id_of(field: bytes, path: Path, line: int) -> str:
    """Decode a column as an id. Raise :class:`InputError` if it is not UTF-8 or :func:`expect_id` fails."""
    try:
        return expect_id(field.decode("utf-8"), path, line)
    except UnicodeDecodeError as error:
        raise InputError(describe_encoding(field), path=path, line=line) from error


def expect_id(text: str, path: Path, line: int | None = None) -> str:
    """Return ``text``. Raise :class:`InputError` if ``text`` has a null character, at which C libraries cut an id."""
    if "\0" in text:
        raise InputError(f"expected ids without null characters, found {text[:_SHOWN]!r}", path=path, line=line)
    return text


def integer(field: bytes, what: str, path: Path, line: int) -> int:
    """Parse a column as a whole number. Raise :class:`InputError` with the line and the column's name ``what``."""
    with contextlib.suppress(ValueError):
        if len(field) <= _DIGITS:
            return int(field)
    raise InputError(f"expected a whole number as the {what}, found {shown(field)}", path=path, line=line)


def shown(field: bytes) -> str:
    """Return the start of a column, quoted for an error message."""
    return repr(field[:_SHOWN].decode(errors="replace"))
