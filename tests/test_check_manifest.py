"""``check`` of the files themselves: the manifest names what is there, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from findings import found
from releases import make_release

from builders.check.release import check
from builders.store.layout import MANIFEST
from builders.store.reader import open_release

SHARD = "dev/dev-00000-of-00001.parquet"


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "is listed in the manifest but missing"),
        (_flip, "has the SHA-256"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes where the manifest says"),
    ],
    ids=["missing", "flipped bit", "longer"],
)
def test_a_file_that_is_not_what_the_manifest_says(whole_copy: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(whole_copy / SHARD)
    report = check(open_release(whole_copy))
    ((where, _),) = found(report)["manifest"][2]
    assert (where, list(found(report))) == (SHARD, ["manifest"])
    assert words in report.of("manifest")[0].what
    assert "dev" in report.of("not-tested")[-1].what


@pytest.mark.usefixtures("own_cache")
def test_every_byte_is_read_again_whatever_is_known_of_a_file(whole_copy: Path) -> None:
    """A disk that forgets changes a file and neither its inode nor its times."""
    release = whole_copy
    os.utime(release / SHARD, (1, 1))
    assert not found(check(open_release(release)))
    _flip(release / SHARD)
    os.utime(release / SHARD, (1, 1))
    assert found(check(open_release(release)))["manifest"][2] == [(SHARD, 1)]


@pytest.mark.parametrize("name", ["nonsense/dev-00000-of-00001.parquet", "dev/it's.parquet"])
def test_a_manifest_with_a_name_that_is_none(whole_copy: Path, name: str) -> None:
    release = whole_copy
    manifest = json.loads((release / MANIFEST).read_text())
    manifest["files"].append({"path": name, "bytes": 1, "rows": 1, "sha256": "0" * 64})
    (release / MANIFEST).write_text(json.dumps(manifest))
    report = check(open_release(release))
    assert name in [finding.where for finding in report.of("manifest")]


def test_a_missing_shard_number_and_wrong_rows(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    manifest = json.loads((release / MANIFEST).read_text())
    manifest["files"] = [e for e in manifest["files"] if e["path"] != "corpus/corpus-00001-of-00003.parquet"]
    next(entry for entry in manifest["files"] if entry["path"].startswith("dev/"))["rows"] = 7
    (release / MANIFEST).write_text(json.dumps(manifest))
    report = check(open_release(release))
    reasons = {finding.where: finding.what for finding in report.of("manifest")}
    assert reasons["corpus/corpus"] == "the manifest lists 2 of 3 shards"
    assert reasons["dev/dev-00000-of-00001.parquet"] == "has 2 rows where the manifest says 7"
    assert report.of("unlisted-files")[0].examples == ["corpus/corpus-00001-of-00003.parquet"]
