"""A release that is being written. The release directory appears only when all of its files are complete.

Every builder that makes or extends a release calls :func:`draft_release`. The builder writes the Parquet files of the
configs and the statistics. The draft adds the card, ``stats.json`` and the manifest.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from builders.core.cache import FileEntry, describe_file
from builders.core.errors import InputError, UsageError, log
from builders.core.folders import check_output, remove_tree, replace_directory, work_beside
from builders.core.read_files import convert_read_errors, sha256_of
from builders.core.write_files import link_or_copy, write_text
from builders.store import layout
from builders.store.card import card_markdown
from builders.store.judgments import overlaps_with_train
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import (
    CARD,
    STATS,
    Build,
    is_published,
    read_manifest,
    read_stats,
    write_manifest,
    write_stats,
)
from builders.store.reader import Release, refuse_outer_links
from builders.store.stored_answers import answer_counts

# Pages of 4 MiB make files of news text 1.7 % smaller than pages of 1 MiB (Parquet's default), in the same time.
# Page checksums (CRC-32) detect bytes that change on the disk after the file's SHA-256 was verified.
_WRITER_OPTIONS = {
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
        self._writer = pq.ParquetWriter(path, schema, **_WRITER_OPTIONS)
        self._waiting_rows = schema.empty_table()  # fewer rows than a row group
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, which must have the columns of the schema."""
        self.rows += table.num_rows
        waiting_rows = pa.concat_tables([self._waiting_rows, table])
        while waiting_rows.num_rows >= layout.ROWS_PER_GROUP:
            self._write_group(waiting_rows.slice(0, layout.ROWS_PER_GROUP))
            waiting_rows = waiting_rows.slice(layout.ROWS_PER_GROUP)
        self._waiting_rows = waiting_rows

    def _write_group(self, table: pa.Table) -> None:
        """Write ``table`` as one row group, or as several if it exceeds ``BYTES_PER_GROUP``."""
        table = table.combine_chunks()
        # A single row may have any size.
        if table.nbytes <= layout.BYTES_PER_GROUP or table.num_rows <= 1:
            # pyarrow refuses a group size of 0, also for an empty table.
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            return
        # A group of long texts is halved until the parts are small enough. The halves are copied by take(), because a
        # slice would keep the buffers of the whole table in memory.
        middle = table.num_rows // 2
        for half in (range(middle), range(middle, table.num_rows)):
            self._write_group(table.take(pa.array(half)))

    def close(self) -> dict[str, Any]:
        """Write the remaining rows. Return ``bytes``, ``rows`` and ``sha256`` of the file for the manifest.

        A file without rows has one empty row group.
        """
        if self._waiting_rows.num_rows or not self.rows:
            self._write_group(self._waiting_rows)
        self._writer.close()
        return {"bytes": self.path.stat().st_size, "rows": self.rows, "sha256": sha256_of(self.path)}


