"""Smaller embeddings: codes, files and searches equal NumPy's and sentence-transformers' own computations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import error_of, run
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, make_release, md5, tables
from sentence_transformers.util.quantization import quantize_embeddings
from test_encode import passage_texts
from tiny_models import write_dual

from baselines.core.passages import open_passages
from baselines.look.model_search import open_dual_search
from baselines.retrieve import vector_index
from baselines.retrieve.encode import encode_texts
from baselines.retrieve.index_files import open_vectors
from baselines.retrieve.search_vectors import search_vectors
from baselines.retrieve.vector_stores import STORE_NAMES, measure_ranges, open_store, sample_positions
from builders.core.errors import InputError
from builders.store.reader import open_release

SAMPLE_ROWS = 32  # instead of 8,192


@given(st.integers(0, 10_000), st.integers(1, 70))
def test_codes_are_those_of_sentence_transformers(seed: int, dim: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(50, dim)).astype(np.float16)
    vectors[:, 0] = 0.25  # a dimension without a range
    ranges = measure_ranges(vectors[:40])
    int8 = open_store("int8", dim, ranges)
    assert np.array_equal(int8.pack(vectors), quantize_embeddings(vectors, "int8", ranges=ranges))
    binary = open_store("binary", dim)
    assert np.array_equal(binary.pack(vectors), quantize_embeddings(vectors, "ubinary"))
    # A number within its range is off by at most half a step, and the rounding to 16 bits. A sign is the number's own.
    half_steps = (ranges[1] - ranges[0]) / 255 / 2
    errors = np.abs(int8.unpack(int8.pack(vectors[:40])) - vectors[:40].astype(np.float64))
    assert (errors <= half_steps + 0.002).all()
    assert np.array_equal(binary.unpack(binary.pack(vectors)), np.where(vectors > 0, 1, -1))


def test_a_sample_has_rows_in_equal_distances() -> None:
    assert sample_positions(3, 5).tolist() == [0, 1, 2]
    assert sample_positions(10, 4).tolist() == [0, 2, 5, 7]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of 120 passages, a model, and embeddings of the passages in every form."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    rows = tables(passage_texts())
    rows["sample-30", "corpus"] = [{"_id": md5(text)} for text in passage_texts()[1::4]]
    make_release(folder / "release", rows, rows_per_shard=50)
    for name, seed in (("model", 0), ("other-model", 1)):
        write_dual(folder / name, similarity="cosine", seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(vector_index, "RANGE_SAMPLE_ROWS", SAMPLE_ROWS)
        encode(folder, "float16", shard_rows=50)
        encode(folder, "other", model=folder / "other-model")
        encode(folder, "queries", queries=True, split="train")
        for store in ("int8", "binary"):
            encode(folder, store, store=store, reuse=folder / "float16", shard_rows=37)
    return folder


@pytest.fixture(autouse=True)
def small_sample(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(world / "cache"))
    monkeypatch.setattr(vector_index, "RANGE_SAMPLE_ROWS", SAMPLE_ROWS)


def encode(folder: Path, out: str, **options: Any) -> None:
    encode_texts(
        folder / "release", out=folder / out, device="cpu", quiet=True, **{"model": folder / "model"} | options
    )


def stored_codes(folder: Path) -> np.ndarray:
    """Return the codes of all passages, in order."""
    return np.concatenate([np.load(path) for path in sorted(folder.glob("passages-*.npy"))])


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_files_are_the_codes_of_the_16_bit_embeddings(world: Path) -> None:
    vectors = stored_codes(world / "float16")
    sample = vectors[[row * 120 // SAMPLE_ROWS for row in range(SAMPLE_ROWS)]].astype(np.float32)
    ranges = np.stack([sample.min(0), sample.max(0)])
    assert np.array_equal(np.load(world / "int8" / "ranges.npy"), ranges)
    assert np.array_equal(stored_codes(world / "int8"), quantize_embeddings(vectors, "int8", ranges=ranges))
    assert np.array_equal(stored_codes(world / "binary"), quantize_embeddings(vectors, "ubinary"))
    sizes = {store: open_vectors(world / store).bytes_per_row for store in STORE_NAMES}
    assert sizes == {"float16": 2 * vectors.shape[1], "int8": vectors.shape[1], "binary": vectors.shape[1] / 8}


def test_chunks_of_another_size_and_two_processes_have_the_same_ranges_and_codes(world: Path) -> None:
    encode(world, "one-chunk", store="int8", reuse=world / "float16", shard_rows=1_000)
    assert (world / "one-chunk" / "ranges.npy").read_bytes() == (world / "int8" / "ranges.npy").read_bytes()
    assert np.array_equal(stored_codes(world / "one-chunk"), stored_codes(world / "int8"))
    # Without --reuse, the model's rounding depends on the batch, which moves few codes by one.
    for out, device in (("direct", "cpu"), ("processes", "cpu,cpu")):
        options = {"release": world / "release", "model": world / "model", "out": world / out, "quiet": True}
        encode_texts(**options, store="int8", shard_rows=37, device=device)
    assert contents(world / "direct") == contents(world / "processes")
    distances = stored_codes(world / "direct").astype(int) - stored_codes(world / "int8")
    assert np.abs(distances).max() <= 1
    assert (distances != 0).mean() < 0.05


@pytest.mark.parametrize("finished_chunks", [0, 1, 3])
def test_an_interrupted_encoding_resumes_with_the_same_bytes(
    world: Path, monkeypatch: pytest.MonkeyPatch, finished_chunks: int
) -> None:
    out = f"stopped-{finished_chunks}"
    encode_chunk = vector_index._encode_chunk
    calls = []

    def stop_later(task: Any, device: str) -> Any:
        calls.append(task)
        if len(calls) > finished_chunks:
            raise KeyboardInterrupt
        return encode_chunk(task, device)

    with monkeypatch.context() as patch:
        patch.setattr(vector_index, "_encode_chunk", stop_later)
        with pytest.raises(KeyboardInterrupt):
            encode(world, out, store="int8", shard_rows=37)
    assert not (world / out).exists()
    encode(world, out, store="int8", shard_rows=37)
    encode(world, f"whole-{finished_chunks}", store="int8", shard_rows=37)
    assert contents(world / out) == contents(world / f"whole-{finished_chunks}")


def rank(scores: np.ndarray, top_k: int) -> list[list[tuple[str, float]]]:
    """Return each query's best (passage id, score), by falling score, then by id."""
    passage_ids = [md5(text) for text in passage_texts()]
    rankings = []
    for query_scores in scores:
        hits = [(passage_id, float(score)) for passage_id, score in zip(passage_ids, query_scores, strict=True)]
        rankings.append(sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k])
    return rankings


