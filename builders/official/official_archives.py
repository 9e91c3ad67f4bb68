"""Find the official files: in directories, in tar and tar.gz archives, or as single files.

Archives are unpacked into a work folder in one pass, under new names. Archives are untrusted, so links, devices, names
that lead out of the archive, and members larger than any official file are refused.
"""

import contextlib
import gzip
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from builders.core.cache import cached_sha256
from builders.core.errors import InputError
from builders.core.file_formats import GZIP
from builders.core.finished_outputs import VerbInput
from builders.core.paths import expect_inside
from builders.core.progress import show_progress
from builders.core.read_files import convert_read_errors
from builders.core.typed import problem_of
from builders.official.official_formats import role_of

MEMBER_BYTES = 32 << 30  # the largest official file is passage_collection.json with about 8 GiB
_HEADER_BYTES = 1 << 20  # tarfile reads extended headers, for example long names, into memory
_REMEDY = "expected a directory, a tar or a tar.gz"
_COPY_BYTES = 4 << 20  # bytes copied at a time
_TAR_BLOCK = 512  # bytes; a tar ends with a block of zeros


@dataclass
class OfficialFile:
    """An official file.

    Attributes:
        name: name in its archive or folder, with forward slashes.
        shown: name in error messages.
        archive: path of the archive or folder, as the user gave it.
        path: path of the file on disk, unpacked if it is from an archive.
        role: a role from :data:`.official_formats.ROLES`, for example ``map``.
        rows: number of rows without skipped lines; None before the file is read.
    """

    name: str
    shown: str
    archive: Path
    path: Path
    role: str
    rows: int | None = None

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def read(self, size: int, start: int = 0) -> bytes:
        """Return at most ``size`` bytes from the byte ``start``; a negative ``start`` counts from the end."""
        with open(self.path, "rb") as file:
            if start < 0:
                start = max(0, start + self.size)
            file.seek(start)
            return file.read(size)

    def error(self, message: str, line: int | None = None) -> InputError:
        """Return an error that names the file and, if given, the line."""
        return InputError(message, path=self.shown, line=line)


class _Header(tarfile.TarInfo):
    """A tar header that refuses large extended headers, because tarfile reads them into memory.

    tarfile has no public hook between reading a header and reading its content. ``_proc_member`` is the private method
    that dispatches on the type of a header, in Python 3.11 to 3.14. If a version lacks it, large headers are read.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.size < 0:  # tarfile would go backwards in the archive
            raise tarfile.ReadError(f"a member of {self.size:,} bytes")
        if self.type not in tarfile.REGULAR_TYPES and self.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def find_members(archives: Iterable[Path], work: Path) -> list[OfficialFile]:
    """Return the official files of all archives, in the order of the archives. Files of an archive are sorted by name.

    ``archives`` are directories, tar or tar.gz files (detected by their content), or single official files. Archives
    are unpacked into the folder ``work``. Raises :class:`InputError` for a missing path, a damaged archive, or a
    refused member.
    """
    files: list[OfficialFile] = []
    for archive in archives:
        files += sorted(_find_files(archive, work), key=lambda file: file.name)
    return files


def archives_input(archives: Iterable[Path]) -> VerbInput:
    """Describe the archives that a verb reads by SHA-256, so that a later call finds the release if they are unchanged.

    Archives and single files are described as a whole, directories by their official files.
    """
    hashes = {}
    for number, archive in enumerate(archives, 1):
        paths = [archive]
        if archive.is_dir():
            paths = sorted(expect_inside(path, archive) for path in _official_paths(archive))
        for path in paths:
            name = archive.name if path == archive else path.relative_to(archive).as_posix()
            with convert_read_errors(path, remedy=_REMEDY):
                hashes[f"{number}: {name}"] = cached_sha256(path)
    return VerbInput("the official input", hashes)


def _official_paths(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that have an official name."""
    for path in folder.rglob("*"):
        if role_of(path.name) and path.is_file():
            yield path