class SplitWriter:
    """Write a split of a config as numbered shards of :func:`.layout.rows_per_shard` rows.

    A shard's name contains the number of shards. That number is known only at :meth:`close`, which renames the shards.
    """

    def __init__(self, release_folder: Path, config: str, split: str, schema: pa.Schema) -> None:
        self._folder = release_folder / config
        self._split = split
        self._schema = schema
        self._folder.mkdir(parents=True, exist_ok=True)
        self._open_shard: ParquetFile | None = None
        # Path, and the result of ParquetFile.close.
        self._complete_shards: list[tuple[Path, dict[str, Any]]] = []

    def adopt(self, shard_path: Path, shard_entry: dict[str, Any]) -> None:
        """Append a complete shard from another folder. :meth:`close` links to the file and does not remove the file.

        ``shard_entry`` is the result of :meth:`ParquetFile.close`.
        """
        self._complete_shards.append((shard_path, shard_entry))

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, which must have the columns of the schema."""
        # Callers may have further columns, another order, or large strings.
        table = table.select(self._schema.names).cast(self._schema)
        self._expect_short_texts(table)
        shard_size = layout.rows_per_shard(self._schema)
        while table.num_rows:
            shard = self._current_shard()
            fitting_rows = table.slice(0, shard_size - shard.rows)
            shard.write(fitting_rows)
            table = table.slice(fitting_rows.num_rows)
            if shard.rows == shard_size:
                self._end_shard()

    def _expect_short_texts(self, table: pa.Table) -> None:
        """Raise :class:`InputError` for a text that readers of the release would refuse."""
        if "text" not in table.schema.names or not table.num_rows:
            return
        texts = table["text"]
        # Lengths in bytes are at hand, and a text has at most as many characters as bytes.
        if pc.max(pc.binary_length(texts)).as_py() <= layout.LONGEST_TEXT:
            return
        for row, text in enumerate(texts.to_pylist()):
            fault = layout.long_text_fault(text)
            if fault:
                row_id = table["_id"][row].as_py()
                raise InputError(f"{self._folder.name}/{self._split}, id {row_id!r}: {fault}")

    def _current_shard(self) -> ParquetFile:
        if self._open_shard is None:
            shard_path = self._folder / f"{self._split}-{len(self._complete_shards):05d}.parquet"
            self._open_shard = ParquetFile(shard_path, self._schema)
        return self._open_shard

    def _end_shard(self) -> None:
        shard = self._current_shard()
        self._open_shard = None
        self._complete_shards.append((shard.path, shard.close()))

    def close(self) -> list[FileEntry]:
        """Write the last shard, rename all shards, and return their manifest entries. An empty split has one shard."""
        if self._open_shard or not self._complete_shards:
            self._end_shard()
        shard_count = len(self._complete_shards)
        entries = []
        # Only now is the number of shards known, which is part of every name.
        for number, (path, entry) in enumerate(self._complete_shards):
            final_path = self._folder / f"{self._split}-{number:05d}-of-{shard_count:05d}.parquet"
            is_adopted = path.parent != self._folder
            if is_adopted:
                link_or_copy(path, final_path)
            else:
                path.rename(final_path)
            entries.append(FileEntry(path=f"{self._folder.name}/{final_path.name}", **entry))
        return entries


class Draft:
    """The content of a release that is being written.

    ``stats`` is written to ``stats.json``. ``build`` (``verb``, ``options`` and ``sources``) is added to the builds of
    the manifest.
    """

    def __init__(self, folder: Path, base_release: Release | None, build: dict[str, Any]) -> None:
        self.folder = folder
        self.build = build
        self.stats: dict[str, Any] = {"table3": {}, "collections": {}}
        self._entries: list[FileEntry] = []
        self._base_builds: list[Build] = []
        self._writers: list[SplitWriter] = []
        if base_release is not None:
            self._copy_base(base_release)

    def _copy_base(self, base_release: Release) -> None:
        """Copy the files, statistics and builds of ``base_release``, after each file is verified. Files are linked."""
        refuse_outer_links(base_release)
        self.stats |= read_stats(base_release.path)
        self._base_builds = list(base_release.manifest.builds)
        for entry in base_release.manifest.files:
            # The base's card and published pages are not copied, because they describe only the base.
            if entry.path == CARD or is_published(entry.path):
                continue
            base_file = base_release.file(entry)
            if entry.path == STATS:  # read above, and written again by finish()
                continue
            draft_file = self.folder / entry.path
            draft_file.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(base_file, draft_file)
            self._entries.append(entry)

    def writer(self, config: str, split: str) -> SplitWriter:
        """Return a writer for a split, which replaces the split of the base. :meth:`finish` closes the writer."""
        # A split of the base would otherwise have old and new shards.
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
        """Remove the finished files of a config, or of only one of its splits, from the draft.

        Files of the base are finished. A file of a :class:`SplitWriter` is finished when the writer is closed.
        """
        path_prefix = f"{config}/" if split is None else f"{config}/{split}-"
        dropped_entries = [entry for entry in self._entries if entry.path.startswith(path_prefix)]
        for entry in dropped_entries:
            (self.folder / entry.path).unlink()
            self._entries.remove(entry)

    def add_file(self, file_name: str) -> None:
        """Add a file of the draft's folder, such as a run, to the manifest."""
        self._entries = [entry for entry in self._entries if entry.path != file_name]
        self._entries.append(describe_file(self.folder, file_name))

    def finish(self) -> None:
        """Close the writers, omit empty splits, and write ``stats.json``, the card and the manifest.

        The label overlap and the counts of the answers are computed again.
        """
        for writer in self._writers:
            self._entries += writer.close()
        empty_shards = [entry for entry in self._entries if entry.rows == 0]
        for entry in empty_shards:
            # `datasets` cannot load a config that has an empty split.
            log.warning("%s has no rows; the split is omitted from the release", entry.path)
            self.drop(*config_and_split(entry.path))
        # The statistics of the base do not describe the new judgments and answers.
        self.stats.pop("label_overlap", None)
        self.stats.pop("answers", None)
        splits = {config_and_split(entry.path) for entry in self._entries if entry.rows}
        overlap_by_split = overlaps_with_train(splits, self._read_split)
        if overlap_by_split:
            self.stats["label_overlap"] = overlap_by_split
        counts_by_split = answer_counts(splits, self._read_split)
        if counts_by_split:
            self.stats["answers"] = counts_by_split
        builds = [*self._base_builds, msgspec.convert(self.build, Build)]
        write_stats(self.folder, self.stats)
        write_text(self.folder / CARD, card_markdown(self._entries, self.stats, builds))
        write_manifest(self.folder, self._entries, builds)

    def _read_split(self, config: str, split: str) -> pa.Table:
        """Return the rows of a split of the draft. The split's writer must be closed."""
        tables = []
        for entry in self._entries:
            if config_and_split(entry.path) == (config, split):
                path = self.folder / entry.path
                # partitioning=None, so that pyarrow takes no columns from folders such as a=b in the path.
                tables.append(pq.read_table(path, columns=schema_of(config).names, partitioning=None))
        return pa.concat_tables(tables)


