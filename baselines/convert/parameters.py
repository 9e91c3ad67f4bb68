"""Paddle's parameters as its fluid API saved them: a folder with a file a parameter, named as the parameter.

A file, little endian: uint32 version (0); uint64 number of LoD levels, each a uint64 of bytes and so many bytes; uint32
version (0); int32 size of a protobuf TensorDesc (field 1: data type, field 2: the dimensions); the numbers.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from builders.core.errors import InputError

Floats = npt.NDArray[np.float32]
_NUMBERS: dict[int, np.dtype[Any]] = {4: np.dtype("<f2"), 5: np.dtype("<f4")}
_TYPES = {0: "BOOL", 1: "INT16", 2: "INT32", 3: "INT64", 4: "FP16", 5: "FP32", 6: "FP64", 20: "UINT8", 22: "BF16"}


@dataclass(frozen=True)
class Parameter:
    """``values`` in 32 bits, of the file's shape; ``sha256``: of the file."""

    values: Floats
    sha256: str


def parameter_files(folder: Path) -> dict[str, Path]:
    """The files of a folder of parameters, by the parameters' names. Hidden files are none.

    Raises:
        InputError: it is no folder, or holds none, or other folders.
    """
    if not folder.is_dir():
        if folder.exists():
            raise InputError("expected a folder with a file a parameter; unpack an archive first (tar xf)", path=folder)
        raise InputError("no such folder", path=folder)
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if folders := [path.name for path in found if path.is_dir()]:
        raise InputError(f"expected files alone, a parameter each; is it the folder {folders[0]} in it?", path=folder)
    if not found:
        raise InputError("holds no file; expected a file a parameter", path=folder)
    return {path.name: path for path in found}


def read_parameter(path: Path) -> Parameter:
    """Read one parameter, of 16-bit or 32-bit floats.

    Raises:
        InputError: the file is no parameter, is cut short or too long, or holds other numbers or ones that are not
            finite.
    """
    content = path.read_bytes()
    reader = _Reader(path, content)
    if reader.number("<I") != 0:
        raise reader.other()
    for _ in range(levels := reader.number("<Q")):
        if levels > len(content):
            raise reader.other()
        reader.take(reader.number("<Q"))
    if reader.number("<I") != 0:
        raise reader.other()
    kind, shape = _tensor(reader, reader.take(reader.number("<i")))
    if kind not in _NUMBERS:
        raise InputError(f"holds {_TYPES.get(kind, f'type {kind}')}; expected FP32 or FP16", path=path)
    size = math.prod(shape) * _NUMBERS[kind].itemsize
    if (left := len(content) - reader.at) != size:
        what = f"expected {size:,} bytes of numbers for the shape {list(shape)}, found {left:,}"
        raise InputError(f"cut short or damaged ({what})", path=path)
    values = np.frombuffer(reader.take(size), _NUMBERS[kind]).reshape(shape).astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError("damaged: holds numbers that are not finite", path=path)
    return Parameter(values, hashlib.sha256(content).hexdigest())


class _Reader:
    """Bytes of a file, taken from its beginning."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content, self.at = path, content, 0

    def take(self, size: int) -> bytes:
        if size < 0:
            raise self.other()
        if self.at + size > len(self.content):
            raise InputError(f"cut short or no parameter of Paddle's ({len(self.content):,} bytes)", path=self.path)
        self.at += size
        return self.content[self.at - size : self.at]

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(found)

    def other(self) -> InputError:
        return InputError("no parameter of Paddle's fluid format (one file a parameter)", path=self.path)


def _tensor(reader: _Reader, message: bytes) -> tuple[int, tuple[int, ...]]:
    """(data type, dimensions) of a TensorDesc in protobuf."""
    inner, kind, shape = _Reader(reader.path, message), -1, list[int]()
    while inner.at < len(message):
        tag = _varint(inner)
        if tag == 0x08:
            kind = _varint(inner)
        elif tag == 0x10:
            shape.append(_varint(inner))
        elif tag == 0x12:  # the dimensions packed into one field
            end = _varint(inner) + inner.at
            while inner.at < end:
                shape.append(_varint(inner))
        else:
            raise reader.other()
    if kind < 0 or not shape:
        raise reader.other()
    return kind, tuple(shape)


def _varint(reader: _Reader) -> int:
    value = 0
    for place in range(10):
        (byte,) = reader.take(1)
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value
    raise reader.other()
