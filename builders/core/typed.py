"""JSON and TOML as typed values: what is in a file is said by a msgspec type, and held to it when it is read.

Every JSON that somebody else may have written is read here. msgspec refuses what no other reader of these files could
take: NaN, half a surrogate pair, text that is no UTF-8, numbers that no 64 bits hold where a count is expected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, inspect

from builders.core.errors import InputError
from builders.core.files import kind_of, raw_lines

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
T = TypeVar("T")

_HALF_PAIR = re.compile(rb"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")


def read_json(path: Path, kind: type[T], remedy: str = "") -> T:
    """The content of a JSON file as ``kind``, a msgspec type; fields that it does not name are passed over.

    Raises :class:`InputError` naming the file, and the line or the field with what was expected there; ``remedy`` ends
    it. FileNotFoundError, NotADirectoryError where there is no such file: the caller knows what that means.
    """
    return json_of(_bytes_of(path), kind, path, remedy=remedy)


def read_object(path: Path, kind: type[Struct]) -> dict[str, Any]:
    """Everything in a JSON file that holds an object, where what ``kind`` names of it is as ``kind`` says.

    For what is kept or passed on with the fields of later versions. Errors as of :func:`read_json`.
    """
    content = _bytes_of(path)
    json_of(content, kind, path)
    return json_of(content, dict[str, Any], path)


def _bytes_of(path: Path) -> bytes:
    if kind_of(path) not in ("", "directory"):  # a pipe would be waited for; reading a directory fails by itself
        raise InputError("is a device or a pipe; expected a regular file", path=path)
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error


def json_of(content: bytes, kind: type[T], path: Path | str, line: int | None = None, remedy: str = "") -> T:
    """``content``, the JSON of a whole file or of one ``line`` of it, as a ``kind``; errors as of :func:`read_json`."""
    end = f"; {remedy}" if remedy else ""
    try:
        if not content.isascii():
            content.decode()  # msgspec does not look into the texts that it passes over
        return msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{_explained(str(error), kind)}{end}", path=path, line=line) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place, what = _no_json(content, str(error))
        raise InputError(f"{what}{end}", path=path, line=line or place) from None
    except RecursionError:
        raise InputError(f"expected fewer lists and objects in one another{end}", path=path, line=line) from None


def json_lines(path: Path, kind: type[T], remedy: str = "") -> Iterator[tuple[int, T]]:
    """Yield (line, ``kind``) of the lines that are not blank of a (possibly gzipped) file; errors name the line."""
    for number, line in raw_lines(path):
        if line.strip():
            yield number, json_of(line, kind, path, number, remedy)


def typed(content: Any, kind: type[T], path: Path | str, *, from_text: bool = False) -> T:
    """``content``, as a JSON or TOML reader gives it, as a ``kind``: a msgspec type with its constraints.

    ``from_text``: numbers and booleans may be given as their text. Raises :class:`InputError` naming ``path``, the key
    and what was expected there.
    """
    try:
        return msgspec.convert(content, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        raise InputError(_explained(str(error), kind), path=path) from error


def _no_json(content: bytes, said: str) -> tuple[int | None, str]:
    """(the line where that is known, what was expected) of bytes that are no JSON, of which msgspec says ``said``."""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return _line(content, error.start), "expected UTF-8 text"
    if half := _HALF_PAIR.search(content):  # msgspec may well say that the text ends there
        found = half[0].decode(errors="replace")
        return _line(content, half.start()), f"expected JSON, found half a surrogate pair ({found})"
    place = re.search(r" \(byte (\d+)\)", said)
    return _line(content, int(place[1])) if place else None, f"expected JSON ({said})"


def _line(content: bytes, position: int) -> int:
    return content.count(b"\n", 0, position) + 1


def _explained(said: str, kind: Any) -> str:
    """msgspec's words, the key first, and with the names or values that are known there."""
    what, _, where = said.partition(" - at `$")
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
        what = "expected a number that 64 bits hold"
    else:
        what = what[:1].lower() + what[1:]
    return ".".join(keys).replace(".[", "[") + ": " * bool(keys) + what


def _known(kind: Any, keys: list[str]) -> str:
    """The keys of a table, or the values of a choice, that stands at ``keys`` in a ``kind``."""
    found: Any = inspect.type_info(kind)
    for key in keys:
        if isinstance(found, inspect.StructType):
            found = next(field.type for field in found.fields if field.encode_name == key)
        elif isinstance(found, inspect.DictType):
            found = found.value_type
        elif isinstance(found, inspect.ListType):
            found = found.item_type
        if isinstance(found, inspect.UnionType):  # something, or null
            found = next((each for each in found.types if not isinstance(each, inspect.NoneType)), found)
    if isinstance(found, inspect.StructType):
        return ", ".join(field.encode_name for field in found.fields)
    return ", ".join(map(str, found.values)) if isinstance(found, inspect.LiteralType) else ""


LONGEST = 1_000  # characters; no file of ours has a tenth, and no system takes five times as many
_NEVER = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # ends or breaks a line, or is no text
_DRIVE = re.compile(r"[A-Za-z]:")


def problem_of(name: str) -> str:
    """Describe why ``name`` names nothing within a folder, as the end of an error; empty if it names something.

    A name has parts between forward slashes, and is the same on every system and written in one way alone: none is
    empty, ``.`` or ``..``, and there is no slash before the first or behind the last, no drive and no backslash.
    """
    if not name:
        problem = "is empty"
    elif len(name) > LONGEST:
        return f"a name of {len(name):,} characters; expected at most {LONGEST:,}"
    elif found := _NEVER.search(name):
        problem = f"holds the character {found[0]!r}"
    elif name[0] == "/" or _DRIVE.match(name):
        problem = "is absolute"
    elif "\\" in name:
        problem = "holds a backslash"
    elif odd := {"", ".", ".."} & {*name.split("/")}:
        problem = f"has the part {min(odd)!r}"
    else:
        return ""
    return f"the name {name!r} {problem}; expected a plain one, within its folder"


def name_within(name: str) -> str:
    """``name`` itself; ValueError, with what :func:`problem_of` finds, for one that names nothing within a folder."""
    if problem := problem_of(name):
        raise ValueError(problem)
    return name
