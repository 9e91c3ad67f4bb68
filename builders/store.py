"""The release directory: one folder of Parquet shards per config, a manifest, a card.

Layout: ``CONFIG/SPLIT-NNNNN-of-NNNNN.parquet``, ``README.md``, ``stats.json``, ``manifest.json``. The manifest lists
every file with its size, rows and SHA-256 and the builds it came from; it holds no times and no machine's paths, so the
same input and options give the same bytes. It is written last.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from builders.addresses import link, local_file
from builders.command import InputError
from builders.files import sha256_of, write_text

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval"  # whose manifest it is

CORPUS = pa.schema([("_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string())])
QRELS = pa.schema([("query-id", pa.string()), ("corpus-id", pa.string()), ("score", pa.int64())])
PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]))
JOINED = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("positive_passages", PASSAGES),
        ("negative_passages", PASSAGES),
    ]
)

CROSSLINGUAL_QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string()), ("zh_id", pa.string())])
CROSSLINGUAL = JOINED.append(pa.field("query_zh", pa.string()))

# By config, or by the config's last word: cmedqa-corpus has the columns of corpus.
_SCHEMAS = {
    "corpus": CORPUS,
    "queries": QUERIES,
    "qrels": QRELS,
    "train": JOINED,
    "dev": JOINED,
    "test": JOINED,
    "crosslingual-queries": CROSSLINGUAL_QUERIES,
    "crosslingual": CROSSLINGUAL,
}


def schema_of(config: str) -> pa.Schema:
    """The columns of a config; ValueError for a name that is none."""
    if config.startswith(("restrain-", "resttest-")):
        return QRELS
    schema = _SCHEMAS.get(config) or _SCHEMAS.get(config.rsplit("-", 1)[-1])
    if schema is None:
        raise ValueError(f"{config!r} is no config of a release")
    return schema


ROWS_PER_GROUP = 16_384
ROWS_PER_SHARD = 8 * ROWS_PER_GROUP  # about 60 MB of passages: files are written, and read, in parallel
_PASSAGES_PER_ROW = 8  # of a split with its passages, for the size of its files: a guess
BYTES_PER_GROUP = 64 << 20  # the design's bound: a reader never holds more than this of one column chunk set
# Pages of 4 MiB: on news, files get 1.7 % smaller than with Parquet's usual 1 MiB, in the same time.
_WRITING = {"compression": "zstd", "compression_level": 3, "use_dictionary": False, "data_page_size": 4 << 20}


def rows_per_shard(schema: pa.Schema) -> int:
    """Rows of each file of a split but its last."""
    return max(1, ROWS_PER_SHARD // _PASSAGES_PER_ROW) if PASSAGES in schema.types else ROWS_PER_SHARD


class ParquetFile:
    """Writes one Parquet file. Row groups are cut by the rows alone, never by how the tables arrive."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._opened = contextlib.ExitStack()
        self._file = self._opened.enter_context(local_file(path))
        self._writer = pq.ParquetWriter(self._file, schema, **_WRITING)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        """Append the rows of ``table``, whose columns are those of the schema."""
        self.rows += table.num_rows
        self._waiting += table.to_batches()
        self._waiting_rows += table.num_rows
        while self._waiting_rows >= ROWS_PER_GROUP:
            waiting = pa.Table.from_batches(self._waiting, self._schema)
            self._write_group(waiting.slice(0, ROWS_PER_GROUP))
            rest = waiting.slice(ROWS_PER_GROUP)
            self._waiting, self._waiting_rows = rest.to_batches(), rest.num_rows

    def _write_group(self, table: pa.Table) -> None:
        # A group of long texts is halved until it is small enough; one row alone may be any size.
        parts = [table.combine_chunks()]
        while parts:
            part = parts.pop(0)
            if part.nbytes > BYTES_PER_GROUP and part.num_rows > 1:
                half = part.num_rows // 2
                # slice() alone keeps the whole buffers; combine_chunks on a taken copy frees them.
                parts[:0] = [part.take(pa.array(range(half))), part.take(pa.array(range(half, part.num_rows)))]
            else:
                self._writer.write_table(part, row_group_size=max(1, part.num_rows))

    def close(self) -> dict[str, Any]:
        """Write what is left; returns bytes, rows and SHA-256 as the manifest lists them."""
        if self._waiting_rows or not self.rows:
            self._write_group(pa.Table.from_batches(self._waiting, self._schema))
        self._writer.close()
        with self._opened:
            return {"bytes": self._file.stat().st_size, "rows": self.rows, "sha256": sha256_of(self._file)}


