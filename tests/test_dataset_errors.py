"""Data that cannot be loaded gives one clear error with advice."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from loading import Load, load, release  # noqa: F401
from releases import NO_UTF8, make_release, release_of, tables

HOW = "python -m builders release --raw PATH --out DIR"


def test_a_wrong_data_dir_says_how_to_make_one(tmp_path: Path, load: Load) -> None:
    (tmp_path / "file").touch()
    for name, said in (("nowhere", "does not exist"), ("", "no manifest.json"), ("file", "")):
        with pytest.raises(FileNotFoundError) as error:
            load("dev", data_dir=str(tmp_path / name))
        assert all(part in str(error.value) for part in (said, HOW, str(tmp_path / name)))
        assert "\n" not in str(error.value)


def test_an_unknown_or_missing_config_says_what_there_is(tmp_path: Path, load: Load) -> None:
    rows = {key: value for key, value in tables().items() if key[0] not in ("test", "train")}
    small = {"data_dir": str(make_release(tmp_path / "small", rows))}
    for config, given, said in (
        ("nonsense", small, r"nonsense.*corpus.*queries"),
        ("test", small, f"no rows of config 'test'; it has corpus, dev, qrels, queries.*{HOW}"),
        (None, small, r"name a config.*corpus"),
        ("dev", {"data_files": str(tmp_path / "*.parquet")}, "data_dir=DIR, not data_files"),
    ):
        with pytest.raises(ValueError, match=said):
            load(config, **given)


def flip_a_byte(path: Path) -> None:
    """Change one byte, and restore the mtime, as a careless copy does."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("how", [{}, {"num_proc": 2}, {"streaming": True}], ids=["plain", "num_proc", "streaming"])
@pytest.mark.parametrize(
    ("damage", "words"), [(flip_a_byte, "SHA-256"), (truncate, "bytes, but manifest"), (Path.unlink, "listed")]
)
def test_a_damaged_shard_is_named(
    release: Path, load: Load, prepared: bool, how: dict[str, Any], damage: Callable[[Path], None], words: str
) -> None:
    if prepared:
        load("corpus", "corpus", data_dir=str(release))
    shard = sorted((release / "corpus").iterdir())[1]
    damage(shard)
    for _ in range(2):  # the failure itself leaves nothing in the cache
        with pytest.raises(ValueError, match=words) as error:
            list(load("corpus", "corpus", data_dir=str(release), **how))
        assert str(error.value).startswith(f"{shard}: ")
        assert "\n" not in str(error.value)
    assert list(load("dev", "dev", data_dir=str(release))) == tables()["dev", "dev"]  # the other configs are intact


def without_a_shard(manifest: dict[str, Any]) -> str:
    manifest["files"] = [entry for entry in manifest["files"] if "corpus-00001" not in entry["path"]]
    return json.dumps(manifest)


@pytest.mark.parametrize(
    "edit",
    [
        lambda manifest: json.dumps(manifest)[:-5],
        lambda manifest: "[" * 50_000,
        lambda manifest: json.dumps(manifest).replace('"rows": 2', '"rows": 1e400'),
        lambda manifest: json.dumps({**manifest, "format": 99}),
        lambda manifest: json.dumps({**manifest, "name": "other"}),
        lambda manifest: json.dumps({**manifest, "files": [{"path": "corpus/corpus-00000-of-00001.parquet"}]}),
        without_a_shard,
    ],
)
def test_a_damaged_manifest_is_named(release: Path, load: Load, edit: Callable[[dict[str, Any]], str]) -> None:
    path = release / "manifest.json"
    path.write_text(edit(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    with pytest.raises(ValueError, match="expected a manifest of dureader_retrieval, format 1") as error:
        load("corpus", data_dir=str(release))
    assert str(error.value).startswith(f"{path}: ")


def test_rows_that_the_manifest_does_not_count_are_refused(release: Path, load: Load) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    next(entry for entry in manifest["files"] if entry["path"].startswith("dev/"))["rows"] += 1
    path.write_text(json.dumps(manifest), encoding="utf-8")
    for streaming in (False, True):
        with pytest.raises(ValueError, match=r"has 2 rows, but manifest\.json lists 3"):
            list(load("dev", "dev", data_dir=str(release), streaming=streaming))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": pa.array([1, 2])}, "expected the column text as string, found int64"),
        ({"text": pa.array(["a", None])}, "expected no null, found one in the column text"),
        ({"text": NO_UTF8}, "Invalid UTF8"),
        ({"title": None}, "expected the columns _id, title, text, found _id, text"),
    ],
)
def test_a_column_of_something_else_is_named(tmp_path: Path, load: Load, change: Any, words: str) -> None:
    columns = {"_id": pa.array(["a", "b"]), "title": pa.array(["", ""]), "text": pa.array(["c", "d"])} | change
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    release = str(release_of(tmp_path / "release", table))
    for how in ({}, {"streaming": True}):
        with pytest.raises(ValueError, match=words) as error:
            list(load("corpus", "corpus", data_dir=release, **how))
        assert "corpus-00000-of-00001.parquet: " in str(error.value)