def check_release_output(out: Path) -> Path:
    """Return the real path of a release to write.

    The errors are those of :func:`.folders.check_output`. An earlier release that is replaced must have no other files,
    which would be deleted.
    """
    real_out = check_output(out, "a release", MANIFEST)
    manifest_path = real_out / MANIFEST
    if not manifest_path.is_file():
        return real_out
    try:
        entries = read_manifest(manifest_path).files
    except InputError:  # a damaged release must be replaceable
        return real_out
    listed_paths = {manifest_path, *(real_out / entry.path for entry in entries)}
    for path in sorted(real_out.rglob("*")):
        name = path.relative_to(real_out)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not is_hidden and path not in listed_paths:
            problem = f"has a file that the release does not list, {name}; move the file, because a new release"
            raise InputError(f"{problem} replaces the directory", path=out)
    return real_out


def expect_apart(release_path: Path, outputs: Mapping[str, Path | None]) -> None:
    """Raise :class:`UsageError` if an output is inside a release, or contains it. The release itself is allowed.

    ``outputs``: paths by option. None and "-" are not written.
    """
    real_release = Path(os.path.realpath(release_path))
    for option, output_path in outputs.items():
        if output_path is None or output_path == Path("-"):
            continue
        real_output = Path(os.path.realpath(output_path))
        if real_output == real_release:
            continue
        if real_output.is_relative_to(real_release):
            raise UsageError(f"{option} {output_path} is inside the release {release_path}; choose another place")
        if real_release.is_relative_to(real_output):
            raise UsageError(f"{option} {output_path} contains the release {release_path}; choose another place")


@contextlib.contextmanager
def draft_release(
    out: Path, build: dict[str, Any] | None = None, base_release: Release | None = None, work: Path | None = None
) -> Iterator[Draft]:
    """Yield a draft that becomes the release ``out`` when the block ends without an error.

    An earlier release at ``out`` is replaced. ``build`` has ``verb``, ``options`` and ``sources`` for the manifest.
    The block may set ``draft.build`` instead. The configs of ``base_release`` are copied into the new release.
    ``work`` is the caller's folder of :func:`builders.core.folders.work_beside`. Without ``work``, this function makes
    such a folder.
    """
    # A wrong output is an error before the block works for hours.
    if base_release is not None:
        expect_apart(base_release.path, {"--out": out})
    out = check_release_output(out)
    open_work = contextlib.nullcontext(work) if work else work_beside(out)
    with open_work as work_folder:
        folder = work_folder / "release"
        remove_tree(folder)
        folder.mkdir()
        draft = Draft(folder, base_release, build or {})
        yield draft
        draft.finish()
        replace_directory(folder, out)


def describe_files(source_files: Iterable[tuple[str, Path]]) -> list[dict[str, Any]]:
    """Describe (name, path) pairs as sources of the manifest: name, bytes, SHA-256. Repeated paths are skipped."""
    sources: dict[Path, dict[str, Any]] = {}
    for name, path in source_files:
        if path not in sources:
            with convert_read_errors(path):
                sources[path] = {"name": name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    return list(sources.values())
