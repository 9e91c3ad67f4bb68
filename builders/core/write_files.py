"""Write files atomically: under a temporary name, synced to disk, then renamed.

The module :mod:`.folders` writes directories atomically.
"""

import contextlib
import gzip
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from builders.core.locks import hold_lock, temporary_folder
from builders.core.paths import STDOUT_PATHS, check_file, kind_of, real_path

_STDOUT_NUMBER = 1


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

    Raises :class:`InputError` if ``output_path`` is neither a file nor a stream (:func:`.paths.kind_of`), and if
    another process writes the same file.
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
    if stream_path in STDOUT_PATHS:
        sys.stdout.flush()
        # stdout is duplicated. If the shell redirects stdout (`> FILE`), opening /dev/stdout would truncate FILE.
        target = os.dup(_STDOUT_NUMBER)
    with open(file_path, "rb") as file, open(target, "wb") as stream:
        shutil.copyfileobj(file, stream)


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


def link_or_copy(file_path: Path, link_path: Path) -> None:
    """Make ``link_path`` a hard link to a file, which must not change later. If links are impossible, copy the file."""
    try:
        os.link(os.path.realpath(file_path), link_path)  # the hub's cache contains symbolic links
    except OSError:
        shutil.copyfile(file_path, link_path)