class SplitWriter:
    """Writes one split of one config as numbered shards of :func:`rows_per_shard` rows.

    The number of shards stands in their names, so it is known at :meth:`close` only.
    """

    def __init__(self, release: Path, config: str, split: str, schema: pa.Schema) -> None:
        self.config = config
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
        table = table.select(self._schema.names).cast(self._schema)
        start, room = 0, rows_per_shard(self._schema)
        while start < table.num_rows:
            if self._file is None:
                self._file = ParquetFile(self._next_path(), self._schema)
            taken = min(room - self._file.rows, table.num_rows - start)
            self._file.write(table.slice(start, taken))
            start += taken
            if self._file.rows == room:
                self._end_shard()
        self.rows += table.num_rows

    def _next_path(self) -> Path:
        """Where the next shard is written until its final name is known."""
        return self._folder / f"{self._split}-{len(self._done):05d}.parquet"

    def _end_shard(self) -> None:
        if self._file is not None:
            self._done.append((self._file.path, self._file.close()))
            self._file = None

    def close(self) -> list[dict[str, Any]]:
        """Write what is left and name the shards; returns their manifest entries. A split of no rows has one shard."""
        if not self._done and self._file is None:
            self._file = ParquetFile(self._next_path(), self._schema)
        self._end_shard()
        entries = []
        for number, (path, entry) in enumerate(self._done):
            final = self._folder / f"{self._split}-{number:05d}-of-{len(self._done):05d}.parquet"
            if path.parent == self._folder:
                path.rename(final)
            else:
                link(path, final)
            entries.append({"path": f"{self.config}/{final.name}", **entry})
        return entries


def write_manifest(release: Path, entries: Iterable[dict[str, Any]], builds: list[dict[str, Any]]) -> None:
    """Write ``manifest.json`` over the shards' ``entries`` and the other files of the release."""
    files = sorted(entries, key=lambda entry: entry["path"])
    for extra in ("README.md", "stats.json"):
        path = release / extra
        if path.exists():
            files.append({"path": extra, "bytes": path.stat().st_size, "rows": None, "sha256": sha256_of(path)})
    manifest = {"name": NAME, "format": FORMAT, "builds": builds, "files": files}
    write_text(release / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


@dataclass(frozen=True)
class Release:
    """A release directory, opened: its path and its manifest."""

    path: Path
    manifest: dict[str, Any]

    def shards(self, config: str, split: str) -> list[dict[str, Any]]:
        """The manifest entries of one split, in order; an :class:`InputError` where the release has none."""
        start = f"{config}/{split}-"
        found = [entry for entry in self.manifest["files"] if entry["path"].startswith(start)]
        if not found:
            have = ", ".join(f"{c}/{s}" for c, s in self.splits()) or "nothing"
            raise InputError(f"has no config {config!r} with a split {split!r}; it has {have}", path=self.path)
        return found

    def splits(self) -> list[tuple[str, str]]:
        """Every (config, split) of the release, sorted."""
        names = (entry["path"] for entry in self.manifest["files"] if entry["path"].endswith(".parquet"))
        return sorted({(name.split("/")[0], name.split("/")[1].rsplit("-", 3)[0]) for name in names})

    def rows(self, config: str, split: str) -> int:
        return sum(entry["rows"] for entry in self.shards(config, split))

    def fingerprint(self, config: str, split: str) -> str:
        """Changes when, and only when, the split's bytes change: the shards' SHA-256, hashed."""
        import hashlib

        return hashlib.sha256("".join(e["sha256"] for e in self.shards(config, split)).encode()).hexdigest()

    def batches(
        self, config: str, split: str, columns: list[str] | None = None, rows: int = ROWS_PER_GROUP
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one split in order, ``rows`` at a time; memory stays at about one row group.

        Raises :class:`InputError` for a shard that is missing, truncated or not Parquet.
        """
        for entry in self.shards(config, split):
            path = self.path / entry["path"]
            try:
                if path.stat().st_size != entry["bytes"]:
                    raise InputError(
                        f"has {path.stat().st_size} bytes where the manifest says {entry['bytes']}; build it again",
                        path=path,
                    )
                with pq.ParquetFile(path) as file:
                    yield from file.iter_batches(batch_size=rows, columns=columns)
            except FileNotFoundError as error:
                raise InputError("is listed in the manifest but missing; build the release again", path=path) from error
            except pa.ArrowInvalid as error:
                raise InputError(f"is damaged ({error}); build the release again", path=path) from error

    def table(self, config: str, split: str, columns: list[str] | None = None) -> pa.Table:
        """One split as a whole: for queries and qrels, not for a corpus of millions."""
        found = list(self.batches(config, split, columns))
        return pa.Table.from_batches(found) if found else pa.table({})


def open_release(path: Path | str) -> Release:
    """Open a release directory; an :class:`InputError` where ``path`` holds none."""
    path = Path(path)
    manifest = path / MANIFEST
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"not a release directory (no {MANIFEST}); `python -m builders release --raw PATH --out DIR` makes one",
            path=path,
        ) from None
    except ValueError as error:
        raise InputError(f"expected JSON ({error})", path=manifest) from None
    if not isinstance(content, dict) or content.get("name") != NAME or content.get("format") != FORMAT:
        raise InputError(f"expected a manifest of {NAME}, format {FORMAT}", path=manifest)
    return Release(path, content)