def _find_files(archive: Path, work: Path) -> list[OfficialFile]:
    """Return the official files of a folder or an archive, or a single official file.

    An archive is unpacked into the folder ``work``. Raises :class:`InputError` for an archive that is missing, damaged
    or refused.
    """
    if archive.is_dir():
        files: list[OfficialFile] = []
        for path in _official_paths(archive):
            name = path.relative_to(archive).as_posix()
            files.append(OfficialFile(name, str(path), archive, expect_inside(path, archive), str(role_of(path.name))))
        return files
    with (
        convert_read_errors(archive, damaged="is damaged or not an archive", remedy=_REMEDY),
        open(archive, "rb") as file,
    ):
        is_gzipped = file.peek(len(GZIP))[: len(GZIP)] == GZIP
        role = role_of(archive.name)
        if role and not is_gzipped:
            return [OfficialFile(archive.name, str(archive), archive, archive, role)]
        try:
            if not is_gzipped:
                return list(_unpack_members(archive, file, file, work))
            with gzip.GzipFile(fileobj=file) as stream:
                return list(_unpack_members(archive, stream, file, work))
        except (tarfile.TarError, OverflowError) as error:
            raise ValueError(error) from None  # which convert_read_errors reports as damage


def _unpack_members(
    archive: Path, stream: IO[bytes] | gzip.GzipFile, file: IO[bytes], work: Path
) -> Iterator[OfficialFile]:
    """Unpack the official files of a tar. ``stream`` is ``file`` or, for a tar.gz, its decompressed content.

    The progress bar counts the bytes of ``file``, which are compressed in a tar.gz.
    """
    with (
        show_progress(total=archive.stat().st_size, unit="B", label=archive.name) as bar,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header, errors="replace") as tar,
    ):
        for info in tar:
            tar.members = []  # type: ignore[attr-defined]  # prevents a list of all members in memory
            name = str(PurePosixPath(info.name))  # removes a leading ./
            problem = _problem_of_member(info, name)
            if problem:
                raise InputError(f"refused: {problem}", path=archive)
            role = role_of(name)
            if role is None or not info.isreg():
                continue
            # The unpacked file has a number as its name, because the member's name is untrusted. All archives are
            # unpacked into one folder, so the number continues.
            file_count = len(list(work.iterdir()))
            path = work / f"{file_count:04d}"
            member = tar.extractfile(info)
            assert member is not None
            with contextlib.closing(member), open(path, "wb") as unpacked_file:
                block = member.read(_COPY_BYTES)
                while block:
                    unpacked_file.write(block)
                    # Moves the bar to the position in the archive.
                    bar.update(file.tell() - bar.n)
                    block = member.read(_COPY_BYTES)
            yield OfficialFile(name, f"{archive}!{name}", archive, path, role)
        # tarfile also accepts a tar that is cut short between two members. In a plain tar, only the missing block of
        # zeros shows the cut. In a tar.gz, gzip finds the cut below.
        if stream is file:
            file.seek(tar.offset)
            if file.read(_TAR_BLOCK) != bytes(_TAR_BLOCK):
                raise tarfile.ReadError("no end-of-archive block")
        # Read to the end, where gzip verifies its checksum.
        while stream.read(_COPY_BYTES):
            bar.update(file.tell() - bar.n)


def _problem_of_member(info: tarfile.TarInfo, name: str) -> str:
    """Return the reason to refuse a member of an archive, or "". ``name`` is the member's normalised name."""
    if not (info.isreg() or info.isdir()) or info.issparse():
        return f"the member {info.name!r} is a link, a device or another special file"
    if not 0 <= info.size <= MEMBER_BYTES:
        return f"the member {info.name!r} has {info.size:,} bytes; expected 0 to {MEMBER_BYTES:,}"
    if name == ".":  # the packed folder itself
        return ""
    return problem_of(name)
