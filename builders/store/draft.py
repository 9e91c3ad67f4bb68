"""A release being written: beside its place, whole or not at all.

Every builder that makes or extends a release goes through :func:`draft_release`; it writes the configs' Parquet files
and the figures, and the draft adds card, ``stats.json`` and manifest.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.common.addresses import is_address, link, names_in, reaching
from builders.common.command import InputError, log
from builders.common.files import replace_directory, sha256_of, write_text
from builders.store.card import card
from builders.store.layout import MANIFEST, schema_of
from builders.store.reader import Release
from builders.store.writer import SplitWriter, write_manifest


class Draft:
    """The content of a release on its way.

    Attributes:
        stats: what becomes ``stats.json``: ``table3`` (a row of figures a split or set) and ``collections`` (passages
            and their lengths, a corpus config).
    """

    def __init__(self, folder: Path, base: Release | None = None) -> None:
        self.folder = folder
        self.stats: dict[str, Any] = {"table3": {}, "collections": {}}
        self._entries: list[dict[str, Any]] = []
        self._builds: list[dict[str, Any]] = []
        self._writers: list[SplitWriter] = []
        if base is not None:
            self.stats |= json.loads((base.path / "stats.json").read_text(encoding="utf-8"))
            self._builds = list(base.manifest["builds"])
            for entry in base.manifest["files"]:
                if entry["path"] not in ("README.md", "stats.json"):
                    target = folder / entry["path"]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link(base.path / entry["path"], target)
                    self._entries.append(entry)

    def writer(self, config: str, split: str) -> SplitWriter:
        """A writer for one split of one config, in the place of the base's; closed with the draft."""
        self.drop(config, split)
        writer = SplitWriter(self.folder, config, split, schema_of(config))
        self._writers.append(writer)
        return writer

    def write(self, config: str, split: str, tables: Iterable[pa.Table]) -> int:
        """Write one split from tables of the config's columns; returns its rows."""
        writer = self.writer(config, split)
        for table in tables:
            writer.write(table)
        return writer.rows

    def drop(self, config: str, split: str | None = None) -> None:
        """Leave out a config, or one split of it, of the base."""
        start = f"{config}/" if split is None else f"{config}/{split}-"
        for entry in [entry for entry in self._entries if entry["path"].startswith(start)]:
            (self.folder / entry["path"]).unlink()
            self._entries.remove(entry)

    def add_file(self, name: str) -> None:
        """List a file that was written into the draft by other means (a run) in the manifest."""
        path = self.folder / name
        self._entries = [entry for entry in self._entries if entry["path"] != name]
        self._entries.append({"path": name, "bytes": path.stat().st_size, "rows": None, "sha256": sha256_of(path)})

    def finish(self, build: dict[str, Any]) -> None:
        """Close the writers; write ``stats.json``, card and manifest. ``build``: verb, options, sources."""
        for writer in self._writers:
            self._entries += writer.close()
        for entry in [entry for entry in self._entries if entry["rows"] == 0]:
            # A split of no rows fails its whole config in `datasets`: it is left out.
            log.warning("%s has no rows and is left out", entry["path"])
            self.drop(*entry["path"].rsplit("-", 3)[0].split("/"))
        builds = [*self._builds, build]
        write_text(self.folder / "stats.json", json.dumps(self.stats, ensure_ascii=False, indent=1) + "\n")
        write_text(self.folder / "README.md", card(self._entries, self.stats, builds))
        write_manifest(self.folder, self._entries, builds)


def check_target(out: Path) -> Path:
    """The absolute path of a release to write; :class:`InputError` where something else is in its place."""
    if not is_address(out):
        out = Path(os.path.abspath(out))
    elif not out.name or out == out.parent:
        raise InputError("expected a name within the store: the build works beside it", path=out)
    with reaching(out):
        if out.exists() and not (out / MANIFEST).is_file() and not (out.is_dir() and not names_in(out)):
            raise InputError("exists and is not a release; expected a new path or an earlier release", path=out)
    return out


@contextlib.contextmanager
def building_beside(out: Path) -> Iterator[Path]:
    """A work folder beside ``out``, for one process at a time. Kept as it is when the block ends.

    An object store has no locks: there, that no other build writes to ``out`` is the user's to see to.
    """
    building = out.with_name(f".{out.name}.building")
    if is_address(out):
        yield building
        return
    building.mkdir(parents=True, exist_ok=True)
    handle = os.open(building, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError("is being built by another process", path=out) from None
        yield building
    finally:
        os.close(handle)


@contextlib.contextmanager
def draft_release(out: Path, build: dict[str, Any], base: Release | None = None) -> Iterator[Draft]:
    """A draft that becomes the release ``out`` when the block ends without an error, and leaves nothing when not.

    Args:
        out: the release directory; an earlier release there (``base`` itself, too) is replaced.
        build: what the manifest says of this build: ``verb``, ``options``, ``sources`` (name, bytes, sha256).
        base: a release whose configs the new one holds too.
    """
    out = check_target(out)
    with building_beside(out) as building:
        try:
            for leftover in building.iterdir():
                shutil.rmtree(leftover)
            folder = building / "release"
            folder.mkdir()
            draft = Draft(folder, base)
            yield draft
            draft.finish(build)
            replace_directory(folder, out)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def describe_files(files: Iterable[tuple[str, Path]]) -> list[dict[str, Any]]:
    """(name, path) pairs as the manifest lists sources: name, bytes, SHA-256; each path once."""
    described: dict[Path, dict[str, Any]] = {}
    for name, path in files:
        if path not in described:
            try:
                described[path] = {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
            except OSError as error:
                raise InputError(f"cannot be read ({error.strerror})", path=path) from error
    return list(described.values())
