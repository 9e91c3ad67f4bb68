"""JSON files as typed values: what is in one is said by a msgspec type, and held to it when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

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
        raise InputError(f"{_lower(str(error))}{end}", path=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"expected JSON ({error}){end}", path=path) from None


def _lower(message: str) -> str:
    """``Expected `int`, got `str` - at `$.files[0].bytes``` as the end of a line that names the file."""
    return message[:1].lower() + message[1:]
