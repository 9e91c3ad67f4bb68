"""A release that is being written. The release directory appears only when all of its files are complete.

Every builder that makes or extends a release calls :func:`draft_release`. The builder writes the Parquet files of the
configs and the statistics. The draft adds the card, ``stats.json`` and the manifest.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core.cache import FileEntry, describe
from builders.core.errors import InputError, log
from builders.core.files import link, reading, sha256_of, write_text
from builders.core.folders import check_output, remove_tree, replace_directory, work_beside
from builders.store import layout
from builders.store.card import card
from builders.store.judgments import overlaps_with_train
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import CARD, STATS, Build, is_published, read_stats, write_manifest, write_stats
from builders.store.reader import Release, refuse_outer_links
from builders.store.stored_answers import answer_counts

# Pages of 4 MiB make files of news text 1.7 % smaller than pages of 1 MiB (Parquet's default), in the same time.
# Page checksums (CRC-32) detect bytes that change on the disk after the file's SHA-256 was verified.
_WRITING = {
    "compression": "zstd",
    "compression_level": 3,
    "use_dictionary": False,
    "data_page_size": 4 << 20,
    "write_page_checksum": True,
}


class ParquetFile:
    """A Parquet file that is being written. Its bytes do not depend on the division of the rows into tables."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self._writer = pq.ParquetWriter(path, schema, **_WRITING)
        self._waiting = schema.empty_table()
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, which must have the columns of the schema."""
        self.rows += table.num_rows
        waiting = pa.concat_tables([self._waiting, table])
        while waiting.num_rows >= layout.ROWS_PER_GROUP:
            self._write_group(waiting.slice(0, layout.ROWS_PER_GROUP))
            waiting = waiting.slice(layout.ROWS_PER_GROUP)
        self._waiting = waiting

    def _write_group(self, table: pa.Table) -> None:
        table = table.combine_chunks()
        if table.nbytes > layout.BYTES_PER_GROUP and table.num_rows > 1:
            # A group of long texts is halved until the parts are small enough. A single row may have any size. The
            # halves are copied, because a slice would keep the buffers of the whole table in memory.
            half = table.num_rows // 2
            for rows in (range(half), range(half, table.num_rows)):
                self._write_group(table.take(pa.array(rows)))
        else:
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> dict[str, Any]:
        """Write the remaining rows. Return bytes, rows and SHA-256 for the manifest."""
        if self._waiting.num_rows or not self.rows:
            self._write_group(self._waiting)
        self._writer.close()
        return {"bytes": self.path.stat().st_size, "rows": self.rows, "sha256": sha256_of(self.path)}


class SplitWriter:
    """Write a split of a config as numbered shards of :func:`.layout.rows_per_shard` rows.

    A shard's name contains the number of shards. That number is known only at :meth:`close`, which renames the shards.
    """

    def __init__(self, release: Path, config: str, split: str, schema: pa.Schema) -> None:
        self._folder, self._split, self._schema = release / config, split, schema
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file: ParquetFile | None = None
        self._done: list[tuple[Path, dict[str, Any]]] = []

    def adopt(self, path: Path, entry: dict[str, Any]) -> None:
        """Append a complete shard from another folder. :meth:`close` links to the file and does not remove the file."""
        self._done.append((path, entry))

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, which must have the columns of the schema."""
        table, room = table.select(self._schema.names).cast(self._schema), layout.rows_per_shard(self._schema)
        self._expect_short_texts(table)
        while table.num_rows:
            file = self._shard()
            part = table.slice(0, room - file.rows)
            file.write(part)
            table = table.slice(part.num_rows)
            if file.rows == room:
                self._end_shard()

    def _expect_short_texts(self, table: pa.Table) -> None:
        """Raise :class:`InputError` for a text that readers of the release would refuse."""
        if "text" not in table.schema.names or not table.num_rows:
            return
        texts = table["text"]
        if pc.max(pc.binary_length(texts)).as_py() <= layout.LONGEST_TEXT:
            return
        for row, text in enumerate(texts.to_pylist()):
            fault = layout.long_text_fault(text)
            if fault:
                row_id = table["_id"][row].as_py()
                raise InputError(f"{self._folder.name}/{self._split}, id {row_id!r}: {fault}")

    def _shard(self) -> ParquetFile:
        if self._file is None:
            path = self._folder / f"{self._split}-{len(self._done):05d}.parquet"
            self._file = ParquetFile(path, self._schema)
        return self._file

    def _end_shard(self) -> None:
        file, self._file = self._shard(), None
        self._done.append((file.path, file.close()))

    def close(self) -> list[FileEntry]:
        """Write the last shard, rename all shards, and return their manifest entries. An empty split has one shard."""
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
    """The content of a release that is being written.

    ``stats`` is written to ``stats.json``. ``build`` is added to the builds of the manifest.
    """

    def __init__(self, folder: Path, base: Release | None, build: dict[str, Any]) -> None:
        self.folder, self.build = folder, build
        self.stats: dict[str, Any] = {"table3": {}, "collections": {}}
        self._entries: list[FileEntry] = []
        self._builds: list[Build] = []
        self._writers: list[SplitWriter] = []
        if base is not None:
            refuse_outer_links(base)
            self.stats |= read_stats(base.path)
            self._builds = list(base.manifest.builds)
            for entry in base.manifest.files:
                # The base's card and published pages are not copied, because they describe only the base.
                if entry.path == CARD or is_published(entry.path):
                    continue
                source, target = base.file(entry), folder / entry.path
                if entry.path != STATS:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    link(source, target)
                    self._entries.append(entry)

    def writer(self, config: str, split: str) -> SplitWriter:
        """Return a writer for a split, which replaces the split of the base. :meth:`finish` closes the writer."""
        self.drop(config, split)
        writer = SplitWriter(self.folder, config, split, schema_of(config))
        self._writers.append(writer)
        return writer

    def write(self, config: str, split: str, tables: Iterable[pa.Table]) -> None:
        """Write a split from tables with the config's columns."""
        writer = self.writer(config, split)
        for table in tables:
            writer.write(table)

    def drop(self, config: str, split: str | None = None) -> None:
        """Remove a config of the base, or only one of its splits, from the draft."""
        start = f"{config}/" if split is None else f"{config}/{split}-"
        for entry in [entry for entry in self._entries if entry.path.startswith(start)]:
            (self.folder / entry.path).unlink()
            self._entries.remove(entry)

    def add_file(self, name: str) -> None:
        """Add a file of the draft's folder, such as a run, to the manifest."""
        self._entries = [*(entry for entry in self._entries if entry.path != name), describe(self.folder, name)]

    def finish(self) -> None:
        """Close the writers. Write ``stats.json``, the card and the manifest."""
        for writer in self._writers:
            self._entries += writer.close()
        for entry in [entry for entry in self._entries if entry.rows == 0]:
            # `datasets` cannot load a config that has an empty split.
            log.warning("%s has no rows; the split is omitted from the release", entry.path)
            self.drop(*config_and_split(entry.path))
        splits = {config_and_split(entry.path) for entry in self._entries if entry.rows}
        self.stats.pop("label_overlap", None)
        if overlap := overlaps_with_train(splits, self._read):
            self.stats["label_overlap"] = overlap
        self.stats.pop("answers", None)
        if answers := answer_counts(splits, self._read):
            self.stats["answers"] = answers
        builds = [*self._builds, msgspec.convert(self.build, Build)]
        write_stats(self.folder, self.stats)
        write_text(self.folder / CARD, card(self._entries, self.stats, builds))
        write_manifest(self.folder, self._entries, builds)

    def _read(self, config: str, split: str) -> pa.Table:
        paths = [self.folder / entry.path for entry in self._entries if config_and_split(entry.path) == (config, split)]
        return pa.concat_tables(
            pq.read_table(path, columns=schema_of(config).names, partitioning=None) for path in paths
        )


