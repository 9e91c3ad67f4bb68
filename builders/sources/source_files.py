"""Find and open source files (plain, gzipped, zipped, in folders), and read the split from a file's name."""

import contextlib
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from builders.core.cache import cached_sha256
from builders.core.errors import InputError
from builders.core.file_formats import decompress_file
from builders.core.finished_outputs import VerbInput
from builders.core.paths import expect_inside
from builders.core.read_files import convert_read_errors

_SPLIT_WORD = re.compile(r"(?<![a-z])(train|dev|test)(?:set)?\d*(?![a-z])")


@dataclass(frozen=True)
class Source:
    """A source of text: a file, or a member of a zip archive."""

    path: Path  # of the file, or of the archive
    member: str | None  # the name in the archive; None for a file
    name: str  # without local folders: FILE, or ARCHIVE!MEMBER
    split: str = ""  # set by the reader of raw rows; other readers have no splits

    @property
    def shown(self) -> str:
        """The name of the source in errors."""
        return f"{self.path}!{self.member}" if self.member else str(self.path)


def find_files(path: Path, pattern: re.Pattern[str], expected: str) -> list[Source]:
    """Return the file ``path``, or all files in the folder ``path`` whose names match ``pattern``, sorted by name.

    A zip archive is replaced by its matching members. Raises :class:`InputError` if the path is missing or damaged, or
    has no matching file. If no file matches, the message is ``has {expected}``.
    """
    if not path.exists():
        raise InputError("does not exist", path=path)
    file_paths = [path] if path.is_file() else _visible_files(path)
    sources: list[Source] = []
    for file_path in file_paths:
        name = file_path.name if path.is_file() else file_path.relative_to(path).as_posix()
        # A file that the caller names may have any name.
        is_matching = path.is_file() or bool(pattern.search(file_path.name))
        if path.is_dir() and (is_matching or zipfile.is_zipfile(file_path)):
            expect_inside(file_path, path)
        if zipfile.is_zipfile(file_path):
            for member in _members(file_path, pattern):
                sources.append(Source(file_path, member, f"{name}!{member}"))
        elif is_matching:
            sources.append(Source(file_path, None, name))
    if not sources:
        raise InputError(f"has {expected}", path=path)
    return sources


def _visible_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted, without those whose names begin with a dot."""
    visible_files = []
    for file_path in folder.rglob("*"):
        if file_path.is_file() and not file_path.name.startswith("."):
            visible_files.append(file_path)
    return sorted(visible_files)


def _members(path: Path, pattern: re.Pattern[str]) -> list[str]:
    """Return the names of a zip archive's members that match, sorted."""
    with convert_read_errors(path), zipfile.ZipFile(path) as archive:
        member_names = archive.namelist()
    matching_names = []
    for member_name in member_names:
        # macOS adds a file with metadata for each file, under the file's name.
        is_metadata = member_name.startswith("__MACOSX/") or "/._" in member_name
        if pattern.search(member_name) and not is_metadata:
            matching_names.append(member_name)
    return sorted(matching_names)


@contextlib.contextmanager
def open_bytes(source: Source) -> Iterator[IO[bytes]]:
    """Yield the decompressed bytes of a file or zip member. Errors while reading become :class:`InputError`."""
    with convert_read_errors(source.shown), contextlib.ExitStack() as opened:
        stream: Any = opened.enter_context(open(source.path, "rb"))
        if source.member is not None:
            archive = opened.enter_context(zipfile.ZipFile(stream))
            stream = opened.enter_context(archive.open(source.member))
        # gzip is detected by the content, because a download may be renamed.
        yield opened.enter_context(decompress_file(stream, source.shown))


def states_of(sources: list[Source]) -> list[tuple[str, int, list[int]]]:
    """Return (path, size, [inode, mtime, ctime]) of each file. These values change with the content."""
    states = []
    for path in dict.fromkeys(source.path for source in sources):
        with convert_read_errors(path):
            file_state = path.stat()
        # ctime detects an edit that restores the old mtime, because programs cannot set ctime.
        changing_values = [file_state.st_ino, file_state.st_mtime_ns, file_state.st_ctime_ns]
        states.append((os.path.abspath(path), file_state.st_size, changing_values))
    return states


def sources_input(sources: list[Source]) -> VerbInput:
    """Describe the sources of a verb. Their order, names and splits count, because they affect the result."""
    hashes = {}
    for number, source in enumerate(sources, 1):
        with convert_read_errors(source.path):
            hashes[f"{source.split} {number}: {source.name}"] = cached_sha256(source.path)
    return VerbInput("the raw input", hashes)


def split_of(name: str) -> str | None:
    """Return the split in a file's name, else in the nearest folder's name. None for no split, or several splits."""
    *folder_names, file_name = name.lower().split("/")
    # A file's name decides alone if it has any split. Otherwise a folder's whole name must be a split.
    file_splits = {match[1] for match in _SPLIT_WORD.finditer(file_name)}
    if file_splits:
        return file_splits.pop() if len(file_splits) == 1 else None
    for folder_name in reversed(folder_names):
        split_word = _SPLIT_WORD.fullmatch(folder_name)
        if split_word:
            return split_word[1]
    return None
