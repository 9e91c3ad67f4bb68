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
from builders.core.file_formats import decompressed
from builders.core.files import expect_inside, reading
from builders.core.finished_outputs import VerbInput

_SPLIT_WORD = re.compile(r"(?<![a-z])(train|dev|test)(?:set)?\d*(?![a-z])")


@dataclass(frozen=True)
class Source:
    """A source of text: a file, or a member of a zip archive."""

    path: Path
    member: str | None
    name: str  # the name in the manifest, without local folders
    split: str = ""

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
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.name[0] != ".")
    found: list[Source] = []
    for file in files:
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        is_wanted = path.is_file() or bool(pattern.search(file.name))
        if path.is_dir() and (is_wanted or zipfile.is_zipfile(file)):
            expect_inside(file, path)
        if zipfile.is_zipfile(file):
            found += [Source(file, member, f"{name}!{member}") for member in _members(file, pattern)]
        elif is_wanted:
            found.append(Source(file, None, name))
    if not found:
        raise InputError(f"has {expected}", path=path)
    return found


def _members(path: Path, pattern: re.Pattern[str]) -> list[str]:
    with reading(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    return sorted(n for n in names if pattern.search(n) and not n.startswith("__MACOSX/") and "/._" not in n)


@contextlib.contextmanager
def open_bytes(source: Source) -> Iterator[IO[bytes]]:
    """Yield the decompressed bytes of a file or zip member. Errors while reading become :class:`InputError`."""
    with reading(source.shown), contextlib.ExitStack() as opened:
        stream: Any = opened.enter_context(open(source.path, "rb"))
        if source.member is not None:
            archive = opened.enter_context(zipfile.ZipFile(stream))
            stream = opened.enter_context(archive.open(source.member))
        # gzip is detected by the content, because a download may be renamed.
        yield opened.enter_context(decompressed(stream, source.shown))


def states_of(sources: list[Source]) -> list[tuple[str, int, list[int]]]:
    """Return (path, size, [inode, mtime, ctime]) of each file. These values change with the content."""
    states = []
    for path in dict.fromkeys(source.path for source in sources):
        with reading(path):
            found = path.stat()
        # ctime detects an edit that restores the old mtime, because programs cannot set ctime.
        states.append((os.path.abspath(path), found.st_size, [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]))
    return states


def sources_input(sources: list[Source]) -> VerbInput:
    """Describe the sources of a verb. Their order, names and splits count, because they affect the result."""
    hashes = {}
    for number, source in enumerate(sources, 1):
        with reading(source.path):
            hashes[f"{source.split} {number}: {source.name}"] = cached_sha256(source.path)
    return VerbInput("the raw input", hashes)


def split_of(name: str) -> str | None:
    """Return the split in a file's name, else in the nearest folder's name. None for no split, or several splits."""
    *folders, file = name.lower().split("/")
    found = {match[1] for match in _SPLIT_WORD.finditer(file)}
    if found:
        return found.pop() if len(found) == 1 else None
    matches = map(_SPLIT_WORD.fullmatch, reversed(folders))
    return next((match[1] for match in matches if match), None)
