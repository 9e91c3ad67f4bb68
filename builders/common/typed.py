"""JSON and TOML as typed values: what is in a file is said by a msgspec type, and held to it when it is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import inspect

from builders.common.command import InputError

Count = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")


def read_json(path: Path, kind: type[T], remedy: str = "") -> T:
    """The content of a JSON file as ``kind``; fields that ``kind`` does not name, of a later version, are passed over.

    Args:
        path: the file.
        kind: a msgspec type: a Struct with its constraints, or a composition of plain types.
        remedy: what the user may do where the file is damaged; ends the error.

    Raises:
        InputError: naming the file, and the field with what was expected there.
        FileNotFoundError, NotADirectoryError: where there is no such file: what that means, the caller knows.
    """
    end = f"; {remedy}" if remedy else ""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    except msgspec.ValidationError as error:
        raise InputError(f"{_explained(str(error), kind)}{end}", path=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"expected JSON ({error}){end}", path=path) from None


def typed(content: Any, kind: type[T], path: Path | str, *, from_text: bool = False) -> T:
    """``content``, as a JSON or TOML reader gives it, as a ``kind``: a msgspec type with its constraints.

    ``from_text``: numbers and booleans may be given as their text. Raises :class:`InputError` naming ``path``, the key
    and what was expected there.
    """
    try:
        return msgspec.convert(content, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        raise InputError(_explained(str(error), kind), path=path) from error


def _explained(said: str, kind: Any) -> str:
    """msgspec's words, the key first, and with the names or values that are known there."""
    what, _, where = said.partition(" - at `$")
    keys = re.findall(r"\w+|\[(?:\d+|\.\.\.)\]", where)
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        what = f"unknown key {found[1]!r}; expected {_known(kind, keys)}"
    elif found := re.fullmatch(r"Object missing required field `(.*)`", what):
        what = f"lacks {found[1]}"
    elif found := re.fullmatch(r"Invalid enum value (.*)", what):
        what = f"expected one of {_known(kind, keys)}, found {found[1]}"
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
    if isinstance(found, inspect.StructType):
        return ", ".join(field.encode_name for field in found.fields)
    return ", ".join(map(str, found.values)) if isinstance(found, inspect.LiteralType) else ""
