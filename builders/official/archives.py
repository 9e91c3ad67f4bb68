"""A directory, a tar, a tar.gz or a single file as one thing: its members, each as a range of bytes on disk.

A plain tar is read where it lies. A tar.gz cannot be: its wanted members are unpacked into a work folder, under names
of ours, in one pass over the archive. Archives come from elsewhere, so names that lead out of them, links, devices and
members beyond any official file's size are refused, whether or not such a member is wanted.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.typed import problem_of

MEMBER_BYTES = 32 << 30  # the largest official file, passage_collection.json, has about 8 GiB
MEMBERS = 100_000
_HEADER_BYTES = 1 << 20  # extended tar headers (long names) are read into memory
_COPY = 4 << 20


@dataclass(frozen=True)
class Member:
    """A file of an archive: ``size`` bytes from ``offset`` of ``path``."""

    name: str  # inside its archive, with forward slashes
    archive: Path  # what the user gave
    path: Path
    offset: int
    size: int

    @property
    def shown(self) -> str:
        """How errors name it."""
        return str(self.path) if self.path == self.archive or self.archive.is_dir() else f"{self.archive}!{self.name}"

    def read(self, size: int = -1) -> bytes:
        """The first ``size`` bytes, or all."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            return file.read(self.size if size < 0 else min(size, self.size))


class _Header(tarfile.TarInfo):
    """A tar header whose extensions may not claim more memory than a name needs."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:  # the next header would be looked for before this one
            raise tarfile.ReadError(f"a member of {self.size:,} bytes")
        if self.type not in tarfile.REGULAR_TYPES and self.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def find_members(archives: Iterable[Path], wanted: Callable[[str], bool], work: Path) -> list[Member]:
    """The wanted members of all archives, in the order of the archives, inside one by name.

    Args:
        archives: directories, tar or tar.gz files (told by their content), or single files whose names are wanted.
        wanted: says by a member's name whether it is needed.
        work: an existing folder, on a disk with room, for what is unpacked of a tar.gz.

    Raises:
        InputError: for a path that is missing or is none of these, and for an archive that is damaged, cut short, or
            holds a member that is refused.
    """
    members: list[Member] = []
    for archive in archives:
        if archive.is_dir():
            found = list(_directory(archive, wanted))
        elif not archive.is_file():
            raise InputError("no such file or directory", path=archive)
        else:
            found = _file(archive, wanted, work)
        members += sorted(found, key=lambda member: member.name)
    return members


def _directory(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Member]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            relative = path.relative_to(folder).as_posix()
            if wanted(relative) and path.is_file():
                yield Member(relative, folder, path, 0, path.stat().st_size)


def _file(archive: Path, wanted: Callable[[str], bool], work: Path) -> list[Member]:
    try:
        with open(archive, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped and wanted(archive.name):
                return [Member(archive.name, archive, archive, 0, archive.stat().st_size)]
            return list(_unpack(archive, file, wanted, work) if zipped else _tar(archive, file, wanted))
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"is damaged, cut short, or no archive ({error}); expected a directory, a tar or a tar.gz", path=archive
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:  # numbers that no header has, headers by the thousand
        raise InputError(f"is a damaged archive ({error})", path=archive) from None


def _headers(archive: Path, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular members, each one checked."""
    for number, info in enumerate(tar):
        tar.members = []  # type: ignore[attr-defined]  # it would keep them all
        name = _plain(info.name)
        problem = "" if name == "." else problem_of(name)  # the folder that was packed
        if number >= MEMBERS:
            problem = f"more than {MEMBERS:,} members"
        elif not (info.isreg() or info.isdir()) or info.issparse():
            problem = f"the member {info.name!r} is a link, a device or another special file"
        elif not 0 <= info.size <= MEMBER_BYTES:
            problem = f"the member {info.name!r} has {info.size:,} bytes, above {MEMBER_BYTES:,} or below none"
        if problem:
            raise InputError(f"refused: {problem}", path=archive)
        if info.isreg():
            yield info


def _tar(archive: Path, file: IO[bytes], wanted: Callable[[str], bool]) -> Iterator[Member]:
    size = archive.stat().st_size
    with tarfile.open(fileobj=file, mode="r:", tarinfo=_Header, errors="replace") as tar:
        for info in _headers(archive, tar):
            if info.offset_data + info.size > size:
                raise tarfile.ReadError(f"{info.name} ends beyond the file's end")
            if wanted(_plain(info.name)):
                yield Member(_plain(info.name), archive, archive, info.offset_data, info.size)
        end = tar.offset
    file.seek(end)
    if file.read(1024).strip(b"\0") or end + 512 > size:
        raise tarfile.ReadError("no end mark")


def _plain(name: str) -> str:
    return str(PurePosixPath(name))  # without ./ in front


def _unpack(archive: Path, file: IO[bytes], wanted: Callable[[str], bool], work: Path) -> Iterator[Member]:
    count = sum(1 for _ in work.iterdir())
    with (
        progress(total=archive.stat().st_size, unit="B", label=archive.name) as bar,
        gzip.GzipFile(fileobj=file) as stream,
        tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header, errors="replace") as tar,
    ):
        for info in _headers(archive, tar):
            if not wanted(_plain(info.name)):
                continue
            member, target = tar.extractfile(info), work / f"{count:04d}"
            count += 1
            assert member is not None
            with contextlib.closing(member), open(target, "wb") as out:
                while block := member.read(_COPY):
                    out.write(block)
                    bar.update(file.tell() - bar.n)
            if target.stat().st_size != info.size:
                raise tarfile.ReadError(f"{info.name} is cut short")
            yield Member(_plain(info.name), archive, target, 0, info.size)
        # The end of the gzip stream holds its checksum: what was read is whole only once it is reached.
        rest = 0
        while block := stream.read(_COPY):
            rest += len(block)
            if rest > 1 << 30:
                raise tarfile.ReadError("over 1 GiB after the last member")
