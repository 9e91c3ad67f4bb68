"""Read JSON and TOML as typed values. A msgspec type declares a file's content, and the content is validated.

This module reads all untrusted JSON. Content that some JSON readers reject is an error: NaN, half a surrogate pair,
invalid UTF-8, and counts that do not fit into 64 bits."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from builders.core.errors import UNSAFE, InputError
from builders.core.files import BOM, kind_of, raw_lines, read_all

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
T = TypeVar("T")

_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
LONGEST = 1_000  # characters of a file name; the project's own names have fewer than 100
_DRIVE = re.compile(r"[A-Za-z]:")


def read_json(path: Path, kind: type[T], remedy: str = "") -> T:
    """Read a JSON file as ``kind``, a msgspec type. Fields that ``kind`` does not declare are ignored.

    Raises:
        InputError: names the file, the line or field, and the expected content. The message ends with ``remedy``.
        FileNotFoundError, NotADirectoryError: the file does not exist. The caller reports the missing file.
    """
    return json_of(_bytes_of(path), kind, path, remedy=remedy)


def read_object(path: Path, kind: type[Struct]) -> dict[str, Any]:
    """Read a JSON object completely, and validate the fields that ``kind`` declares.

    Undeclared fields, for example of later versions, are returned as well. Errors are those of :func:`read_json`.
    """
    content = _bytes_of(path)
    json_of(content, kind, path)
    return json_of(content, dict[str, Any], path)


def _bytes_of(path: Path) -> bytes:
    if kind_of(path) not in ("", "directory"):  # reading a pipe could block; reading a directory fails below
        raise InputError("is a device or a pipe; expected a regular file", path=path)
    try:
        with open(path, "rb") as file:
            return read_all(file, path)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def json_of(content: bytes, kind: type[T], path: Path | str, line: int | None = None, remedy: str = "") -> T:
    """Decode the JSON of a file, or of one ``line`` of a file, as ``kind``. Errors are those of :func:`read_json`."""
    end = f"; {remedy}" if remedy else ""
    try:
        if not content.isascii():
            content.decode()  # msgspec does not validate the UTF-8 of ignored fields
        return msgspec.json.decode(content.removeprefix(BOM), type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{_explained(str(error), kind)}{end}", path=path, line=line) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place, what = _no_json(content, str(error))
        raise InputError(f"{what}{end}", path=path, line=line or place) from None
    except RecursionError:
        raise InputError(f"lists and objects are nested too deeply{end}", path=path, line=line) from None


def json_lines(path: Path, kind: type[T], remedy: str = "") -> Iterator[tuple[int, T]]:
    """Yield (line number, ``kind``) of every line that is not blank. Files ending in ``.gz`` are decompressed."""
    for number, line in raw_lines(path):
        if line.strip():
            yield number, json_of(line, kind, path, number, remedy)


def typed(content: Any, kind: type[T], path: Path | str, *, from_text: bool = False) -> T:
    """Convert the result of a JSON or TOML reader to ``kind``, a msgspec type with constraints.

    With ``from_text``, numbers and booleans may be strings. Raises :class:`InputError` with ``path``, the key and the
    expected value.
    """
    try:
        return msgspec.convert(content, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        raise InputError(_explained(str(error), kind), path=path) from error


def _no_json(content: bytes, message: str) -> tuple[int | None, str]:
    """Return (line number or None, description) of a JSON error from msgspec's ``message``."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return _line(content, error.start), "expected UTF-8 text"
    if half := _HALF_PAIR.search(content):  # msgspec's message may be misleading here
        return _line(content, half.start()), f"expected JSON, found half a surrogate pair ({half[0].decode()})"
    place = re.search(r" \(byte (\d+)\)", message)
    return _line(content, int(place[1])) if place else None, f"expected JSON ({message})"


def _line(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _explained(message: str, kind: Any) -> str:
    """Rewrite msgspec's message: the key comes first, and the allowed names or values are listed."""
    what, _, where = message.partition(" - at `$")
    keys = re.findall(r"[^.\[\]`]+|\[(?:\d+|\.\.\.)\]", where)
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        what = f"unknown key {found[1]!r}; expected {_known(kind, keys)}"
    elif found := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"lacks {found[1]}"
    elif found := re.fullmatch(r"Invalid enum value (.*)", what, re.DOTALL):
        what = f"expected one of {_known(kind, keys)}, found {found[1]}"
    elif " matching regex " in what and "[0-9a-f]{64}" in what:
        what = "expected a SHA-256 in hex"
    elif what.endswith(" out of range"):
        what = "expected a number of at most 64 bits"
    else:
        what = what[:1].lower() + what[1:]
    return ".".join(keys).replace(".[", "[") + ": " * bool(keys) + what


def _known(kind: Any, keys: list[str]) -> str:
    found: Any = inspect.type_info(kind)
    for key in keys:
        if isinstance(found, inspect.StructType):
            found = next(field.type for field in found.fields if field.encode_name == key)
        elif isinstance(found, inspect.DictType):
            found = found.value_type
        elif isinstance(found, inspect.ListType):
            found = found.item_type
        if isinstance(found, inspect.UnionType):  # a type or null
            found = next((part for part in found.types if not isinstance(part, inspect.NoneType)), found)
    if isinstance(found, inspect.StructType):
        return ", ".join(field.encode_name for field in found.fields)
    return ", ".join(map(str, found.values)) if isinstance(found, inspect.LiteralType) else ""


def problem_of(name: str) -> str:
    """Describe why ``name`` is not a safe relative file name; empty if it is safe.

    A safe name stays inside its folder and means the same file on every system. The name consists of parts between
    forward slashes. No part is empty, ``.`` or ``..``. Drives, backslashes and control characters are not allowed.
    """
    if not name:
        problem = "is empty"
    elif len(name) > LONGEST:
        return f"a name of {len(name):,} characters; expected at most {LONGEST:,}"
    elif found := UNSAFE.search(name):
        problem = f"has the character {found[0]!r}"
    elif name[0] == "/" or _DRIVE.match(name):
        problem = "is absolute"
    elif "\\" in name:
        problem = "has a backslash"
    elif odd := {"", ".", ".."} & {*name.split("/")}:
        problem = f"has the part {min(odd)!r}"
    else:
        return ""
    return f"the name {name!r} {problem}; expected a plain relative name inside its folder"


def name_within(name: str) -> str:
    """Return ``name``. Raise ValueError with the problem of :func:`problem_of` if the name is not safe."""
    if problem := problem_of(name):
        raise ValueError(problem)
    return name