def assert_run_is(run_hits: dict[str, list[tuple[str, float]]], expected: Sequence[list[tuple[str, float]]]) -> None:
    assert list(run_hits) == [md5(question) for question in QUESTIONS["train"]]
    for hits, expected_hits in zip(run_hits.values(), expected, strict=True):
        assert [passage_id for passage_id, _ in hits] == [passage_id for passage_id, _ in expected_hits]
        scores = [score for _, score in expected_hits]
        assert [score for _, score in hits] == pytest.approx(scores, rel=1e-6)


def search(world: Path, store: str, **options: Any) -> dict[str, list[tuple[str, float]]]:
    run_of_store = search_vectors(
        world / "release", passages=world / store, queries=world / "queries", split="train", quiet=True, **options
    )
    return run_of_store.hits


def unpacked(world: Path, store: str) -> np.ndarray:
    """Return the passages' vectors in 64 bits, from the files alone."""
    codes = stored_codes(world / store)
    if store == "binary":
        return np.unpackbits(codes, axis=1)[:, : len(query_vectors(world)[0])] * 2.0 - 1
    if store == "int8":
        low, high = np.load(world / "int8" / "ranges.npy")
        return ((codes + np.float32(128.5)) * ((high - low) / np.float32(255)) + low).astype(np.float16).astype(float)
    return codes.astype(float)


def query_vectors(world: Path) -> np.ndarray:
    return np.load(world / "queries" / "queries-00000-of-00001.npy").astype(float)


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_a_search_of_int8_is_the_product_with_the_unpacked_vectors(world: Path, engine: str) -> None:
    scores = query_vectors(world) @ unpacked(world, "int8").T
    assert_run_is(search(world, "int8", top_k=9, engine=engine), rank(scores, 9))


def sign_products(world: Path) -> np.ndarray:
    return np.where(query_vectors(world) > 0, 1, -1) @ unpacked(world, "binary").T


def test_a_search_of_signs_is_the_product_of_signs_with_ties_by_id(world: Path) -> None:
    products = sign_products(world)
    assert len(np.unique(products)) < 30  # so there are many ties
    for top_k in (1, 9, 120, 500):
        assert_run_is(search(world, "binary", top_k=top_k), rank(products, top_k))


