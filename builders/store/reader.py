"""Reads a release directory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.cache import other_sha256
from builders.core.errors import InputError
from builders.store import layout
from builders.store.layout import MANIFEST, config_and_split, schema_of
from builders.store.manifest import FileEntry, Manifest, read_manifest
from builders.store.shards import wrong_columns, wrong_file


@dataclass(frozen=True)
class Release:
    """A release directory, opened: its path and its manifest."""

    path: Path
    manifest: Manifest

    def shards(self, config: str, split: str) -> list[FileEntry]:
        """The manifest entries of one split, in order; an :class:`InputError` where the release has none."""
        start = f"{config}/{split}-"
        found = [entry for entry in self.manifest.files if entry.path.startswith(start)]
        if not found:
            have = ", ".join(f"{c}/{s}" for c, s in self.splits()) or "nothing"
            raise InputError(f"has no config {config!r} with a split {split!r}; it has {have}", path=self.path)
        for number, entry in enumerate(found):
            if entry.path != (expected := f"{start}{number:05d}-of-{len(found):05d}.parquet"):
                raise InputError(
                    f"lists {len(found)} shards of {config}/{split}; expected {expected} where it says {entry.path}",
                    path=self.path / MANIFEST,
                )
        return found

    def splits(self) -> list[tuple[str, str]]:
        """Every (config, split) of the release, sorted."""
        shards = (entry for entry in self.manifest.files if entry.path.endswith(".parquet"))
        return sorted({config_and_split(entry.path) for entry in shards})

    def rows(self, config: str, split: str) -> int:
        """How many a split has. Errors as of :meth:`file`: no number is believed that the shards do not bear out."""
        found = self.shards(config, split)
        for entry in found:
            self.file(entry)
        return sum(entry.rows or 0 for entry in found)

    def place(self, config: str, split: str, row: int) -> str:
        """The shard of a row of a split, and its row there from 1, for an error about it."""
        for entry in self.shards(config, split):
            if row < (entry.rows or 0):
                return f"{self.path / entry.path}, row {row + 1}"
            row -= entry.rows or 0
        raise IndexError(row)

    def fingerprint(self, config: str, split: str) -> str:
        """Changes when, and only when, the split's bytes change: the shards' SHA-256, hashed."""
        return hashlib.sha256("".join(entry.sha256 for entry in self.shards(config, split)).encode()).hexdigest()

    def file(self, entry: FileEntry) -> Path:
        """The path of a file, once it is known to be what its entry says: :class:`InputError` where it is not."""
        path = self.path / entry.path
        if fault := wrong_file(path, entry):
            if open_release(self.path).manifest != self.manifest:
                raise InputError(
                    "another release took its place while it was read; run the same command again", path=self.path
                )
            raise InputError(f"{fault}; build the release again", path=path)
        return path

    def named(self, name: str) -> Path:
        """The path of the file of that name; errors as of :meth:`file`, and where the manifest lists none."""
        for entry in self.manifest.files:
            if entry.path == name:
                return self.file(entry)
        raise InputError(f"lists no {name}; build the release again", path=self.path / MANIFEST)

    @contextlib.contextmanager
    def files(self, config: str, split: str) -> Iterator[list[str]]:
        """The paths of a split's shards, for DuckDB to read inside the block; errors as of :meth:`file`.

        Also at its end: DuckDB opens them when it likes, and another release may have taken this one's place.
        DuckDB verifies no page checksums, so each shard's SHA-256 is computed every time.
        """
        shards = self.shards(config, split)
        paths = [self.file(entry) for entry in shards]
        for path, entry in zip(paths, shards, strict=True):
            if fault := other_sha256(path, entry.sha256):
                raise InputError(f"{fault}; build the release again", path=path)
        yield [str(path) for path in paths]
        for entry in shards:
            self.file(entry)

    def batches(
        self, config: str, split: str, columns: list[str] | None = None, rows: int = layout.ROWS_PER_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one split in order, ``rows`` at a time; memory stays at about one row group.

        ``columns``: the config's where None; what a later version has more is passed over. Errors as of :meth:`file`,
        when a shard's turn comes.
        """
        for entry in self.shards(config, split):
            path = self.file(entry)
            wanted, names = columns or schema_of(config).names, _top(config, columns)
            try:
                with pa.OSFile(str(path)) as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
                    self.file(entry)  # by now it is open: it stays this one, even if another release takes its place
                    # Parquet has no checksum of the footer, which holds the schema and the number of rows.
                    fault, held = wrong_columns(file.schema_arrow, schema_of(config)), 0
                    for batch in () if fault else file.iter_batches(batch_size=rows, columns=wanted):
                        held += batch.num_rows
                        yield batch.select(names)  # in one order, whatever the file's is
                    if fault or held != entry.rows:
                        raise pa.ArrowInvalid(fault or f"{held:,} rows where the manifest says {entry.rows or 0:,}")
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise InputError(f"is damaged ({error}); build the release again", path=path) from error

    def table(self, config: str, split: str, columns: list[str] | None = None) -> pa.Table:
        """One split as a whole: for queries and qrels, not for a corpus of millions. Empty, it has its columns, too."""
        found = list(self.batches(config, split, columns))
        return pa.Table.from_batches(found) if found else schema_of(config).empty_table().select(_top(config, columns))

    def rows_with(
        self, config: str, split: str, column: str, values: Collection[str], columns: list[str] | None = None
    ) -> Iterator[pa.Table]:
        """The rows of one split whose ``column`` is one of ``values``, in order.

        ``columns``: with ``column`` among them; the config's where None. Memory and errors as of :meth:`batches`.
        """
        wanted = frozenset(values)  # pyarrow's is_in would hash all of them anew for every batch
        for batch in self.batches(config, split, columns) if wanted else ():
            mask = pa.array([each in wanted for each in batch[column].to_pylist()], pa.bool_())
            if (found := batch.filter(mask)).num_rows:
                yield pa.Table.from_batches([found])

    def texts(self, config: str, split: str, ids: Collection[str] | None = None) -> dict[str, str]:
        """The texts of a config of passages or queries by id; of ``ids`` alone, as far as it has them, if given."""
        names, found = ["_id", "text"], dict[str, str]()
        rows = self.batches(config, split, names) if ids is None else self.rows_with(config, split, "_id", ids, names)
        for part in rows:
            found.update(zip(*(part[name].to_pylist() for name in names), strict=True))
            if ids is not None and len(found) == len(ids):
                break  # of millions of passages the rest need not be read
        return found

    def missing(self, config: str, split: str, ids: Collection[str]) -> list[str]:
        """Those of ``ids`` that a config of passages or queries lacks, sorted. Read are its ids alone."""
        rows = self.rows_with(config, split, "_id", ids, ["_id"])
        return sorted({*ids}.difference(*(table["_id"].to_pylist() for table in rows)))


def _top(config: str, columns: list[str] | None) -> list[str]:
    """The columns of the table that ``columns``, or the fields inside them, are read into."""
    return list(dict.fromkeys(name.partition(".")[0] for name in columns or schema_of(config).names))


def open_release(path: Path | str) -> Release:
    """Open a release directory; an :class:`InputError` where ``path`` holds none."""
    path = Path(path)
    try:
        return Release(path, read_manifest(path / MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"not a release directory (no {MANIFEST}); `python -m builders release --raw PATH --out DIR` makes one",
            path=path,
        ) from None
