"""Sets for interpolation and extrapolation: configs, label overlap, vectors, and their drawing against brute force."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import make_release, md5, tables

from builders.add.extrapolation import restrained
from builders.add.vectors import clusters, directions, fixed_point
from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.store.draft import draft_release
from builders.store.layout import QRELS, QUERIES
from builders.store.reader import Release, open_release

TRAINS, TESTS = 60, 12


def make(folder: Path) -> tuple[Path, Path]:
    """A release of 60 training and 12 dev queries with judgments, and its embeddings; query 0 of both is the same."""
    generator = np.random.default_rng(7)
    queries = {
        "train": [f"训练 {n}" for n in range(TRAINS)],
        "dev": [f"开发 {n}" for n in range(TESTS)],
        "test": ["测试"],
    }
    queries["dev"][0] = queries["train"][0]
    vectors = {md5(text): generator.normal(size=4) for texts in queries.values() for text in texts}
    release = folder / "release"
    with draft_release(release, {"verb": "test", "options": {}, "sources": []}) as draft:
        for split, texts in queries.items():
            ids = [md5(text) for text in texts]
            draft.write("queries", split, [pa.table([ids, texts], schema=QUERIES)])
            if split == "test":
                continue
            # Two positives and a negative each; the dev queries 0, 4 and 8 share one positive with training.
            rows = []
            for number, query in enumerate(ids):
                shared = split == "train" or number % 4 == 0
                rows.append((query, md5(f"{'train' if shared else 'dev'} {number}"), 1))
                rows.append((query, md5(f"{split} second {number}"), 1))
                rows.append((query, md5("train 1"), 0))
            table = pa.Table.from_pylist([dict(zip(QRELS.names, row, strict=True)) for row in rows], QRELS)
            draft.write("qrels", split, [table])
    path = folder / "vectors.parquet"
    pq.write_table(pa.table({"id": list(vectors), "vector": [[*each] for each in vectors.values()]}), path)
    return release, path


def add(*words: object, code: int = 0) -> Done:
    return run("builders", "add", *words, code=code)


def queries_of(release: Path, config: str, split: str = "train") -> set[str]:
    return set(open_release(release).table(config, split)["query-id"].to_pylist())


def test_restrain_adds_configs_to_a_copy(tmp_path: Path) -> None:
    release, path = make(tmp_path)
    out = tmp_path / "out"
    options = ["restrain", "--release", release, "--embeddings", path, "--size", 15, 5, "--exclude", 2]
    done = add(*options, "--out", out, "--format", "json")
    figures = {row["config"]: row for row in json.loads(done.stdout)}
    assert "12 test queries are many for 60 training queries: ReSTrain is for small test sets" in done.stderr
    train = open_release(out).table("qrels", "train").to_pylist()
    for size in (5, 15):
        inter, extra = (queries_of(out, f"restrain-{size}-{kind}") for kind in ("interpolation", "extrapolation"))
        assert len(inter) == len(extra) == size and not inter & extra
        name = f"restrain-{size}-"
        assert figures[f"{name}interpolation"]["nearest_cosine"] > figures[f"{name}extrapolation"]["nearest_cosine"]
        # All judgments of the chosen queries, in the order of qrels.
        for kind, chosen in (("interpolation", inter), ("extrapolation", extra)):
            loaded = datasets.load_dataset(str(out), f"restrain-{size}-{kind}", cache_dir=str(tmp_path / "cache"))
            assert loaded["train"].to_list() == [row for row in train if row["query-id"] in chosen]
    assert md5("训练 0") in queries_of(out, "restrain-15-interpolation")  # the query that is a dev query
    # The same command gives the same bytes; another size, in place, leaves those that are there.
    add(*options, "--out", tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_text() == (out / "manifest.json").read_text()
    add("restrain", "--release", out, "--embeddings", path, "--size", 10, "--split", "dev", "test", "--out", out)
    assert len(queries_of(out, "restrain-10-extrapolation")) == 10
    assert len(queries_of(out, "restrain-5-interpolation")) == 5


def test_resttest_adds_configs_to_a_copy(tmp_path: Path) -> None:
    release, path = make(tmp_path)
    out = tmp_path / "out"
    for buckets in (4, 3):  # the second time in place: no bucket of the first is left
        source = release if buckets == 4 else out
        options = ["resttest", "--release", source, "--embeddings", path, "--out", out]
        add(*options, "--buckets", buckets)
    configs = {config for config, _ in open_release(out).splits() if config.startswith("resttest-")}
    assert configs == {f"resttest-bucket{number}" for number in (1, 2, 3)}
    trains, dev = {md5(f"训练 {n}") for n in range(TRAINS)}, queries_of(release, "qrels", "dev")
    left_out, extrapolated = [], []
    for config in sorted(configs):
        train, inter, extra = (queries_of(out, config, split) for split in ("train", "interpolation", "extrapolation"))
        assert train < trains and inter | extra == dev and not inter & extra
        assert not train & extra
        left_out += trains - train
        extrapolated += extra
        loaded = datasets.load_dataset(str(out), config, cache_dir=str(tmp_path / "cache"))
        assert {row["query-id"] for row in loaded["extrapolation"]} == extra
    assert len(left_out) == TRAINS and set(left_out) == trains  # every training query is left out once
    assert len(extrapolated) == TESTS and set(extrapolated) == dev


def test_check_counts_overlap_from_one_shared_passage_on(tmp_path: Path) -> None:
    release, path = make(tmp_path)
    check = ("builders", "check", "--release")
    # Dev queries 0, 4 and 8 share one positive each; passages that are negative in training do not count.
    assert "qrels/dev: 3 of 12 queries (25.00%) share a positive" in run(*check, release, code=1).stdout
    assert "- `qrels/dev`: 3 of 12 queries (25.00%)" in (release / "README.md").read_text("utf-8")
    out = tmp_path / "out"
    add("resttest", "--release", release, "--embeddings", path, "--buckets", 2, "--out", out)
    rows = json.loads(run(*check, out, "--format", "json", code=1).stdout)["overlap"]
    names = [f"resttest-bucket{number}" for number in (1, 2)]
    assert [row["config"] for row in rows] == [name for name in names for _ in range(2)]
    for row in rows:
        train, tests = (open_release(out).table(row["config"], split).to_pylist() for split in ("train", row["test"]))
        passages = {each["corpus-id"] for each in train if each["score"] > 0}
        shared = {each["query-id"] for each in tests if each["score"] > 0 and each["corpus-id"] in passages}
        assert row["overlapping"] == len(shared)
    card = (out / "README.md").read_text("utf-8").partition("## Interpolation and extrapolation")[2]
    assert card.count("| `resttest-bucket") == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["restrain", "--size", "14K"], r"a size of 14,000 is too large for 60 training queries.* \d+ is the largest"),
        (["restrain", "--size", "5", "--split", "nothing"], "has no config 'queries' with a split 'nothing'"),
        (["resttest", "--split", "test"], "has no config 'qrels' with a split 'test'"),
        (["resttest", "--buckets", "500"], "72 queries do not fill 500 buckets"),
    ],
)
def test_what_cannot_be_made_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    release, path = make(tmp_path)
    done = add(*words, "--release", release, "--embeddings", path, "--out", tmp_path / "x", code=1)
    assert re.search(message, done.stderr.splitlines()[-1])
    assert sorted(child.name for child in tmp_path.iterdir()) == ["release", "vectors.parquet"]


# Vectors, from directories of `encode` and Parquet files.

IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]])


def write(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> Path:
    lists = pa.array(vectors.tolist(), pa.list_(pa.from_numpy_dtype(vectors.dtype)))
    pq.write_table(pa.table({"text": ids, "query_id": ids, "emb": lists}), path)
    return path


def read(*paths: Path, queries: list[str] = IDS, release: Any = None) -> np.ndarray:
    return directions(paths, release, queries)


def encoded(path: Path, release: Release, vectors: np.ndarray = VECTORS, split: str = "dev") -> Path:
    """Write the files of `baselines encode --queries` for a split of a release."""
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
    assert (
        read(encoded(tmp_path / "v", release), queries=["c", "a"], release=release) == fixed_point(VECTORS[[2, 0]])
    ).all()
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
        read(tmp_path / "v", release=release)
    other = open_release(make_release(tmp_path / "other", tables()))
    with pytest.raises(InputError, match="holds queries/dev of another release than"):
        read(encoded(tmp_path / "v", release), release=other)


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        (IDS, VECTORS * [[1], [np.nan], [1]], r"v\.parquet: the vector of query 'b' is not finite"),
        (IDS, np.array([[1, 2], [0, 1], [np.inf, 1]]), "the vector of query 'c' is not finite"),
        (IDS, VECTORS * [[1], [1], [0]], "the vector of query 'c' is not finite, or all zeros"),
        (["a", "b", "a"], VECTORS, r"v\.parquet: has query 'a' twice"),
        (["a", "b", "d"], VECTORS, r"v\.parquet: has no vector for 1 of 3 queries: 'c'"),
        (IDS, np.ones((3, 2), int), r"expected one column of ids .* found text \(string\), query_id \(string\), emb"),
    ],
)
def test_wrong_embeddings_are_one_clear_error(
    tmp_path: Path, ids: list[str], vectors: np.ndarray, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "v.parquet", ids, vectors))


def test_vectors_are_found_by_their_ids(tmp_path: Path) -> None:
    for kind in (np.float32, np.float64):
        path = write(tmp_path / "v.parquet", vectors=VECTORS.astype(kind))
        assert (read(path, queries=["c", "a", "b", "a"]) == fixed_point(VECTORS[[2, 0, 1, 0]])).all()
    pq.write_table(pa.table({"id": ["a", "b"], "vector": [[1.0], [1.0, 2.0]]}), path)
    with pytest.raises(InputError, match=r"v\.parquet: has nulls, or vectors of 1, 2 dimensions"):
        read(path)
    with pytest.raises(InputError, match=r"v\.npz: expected a directory of `baselines encode`, or a file named"):
        read(tmp_path / "v.npz")


# Ranks, neighbours, clusters and training sets against brute force in whole numbers.
@st.composite
def vector_sets(draw: Any, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Training and test vectors of few coordinates of few values: many exact ties, many duplicates."""
    dimensions = draw(st.integers(1, 4))
    number = st.integers(-2, 2) if draw(st.booleans()) else st.floats(-1, 1, width=32)
    row = st.lists(number, min_size=dimensions, max_size=dimensions).filter(any)
    trains = draw(st.lists(row, min_size=2, max_size=most))
    tests = draw(st.lists(row, min_size=1, max_size=12))
    return fixed_point(np.array(trains)), fixed_point(np.array(tests))