def check_release_output(out: Path) -> Path:
    """Return the real path of a release to write. The errors are those of :func:`.folders.check_output`."""
    return check_output(out, "a release", MANIFEST)


@contextlib.contextmanager
def draft_release(
    out: Path, build: dict[str, Any] | None = None, base: Release | None = None, work: Path | None = None
) -> Iterator[Draft]:
    """Yield a draft that becomes the release ``out`` when the block ends without an error.

    An earlier release at ``out`` is replaced. ``build`` has ``verb``, ``options`` and ``sources`` for the manifest.
    The block may set ``draft.build`` instead. The configs of ``base`` are copied into the new release. ``work`` is the
    caller's folder of :func:`builders.core.folders.work_beside`. Without ``work``, this function makes such a folder.
    """
    out = check_release_output(out)
    with contextlib.nullcontext(work) if work else work_beside(out) as beside:
        folder = beside / "release"
        remove_tree(folder)
        folder.mkdir()
        draft = Draft(folder, base, build or {})
        yield draft
        draft.finish()
        replace_directory(folder, out)


def describe_files(files: Iterable[tuple[str, Path]]) -> list[dict[str, Any]]:
    """Describe (name, path) pairs as sources of the manifest: name, bytes, SHA-256. Repeated paths are skipped."""
    described: dict[Path, dict[str, Any]] = {}
    for name, path in files:
        if path not in described:
            with reading(path):
                described[path] = {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return list(described.values())
