"""Addresses of object stores, as fsspec knows them (``s3://bucket/name``, ``gs://``, ``memory://``), beside paths.

An address is a ``UPath``, which speaks pathlib's methods: what opens, lists and measures a file by these works with both.
A path of this machine stays a ``pathlib.Path`` and goes nowhere near fsspec. What differs is here: an object store has no
directories, no locks and no renames, but an object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from builders.command import InputError

INSTALL = "pip install -e '.[ray]'"


def place(text: str) -> Path:
    """A path, or an address as a ``UPath``; an argument's type. :class:`InputError` where its package is missing."""
    if "://" not in text:
        return Path(text)
    protocol = text.split("://")[0]
    if protocol == "file":
        return Path(text.removeprefix("file://"))
    with reaching(text):
        try:
            from upath import UPath

            address = UPath(text)
            _ = address.fs
        except ImportError as error:
            raise InputError(f"an address needs `{INSTALL}` and fsspec's package for it ({error})", path=text) from None
        except ValueError as error:
            raise InputError(f"not an address that fsspec knows ({error})", path=text) from None
    return cast(Path, address)


def is_address(path: Path) -> bool:
    return not isinstance(path, Path)


@contextlib.contextmanager
def reaching(path: Path | str) -> Iterator[None]:
    """What a store's client raises where it gets no answer, has no key or no right, as the one error."""
    try:
        yield
    except (InputError, FileNotFoundError):
        raise
    except Exception as error:
        if isinstance(path, Path):
            raise
        raise InputError(f"cannot be reached ({error or type(error).__name__})", path=path) from error


def open_binary(path: Path) -> IO[bytes]:
    """``path`` opened for reading, as a buffered file in either case."""
    if isinstance(path, Path):
        return open(path, "rb")
    return io.BufferedReader(path.open("rb"))


def remove_tree(path: Path) -> None:
    """Remove a directory or what lies under an address, if it is there."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        path.fs.rm(path.path, recursive=True)


def files_under(path: Path) -> list[Path]:
    """Every file below ``path``, sorted."""
    return sorted((file for file in path.rglob("*") if file.is_file()), key=str)
