"""Extrapolation: the resampled sets against brute force in whole numbers, embeddings read or refused, label overlap."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.__main__ import VERBS
from builders.command import InputError, main
from builders.draft import draft_release
from builders.extrapolation.embeddings import Block, directions, encode, read_embeddings, write_embeddings
from builders.extrapolation.resample import bucketed, restrained
from builders.extrapolation.similarity import best_ranks, clusters, fixed_point, nearest, scale
from builders.store import QRELS, QUERIES, open_release

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs faiss-cpu")


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


# --- vectors ---------------------------------------------------------------------------------------------------------


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
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_stay_where_float32_is_exact(dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_cauchy((20, dimensions))
    rows = fixed_point(vectors).astype(np.int64)
    assert np.abs(rows).astype(np.float64).max() <= 4096
    assert ((rows * rows).sum(axis=1) <= 2**24).all()
    exact = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(rows @ rows.T / scale(dimensions) ** 2 - exact @ exact.T).max() < 2e-3


def test_only_the_direction_of_a_vector_counts() -> None:
    vectors = np.random.default_rng(1).normal(size=(5, 8))
    for factor in (1e-300, 1e-3, 7.0, 1e300):
        assert (fixed_point(vectors * factor) == fixed_point(vectors)).all()
    assert (fixed_point(np.array([[3.0, 4.0]], np.float16)) == np.rint(np.array([[0.6, 0.8]]) * scale(2))).all()


@needs_faiss
@settings(deadline=None)
@given(vector_sets(), st.integers(1, 50))
def test_ranks_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray], depth: int) -> None:
    trains, tests = sets
    ranks, products, complete = best_ranks(tests, trains, depth)
    expected, cosines = brute_ranks(tests, trains)
    assert complete <= depth
    assert ranks.tolist() == [rank if rank <= complete else 0 for rank in expected]
    assert all(products[row] == cosines[row] for row in np.flatnonzero(ranks))
    assert complete == len(trains) or depth < len(trains)


@needs_faiss
@settings(deadline=None)
@given(vector_sets())
def test_nearest_cosines_are_those_of_brute_force(sets: tuple[np.ndarray, np.ndarray]) -> None:
    trains, tests = sets
    rows = np.arange(0, len(trains), 2)
    expected = (tests.astype(int) @ trains[rows].astype(int).T).max(axis=1) / scale(trains.shape[1]) ** 2
    assert nearest(tests, trains, rows) == pytest.approx(np.clip(expected, -1, 1))
    assert (nearest(tests, trains, rows[:0]) == -1).all()


# --- restrain --------------------------------------------------------------------------------------------------------


@needs_faiss
@settings(max_examples=200, deadline=None)
@given(vector_sets(), st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(1, 5), st.integers(0, 3))
def test_training_sets(sets: tuple[np.ndarray, np.ndarray], sizes: list[int], exclude: int, seed: int) -> None:
    trains, tests = sets
    ids = [f"q{number:03d}" for number in range(len(trains))]
    ranks, products = brute_ranks(tests, trains)
    # The largest possible, by trying every size.
    possible = 0
    for size in range(1, len(trains)):
        last = max(sorted(ranks)[size - 1], exclude)
        if sum(rank > last for rank in ranks) >= size:
            possible = size
    if max(sizes) > possible:
        with pytest.raises(InputError, match=f"{max(sizes)} is too large .* {possible} is the largest possible"):
            restrained(ids, trains, tests, sizes, exclude, seed)
        return
    found = restrained(ids, trains, tests, sizes, exclude, seed)
    assert [(chosen.size, chosen.kind) for chosen in found] == [
        (size, kind) for size in sorted(set(sizes)) for kind in ("interpolation", "extrapolation")
    ]
    for inter, extra in zip(found[::2], found[1::2], strict=True):
        assert len(set(inter.rows)) == len(inter.rows) == inter.size
        assert len(set(extra.rows)) == len(extra.rows) == extra.size
        assert not set(inter.rows) & set(extra.rows)
        order = sorted(range(len(trains)), key=lambda row: (ranks[row], -products[row], row))
        assert sorted(order[: inter.size]) == inter.rows.tolist()
        assert inter.ranks == max(ranks[row] for row in inter.rows)
        assert extra.ranks == max(inter.ranks, exclude)
        assert min(ranks[row] for row in extra.rows) > extra.ranks
        # Each test query's nearest training query overall is in the interpolation set or similar to more others.
        if inter.ranks > 1 or inter.size == ranks.count(1):
            assert (nearest(tests, trains, inter.rows) >= nearest(tests, trains, extra.rows)).all()


@needs_faiss
def test_extrapolation_sets_are_drawn_by_the_seed() -> None:
    generator = np.random.default_rng(5)
    trains, tests = fixed_point(generator.normal(size=(400, 8))), fixed_point(generator.normal(size=(5, 8)))
    ids = [md5(str(number)) for number in range(400)]
    one, again, other = (restrained(sorted(ids), trains, tests, [100, 50], 1, seed) for seed in (0, 0, 1))
    assert [chosen.rows.tolist() for chosen in one] == [chosen.rows.tolist() for chosen in again]
    assert one[2].rows.tolist() == other[2].rows.tolist()
    assert one[3].rows.tolist() != other[3].rows.tolist()
    # A size does not depend on the other sizes asked for.
    alone = restrained(sorted(ids), trains, tests, [50], 1, 0)
    assert [chosen.rows.tolist() for chosen in alone] == [chosen.rows.tolist() for chosen in one[:2]]


# --- resttest --------------------------------------------------------------------------------------------------------


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


@needs_faiss
@settings(max_examples=200, deadline=None)
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


@needs_faiss
def test_clear_clusters_are_found_and_the_largest_is_the_first() -> None:
    generator = np.random.default_rng(0)
    centres = np.eye(8)[[0, 1, 2]]
    truth = np.repeat([2, 0, 1], [50, 30, 20])
    vectors = fixed_point(centres[truth] + generator.normal(scale=0.05, size=(100, 8)))
    assert clusters(vectors, np.array([0, 50, 80])).tolist() == np.repeat([0, 1, 2], [50, 30, 20]).tolist()
    # Three starts in one cluster: the emptied ones start again elsewhere.
    assert len(set(clusters(np.repeat(vectors[[0, 60, 90]], 5, axis=0), np.array([0, 1, 2])).tolist())) == 3


@needs_faiss
def test_the_same_clusters_and_ranks_on_any_number_of_threads() -> None:
    code = """
