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
from builders.core.files import sha256_of
from builders.store.layout import MANIFEST
from builders.store.manifest import read_stats
from builders.store.reader import open_release


def read(folder: Path) -> Any:
    release = open_release(folder / "release")
    return {split: release.table(*split).to_pylist() for split in release.splits()}, read_stats(release.path)


def as_listed(found: Any, good: Any, folder: Path) -> bool:
    """Accept the intact rows of every table whose shards are listed, and the figures of stats.json."""
    (tables, stats), (good_tables, _) = found, good
    assert equal(stats, loads((folder / "release" / "stats.json").read_text(encoding="utf-8-sig")))
    manifest = loads((folder / "release" / MANIFEST).read_bytes().decode("utf-8-sig"))
    listed = {entry["path"] for entry in manifest["files"]}
    for split, rows in tables.items():
        shards = {path for path in listed if path.startswith("/".join(split) + "-")}
        there = {f"{split[0]}/{path.name}" for path in (folder / "release" / split[0]).glob(f"{split[1]}-*")}
        assert rows == good_tables[split] or shards < there, split
    return True


def sign(folder: Path) -> None:
    """Correct the sizes, checksums and rows in the manifest, if it can be read."""
    path = folder / "release" / MANIFEST
    try:
        content = json.loads(path.read_bytes())
        for entry in content["files"]:
            file = folder / "release" / entry["path"]
            entry |= {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
            if file.suffix == ".parquet":
                entry["rows"] = pq.read_metadata(file).num_rows
        path.write_text(json.dumps(content))
    except (ValueError, TypeError, KeyError, OSError, RecursionError, pa.ArrowException):
        pass


def _texts(folder: Path) -> Any:
    found = open_passages(open_release(folder / "release"), keep=folder / "kept")
    return found.texts(range(len(found))), found.ids(range(len(found)))


def _with_texts(folder: Path) -> None:
    make_release(folder / "release")
    _texts(folder)


def _release(folder: Path) -> None:
    make_release(folder / "release")


_KEPT = {"kept/*/manifest.json": JSON, "kept/*/[!m]*": BYTES}
_SHARDS = {"release/manifest.json": JSON, "release/stats.json": JSON, "release/*/*.parquet": PARQUET}
READERS = [
    Reader("builders.store.manifest:read_manifest,read_stats", _release, _SHARDS, read, as_listed),
    Reader("builders.store.reader:batches builders.store.shards:_wrong_shard", _release, _SHARDS, read, mend=sign),
    Reader("baselines.core.passages:find_damage", _with_texts, _KEPT, _texts, same, makes_good=True),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
