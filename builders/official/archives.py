"""A directory, a tar, a tar.gz or a single file as one thing: its official files, each as a range of bytes on disk.

A plain tar is read where it lies. A tar.gz cannot be: its official files are unpacked into a work folder, under names
of ours, in one pass over the archive. Archives come from elsewhere, so names that lead out of them, links, devices and
members beyond any official file's size are refused, whether or not such a member is wanted.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from builders.core.errors import InputError
from builders.core.progress import progress
from builders.core.typed import problem_of
from builders.official.formats import role_of

MEMBER_BYTES = 32 << 30  # the largest official file, passage_collection.json, has about 8 GiB
MEMBERS = 100_000
_HEADER_BYTES = 1 << 20  # extended tar headers (long names) are read into memory
_COPY = 4 << 20
_REST = 256  # times _COPY: after the last member


@dataclass
class OfficialFile:
    """An official file: ``size`` bytes from ``offset`` of ``path``.

    Attributes:
        name: its name inside its archive, with forward slashes; made distinct by :func:`.build.official_files`.
        shown: its name in errors.
        archive: the path that the user gave.
        role: a role of :data:`.formats.ROLES`.
        rows: its rows without the bad lines; None for a document.
    """

    name: str
    shown: str
    archive: Path
    path: Path
    offset: int
    size: int
    role: str
    rows: int | None = None

    def read(self, size: int, start: int = 0) -> bytes:
        """Return at most ``size`` bytes from the byte ``start`` of the file; a negative one counts from its end."""
        start = max(0, start + self.size) if start < 0 else start
        with open(self.path, "rb") as file:
            file.seek(self.offset + start)
            return file.read(min(size, self.size - start))

    def error(self, message: str, line: int | None = None) -> InputError:
        """Return the error that ``message`` describes, with the file's name, and the line's number where given."""
        return InputError(message, path=self.shown, line=line)


class _Header(tarfile.TarInfo):
    """A tar header whose extensions may not claim more memory than a name needs."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:  # the next header would be looked for before this one
            raise tarfile.ReadError(f"a member of {self.size:,} bytes")
        if self.type not in tarfile.REGULAR_TYPES and self.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def find_members(archives: Iterable[Path], work: Path) -> list[OfficialFile]:
    """Return the official files of all archives, in the order of the archives, inside one by name.

    Args:
        archives: directories, tar or tar.gz files (told by their content), or single official files.
        work: an existing folder, on a disk with room, for what is unpacked of a tar.gz.

    Raises:
        InputError: for a path that is missing or is none of these, and for an archive that is damaged, cut short, or
            holds a member that is refused.
    """
    members: list[OfficialFile] = []
    for archive in archives:
        if not archive.is_dir() and not archive.is_file():
            raise InputError("no such file or directory", path=archive)
        found = _directory(archive) if archive.is_dir() else _file(archive, work)
        members += sorted(found, key=lambda member: member.name)
    return members


def _directory(folder: Path) -> Iterator[OfficialFile]:
    for parent, _, names in os.walk(folder):
        for path in (Path(parent) / name for name in names):
            if (role := role_of(path.name)) and path.is_file():
                name = path.relative_to(folder).as_posix()
                yield OfficialFile(name, str(path), folder, path, 0, path.stat().st_size, role)


def _file(archive: Path, work: Path) -> list[OfficialFile]:
    try:
        with open(archive, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not zipped and (role := role_of(archive.name)):
                size = archive.stat().st_size
                return [OfficialFile(archive.name, str(archive), archive, archive, 0, size, role)]
            with gzip.GzipFile(fileobj=file) if zipped else contextlib.nullcontext(file) as stream:
                return list(_members(archive, stream, file, work))
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"is damaged, cut short, or no archive ({error}); expected a directory, a tar or a tar.gz", path=archive
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:  # numbers that no header has, headers by the thousand
        raise InputError(f"is a damaged archive ({error})", path=archive) from None


def _members(archive: Path, stream: IO[bytes] | gzip.GzipFile, file: IO[bytes], work: Path) -> Iterator[OfficialFile]:
    """Yield the official files of a tar, which is ``stream``: ``file`` itself, or what is unpacked from it."""
    size = archive.stat().st_size
    with (
        progress(total=size, unit="B", label=archive.name) as bar,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header, errors="replace") as tar,
    ):
        for number, info in enumerate(tar):
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            name = str(PurePosixPath(info.name))  # without ./ in front
            problem = "" if name == "." else problem_of(name)  # the folder that was packed
            if number >= MEMBERS:
                problem = f"more than {MEMBERS:,} members"
            elif not (info.isreg() or info.isdir()) or info.issparse():
                problem = f"the member {info.name!r} is a link, a device or another special file"
            elif not 0 <= info.size <= MEMBER_BYTES:
                problem = f"the member {info.name!r} has {info.size:,} bytes, above {MEMBER_BYTES:,} or below none"
            if problem:
                raise InputError(f"refused: {problem}", path=archive)
            role, path, offset = role_of(name) if info.isreg() else None, archive, info.offset_data
            if stream is file and info.isreg() and offset + info.size > size:
                raise tarfile.ReadError(f"{info.name} ends beyond the file's end")
            if role is None:
                continue
            if stream is not file:
                path, offset = work / f"{sum(1 for _ in work.iterdir()):04d}", 0
                member = tar.extractfile(info)
                assert member is not None
                with contextlib.closing(member), open(path, "wb") as out:
                    while block := member.read(_COPY):
                        out.write(block)
                        bar.update(file.tell() - bar.n)
            yield OfficialFile(name, f"{archive}!{name}", archive, path, offset, info.size, role)
        if stream is file:
            file.seek(tar.offset)
            if file.read(1024).strip(b"\0") or tar.offset + 512 > size:
                raise tarfile.ReadError("no end mark")
            return
        # The end of a gzip stream holds its checksum: what was read is whole only once it is reached.
        for _ in range(_REST):
            if not stream.read(_COPY):
                return
        raise tarfile.ReadError("over 1 GiB after the last member")
