"""The tests of ``check`` on files: that a release is what its manifest says."""

from __future__ import annotations

import concurrent.futures
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from builders.check.findings import EXAMPLES, Finding
from builders.common.command import progress
from builders.common.files import sha256_of
from builders.common.jobs import usable_cores
from builders.store.layout import MANIFEST, schema_of
from builders.store.manifest import FileEntry
from builders.store.reader import Release

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")
_SHARD = re.compile(r"([\w.-]+)/([\w.-]+)-(\d{5})-of-(\d{5})\.parquet")


def check_files(release: Release) -> list[Finding]:
    """Every file against the manifest: size, SHA-256, rows, columns; and the files that it does not list."""
    entries = release.manifest.files
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        reasons = list(
            progress(
                pool.map(lambda entry: _wrong(release, entry), entries), total=len(entries), unit="file", label="files"
            )
        )
    findings = [
        Finding("manifest", entry.path, 1, reason) for entry, reason in zip(entries, reasons, strict=True) if reason
    ]
    findings += _incomplete(entries)
    if unlisted := unlisted_files(release):
        findings.append(
            Finding("unlisted-files", str(release.path), len(unlisted), "is not listed", unlisted[:EXAMPLES])
        )
    return findings


def unlisted_files(release: Release) -> list[str]:
    """The files below a release, links and hidden ones too, that its manifest does not list; sorted, relative."""
    listed = {entry.path for entry in release.manifest.files} | {MANIFEST}
    found = (path for path in release.path.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted({path.relative_to(release.path).as_posix() for path in found} - listed)


def _wrong(release: Release, entry: FileEntry) -> str | None:
    name = entry.path
    if not _NAME.fullmatch(name) or ".." in name.split("/"):
        return "is no path inside a release"
    path = release.path / name
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            return f"has {size:,} bytes where the manifest says {entry.bytes:,}"
        if (digest := sha256_of(path)) != entry.sha256:
            return f"has the SHA-256 {digest} where the manifest says {entry.sha256}"
        return _wrong_parquet(path, entry) if name.endswith(".parquet") else None
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _wrong_parquet(path: Path, entry: FileEntry) -> str | None:
    match = _SHARD.fullmatch(entry.path)
    if not match:
        return "is not named CONFIG/SPLIT-NNNNN-of-NNNNN.parquet"
    try:
        expected = schema_of(match[1])
    except ValueError:
        return f"is of no config of a release ({match[1]!r})"
    try:
        with pq.ParquetFile(path) as file:
            rows, schema = file.metadata.num_rows, file.schema_arrow
    except pa.ArrowInvalid as error:
        return f"is not Parquet ({error})"
    if rows != entry.rows:
        return f"has {rows:,} rows where the manifest says {entry.rows or 0:,}"
    for column in expected:
        index = schema.get_field_index(column.name)
        # Lists may name their items differently: two schemas are equal where their fields' types are.
        if index < 0 or not schema.field(index).type.equals(column.type):
            return f"expected a column {column.name} ({column.type}); it has {', '.join(schema.names)}"
    return None


def _incomplete(entries: list[FileEntry]) -> Iterator[Finding]:
    """Splits of which the manifest does not list every shard, or two numbers of shards."""
    shards: dict[str, list[tuple[int, int]]] = {}
    for entry in entries:
        if match := _SHARD.fullmatch(entry.path):
            shards.setdefault(f"{match[1]}/{match[2]}", []).append((int(match[3]), int(match[4])))
    for where, found in shards.items():
        if sorted(found) != [(number, found[0][1]) for number in range(found[0][1])]:
            yield Finding("manifest", where, 1, f"the manifest lists {len(found)} of {found[0][1]} shards")
