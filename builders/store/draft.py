"""A release being written: beside its place, whole or not at all.

Every builder that makes or extends a release goes through :func:`draft_release`; it writes the configs' Parquet files
and the figures, and the draft adds card, ``stats.json`` and manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.errors import InputError, log
from builders.core.files import link, sha256_of, write_text
from builders.core.folders import check_output, remove_tree, replace_directory, work_beside
from builders.store.card import card
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import (
    CARD,
    STATS,
    Build,
    FileEntry,
    describe,
    is_published,
    read_stats,
    write_manifest,
    write_stats,
)
from builders.store.overlap import overlaps_with_train
from builders.store.reader import Release
from builders.store.writer import SplitWriter


class Draft:
    """The content of a release on its way.

    Attributes:
        stats: what becomes ``stats.json``: ``table3`` (a row of figures a split or set) and ``collections`` (passages
            and their lengths, a corpus config).
        build: what the manifest says of this build.
    """

    def __init__(self, folder: Path, base: Release | None = None) -> None:
        self.folder = folder
        self.build: dict[str, Any] = {}
        self.stats: dict[str, Any] = {"table3": {}, "collections": {}}
        self._entries: list[FileEntry] = []
        self._builds: list[Build] = []
        self._writers: list[SplitWriter] = []
        if base is not None:
            self.stats |= read_stats(base.path)
            self._builds = list(base.manifest.builds)
            for entry in base.manifest.files:
                # They say what the base is, and people may have changed them.
                if entry.path == CARD or is_published(entry.path):
                    continue
                source, target = base.file(entry), folder / entry.path
                if entry.path != STATS:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link(source, target)
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
        for entry in [entry for entry in self._entries if entry.path.startswith(start)]:
            (self.folder / entry.path).unlink()
            self._entries.remove(entry)

    def add_file(self, name: str) -> None:
        """List a file that was written into the draft by other means (a run) in the manifest."""
        self._entries = [entry for entry in self._entries if entry.path != name]
        self._entries.append(describe(self.folder, name))

    def finish(self) -> None:
        """Close the writers; write ``stats.json``, card and manifest."""
        for writer in self._writers:
            self._entries += writer.close()
        for entry in [entry for entry in self._entries if entry.rows == 0]:
            # A split of no rows fails its whole config in `datasets`: it is left out.
            log.warning("%s has no rows and is left out", entry.path)
            self.drop(*config_and_split(entry.path))
        splits = {config_and_split(entry.path) for entry in self._entries if entry.rows}
        self.stats.pop("label_overlap", None)
        if overlap := overlaps_with_train(splits, self._read):
            self.stats["label_overlap"] = overlap
        builds = [*self._builds, msgspec.convert(self.build, Build)]
        write_stats(self.folder, self.stats)
        write_text(self.folder / CARD, card(self._entries, self.stats, builds))
        write_manifest(self.folder, self._entries, builds)

    def _read(self, config: str, split: str) -> pa.Table:
        paths = [self.folder / entry.path for entry in self._entries if config_and_split(entry.path) == (config, split)]
        tables = []
        for path in paths:
            with path.open("rb") as opened:
                tables.append(pq.read_table(opened, columns=schema_of(config).names, page_checksum_verification=True))
        return pa.concat_tables(tables)


def check_release_output(out: Path) -> Path:
    """The absolute path of a release to write; :class:`InputError` where something else is in its place."""
    return check_output(out, "a release", MANIFEST)


@contextlib.contextmanager
def draft_release(
    out: Path, build: dict[str, Any] | None = None, base: Release | None = None, work: Path | None = None
) -> Iterator[Draft]:
    """A draft that becomes the release ``out`` when the block ends without an error, and leaves nothing when not.

    Args:
        out: the release directory; an earlier release there (``base`` itself, too) is replaced.
        build: what the manifest says of this build: ``verb``, ``options``, ``sources`` (name, bytes, sha256). Where it
            is known late, the block sets ``draft.build``.
        base: a release whose configs the new one holds too.
        work: the folder that :func:`builders.core.folders.work_beside` gave, where the caller has one already.
    """
    out = check_release_output(out)
    with contextlib.nullcontext(work) if work else work_beside(out) as beside:
        folder = beside / "release"
        remove_tree(folder)
        folder.mkdir()
        draft = Draft(folder, base)
        draft.build = build or {}
        yield draft
        draft.finish()
        replace_directory(folder, out)


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