import hashlib, numpy as np
from builders.extrapolation.similarity import *
generator = np.random.default_rng(3)
vectors = fixed_point(np.round(generator.normal(size=(9000, 24)), 0) + 0.25)
ranks, products, complete = best_ranks(vectors[:700], vectors[700:], 50)
labels = clusters(vectors, np.arange(5))
print(complete, hashlib.sha256(ranks.tobytes() + products.tobytes() + labels.tobytes()).hexdigest())
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
        for threads in ("1", "3", "4")
    }
    assert len(outputs) == 1


@needs_faiss
@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(0, 5))
def test_buckets_hold_every_query_once(seed: int, count: int, draw: int) -> None:
    generator = np.random.default_rng(seed)
    trains, tests = fixed_point(generator.normal(size=(60, 3))), fixed_point(generator.normal(size=(25, 3)))
    tests[:3] = trains[:3]
    ids = [f"q{number:03d}" for number in range(85)]
    try:
        found = bucketed(ids[:60], ids[60:], trains, tests, count, draw)
    except InputError as error:
        assert "choose fewer buckets" in str(error)
        return
    assert set(found.trains.tolist()) == set(found.tests.tolist()) == set(range(count))
    assert (found.trains[:3] == found.tests[:3]).all()
    for bucket in range(count):
        rows = np.flatnonzero(found.trains == bucket)
        assert found.nearest[:, bucket] == pytest.approx(nearest(tests, trains, rows))


# --- embeddings ------------------------------------------------------------------------------------------------------

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


def test_what_embed_writes_is_read_back_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "v.parquet"
    write_embeddings(iter([Block("m", 0, IDS[:2], VECTORS[:2]), Block("m", 2, IDS[2:], VECTORS[2:])]), path)
    (found,) = directions(read_embeddings([path]), [IDS])
    assert (found == fixed_point(VECTORS)).all()

    def broken() -> Any:
        yield Block("m", 0, IDS, VECTORS)
        raise InputError("stop")

    before = path.read_bytes()
    with pytest.raises(InputError, match="stop"):
        write_embeddings(broken(), path)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1
    with pytest.raises(InputError, match=r"ends in \.parquet"):
        write_embeddings(iter([]), tmp_path / "v.npy")


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
    with pytest.raises(InputError, match=r"v\.bin: expected embeddings in a file named"):
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


def fake_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence_transformers whose model gives a text's length, its first character and whether it was prompted."""

    class SentenceTransformer:
        def __init__(self, name: str) -> None:
            if name == "missing":
                raise OSError("no such model")

        def encode(self, texts: list[str], prompt: str = "", **options: Any) -> np.ndarray:
            assert options["batch_size"] == 7 and options["convert_to_numpy"] and not options["show_progress_bar"]
            return np.array([[len(text), ord(text[0]) % 97, len(prompt) + 1] for text in texts], np.float32)

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)


