"""Releases, spoiled: as somebody damages one, and as somebody makes one who wants to do harm and hides it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import Reader, any_result, equal, fuzz_of, loads
from official_archives import BOTH, write_files
from releases import make_release
from spoil import BYTES, JSON, PARQUET

from baselines.retrieve.passages import open_passages
from builders.common.files import sha256_of
from builders.common.names import problem_of
from builders.export.write import MARKER, export
from builders.official.build import build_official
from builders.store.layout import MANIFEST
from builders.store.manifest import read_stats
from builders.store.reader import open_release


def read(folder: Path) -> Any:
    """All tables, and the figures."""
    release = open_release(folder / "release")
    tables = {split: release.table(*split).to_pylist() for split in release.splits()}
    return tables, read_stats(release.path)


def as_listed(found: Any, good: Any, folder: Path) -> bool:
    """Every table is the good one, but where the manifest lists fewer of its files; figures are as they are said."""
    (tables, stats), (good_tables, _) = found, good
    said = loads((folder / "release" / "stats.json").read_text(encoding="utf-8-sig"))
    assert equal(stats, said)
    listed = {
        entry["path"] for entry in loads((folder / "release" / MANIFEST).read_bytes().decode("utf-8-sig"))["files"]
    }
    for split, rows in tables.items():
        shards = {path for path in listed if path.startswith("/".join(split) + "-")}
        there = {f"{split[0]}/{path.name}" for path in (folder / "release" / split[0]).glob(f"{split[1]}-*")}
        assert rows == good_tables[split] or shards < there, split
    return True


def sign(folder: Path) -> None:
    """Make the manifest say of the files that lie there what is true, where it can be read."""
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


def _official(folder: Path) -> None:
    build_official([write_files(folder / "files", BOTH)], folder / "release")


def _read_official(folder: Path) -> Any:
    """What is written as the official files of a release."""
    export(open_release(folder / "release"), "official", folder / "out")
    files = [path for path in (folder / "out").rglob("*") if path.is_file() and path.name != MARKER]
    return {path.relative_to(folder / "out").as_posix(): path.read_bytes() for path in files}


def _names_within(found: dict[str, bytes], _: Any, __: Path) -> bool:
    return not any(problem_of(name) for name in found)


def _as_it_was(found: dict[str, bytes], good: dict[str, bytes], folder: Path) -> bool:
    """Where the manifest lists all that it did, every file comes out again as it was read."""
    listed = loads((folder / "release" / MANIFEST).read_bytes().decode("utf-8-sig"))["files"]
    there = sum(path.is_file() for path in (folder / "release").rglob("*"))
    return found == good or len(listed) < there - 1


def _texts(folder: Path) -> Any:
    """The passages out of the user's cache, whatever is left of it."""
    found = open_passages(open_release(folder / "release"), keep=folder / "kept")
    return found.texts(range(len(found))), found.ids(range(len(found)))


def _with_texts(folder: Path) -> None:
    make_release(folder / "release")
    _texts(folder)


_MANIFEST, _LAYOUT = "builders.store.manifest:", "builders.official.layout:"
_SHARDS = {"release/manifest.json": JSON, "release/stats.json": JSON, "release/*/*.parquet": PARQUET}
_FILES = {"release/manifest.json": JSON, "release/official/layout.json": JSON, "release/official/*.arrow": BYTES}
READERS = [
    Reader(
        "a damaged release",
        reaches=(f"{_MANIFEST}read_manifest", f"{_MANIFEST}read_stats"),
        make=lambda folder: make_release(folder / "release"),
        spoils=_SHARDS,
        read=read,
        right=as_listed,
    ),
    Reader(
        "a hostile release",
        reaches=("builders.store.reader:batches", "builders.store.shards:_wrong_shard"),
        make=lambda folder: make_release(folder / "release"),
        spoils=_SHARDS,
        read=read,
        right=any_result,
        mend=sign,
    ),
    Reader(
        "damaged official files",
        reaches=(f"{_LAYOUT}read_layout", f"{_LAYOUT}read_columns"),
        make=_official,
        spoils=_FILES,
        read=_read_official,
        right=_as_it_was,
    ),
    Reader(
        "hostile official files",
        reaches=(f"{_LAYOUT}read_layout", f"{_LAYOUT}read_columns"),
        make=_official,
        spoils=_FILES,
        read=_read_official,
        right=_names_within,
        mend=sign,
    ),
    Reader(
        "unpacked texts in a cache",
        reaches=("baselines.retrieve.cache:_damage",),
        make=_with_texts,
        spoils={"kept/*/texts.json": JSON, "kept/*/[!t]*": BYTES},
        read=_texts,
        right=lambda found, good, _: found == good,
        makes_good=True,
    ),
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
