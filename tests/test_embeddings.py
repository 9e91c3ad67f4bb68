"""Embedding files: read, or refused with one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from releases import make_release, tables

from builders.add.similarity import fixed_point
from builders.add.vectors import directions, read_embeddings
from builders.core.command import InputError
from builders.core.files import sha256_of
from builders.store.reader import Release, open_release

IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]])


def write(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> Path:
    lists = pa.array(vectors.tolist(), pa.list_(pa.from_numpy_dtype(vectors.dtype)))
    pq.write_table(pa.table({"text": ids, "query_id": ids, "emb": lists}), path)
    return path


def read(path: Path, queries: list[str] = IDS, release: Release | None = None) -> np.ndarray:
    return directions(read_embeddings([path], release), queries)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_embedding_files_are_read(tmp_path: Path, kind: Any) -> None:
    path = write(tmp_path / "v.parquet", vectors=VECTORS.astype(kind))
    assert (read(path, ["c", "a", "b", "a"]) == fixed_point(VECTORS[[2, 0, 1, 0]])).all()


def test_files_together_hold_the_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write(tmp_path / "one.parquet", ["a", "b"], VECTORS[:2])
    second = write(tmp_path / "two.parquet", ["b", "c"], VECTORS[1:] * [[-1], [1]])
    assert (directions(read_embeddings([first, second]), IDS) == fixed_point(VECTORS)).all()
    assert "1 queries have a vector in more than one source; the first one counts" in caplog.text


def encoded(path: Path, release: Release, vectors: np.ndarray = VECTORS, split: str = "dev") -> Path:
    """What `baselines encode --queries` writes for a split of a release: two files."""
    path.mkdir(exist_ok=True)
    shards = []
    for number, part in enumerate((vectors[:2], vectors[2:])):
        file = path / f"queries-{number:05d}-of-00002.npy"
        np.save(file, part.astype(np.float16))
        shards.append({"path": file.name, "rows": len(part), "sha256": sha256_of(file)})
    about = {"config": "queries", "split": split, "fingerprint": release.fingerprint("queries", split)}
    (path / "manifest.json").write_text(json.dumps(about | {"shards": shards}))
    return path


def test_the_directory_of_the_verb_encode_is_read_by_the_rows_of_the_release(tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"] = [{"_id": each, "text": each} for each in IDS]
    release = open_release(make_release(tmp_path / "release", rows))
    assert (read(encoded(tmp_path / "v", release), ["c", "a"], release) == fixed_point(VECTORS[[2, 0]])).all()
    for vectors, message in (
        (VECTORS[:2], "no vector for 1 of 3"),
        (np.ones((4, 2)), "has 1 ids for the 2 vectors"),
        (np.ones((3, 2, 1)), r"v.queries-00000.*: expected vectors as floats .* found float16 \(2, 2, 1\)"),
        (np.ones((3, 0)), "v: has vectors of 0 dimensions; expected at least 1"),
    ):
        with pytest.raises(InputError, match=message):
            read(encoded(tmp_path / "v", release, vectors), release=release)
    file = encoded(tmp_path / "v", release) / "queries-00001-of-00002.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=r"00001-of-00002\.npy: has the SHA-256 .* encode it again"):
        list(read_embeddings([tmp_path / "v"], release=release))
    other = open_release(make_release(tmp_path / "other", tables()))
    with pytest.raises(InputError, match="holds queries/dev of another release than"):
        list(read_embeddings([encoded(tmp_path / "v", release)], release=other))


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        (IDS, VECTORS * [[1], [np.nan], [1]], r"v\.parquet: the vector of query 'b' \(row 2\) is not finite"),
        (IDS, np.array([[1, 2], [0, 1], [np.inf, 1]]), r"the vector of query 'c' \(row 3\) is not finite"),
        (IDS, VECTORS * [[1], [1], [0]], r"v\.parquet: the vector of query 'c' \(row 3\) is all zeros"),
        (["a", "b", "a"], VECTORS, r"v\.parquet: has query 'a' twice"),
        (["a", "b", "d"], VECTORS, r"v\.parquet: has no vector for 1 of 3 queries, 'c' for one"),
        (IDS, np.ones((3, 2), int), r"expected one column of ids .* found text \(string\), query_id \(string\), emb"),
    ],
)
def test_wrong_embeddings_are_one_clear_error(
    tmp_path: Path, ids: list[str], vectors: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "v.parquet", ids, vectors))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}, r"v\.parquet: has vectors of 1, 2 dimensions"),
        ({"id": ["a", None], "vector": [[1.0], None]}, r"v\.parquet: has a null in rows 1 to 2"),
        ({"a": ["a"], "b": ["b"]}, r"expected one column of ids .* found a \(string\), b \(string\)"),
    ],
)
def test_tables_of_other_columns_are_refused(tmp_path: Path, table: dict[str, list[Any]], message: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "v.parquet")
    with pytest.raises(InputError, match=message):
        read(tmp_path / "v.parquet")
    with pytest.raises(InputError, match=r"v\.npz: expected a directory of `baselines encode`, or a file named"):
        read(tmp_path / "v.npz")
