"""Read files with errors that name the file and the line, and within a limit of memory."""

import atexit
import contextlib
import hashlib
import lzma
import shutil
import stat
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from builders.core.errors import InputError
from builders.core.file_formats import (
    GZIP,
    HEAD_BYTES,
    PARQUET,
    decompress_file,
    describe_encoding,
    expect_utf8,
)
from builders.core.limits import convert_full_disk
from builders.core.locks import temporary_folder

_BLOCK_BYTES = 1 << 20
# An OSError without errno comes from Arrow or gzip and means damaged content.
_DAMAGE_ERRORS = (EOFError, OSError, ValueError, lzma.LZMAError, struct.error, zipfile.BadZipFile, zlib.error)
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