def brute_ranks(tests: np.ndarray, trains: np.ndarray) -> tuple[list[int], list[int]]:
    """Each training query's best rank among the test queries, and its product there; ties to the lower row."""
    products = tests.astype(int) @ trains.astype(int).T
    best = [(len(trains) + 1, 0)] * len(trains)
    for row in products.tolist():
        order = sorted(range(len(row)), key=lambda train: (-row[train], train))
        for rank, train in enumerate(order, 1):
            best[train] = min(best[train], (rank, -row[train]))
    return [rank for rank, _ in best], [-product for _, product in best]


@settings(deadline=None)
@given(
    vector_sets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_training_sets_are_those_of_brute_force(
    sets: tuple[np.ndarray, np.ndarray], sizes: list[int], exclude: int | None, seed: int
) -> None:
    trains, tests = sets
    ids = [f"q{number:03d}" for number in range(len(trains))]
    ranks, products = brute_ranks(tests, trains)
    # The largest possible, by trying every size, and every depth where none is given: the least one that allows it.
    possible, depth = 0, exclude or 1
    for tried in [exclude] if exclude else range(1, len(trains) + 1):
        for size in range(1, len(trains)):
            if size <= sum(rank <= tried for rank in ranks) and size <= sum(rank > tried for rank in ranks):
                possible, depth = max((possible, depth), (size, tried), key=lambda each: (each[0], -each[1]))
    if max(sizes) > possible:
        with pytest.raises(InputError, match=f"{max(sizes)} is too large .* {possible} is the largest possible"):
            restrained(ids, trains, tests, sizes, exclude, seed)
        return
    found = restrained(ids, trains, tests, sizes, exclude, seed)
    assert [(chosen.size, chosen.kind) for chosen in found] == [
        (size, kind) for size in sorted(set(sizes)) for kind in ("interpolation", "extrapolation")
    ]
    order = sorted(range(len(trains)), key=lambda row: (ranks[row], -products[row], row))
    for inter, extra in zip(found[::2], found[1::2], strict=True):
        assert len(set(extra.rows)) == len(extra.rows) == extra.size
        assert sorted(order[: inter.size]) == inter.rows.tolist()
        assert inter.ranks == max(ranks[row] for row in inter.rows)
        assert extra.ranks == depth
        assert min(ranks[row] for row in extra.rows) > depth


def brute_clusters(vectors: np.ndarray, starts: list[int]) -> list[int] | None:
    """Spherical k-means in whole numbers; None where a cluster loses all rows."""
    centres, labels = vectors[starts].astype(int), [-1] * len(vectors)
    for _ in range(100):
        products = (vectors.astype(int) @ centres.T).tolist()
        before, labels = labels, [max(range(len(starts)), key=lambda c: (row[c], -c)) for row in products]
        if before == labels:
            break
        for number in range(len(starts)):
            members = vectors[[label == number for label in labels]].astype(int)
            if not len(members):
                return None
            total = members.sum(axis=0)
            centres[number] = fixed_point((total if total.any() else members[0])[None].astype(float))[0]
    sizes = [labels.count(number) for number in range(len(starts))]
    order = sorted(range(len(starts)), key=lambda number: (-sizes[number], number))
    return [order.index(label) for label in labels]


@settings(max_examples=50, deadline=None)
@given(vector_sets(), st.data())
def test_clusters_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    vectors = sets[0]
    starts = data.draw(st.lists(st.integers(0, len(vectors) - 1), min_size=1, max_size=4, unique=True))
    found = clusters(vectors, np.array(starts))
    expected = brute_clusters(vectors, starts)
    if expected is not None:
        assert found.tolist() == expected
    same: dict[bytes, int] = {}
    for row, label in zip(vectors, found.tolist(), strict=True):
        assert same.setdefault(row.tobytes(), label) == label  # equal queries are never in different buckets


def test_the_same_clusters_and_ranks_on_any_number_of_threads() -> None:
    code = """
import hashlib, numpy as np
from builders.add.vectors import *
generator = np.random.default_rng(3)
vectors = fixed_point(np.round(generator.normal(size=(9000, 24)), 0) + 0.25)
ranks, products = best_ranks(vectors[:700], vectors[700:])
labels = clusters(vectors, np.arange(5))
print(hashlib.sha256(ranks.tobytes() + products.tobytes() + labels.tobytes()).hexdigest())
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).resolve().parent.parent,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(outputs) == 1
