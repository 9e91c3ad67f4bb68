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

from builders.core.cache import FileEntry, describe
from builders.core.errors import log
from builders.core.files import link, reading, sha256_of, write_text
from builders.core.folders import check_output, remove_tree, replace_directory, work_beside
from builders.store import layout
from builders.store.card import card
from builders.store.judgments import overlaps_with_train
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import CARD, STATS, Build, is_published, read_stats, write_manifest, write_stats
from builders.store.reader import Release

# Pages of 4 MiB: on news, files get 1.7 % smaller than with Parquet's usual 1 MiB, in the same time.
# Page checksums (CRC-32): readers notice bytes that rot on the disk after the file's SHA-256 was verified.
_WRITING = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "data_page_size": 4 << 20,
    "write_page_checksum": True,
}


class ParquetFile:
    """A Parquet file being written. Row groups are cut by the rows alone, never by how the tables arrive."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._writer = pq.ParquetWriter(path, schema, **_WRITING)
        self._waiting = schema.empty_table()
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, whose columns are those of the schema."""
        self.rows += table.num_rows
        waiting = pa.concat_tables([self._waiting, table])
        while waiting.num_rows >= layout.ROWS_PER_GROUP:
            self._write_group(waiting.slice(0, layout.ROWS_PER_GROUP))
            waiting = waiting.slice(layout.ROWS_PER_GROUP)
        self._waiting = waiting

    def _write_group(self, table: pa.Table) -> None:
        table = table.combine_chunks()
        if table.nbytes > layout.BYTES_PER_GROUP and table.num_rows > 1:
            # A group of long texts is halved until it is small enough; one row alone may be any size. The halves are
            # copies: a slice would keep the whole buffers.
            half = table.num_rows // 2
            for rows in (range(half), range(half, table.num_rows)):
                self._write_group(table.take(pa.array(rows)))
        else:
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> dict[str, Any]:
        """Write what is left; returns bytes, rows and SHA-256 as the manifest lists them."""
        if self._waiting.num_rows or not self.rows:
            self._write_group(self._waiting)
        self._writer.close()
        return {"bytes": self.path.stat().st_size, "rows": self.rows, "sha256": sha256_of(self.path)}


class SplitWriter:
    """One split of one config, written as numbered shards of :func:`.layout.rows_per_shard` rows.

    The number of shards stands in their names, so it is known at :meth:`close` only.
    """

    def __init__(self, release: Path, config: str, split: str, schema: pa.Schema) -> None:
        self._folder, self._split, self._schema = release / config, split, schema
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file: ParquetFile | None = None
        self._done: list[tuple[Path, dict[str, Any]]] = []
        self.rows = 0

    def adopt(self, path: Path, entry: dict[str, Any]) -> None:
        """Take a shard that was written elsewhere, where it stays; in the order of the rows."""
        self._done.append((path, entry))
        self.rows += entry["rows"]

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, whose columns are those of the schema."""
        table, room = table.select(self._schema.names).cast(self._schema), layout.rows_per_shard(self._schema)
        self.rows += table.num_rows
        while table.num_rows:
            file = self._shard()
            part = table.slice(0, room - file.rows)
            file.write(part)
            table = table.slice(part.num_rows)
            if file.rows == room:
                self._end_shard()

    def _shard(self) -> ParquetFile:
        """The shard being written, under a name of its own until its final name is known."""
        if self._file is None:
            path = self._folder / f"{self._split}-{len(self._done):05d}.parquet"
            self._file = ParquetFile(path, self._schema)
        return self._file

    def _end_shard(self) -> None:
        file, self._file = self._shard(), None
        self._done.append((file.path, file.close()))

    def close(self) -> list[FileEntry]:
        """Write what is left and name the shards; returns their manifest entries. A split of no rows has one shard."""
        if self._file or not self._done:
            self._end_shard()
        entries = []
        for number, (path, entry) in enumerate(self._done):
            final = self._folder / f"{self._split}-{number:05d}-of-{len(self._done):05d}.parquet"
            if path.parent == self._folder:
                path.rename(final)
            else:
                link(path, final)
            entries.append(FileEntry(path=f"{self._folder.name}/{final.name}", **entry))
        return entries


class Draft:
    """The content of a release on its way: ``stats`` becomes ``stats.json``, ``build`` goes into the manifest."""

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
        names = schema_of(config).names
        return pa.concat_tables(pq.read_table(path, columns=names, partitioning=None) for path in paths)


def check_release_output(out: Path) -> Path:
    """The absolute path of a release to write; :class:`InputError` where something else is in its place."""
    return check_output(out, "a release", MANIFEST)


@contextlib.contextmanager
def draft_release(
    out: Path, build: dict[str, Any] | None = None, base: Release | None = None, work: Path | None = None
) -> Iterator[Draft]:
    """A draft that becomes the release ``out`` when the block ends without an error, and leaves nothing when not.

    An earlier release there is replaced. ``build``: what the manifest says of this build (``verb``, ``options``,
    ``sources``); the block may set ``draft.build`` later. ``base``: a release whose configs the new one holds too.
    ``work``: a folder of :func:`builders.core.folders.work_beside`, where the caller has one already.
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
            with reading(path):
                described[path] = {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return list(described.values())
