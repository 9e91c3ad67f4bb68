"""Embedding files: read, or refused with one clear error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import make_release, tables

from builders.add.similarity import fixed_point
from builders.add.vectors import directions, read_embeddings
from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.store.reader import Release, open_release

IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]])


def write(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> Path:
    if path.suffix == ".npy":
        np.save(path, vectors)
        path.with_suffix(".ids.txt").write_text("".join(f"{query}\n" for query in ids), encoding="utf-8")
    elif path.suffix == ".npz":
        np.savez(path, queries=np.array(ids), whatever=vectors)
    else:
        lists = pa.array(vectors.tolist(), pa.list_(pa.float64()))
        pq.write_table(pa.table({"text": ids, "query_id": ids, "emb": lists}), path)
    return path


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.parquet"])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_embedding_files_are_read(tmp_path: Path, name: str, kind: Any) -> None:
    path = write(tmp_path / name, vectors=VECTORS.astype(kind))
    one, two = directions(read_embeddings([path]), [["c", "a"], ["b", "a"]])
    assert (one == fixed_point(VECTORS[[2, 0]])).all()
    assert (two == fixed_point(VECTORS[[1, 0]])).all()


def test_files_together_hold_the_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write(tmp_path / "one.npz", ["a", "b"], VECTORS[:2])
    second = write(tmp_path / "two.parquet", ["b", "c"], VECTORS[1:] * [[-1], [1]])
    (found,) = directions(read_embeddings([first, second]), [IDS])
    assert (found == fixed_point(VECTORS)).all()
    assert "1 queries have a vector in more than one source; the first one counts" in caplog.text


def test_ids_may_stand_in_another_file(tmp_path: Path) -> None:
    path = write(tmp_path / "v.npy")
    other = tmp_path / "names"
    other.write_text("c\na\nb\n", encoding="utf-8")
    (found,) = directions(read_embeddings([path], [other]), [["c"]])
    assert (found == fixed_point(VECTORS[:1])).all()


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
    (found,) = directions(read_embeddings([encoded(tmp_path / "v", release)], release=release), [["c", "a"]])
    assert (found == fixed_point(VECTORS[[2, 0]])).all()
    for vectors, message in ((VECTORS[:2], "no vector for 1 of 3"), (np.ones((4, 2)), "has 1 ids for the 2 vectors")):
        with pytest.raises(InputError, match=message):
            directions(read_embeddings([encoded(tmp_path / "v", release, vectors)], release=release), [IDS])
    file = encoded(tmp_path / "v", release) / "queries-00001-of-00002.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=r"00001-of-00002\.npy: has the SHA-256 .* encode it again"):
        list(read_embeddings([tmp_path / "v"], release=release))
    other = open_release(make_release(tmp_path / "other", tables()))
    with pytest.raises(InputError, match="holds queries/dev of another release than"):
        list(read_embeddings([encoded(tmp_path / "v", release)], release=other))


@pytest.mark.parametrize(
    ("name", "ids", "vectors", "message"),
    [
        ("v.npy", ["a", "b"], VECTORS, r"v\.ids\.txt: has 2 ids for the 3 vectors of .*v\.npy"),
        ("v.npy", ["a", " b", "c"], VECTORS, r"v\.ids\.txt:2: expected one id a line, found ' b'"),
        ("v.npy", ["a", "", "c"], VECTORS, r"v\.ids\.txt:2: expected one id a line, found ''"),
        ("v.npy", IDS, np.arange(3.0), r"v\.npy: expected vectors as floats .* found float64 \(3,\)"),
        ("v.npy", IDS, np.ones((3, 2), int), r"v\.npy: expected vectors as floats .* found int64"),
        ("v.npy", IDS, np.ones((3, 0)), r"v\.npy: has vectors of 0 dimensions; expected at least 1"),
        ("v.npz", IDS, VECTORS * [[1], [np.nan], [1]], r"v\.npz: the vector of query 'b' \(row 2\) is not finite"),
        ("v.parquet", IDS, np.array([[1, 2], [0, 1], [np.inf, 1]]), r"the vector of query 'c' \(row 3\) is not finite"),
        ("v.npz", IDS, VECTORS * [[1], [1], [0]], r"v\.npz: the vector of query 'c' \(row 3\) is all zeros"),
        ("v.npz", ["a", "b", "a"], VECTORS, r"v\.npz: has query 'a' twice"),
        ("v.parquet", ["a", "b", "d"], VECTORS, r"v\.parquet: has no vector for 1 of 3 queries, 'c' for one"),
        ("v.npz", IDS, VECTORS[:, :, None], r"v\.npz: expected two arrays, ids \(n,\) of strings and vectors \(n, d\)"),
    ],
)
def test_wrong_embeddings_are_one_clear_error(
    tmp_path: Path, name: str, ids: list[str], vectors: np.ndarray, message: str
) -> None:
    path = write(tmp_path / name, ids, vectors)
    with pytest.raises(InputError, match=message):
        directions(read_embeddings([path]), [IDS])


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.parquet"])
def test_damaged_files_are_one_clear_error(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name)
    whole = path.read_bytes()
    for content in (b"", b"junk", whole[: len(whole) // 2], whole[:20]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            directions(read_embeddings([path]), [IDS])


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["v.npy", "v.npz", "v.parquet", "v.ids.txt"]), st.data())
def test_wrong_bytes_anywhere_are_one_clear_error(tmp_path: Path, name: str, data: Any) -> None:
    source = write(tmp_path / ("v.npy" if name == "v.ids.txt" else name))
    content = bytearray((tmp_path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    (tmp_path / name).write_bytes(content)
    with contextlib.suppress(InputError):
        (found,) = directions(read_embeddings([source]), [IDS])
        assert found.shape[0] == 3 and np.isfinite(found).all()


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"v\.bin: expected a directory of `baselines encode`, or a file named"):
        list(read_embeddings([tmp_path / "v.bin"]))
    with pytest.raises(InputError, match=r"--ids names 1 files for 0 \.npy files"):
        list(read_embeddings([write(tmp_path / "v.npz")], [tmp_path / "v.ids"]))
    np.savez(tmp_path / "p.npz", ids=np.array(["a", None], object), vectors=np.ones((2, 2)))
    with pytest.raises(InputError, match=r"p\.npz"):
        list(read_embeddings([tmp_path / "p.npz"]))
    ragged = pa.array([[1.0], [1.0, 2.0]])
    pq.write_table(pa.table({"id": ["a", "b"], "vector": ragged}), tmp_path / "r.parquet")
    with pytest.raises(InputError, match=r"r\.parquet: has vectors of 1, 2 dimensions"):
        list(read_embeddings([tmp_path / "r.parquet"]))
    pq.write_table(pa.table({"id": ["a", None], "vector": pa.array([[1.0], None])}), tmp_path / "n.parquet")
    with pytest.raises(InputError, match=r"n\.parquet: has a null in rows 1 to 2"):
        list(read_embeddings([tmp_path / "n.parquet"]))
    pq.write_table(pa.table({"a": ["a"], "b": ["b"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"expected one column of ids .* found a \(string\), b \(string\)"):
        list(read_embeddings([tmp_path / "c.parquet"]))
