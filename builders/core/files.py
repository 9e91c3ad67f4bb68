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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from builders.core.errors import InputError, UsageError, log
from builders.core.file_formats import (
    GZIP,
    HEAD_BYTES,
    PARQUET,
    decompress_file,
    describe_encoding,
    expect_utf8,
)
from builders.core.limits import convert_full_disk

_BLOCK_BYTES = 1 << 20
# An OSError without errno comes from Arrow or gzip and means damaged content.
_DAMAGE_ERRORS = (EOFError, OSError, ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error)
_STDOUT_NUMBER = 1
_STDOUT_PATHS = {Path("-"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1")}
_TEMPORARY_PREFIX = "dureader-"
_OWNER_ONLY = 0o700  # mode of a temporary folder
# Characters that DuckDB does not take literally in a path.
_DUCKDB_PATTERN = re.compile(r"[*?\[=\\]")
BOM = b"\xef\xbb\xbf"
# Limits for the memory of readers. A few megabytes of gzip may contain gigabytes.
LONGEST_LINE = 64 << 20  # bytes of a line
# Bytes of a file that is read as a whole, for example of JSON that is not JSON lines.
LARGEST_WHOLE = 512 << 20
_QUOTED_LENGTH = 40  # maximum length of a quoted column in an error message
_MOST_DIGITS = 18  # a number of at most 18 digits fits into 64 bits
_copies_of_pipes: dict[tuple[int, int], Path] = {}  # copies of pipes by device and inode


def rereadable_path(path: Path) -> Path:
    """Return a path that can be read more than once: a temporary copy for a pipe, else ``path`` itself.

    A pipe (``<(zcat RUN)``, ``/dev/stdin``) can be read only once. The copy is removed when this process ends.
    """
    status = path.stat()
    if not stat.S_ISFIFO(status.st_mode):
        return path
    pipe_id = (status.st_dev, status.st_ino)
    if pipe_id not in _copies_of_pipes:
        # The folder must outlive this function, because later calls return the same copy.
        folder_until_exit = contextlib.ExitStack()
        copy_path = folder_until_exit.enter_context(temporary_folder()) / "pipe"
        atexit.register(folder_until_exit.close)
        with convert_full_disk(copy_path.parent), open(path, "rb") as pipe, open(copy_path, "wb") as copy:
            shutil.copyfileobj(pipe, copy, _BLOCK_BYTES)
        _copies_of_pipes[pipe_id] = copy_path
    return _copies_of_pipes[pipe_id]


def read_blocks(file: Any) -> Iterator[bytes]:
    """Yield the rest of a binary file in blocks of 1 MiB, so that a file of any size needs little memory."""
    block = file.read(_BLOCK_BYTES)
    while block:
        yield block
        block = file.read(_BLOCK_BYTES)


def sha256_of(file_path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    digest = hashlib.sha256()
    with file_path.open("rb") as file:
        for block in read_blocks(file):
            digest.update(block)
    return digest.hexdigest()


def real_path(path: Path) -> Path:
    """Return the absolute path of ``path``. For a link, return the path of its target, so that writing keeps the link.

    Raises :class:`InputError` for a link that leads back to itself, and for the address of an object store.
    """
    # Path makes s3:/ of s3://. At least two letters, because C:/ is a drive of Windows.
    if re.match(r"[a-z0-9]{2,}:/", str(path)):
        raise InputError("is an address; expected a local path: copy the files with another tool", path=path)
    absolute_path = Path(os.path.abspath(path))
    if not absolute_path.is_symlink():
        return absolute_path
    target_path = Path(os.path.realpath(absolute_path))
    # realpath() stops at a link of a circle of links, so a resolved path may still be a link.
    if target_path.is_symlink():
        raise InputError("is a link that leads back to itself", path=path)
    return target_path


def expect_inside(file_path: Path, folder: Path) -> Path:
    """Return ``file_path``. Raise :class:`InputError` if it is a link that leads out of ``folder``, which is copied.

    Such a link could copy any file of this machine into an output. The hub's cache has links from each
    ``snapshots/COMMIT`` to the folder ``blobs`` beside ``snapshots``, which are allowed.
    """
    target_path = Path(os.path.realpath(file_path))
    real_folder = Path(os.path.realpath(folder))
    allowed_folders = [real_folder]
    if real_folder.parent.name == "snapshots":
        allowed_folders.append(real_folder.parent.parent / "blobs")
    if not any(target_path.is_relative_to(allowed_folder) for allowed_folder in allowed_folders):
        problem = f"is a link to {target_path}, outside of {folder}; copy the folder with `cp -rL`"
        raise InputError(problem, path=file_path)
    return file_path


def kind_of(output_path: Path) -> str:
    """Return the kind of an output path: ``stream``, ``directory``, ``disk``, ``socket``, or empty.

    A ``stream`` is a terminal, a pipe, ``/dev/null`` or stdout (``-``, ``/dev/stdout``). Empty means a regular file or
    a path that does not exist.
    """
    if output_path in _STDOUT_PATHS:
        return "stream"
    try:
        mode = output_path.stat().st_mode
    except OSError:  # missing, or not accessible, which the caller's open() reports
        return ""
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return "stream"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISBLK(mode):
        return "disk"
    if stat.S_ISREG(mode):
        return ""
    return "socket"


def link_or_copy(file_path: Path, link_path: Path) -> None:
    """Make ``link_path`` a hard link to a file, which must not change later. If links are impossible, copy the file."""
    try:
        os.link(os.path.realpath(file_path), link_path)  # the hub's cache contains symbolic links
    except OSError:
        shutil.copyfile(file_path, link_path)


@contextlib.contextmanager
def hold_lock(locked_path: Path, shown_path: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock the path ``locked_path`` while the block writes to it. Raise :class:`DiskFull` if the disk is full.

    The lock is a file beside ``locked_path``. The parent folder is created if necessary. A killed process leaves the
    lock file behind, unlocked, and the next process locks and removes this file. Messages name the path ``shown_path``.
    With ``wait``, the call waits for the lock. Otherwise, a locked path raises :class:`InputError`.
    """
    from filelock import FileLock, Timeout

    lock_path = lock_path_of(locked_path)
    owner_pid = os.getpid()
    lock = FileLock(lock_path)
    with convert_full_disk(locked_path.parent):
        locked_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise InputError("is being built by another process", path=shown_path) from None
            log.info("waiting for another process that is building %s", shown_path)
            lock.acquire()
        try:
            yield
        finally:
            if os.getpid() == owner_pid:  # a forked process must not release its parent's lock
                # Removed before the release: a waiting process notices the removal and makes a new lock file.
                lock_path.unlink(missing_ok=True)
                lock.release()


def lock_path_of(locked_path: Path) -> Path:
    """Return the path of the lock file of :func:`hold_lock`."""
    # The name is hidden, so that listings of outputs skip the lock.
    return locked_path.with_name(f".{locked_path.name.lstrip('.')}.lock")


@contextlib.contextmanager
def temporary_folder(inside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary folder in ``inside`` (default: TMPDIR), which is removed at the end of the block.

    The folder is locked while its process lives. The next command that needs a temporary folder removes the unlocked
    folders of killed processes. Raises :class:`DiskFull` if the disk is full.
    """
    if inside is None:
        inside = Path(tempfile.gettempdir())
    _remove_abandoned_folders(inside)
    with contextlib.ExitStack() as lock:
        while True:
            folder = inside / f"{_TEMPORARY_PREFIX}{secrets.token_hex(4)}"
            # Locked: another process has the same name, or removes it. Try another name.
            with contextlib.suppress(InputError):
                lock.enter_context(hold_lock(folder, folder))
                break
        folder.mkdir(_OWNER_ONLY)
        owner_pid = os.getpid()
        try:
            yield folder
        finally:
            if os.getpid() == owner_pid:  # a forked process must not remove its parent's folder
                shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_folders(parent_folder: Path) -> None:
    """Remove the temporary folders of killed processes. A lock file ``.NAME.lock`` is beside each folder ``NAME``."""
    for lock_path in parent_folder.glob(f".{_TEMPORARY_PREFIX}*.lock"):
        abandoned_folder = parent_folder / lock_path.stem.removeprefix(".")
        # Suppressed errors: the folder is in use, or belongs to another user.
        with contextlib.suppress(InputError, OSError), hold_lock(abandoned_folder, abandoned_folder):
            shutil.rmtree(abandoned_folder, ignore_errors=True)


@contextlib.contextmanager
def plain_folder(folder: Path) -> Iterator[Path]:
    """Yield an absolute path of ``folder`` without the characters that DuckDB does not take literally.

    DuckDB reads ``*``, ``?`` and ``[`` of a path as a pattern, cuts the name of a database at ``?``, replaces a
    backslash by a slash, and reads a folder ``NAME=VALUE`` as a column of the files inside it. A folder with such a
    character gets a temporary link, which is removed at the end of the block. The path is absolute, because DuckDB
    also expands ``~`` and obeys prefixes such as ``s3:``.

    Raises :class:`InputError` if the system makes no links.
    """
    absolute_path = Path(os.path.abspath(folder))
    if not has_pattern(absolute_path):
        yield absolute_path
        return
    parent_folder = Path(tempfile.gettempdir())
    if has_pattern(parent_folder):
        parent_folder = Path("/tmp")
    with temporary_folder(parent_folder) as work_folder:
        link_path = work_folder / "folder"
        try:
            os.symlink(absolute_path, link_path, target_is_directory=True)
        except OSError as error:
            problem = f"has one of the characters * ? [ = \\ in its path, and cannot be linked ({error.strerror})"
            raise InputError(f"{problem}; rename the folder", path=folder) from error
        yield link_path


def has_pattern(path: Path) -> bool:
    """True if DuckDB does not take ``path`` literally (:func:`plain_folder`)."""
    return _DUCKDB_PATTERN.search(path.as_posix()) is not None


def unfinished_path(target_path: Path) -> Path:
    """Return the path of the temporary file in which :func:`new_file` writes a file: ``.NAME.tmp`` beside it."""
    # In the same folder, because a rename is atomic only within a file system.
    return target_path.with_name(f".{target_path.name}.tmp")


@contextlib.contextmanager
def new_file(output_path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file, which becomes ``output_path`` if the block ends without an error.

    The temporary file (:func:`unfinished_path`) is synced before it is renamed. A killed process leaves this file
    behind, and the next process removes it. A stream cannot be replaced, so the content is written to a temporary file
    first, and copied to the stream at the end.

    Raises :class:`InputError` if ``output_path`` is neither a file nor a stream (:func:`kind_of`), and if another
    process writes the same file.
    """
    check_file(output_path)
    if kind_of(output_path) == "stream":
        with temporary_folder() as folder:
            complete_file = folder / output_path.name
            yield complete_file
            _copy_to_stream(complete_file, output_path)
        return
    target_path = real_path(output_path)
    temporary_path = unfinished_path(target_path)
    with hold_lock(temporary_path, target_path):
        try:
            temporary_path.unlink(missing_ok=True)
            yield temporary_path
            fsync(temporary_path)
            os.replace(temporary_path, target_path)
            fsync(target_path.parent)
        finally:
            temporary_path.unlink(missing_ok=True)


def _copy_to_stream(file_path: Path, stream_path: Path) -> None:
    """Copy a file to stdout, or to a terminal, a pipe or ``/dev/null``."""
    target: Path | int = stream_path
    if stream_path in _STDOUT_PATHS:
        sys.stdout.flush()
        # stdout is duplicated. If the shell redirects stdout (`> FILE`), opening /dev/stdout would truncate FILE.
        target = os.dup(_STDOUT_NUMBER)
    with open(file_path, "rb") as file, open(target, "wb") as stream:
        shutil.copyfileobj(file, stream)


def check_file(output_path: Path) -> None:
    """Raise :class:`InputError` if :func:`new_file` could not write a path. Call this function before long work."""
    output_kind = kind_of(output_path)
    if output_kind not in ("", "stream"):
        raise InputError(f"is a {output_kind}; expected the name of a file", path=output_path)
    if not output_kind:
        check_place(output_path)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[object]) -> None:
    """Check the files that a verb writes (:func:`check_file`). No file may be written twice, or belong to an input.

    Args:
        outputs: the files by option. None is not written.
        inputs: the files and folders that the verb reads. Only paths count, not objects in memory.

    Raises:
        UsageError: two options name the same file.
        InputError: an output is also an input, is inside a folder that is an input, or cannot be written.
    """
    read_paths = set()
    for verb_input in inputs:
        if isinstance(verb_input, Path) and kind_of(verb_input) != "stream":
            read_paths.add(real_path(verb_input))
    options_by_path: dict[Path, str] = {}
    for option, output_path in outputs.items():
        if output_path is None:
            continue
        check_file(output_path)
        if kind_of(output_path) == "stream":
            continue
        target_path = real_path(output_path)
        if target_path in options_by_path:
            raise UsageError(f"{options_by_path[target_path]} and {option} name the same file {output_path}")
        if target_path in read_paths:
            raise InputError(f"is both a file to read and {option}; expected different files", path=output_path)
        for folder in target_path.parents:
            if folder in read_paths:
                problem = f"{option} is inside {folder}, which this command reads; choose another place"
                raise InputError(problem, path=output_path)
        options_by_path[target_path] = option


def check_place(output_path: Path) -> None:
    """Raise :class:`InputError` if the nearest existing parent of ``output_path`` is no folder or not writable."""
    nearest_folder = next(parent for parent in real_path(output_path).parents if parent.exists())
    if not nearest_folder.is_dir():
        raise InputError("is a file; expected a directory", path=nearest_folder)
    if not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise InputError("is not writable; choose another directory", path=nearest_folder)


@contextlib.contextmanager
def atomic_text(output_path: Path) -> Iterator[IO[str]]:
    """Yield a file for UTF-8 text with ``\\n`` line ends, which becomes ``output_path`` at the end (:func:`new_file`).

    A file whose name ends in ``.gz`` is gzipped.
    """
    with new_file(output_path) as temporary_path, open(temporary_path, "wb") as raw_file:
        target: Any = raw_file
        if output_path.suffix.lower() == ".gz":
            # Without a time and a file name in the gzip header, the same text gives the same bytes.
            target = gzip.GzipFile("", "wb", fileobj=raw_file, mtime=0)
        with io.TextIOWrapper(target, encoding="utf-8", newline="\n") as text_file:
            yield text_file


def write_text(output_path: Path, text: str) -> None:
    """Write a small text file atomically (:func:`atomic_text`)."""
    with atomic_text(output_path) as file:
        file.write(text)


def write_bytes(output_path: Path, content: bytes) -> None:
    """Write a small binary file atomically (:func:`new_file`)."""
    with new_file(output_path) as temporary_path:
        temporary_path.write_bytes(content)


def fsync(path: Path) -> None:
    """Sync a file's content, or a directory's names, to disk. A rename is durable only after the sync."""
    open_mode = os.O_RDONLY
    if os.name == "nt":
        # Windows cannot open directories, and syncs only files that are open for writing.
        if path.is_dir():
            return
        open_mode = os.O_RDWR
    file_number = os.open(path, open_mode)
    try:
        os.fsync(file_number)
    finally:
        os.close(file_number)


@contextlib.contextmanager
def convert_read_errors(
    path: Path | str, *, damaged: str = "is damaged or cut short", remedy: str = ""
) -> Iterator[None]:
    """Convert the block's errors in reading the file ``path`` into a one-line :class:`InputError`.

    Errors of the operating system, gzip, zip and Arrow are converted, and every ValueError (such as an error of UTF-8
    decoding) and RuntimeError. The new message quotes the original message. For damaged content, the new message begins
    with ``damaged``. Every new message ends with the advice ``remedy``, unless empty.
    """
    try:
        yield
    except Exception as error:
        is_arrow_error = type(error).__module__ == "pyarrow.lib"
        if isinstance(error, OSError) and error.errno is not None:
            problem = f"cannot be read ({error.strerror})"
        elif isinstance(error, _DAMAGE_ERRORS) or is_arrow_error:
            problem = f"{damaged} ({error})"
        elif isinstance(error, RuntimeError | NotImplementedError):  # zipfile: a password, an unknown compression
            problem = f"cannot be unpacked ({error})"
        else:
            raise
        if remedy:
            problem = f"{problem}; {remedy}"
        raise InputError(problem, path=path) from error


def is_gzipped(file_path: Path) -> bool:
    """True if the file is gzipped. Only its first bytes are read."""
    return _read_head(file_path).startswith(GZIP)


def is_parquet(file_path: Path) -> bool:
    """True if the name ends in ``.parquet``, or a file of another name begins as Parquet does."""
    if file_path.suffix.lower() == ".parquet":
        return True
    return file_path.is_file() and begins_as_parquet(file_path)


def begins_as_parquet(file_path: Path) -> bool:
    """True if the file begins as Parquet does, whatever its name. Only its first bytes are read."""
    return _read_head(file_path).startswith(PARQUET)


def _read_head(file_path: Path) -> bytes:
    with convert_read_errors(file_path), open(rereadable_path(file_path), "rb") as file:
        return file.read(HEAD_BYTES)


@contextlib.contextmanager
def open_text(file_path: Path) -> Iterator[IO[bytes]]:
    """Yield a file of UTF-8 text, open for reading bytes. A gzipped file is decompressed, whatever its name.

    A byte order mark of UTF-8 stays. Raises :class:`InputError` for a damaged file, also inside the block, for another
    compression, and for first bytes of UTF-16, UTF-32 or GB18030. The other bytes may still not be UTF-8.
    """
    with convert_read_errors(file_path), open(rereadable_path(file_path), "rb") as file:
        head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
        damage = "is damaged or cut short"
        if head.startswith(GZIP):
            damage = "is a damaged or incomplete gzip file"
        with convert_read_errors(file_path, damaged=damage):
            text_file: Any = decompress_file(file, file_path)
            expect_utf8(text_file.peek(HEAD_BYTES)[:HEAD_BYTES], file_path)
            yield text_file


def read_whole(file_path: Path) -> bytes:
    """Return the bytes of a text file, decompressed if gzipped. Raise :class:`InputError` if they cannot be read."""
    with open_text(file_path) as file:
        return read_all(file, file_path)


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
    line_number = 0
    while True:
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        line_number += 1
        if len(line) > LONGEST_LINE:
            raise line_too_long(shown_path, line_number)
        yield line_number, line


def line_too_long(shown_path: Path | str, line_number: int) -> InputError:
    """Return the error for a line of more than ``LONGEST_LINE`` bytes."""
    problem = f"has a line of over {LONGEST_LINE >> 20} MiB; expected shorter lines that end with \\n"
    return InputError(problem, path=shown_path, line=line_number)


def read_utf8(file_path: Path) -> str:
    """Return the text of a file, decompressed if gzipped, without a byte order mark.

    Raises :class:`InputError` with the line number if the text is not UTF-8.
    """
    content = read_whole(file_path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # ``error.start`` counts from behind a byte order mark, as ``error.object`` does.
        line_number = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(describe_encoding(content), path=file_path, line=line_number) from error


def read_toml(file_path: Path) -> dict[str, Any]:
    """Read a TOML file. Raise :class:`InputError` if the content is not TOML."""
    try:
        return tomllib.loads(read_utf8(file_path))
    except ValueError as error:  # TOMLDecodeError, or a number too long for Python
        raise InputError(f"expected TOML ({error})", path=file_path) from error
    except RecursionError:
        raise InputError("expected TOML, found lists or tables nested too deep", path=file_path) from None


def raw_lines(file_path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes of the line without its end) of a file, decompressed if gzipped.

    Lines end only at ``\\n``, because ids and texts may contain other characters that Python treats as line ends. A
    byte order mark is dropped from every line, because files with a mark may have been joined. Raises
    :class:`InputError` for an unreadable or incomplete file.
    """
    with open_text(file_path) as file:
        for line_number, line in numbered_lines(file, file_path):
            yield line_number, line.removeprefix(BOM).rstrip(b"\r\n")


def first_character(file_path: Path) -> str:
    """Return a file's first character that is not blank, "\ufffd" for one that is not ASCII.

    Raises :class:`InputError` if there is none.
    """
    is_start = True
    # The file is read in blocks, because a JSON file may be one line of any length.
    with open_text(file_path) as file:
        for block in read_blocks(file):
            if is_start:
                block = block.removeprefix(BOM)
                is_start = False
            visible_bytes = block.strip()
            if visible_bytes:
                return visible_bytes[:1].decode("utf-8", errors="replace")
    raise InputError("is empty", path=file_path)


def id_of(field: bytes, file_path: Path, line_number: int) -> str:
    """Decode ``field``, the bytes of a column, as an id.

    Raises :class:`InputError` if the column is not UTF-8 or has a null character.
    """
    try:
        return expect_id(field.decode("utf-8"), file_path, line_number)
    except UnicodeDecodeError as error:
        raise InputError(describe_encoding(field), path=file_path, line=line_number) from error


def expect_id(text: str, file_path: Path, line_number: int | None = None) -> str:
    """Return ``text``. Raise :class:`InputError` if ``text`` has a null character, at which C libraries cut an id."""
    if "\0" in text:
        raise InputError(
            f"expected ids without null characters, found {text[:_QUOTED_LENGTH]!r}", path=file_path, line=line_number
        )
    return text


def is_unicode(text: str) -> bool:
    """True if a text can be written as UTF-8. Python's texts may have half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_integer(field: bytes, column_name: str, file_path: Path, line_number: int) -> int:
    """Parse ``field``, the bytes of a column, as a whole number of at most ``_MOST_DIGITS`` characters.

    Raises :class:`InputError` with the line and the column's name.
    """
    with contextlib.suppress(ValueError):
        if len(field) <= _MOST_DIGITS:
            return int(field)
    raise InputError(
        f"expected a whole number as the {column_name}, found {quote_column(field)}", path=file_path, line=line_number
    )


def quote_column(field: bytes) -> str:
    """Return the start of ``field``, the bytes of a column, quoted for an error message."""
    return repr(field[:_QUOTED_LENGTH].decode(errors="replace"))