def test_a_model_embeds_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model(monkeypatch)
    (plain,) = directions(encode("m", [("a", "xyz"), ("b", "q")], 7), [["a", "b"]])
    assert (plain == fixed_point(np.array([[3, 120 % 97, 1], [1, 113 % 97, 1]]))).all()
    (prompted,) = directions(encode("m", [("a", "xyz")], 7, "query: "), [["a"]])
    assert (prompted == fixed_point(np.array([[3, 120 % 97, 8]]))).all()
    with pytest.raises(InputError, match="missing: cannot be loaded by sentence-transformers"):
        list(encode("missing", []))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="pip install sentence-transformers"):
        list(encode("m", []))


def test_a_real_model_embeds_the_queries(tmp_path: Path) -> None:
    # Found, not imported: torch takes seconds.
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("needs sentence-transformers")
    from transformers import BertConfig, BertModel, BertTokenizer

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"北京天气饺子怎么煮"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    config = BertConfig(vocab_size=14, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertModel(config).save_pretrained(tmp_path / "model")
    (found,) = directions(encode(str(tmp_path / "model"), [("a", "北京天气"), ("b", "饺子怎么煮")]), [["a", "b"]])
    assert found.shape == (2, 16) and (found[0] != found[1]).any()
    with pytest.raises(InputError, match="cannot be loaded"):
        list(encode(str(tmp_path / "nothing"), []))


# --- the verb --------------------------------------------------------------------------------------------------------

TRAINS, TESTS = 60, 12


def make(folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
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
    path = folder / "vectors.npz"
    np.savez(path, ids=np.array(list(vectors)), vectors=np.array(list(vectors.values())))
    return release, path, vectors


def call(*words: Any) -> int:
    return main("builders", "", VERBS, ["extrapolate", *map(str, words)])


def queries_of(release: Path, config: str, split: str = "train") -> set[str]:
    return set(open_release(release).table(config, split)["query-id"].to_pylist())


@needs_faiss
def test_restrain_adds_configs_to_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release, path, vectors = make(tmp_path)
    out = tmp_path / "out"
    options = ["restrain", "--release", release, "--embeddings", path, "--size", "20", "5", "--exclude", "2"]
    assert call(*options, "--out", out, "--format", "json") == 0
    figures = {row["config"]: row for row in json.loads(capsys.readouterr().out)}
    train = open_release(out).table("qrels", "train").to_pylist()
    assert train == open_release(release).table("qrels", "train").to_pylist()
    dev = queries_of(out, ["queries", "..", "qrels"][-1], "dev")
    everything = {md5(f"训练 {n}") for n in range(TRAINS)}

    def cosine(one: str, two: str) -> float:
        a, b = vectors[one], vectors[two]
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    for size in (5, 20):
        inter = queries_of(out, f"restrain-{size}-interpolation")
        extra = queries_of(out, f"restrain-{size}-extrapolation")
        assert len(inter) == len(extra) == size and not inter & extra and inter | extra <= everything
        for query in dev:
            top = sorted(everything, key=lambda train: -cosine(query, train))[:2]
            assert not extra & set(top)
        near = np.mean([max(cosine(query, train) for train in inter) for query in dev])
        far = np.mean([max(cosine(query, train) for train in extra) for query in dev])
        assert near > far
        assert figures[f"restrain-{size}-interpolation"]["nearest_cosine"] == pytest.approx(near, abs=2e-3)
        assert figures[f"restrain-{size}-extrapolation"]["nearest_cosine"] == pytest.approx(far, abs=2e-3)
        # All judgments of the chosen queries, in the order of qrels.
        for kind, chosen in (("interpolation", inter), ("extrapolation", extra)):
            rows = open_release(out).table(f"restrain-{size}-{kind}", "train").to_pylist()
            assert rows == [row for row in train if row["query-id"] in chosen]
            loaded = datasets.load_dataset(str(out), f"restrain-{size}-{kind}", cache_dir=str(tmp_path / "cache"))
            assert loaded["train"].to_list() == rows
    assert md5("训练 0") in queries_of(out, "restrain-20-interpolation")  # the query that is a dev query
    # The same command gives the same bytes, in place too, and leaves the other sizes.
    manifest = (out / "manifest.json").read_text()
    assert call(*options, "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "manifest.json").read_text() == manifest
    more = ["restrain", "--release", out, "--embeddings", path, "--size", "10", "--split", "dev", "test", "--out", out]
    assert call(*more) == 0
    assert len(queries_of(out, "restrain-10-extrapolation")) == 10
    assert len(queries_of(out, "restrain-5-interpolation")) == 5
    assert set(json.loads((out / "stats.json").read_text())["extrapolation"]) == {
        f"restrain-{size}-{kind}" for size in (5, 10, 20) for kind in ("interpolation", "extrapolation")
    }


@needs_faiss
def test_resttest_adds_configs_to_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release, path, _ = make(tmp_path)
    out = tmp_path / "out"
    for buckets in (4, 3):  # the second time in place: no bucket of the first is left
        source = release if buckets == 4 else out
        options = ["resttest", "--release", source, "--embeddings", path, "--out", out]
        assert call(*options, "--buckets", buckets, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out.split("\n]\n")[1] + "\n]")
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
    mean = {
        kind: np.average(
            [row["nearest_cosine"] for row in rows if row["test"] == kind],
            weights=[row["test_queries"] for row in rows if row["test"] == kind],
        )
        for kind in ("interpolation", "extrapolation")
    }
    assert mean["interpolation"] > mean["extrapolation"]


@needs_faiss
def test_overlap_counts_from_one_shared_passage_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release, path, _ = make(tmp_path)
    assert call("overlap", "--release", release, "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    # Dev queries 0, 4 and 8 share one positive each; passages that are negative in training do not count.
    assert row == {
        "config": "qrels",
        "test": "dev",
        "train_queries": TRAINS,
        "test_queries": TESTS,
        "overlapping": 3,
        "overlapping_share": 0.25,
    }
    out = tmp_path / "out"
    assert call("restrain", "--release", release, "--embeddings", path, "--size", "5", "--out", out) == 0
    assert call("resttest", "--release", out, "--embeddings", path, "--buckets", "2", "--out", out) == 0
    capsys.readouterr()
    assert call("overlap", "--release", out, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["config"], row["test"]) for row in rows] == [
        ("qrels", "dev"),
        ("restrain-5-extrapolation", "dev"),
        ("restrain-5-interpolation", "dev"),
        *((f"resttest-bucket{number}", kind) for number in (1, 2) for kind in ("extrapolation", "interpolation")),
    ]
    for row in rows:
        resampled = row["config"].startswith("resttest-")
        passages = {
            row["corpus-id"] for row in open_release(out).table(row["config"], "train").to_pylist() if row["score"] > 0
        }
        tests = open_release(out).table(row["config"] if resampled else "qrels", row["test"]).to_pylist()
        expected = {test["query-id"] for test in tests if test["score"] > 0 and test["corpus-id"] in passages}
        assert row["overlapping"] == len(expected)
    assert call("overlap", "--release", out) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0].split() == [
        "config",
        "test",
        "train",
        "queries",
        "test",
        "queries",
        "overlapping",
        "overlapping",
        "share",
    ]
    assert text[1].split() == ["qrels", "dev", "60", "12", "3", "25.00%"]


@needs_faiss
def test_a_model_in_the_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_model(monkeypatch)
    release, _, _ = make(tmp_path)
    file = tmp_path / "v.parquet"
    assert call("embed", "--release", release, "--model", "m", "--batch-size", 7, "--out", file) == 0
    table = pq.read_table(file)
    assert len(table) == TRAINS + TESTS - 1 and table.schema.names == ["_id", "vector"]
    restrain = ["restrain", "--release", release, "--size", "3", "--out"]
    assert call(*restrain, tmp_path / "one", "--embeddings", file) == 0
    assert call(*restrain, tmp_path / "two", "--model", "m", "--batch-size", 7) == 0
    for kind in ("interpolation", "extrapolation"):
        name = f"restrain-3-{kind}"
        assert queries_of(tmp_path / "one", name) == queries_of(tmp_path / "two", name)
    build = open_release(tmp_path / "two").manifest["builds"][-1]
    assert build["options"]["model"] == "m" and len(build["options"]["vectors"]) == 64
    assert str(tmp_path) not in (tmp_path / "one" / "manifest.json").read_text()


@needs_faiss
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["restrain", "--size", "14K"],
            r"a size of 14,000 is too large for 60 training queries.* \d+ is the largest",
        ),
        (["restrain", "--size", "5", "--exclude", "99"], "0 is the largest possible"),
        (["restrain", "--size", "5", "--split", "nothing"], "has no config 'queries' with a split 'nothing'"),
        (["resttest", "--split", "test"], "has no config 'qrels' with a split 'test'"),
        (["resttest", "--buckets", "72"], "72"),
        (["resttest", "--buckets", "500"], "72 queries do not fill 500 buckets"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    release, path, _ = make(tmp_path)
    assert call(*words, "--release", release, "--embeddings", path, "--out", tmp_path / "out") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and re.search(message, error)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["release", "vectors.npz"]


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        [],
        ["restrain"],
        ["restrain", "--release", "r", "--model", "m", "--out", "o", "--size", "0"],
        ["restrain", "--release", "r", "--model", "m", "--out", "o", "--size", "1.5K"],
        ["resttest", "--release", "r", "--out", "o"],
        ["resttest", "--release", "r", "--out", "o", "--model", "m", "--embeddings", "e"],
    ):
        with pytest.raises(SystemExit) as stopped:
            call(*words)
        assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        call("--help")
    assert stopped.value.code == 0
    assert "python -m builders extrapolate restrain --release" in capsys.readouterr().out
