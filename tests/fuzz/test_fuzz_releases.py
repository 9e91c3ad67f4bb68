"""Damaged releases, and hostile releases whose manifest describes the damaged files."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import Reader, equal, fuzz_of, loads, same
from releases import make_release
from spoil import BYTES, JSON, PARQUET

from baselines.core.passages import open_passages
from builders.core.read_files import sha256_of
from builders.store.layout import MANIFEST
from builders.store.manifest import read_stats
from builders.store.reader import open_release


def read_tables(folder: Path) -> Any:
    """Read all tables and the figures of a release."""
    release = open_release(folder / "release")
    rows_by_split = {}
    for config, split in release.splits():
        rows_by_split[config, split] = release.table(config, split).to_pylist()
    return rows_by_split, read_stats(release.path)


def are_rows_of_listed_shards(content: Any, intact_content: Any, folder: Path) -> bool:
    """Accept the intact rows of every table whose shards are listed, and the figures of stats.json."""
    release_path = folder / "release"
    rows_by_split, stats = content
    intact_rows_by_split, _ = intact_content
    assert equal(stats, loads((release_path / "stats.json").read_text(encoding="utf-8-sig")))
    manifest = loads((release_path / MANIFEST).read_bytes().decode("utf-8-sig"))
    listed_paths = {entry["path"] for entry in manifest["files"]}
    for split, rows in rows_by_split.items():
        config, split_name = split
        listed_shards = {path for path in listed_paths if path.startswith(f"{config}/{split_name}-")}
        shards = {f"{config}/{path.name}" for path in (release_path / config).glob(f"{split_name}-*")}
        # A manifest that lists fewer shards describes a smaller table.
        assert rows == intact_rows_by_split[split] or listed_shards < shards, split
    return True


def sign(folder: Path) -> None:
    """Correct the sizes, checksums and rows in the manifest, if it can be read."""
    manifest_path = folder / "release" / MANIFEST
    try:
        manifest = json.loads(manifest_path.read_bytes())
        for entry in manifest["files"]:
            file = folder / "release" / entry["path"]
            entry["bytes"] = file.stat().st_size
            entry["sha256"] = sha256_of(file)
            if file.suffix == ".parquet":
                entry["rows"] = pq.read_metadata(file).num_rows
        manifest_path.write_text(json.dumps(manifest))
    except (ValueError, TypeError, KeyError, OSError, RecursionError, pa.ArrowException):
        pass  # a damaged manifest or shard stays as it is


def read_stored_passages(folder: Path) -> Any:
    """Read texts and ids through the folder ``kept``, which stores them."""
    passages = open_passages(open_release(folder / "release"), keep=folder / "kept")
    rows = range(len(passages))
    return passages.texts(rows), passages.ids(rows)


def write_release(folder: Path) -> None:
    """Write a tiny release."""
    make_release(folder / "release")


def write_release_and_passages(folder: Path) -> None:
    """Write a tiny release and its stored passages."""
    write_release(folder)
    read_stored_passages(folder)


_RELEASE_FILES = {"release/manifest.json": JSON, "release/stats.json": JSON, "release/*/*.parquet": PARQUET}
READERS = [
    Reader(
        "builders.store.manifest:read_manifest,read_stats",
        make=write_release,
        spoils=_RELEASE_FILES,
        read=read_tables,
        right=are_rows_of_listed_shards,
    ),
    Reader(
        "builders.store.reader:batches builders.store.shards:_wrong_shard",
        make=write_release,
        spoils=_RELEASE_FILES,
        read=read_tables,
        mend=sign,
    ),
    Reader(
        "baselines.core.passages:find_damage",
        make=write_release_and_passages,
        spoils={"kept/*/manifest.json": JSON, "kept/*/[!m]*": BYTES},
        read=read_stored_passages,
        right=same,
        makes_good=True,
    ),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