@pytest.mark.parametrize("larger", [None, "int8", "float16"])
@pytest.mark.parametrize("factor", [1, 3, 40])
def test_the_best_passages_are_scored_again(world: Path, larger: str | None, factor: int) -> None:
    candidates = rank(sign_products(world), 5 * factor)
    full_scores = query_vectors(world) @ unpacked(world, larger or "binary").T
    expected = []
    for hits, ranking in zip(candidates, rank(full_scores, 120), strict=True):
        candidate_ids = {passage_id for passage_id, _ in hits}
        expected.append([hit for hit in ranking if hit[0] in candidate_ids][:5])
    rescore_with = world / larger if larger else None
    assert_run_is(search(world, "binary", top_k=5, rescore=factor, rescore_with=rescore_with), expected)


def test_int8_with_all_passages_rescored_is_the_16_bit_search(world: Path) -> None:
    rescored = search(world, "int8", top_k=5, rescore=24, rescore_with=world / "float16")
    assert rescored == search(world, "float16", top_k=5)


@pytest.mark.parametrize("store", ["int8", "binary"])
def test_a_sample_gives_what_the_whole_ranks_but_for_the_other_passages(world: Path, store: str) -> None:
    sample_ids = {md5(text) for text in passage_texts()[1::4]}
    whole = search(world, store, top_k=120)
    expected = [[hit for hit in hits if hit[0] in sample_ids][:7] for hits in whole.values()]
    assert_run_is(search(world, store, top_k=7, sample="sample-30"), expected)


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        ("float16", {"rescore": 2}, "so --rescore would change nothing; remove --rescore"),
        ("int8", {"rescore": 2}, "so --rescore would change nothing; add --rescore-with and 16-bit embeddings"),
        ("int8", {"rescore": 2, "rescore_with": "binary"}, "has binary embeddings, and --passages has int8 ones"),
        ("binary", {"rescore": 2, "rescore_with": "other"}, "is not the model that encoded"),
        ("binary", {"engine": "faiss"}, "--engine faiss cannot search the binary embeddings"),
        ("binary", {"rescore_with": "int8"}, "rescore"),
    ],
)
def test_stages_that_do_not_fit_together_are_one_error(
    world: Path, store: str, options: dict[str, Any], message: str
) -> None:
    if "rescore_with" in options:
        options = options | {"rescore_with": world / options["rescore_with"]}
    with pytest.raises(InputError, match=message):
        search(world, store, **options)


def test_other_verbs_refuse_what_they_cannot_use(world: Path, tmp_path: Path) -> None:
    words = ["--release", world / "release", "--index", world / "int8", "--out", tmp_path / "x.run"]
    before = contents(world / "int8")
    refused = run("baselines", "run", world / "model", words, code=1)
    assert "int8: has int8 embeddings; expected 16-bit embeddings or a new path" in error_of(refused)
    assert contents(world / "int8") == before
    with pytest.raises(InputError, match=r"float16.*has not the 16-bit embeddings of"):
        encode(world, "x", model=world / "other-model", store="int8", reuse=world / "float16")
    with pytest.raises(InputError, match="store and queries exclude each other"):
        encode(world, "x", queries=True, store="int8")


@pytest.mark.parametrize("store", ["int8", "binary"])
def test_the_page_searches_all_passages_by_the_unpacked_vectors(world: Path, store: str) -> None:
    release = open_release(world / "release")
    passages = open_passages(release, "corpus")
    model = str(world / "model")
    search_page = open_dual_search(model, world / store, release, "corpus", passages, device="cpu", dtype="auto")
    hits = search_page(QUESTIONS["train"][0], 5)
    # A query that is encoded alone may differ in the last digits.
    (expected,) = rank(query_vectors(world)[:1] @ unpacked(world, store).T, 5)
    assert [score for _, score in hits] == pytest.approx([score for _, score in expected], rel=0.01)


def test_damaged_ranges_and_codes_are_reported(world: Path) -> None:
    encode(world, "damaged", store="int8", reuse=world / "float16")
    ranges_path = world / "damaged" / "ranges.npy"
    intact_bytes = ranges_path.read_bytes()
    ranges_path.write_bytes(intact_bytes[:-1] + b"\x01")
    with pytest.raises(InputError, match=r"ranges.npy has the SHA-256"):
        open_vectors(world / "damaged")
    ranges_path.write_bytes(intact_bytes)
    manifest_path = world / "damaged" / "manifest.json"
    manifest_path.write_text(manifest_path.read_text().replace('"int8"', '"binary"'))
    with pytest.raises(InputError, match="is an array of int8"):
        open_vectors(world / "damaged")
