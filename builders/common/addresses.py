"""Addresses of object stores, as fsspec knows them (``s3://bucket/name``, ``gs://``, ``memory://``), beside paths.

An address is a ``UPath``, which speaks pathlib's methods: what opens, lists and measures files by these works with
both, and calls both ``Path``. A path of this machine stays a ``pathlib.Path`` and goes nowhere near fsspec. What
differs is here: an object store has no directories, no locks and no renames, but an object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from builders.common.command import InputError
from builders.common.groups import install
from builders.common.temporary import temporary_folder

_AHEAD = 1 << 20  # bytes that are fetched beyond what is asked for
_THREADS = 8


def path_of(text: str) -> Path:
    """A path, or an address as a ``UPath``. :class:`InputError` where the package that it needs is missing."""
    if "://" not in text:
        return Path(text)
    if text.startswith("file://"):
        return Path(text.removeprefix("file://"))
    try:
        from upath import UPath

        address = UPath(text, use_listings_cache=False)  # other machines write there too
        _ = address.fs
    except ImportError as error:
        needed = f"needs the group ray ({install('ray')}) and fsspec's package for it ({error})"
        raise InputError(needed, path=text) from None
    except ValueError as error:
        raise InputError(f"not an address that fsspec knows ({error})", path=text) from None
    return cast(Path, address)


def is_address(path: Path) -> bool:
    return not isinstance(path, Path)


def _store(address: Path) -> tuple[Any, str]:
    """fsspec's file system of an address, and its name there."""
    return address.fs, address.path  # type: ignore[attr-defined]


@contextlib.contextmanager
def reaching(path: Path) -> Iterator[None]:
    """What a store's client raises where it gets no answer, or has no key, as the one error."""
    try:
        yield
    except (InputError, OSError):
        raise
    except Exception as error:
        if not is_address(path):
            raise
        raise InputError(f"cannot be reached ({str(error) or type(error).__name__})", path=path) from error


def open_binary(path: Path) -> IO[bytes]:
    """``path`` opened for reading, as a buffered file in either case."""
    if not is_address(path):
        return open(path, "rb")
    with reaching(path):
        return io.BufferedReader(path.open("rb", block_size=_AHEAD))  # type: ignore[call-overload,no-any-return]


@contextlib.contextmanager
def local_folder(folder: Path) -> Iterator[Path]:
    """``folder`` itself, or for an address a temporary folder of this machine in its place."""
    if not is_address(folder):
        yield folder
    else:
        with temporary_folder() as temporary:
            yield temporary


@contextlib.contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """Where to write the file ``path``: for an address on this machine, from where it is then sent."""
    with local_folder(path.parent) as folder:
        yield folder / path.name
        if is_address(path):
            store, name = _store(path)
            store.put_file(str(folder / path.name), name)


def send_folder(folder: Path, address: Path, last: str) -> None:
    """Send the files of a folder of this machine to a store, ``last`` after all others."""
    store, name = _store(address)
    for file in sorted(folder.iterdir(), key=lambda file: (file.name == last, file.name)):
        store.put_file(str(file), f"{name}/{file.name}")


def link(file: Path, name: Path) -> None:
    """Give ``file``, which is never written to again, another name; where that cannot be, ``name`` becomes a copy."""
    if is_address(file):
        store, path = _store(file)
        store.cp_file(path, _store(name)[1])
        return
    try:
        os.link(os.path.realpath(file), name)  # not the link to it, where it is one (as in the hub's cache)
    except OSError:
        shutil.copyfile(file, name)


def names_in(folder: Path) -> list[Path]:
    """What ``folder`` holds; nothing where it is missing."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(path: Path) -> None:
    """Remove a directory or a file, or all objects below an address, if there are any."""
    if not is_address(path):
        shutil.rmtree(path, ignore_errors=True)
        if path.is_file():
            path.unlink()
        return
    store, name = _store(path)
    with contextlib.suppress(FileNotFoundError):
        store.rm(name, recursive=True)


def replace_objects(new: Path, target: Path, last: str) -> None:
    """Put the objects below ``new`` in the place of those below ``target``, which may be an older release.

    ``last`` names the file without which ``target`` is nothing: it goes first, and comes last.
    """
    store, start = _store(new)
    _, end = _store(target)
    names = [name.removeprefix(start).lstrip("/") for name in store.find(start)]
    if store.exists(f"{end}/{last}"):
        store.rm_file(f"{end}/{last}")
    for old in store.find(end) if store.exists(end) else []:
        if old.removeprefix(end).lstrip("/") not in names:
            store.rm_file(old)

    def copy(name: str) -> None:
        store.cp_file(f"{start}/{name}", f"{end}/{name}")

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(copy, (name for name in names if name != last)))
    copy(last)
