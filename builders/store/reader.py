"""Read a release directory, and verify each file before it is read."""

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.cache import FileEntry, other_sha256
from builders.core.errors import InputError
from builders.core.locks import plain_folder
from builders.core.paths import expect_inside
from builders.core.read_files import convert_read_errors
from builders.store import layout
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import Manifest, read_manifest
from builders.store.shards import wrong_columns, wrong_file


@dataclass(frozen=True)
class Release:
    """An opened release directory: its path and its manifest."""

    path: Path
    manifest: Manifest

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def shards(self, config: str, split: str) -> list[FileEntry]:
        """Return the manifest entries of a split in order. Raise :class:`InputError` if entries are missing."""
        path_prefix = f"{config}/{split}-"
        entries = [entry for entry in self.manifest.files if entry.path.startswith(path_prefix)]
        if not entries:
            splits = ["/".join(pair) for pair in self.splits()]
            split_list = ", ".join(splits) or "nothing"
            raise InputError(f"has no config {config!r} with a split {split!r}; it has {split_list}", path=self.path)
        # A shard that the manifest omits would be read as a smaller split, without an error.
        for number, entry in enumerate(entries):
            expected = f"{path_prefix}{number:05d}-of-{len(entries):05d}.parquet"
            if entry.path != expected:
                raise InputError(
                    f"lists {len(entries)} shards of {config}/{split}; expected {expected}, found {entry.path}",
                    path=self.path / MANIFEST,
                )
        return entries

    def splits(self) -> list[tuple[str, str]]:
        """Every (config, split) of the release, sorted."""
        splits = set()
        for entry in self.manifest.files:
            if entry.path.endswith(".parquet"):
                splits.add(config_and_split(entry.path))
        return sorted(splits)

    def rows(self, config: str, split: str) -> int:
        """Return the number of rows of a split after its shards are verified. Raises the errors of :meth:`file`."""
        entries = self.shards(config, split)
        for entry in entries:
            self.file(entry)
        return sum(entry.rows or 0 for entry in entries)

    def describe_row(self, config: str, split: str, row: int) -> str:
        """Describe the place of a split's ``row`` for an error: the shard, and the row's number in the shard from 1.

        ``row`` counts from 0 in the whole split. Raises IndexError if the split has fewer rows.
        """
        row_in_shard = row
        for entry in self.shards(config, split):
            shard_rows = entry.rows or 0
            if row_in_shard < shard_rows:
                return f"{self.path / entry.path}, row {row_in_shard + 1}"
            row_in_shard -= shard_rows
        raise IndexError(row_in_shard)

    def fingerprint(self, config: str, split: str) -> str:
        """Return a hash of the shards' SHA-256. The hash changes if, and only if, the split's bytes change."""
        shard_hashes = "".join(entry.sha256 for entry in self.shards(config, split))
        return hashlib.sha256(shard_hashes.encode()).hexdigest()

    def file(self, entry: FileEntry) -> Path:
        """Verify a file and return its path. Raise :class:`InputError` if the file differs from its manifest entry."""
        path = self.path / entry.path
        fault = wrong_file(path, entry)
        if fault:
            if open_release(self.path).manifest != self.manifest:
                # The file may belong to a newer release, which is valid.
                raise InputError(
                    "was replaced by another release during the reading; run the same command again", path=self.path
                )
            raise InputError(f"{fault}; build the release again", path=path)
        return path

    def verified_path(self, file_name: str) -> Path:
        """Verify a file and return its path. Raise :class:`InputError` for an unlisted or changed file."""
        for entry in self.manifest.files:
            if entry.path == file_name:
                return self.file(entry)
        raise InputError(f"lists no {file_name}; build the release again", path=self.path / MANIFEST)

    @contextlib.contextmanager
    def files(self, config: str, split: str) -> Iterator[list[str]]:
        """Yield the paths of a split's shards for DuckDB to read inside the block (:func:`.plain_folder`).

        Raises the errors of :meth:`file`. DuckDB does not verify page checksums, so each shard's SHA-256 is computed
        every time. The shards are verified again at the end of the block, because another release may replace this
        release before DuckDB opens a shard.
        """
        shards = self.shards(config, split)
        for entry in shards:
            fault = other_sha256(self.file(entry), entry.sha256)
            if fault:
                raise InputError(f"{fault}; build the release again", path=self.path / entry.path)
        with plain_folder(self.path) as folder:
            yield [str(folder / entry.path) for entry in shards]
        for entry in shards:
            self.file(entry)

    def batches(
        self, config: str, split: str, columns: list[str] | None = None, rows: int = layout.ROWS_PER_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """Yield a split in order, in batches of at most ``rows`` rows. About one row group is in memory at a time.

        ``columns`` defaults to the columns of the config. Further columns of later versions are ignored. A column may
        be a field inside a list of structs, for example ``positive_passages.list.element.docid``. The batch then has
        the column ``positive_passages`` with only this field.

        Raises the errors of :meth:`file` when a shard is opened, and :class:`InputError` for a damaged shard.
        """
        shards = self.shards(config, split)
        for entry in shards:
            # Verified first: a manifest with an unknown config is an error of the release.
            path = self.file(entry)
            schema = schema_of(config)
            file_columns = columns or schema.names
            batch_columns = _top_level_columns(config, columns)
            with (
                convert_read_errors(path, damaged="is damaged", remedy="build the release again"),
                pa.OSFile(str(path)) as opened_file,
                pq.ParquetFile(opened_file, page_checksum_verification=True) as shard,
            ):
                # Verified again, because another release may have replaced the file before the open.
                self.file(entry)
                # Parquet has no checksum for the footer, which contains the schema and the number of rows.
                fault = wrong_columns(shard.schema_arrow, schema)
                if fault:
                    raise pa.ArrowInvalid(fault)
                row_count = 0
                for batch in shard.iter_batches(batch_size=rows, columns=file_columns):
                    row_count += batch.num_rows
                    yield batch.select(batch_columns)  # the file's columns may have another order
                if row_count != entry.rows:
                    raise pa.ArrowInvalid(f"{row_count:,} rows, but the manifest lists {entry.rows or 0:,}")

    def table(self, config: str, split: str, columns: list[str] | None = None) -> pa.Table:
        """Read a whole split into memory. Use this method for queries and qrels, not for a large corpus."""
        batches = list(self.batches(config, split, columns))
        if batches:
            return pa.Table.from_batches(batches)
        return schema_of(config).empty_table().select(_top_level_columns(config, columns))

    def rows_with(
        self, config: str, split: str, column: str, values: Collection[str], columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows of a split whose ``column`` has one of ``values``, in order.

        ``columns`` must include ``column``. The default is the columns of the config. Memory use and errors are those
        of :meth:`batches`.
        """
        value_set = frozenset(values)  # pyarrow's is_in would hash all values again for every batch
        if not value_set:
            return
        for batch in self.batches(config, split, columns):
            has_value = pa.array([value in value_set for value in batch[column].to_pylist()], pa.bool_())
            rows = batch.filter(has_value)
            if rows.num_rows:
                yield pa.Table.from_batches([rows])

    def texts(self, config: str, split: str, ids: Collection[str] | None = None) -> dict[str, str]:
        """Return the texts of passages or queries by id: all texts, or only those of ``ids`` that the split has."""
        columns = ["_id", "text"]
        if ids is None:
            parts: Iterator[pa.RecordBatch | pa.Table] = self.batches(config, split, columns)
        else:
            parts = self.rows_with(config, split, "_id", ids, columns)
        texts: dict[str, str] = {}
        for part in parts:
            texts.update(zip(part["_id"].to_pylist(), part["text"].to_pylist(), strict=True))
            if ids is not None and len(texts) == len(ids):
                break  # the remaining passages, perhaps millions, need not be read
        return texts

    def missing_ids(self, config: str, split: str, ids: Collection[str]) -> list[str]:
        """Return the ``ids`` that a config of passages or queries lacks, sorted. Only the id column is read."""
        absent_ids = set(ids)
        for table in self.rows_with(config, split, "_id", ids, ["_id"]):
            absent_ids.difference_update(table["_id"].to_pylist())
            if not absent_ids:
                break  # the remaining passages, perhaps millions, need not be read
        return sorted(absent_ids)


def _top_level_columns(config: str, columns: list[str] | None) -> list[str]:
    """Return the top-level columns that contain ``columns``, which may name fields inside lists and structs."""
    field_names = columns or schema_of(config).names
    top_level = [name.partition(".")[0] for name in field_names]
    return list(dict.fromkeys(top_level))  # without repetition, in order


def refuse_outer_links(release: Release) -> None:
    """Raise :class:`InputError` if a file of a release that is copied is a link that leads out of the release."""
    expect_inside(release.path / MANIFEST, release.path)
    for entry in release.manifest.files:
        expect_inside(release.path / entry.path, release.path)


def open_release(path: Path | str | Release) -> Release:
    """Open a release directory. An open release is returned as it is.

    Raises :class:`InputError` if ``path`` is not a release, or if another release has replaced an open release, whose
    texts and indexes may still be in the cache.
    """
    if isinstance(path, Release):
        if open_release(path.path).manifest != path.manifest:
            raise InputError("was replaced by another release since it was opened; open it again", path=path.path)
        return path
    # The manifest is written last, so a folder without a manifest is not a complete release.
    path = Path(path)
    try:
        return Release(path, read_manifest(path / MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"not a release directory (no {MANIFEST}); `python -m builders release --raw PATH --out DIR` makes one",
            path=path,
        ) from None
