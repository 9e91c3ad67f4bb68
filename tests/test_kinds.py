"""Kinds of model behind one interface, and exact search, compared with brute force over all passages."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import names
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tiny_kinds import write_masked, write_multi_vector, write_sparse, write_static
from tiny_models import write_bert, write_cross, write_dual

from baselines.core.settings import ModelSettings
from baselines.retrieve import exact_search, sparse, torch_engine
from baselines.retrieve.devices import Work
from baselines.retrieve.exact_search import largest_norm
from baselines.retrieve.index_files import NAME, VectorIndex, chunk_name, open_vectors
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.search_engines import FaissEngine, SearchEngine
from baselines.retrieve.torch_engine import TorchEngine, fast_topk
from baselines.retrieve.vector_index import open_retriever
from builders.core.errors import InputError
from builders.core.read_files import sha256_of
from builders.store.reader import Release, open_release

WORK = Work(("cpu",), "fp32")
QUERIES = QUESTIONS["dev"] + QUESTIONS["train"]
KINDS = ["static", "sparse", "multi-vector"]  # models by the names of their kinds
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind."""
    torch.set_num_threads(1)
    models_folder = tmp_path_factory.mktemp("models")
    write_dual(models_folder / "dual", prompts={"query": "问", "other": "饺子"})
    write_cross(models_folder / "cross")
    write_static(models_folder / "static")
    write_multi_vector(models_folder / "multi-vector")
    write_sparse(models_folder / "sparse")
    write_sparse(models_folder / "inference-free", inference_free=True)
    return models_folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release of the usual texts."""
    folder = tmp_path_factory.mktemp("kinds") / "release"
    make_release(folder)
    return open_release(folder)


Hits = list[tuple[str, float]]


def search_with(settings: ModelSettings, release: Release, folder: Path, top_k: int = 4) -> list[Hits]:
    """Index the release's passages in a folder, and return the hits of each query."""
    retriever = open_retriever(settings, WORK)
    index = retriever.index(release, "corpus", folder)
    return list(retriever.search(release, "corpus", index, QUERIES, top_k))


def scores_of(hits: Hits) -> list[float]:
    """Return the scores of hits."""
    return [score for _, score in hits]


def assert_best(all_hits: list[Hits], all_scores: np.ndarray, atol: float) -> None:
    """Compare the hits of each query with the scores of all passages."""
    row_of_passage = {md5(text): row for row, text in enumerate(TEXTS)}
    assert len(all_hits) == len(all_scores) == len(QUERIES)
    for hits, scores in zip(all_hits, all_scores, strict=True):
        assert scores_of(hits) == sorted(scores_of(hits), reverse=True)
        best_scores = np.sort(scores)[::-1][: len(hits)]
        np.testing.assert_allclose(scores_of(hits), best_scores, atol=atol)
        rows = [row_of_passage[passage_id] for passage_id, _ in hits]
        np.testing.assert_allclose(scores[rows], best_scores, atol=atol)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Return the vectors with the length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def scores_with_prompts(model: SentenceTransformer) -> np.ndarray:
    """Return the products of vectors with the prompts of the settings."""
    return model.encode(QUERIES, prompt="水") @ model.encode(TEXTS, prompt="火").T


def scores_with_a_named_prompt(model: SentenceTransformer) -> np.ndarray:
    """Return the products of vectors, where queries have the prompt that the model names "other"."""
    return model.encode(QUERIES, prompt="饺子") @ model.encode_document(TEXTS).T


def scores_of_short_vectors(model: SentenceTransformer) -> np.ndarray:
    """Return the cosines of the first eight dimensions."""
    query_vectors = unit_vectors(model.encode_query(QUERIES)[:, :8])
    return query_vectors @ unit_vectors(model.encode_document(TEXTS)[:, :8]).T


def cosines(model: SentenceTransformer) -> np.ndarray:
    """Return the cosines of all queries and passages."""
    return unit_vectors(model.encode_query(QUERIES)) @ unit_vectors(model.encode_document(TEXTS)).T


@pytest.mark.parametrize(
    ("settings", "scores"),
    [
        ({"query_prompt": "水", "passage_prompt": "火"}, scores_with_prompts),
        ({"prompt_name": "other"}, scores_with_a_named_prompt),
        ({"truncate_dim": 8, "similarity": "cosine"}, scores_of_short_vectors),
        ({"normalize": True}, cosines),
    ],
)
def test_settings_of_a_model_are_used(
    models: Path, release: Release, tmp_path: Path, settings: dict[str, object], scores: Callable[..., np.ndarray]
) -> None:
    all_hits = search_with(ModelSettings(str(models / "dual"), **settings), release, tmp_path / "index")
    assert_best(all_hits, scores(SentenceTransformer(str(models / "dual"), device="cpu")), 0.02)


def test_a_static_model_equals_its_own_encode(models: Path, release: Release, tmp_path: Path) -> None:
    all_hits = search_with(ModelSettings(str(models / "static")), release, tmp_path / "index")
    model = SentenceTransformer(str(models / "static"), device="cpu")
    assert_best(all_hits, cosines(model), 0.002)


def test_a_static_model_cuts_its_inputs(models: Path, release: Release, tmp_path: Path) -> None:
    # A token of the tiny model is a character.
    all_hits = search_with(ModelSettings(str(models / "static"), max_length=3), release, tmp_path / "cut")
    model = SentenceTransformer(str(models / "static"), device="cpu")
    query_vectors = unit_vectors(model.encode([text[:3] for text in QUERIES]))
    passage_vectors = unit_vectors(model.encode([text[:3] for text in TEXTS]))
    assert_best(all_hits, query_vectors @ passage_vectors.T, 0.002)


@pytest.mark.parametrize("name", ["sparse", "inference-free"])
def test_an_inverted_index_equals_the_whole_embeddings(
    models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = ModelSettings(str(models / name))
    all_hits = search_with(settings, release, tmp_path / "index")
    model = SparseEncoder(str(models / name), device="cpu")
    query_vectors = model.encode_query(QUERIES).to_dense().double()
    passage_vectors = model.encode_document(TEXTS).to_dense().double()
    assert_best(all_hits, (query_vectors @ passage_vectors.T).numpy(), 1e-4)
    # An index in parts of two passages gives the same hits.
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 2)
    hits_of_parts = search_with(settings, release, tmp_path / "parts")
    for hits, part_hits in zip(all_hits, hits_of_parts, strict=True):
        assert [passage_id for passage_id, _ in hits] == [passage_id for passage_id, _ in part_hits]
        np.testing.assert_allclose(scores_of(hits), scores_of(part_hits), rtol=1e-5)


def test_an_empty_query_without_inference_finds_nothing(models: Path, release: Release, tmp_path: Path) -> None:
    """A query has the dimensions of its own characters alone, and this one has none."""
    retriever = open_retriever(ModelSettings(str(models / "inference-free")), WORK)
    index = retriever.index(release, "corpus", tmp_path / "index")
    assert list(retriever.search(release, "corpus", index, [""], 4)) == [[]]


def test_an_index_is_resumed(models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 2)
    encode = sparse.SparseSide.encode
    encoded_texts: list[list[str]] = []

    def encode_until_stopped(side: sparse.SparseSide, texts: list[str]) -> object:
        if side.task == "document":
            if len(encoded_texts) == 1:
                encoded_texts.append([])
                raise KeyboardInterrupt
            encoded_texts.append(texts)
        return encode(side, texts)

    monkeypatch.setattr(sparse.SparseSide, "encode", encode_until_stopped)
    settings = ModelSettings(str(models / "sparse"))
    with pytest.raises(KeyboardInterrupt):
        search_with(settings, release, tmp_path / "index")
    all_hits = search_with(settings, release, tmp_path / "index")
    assert encoded_texts == [TEXTS[:2], [], TEXTS[2:4], TEXTS[4:]]  # each passage once
    assert all_hits == search_with(settings, release, tmp_path / "again")
    assert names(tmp_path) == ["again", "cache", "index"]


def test_a_masked_language_model_is_sparse_if_the_user_says_so(release: Release, tmp_path: Path) -> None:
    masked_model = ModelSettings(str(write_masked(tmp_path / "masked")))
    assert kind_of_model(masked_model) == "dense"
    retriever = open_retriever(masked_model, WORK, "sparse")
    index = retriever.index(release, "corpus", tmp_path / "index")
    assert len(list(retriever.search(release, "corpus", index, QUERIES, 3))) == len(QUERIES)
    with pytest.raises(InputError, match="is no sparse encoder"):
        open_retriever(ModelSettings(str(write_bert(tmp_path / "bert"))), WORK, "sparse").open_model()


def test_late_interaction_sums(models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModelSettings(str(models / "multi-vector"))
    all_hits = search_with(settings, release, tmp_path / "index")
    model = MultiVectorEncoder(str(models / "multi-vector"), device="cpu")
    queries = [vectors.numpy() for vectors in model.encode_query(QUERIES)]
    passages = [vectors.numpy() for vectors in model.encode_document(TEXTS)]
    assert {len(vectors) for vectors in queries} == {12}  # queries are padded
    assert len({len(vectors) for vectors in passages}) > 2
    scores = np.zeros((len(queries), len(passages)))
    for row, query in enumerate(queries):
        for column, passage in enumerate(passages):
            scores[row, column] = (query @ passage.T).max(1).sum()
    assert_best(all_hits, scores, 0.02)
    # One passage per part, and one block per passage.
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 1)
    monkeypatch.setattr("baselines.retrieve.multi_vector._TOKENS", 1)
    hits_of_parts = search_with(settings, release, tmp_path / "parts")
    for hits, part_hits in zip(all_hits, hits_of_parts, strict=True):
        np.testing.assert_allclose(scores_of(hits), scores_of(part_hits), atol=0.01)


def test_a_dense_model_is_not_opened_as_multi_vector(models: Path) -> None:
    with pytest.raises(InputError, match="is no late-interaction model"):
        open_retriever(ModelSettings(str(models / "dual")), WORK, "multi-vector").open_model()


def test_an_index_is_reused_only_with_the_same_settings(models: Path, release: Release, tmp_path: Path) -> None:
    plain = ModelSettings(str(models / "dual"))
    index_folder = tmp_path / "index"
    all_hits = search_with(plain, release, index_folder)
    times_before = {path: path.stat().st_mtime_ns for path in index_folder.iterdir()}
    assert search_with(plain, release, index_folder) == all_hits
    assert times_before == {path: path.stat().st_mtime_ns for path in index_folder.iterdir()}
    with_prompt = ModelSettings(str(models / "dual"), query_prompt="火")
    fingerprints = [open_retriever(settings, WORK).result_inputs["fingerprint"] for settings in (plain, with_prompt)]
    assert fingerprints[0] != fingerprints[1]


def test_the_kind_of_a_model_is_read_from_its_files(models: Path, tmp_path: Path) -> None:
    assert kind_of_model(ModelSettings(str(models / "dual"))) == "dense"
    assert kind_of_model(ModelSettings(str(models / "cross"))) == "cross"
    assert kind_of_model(ModelSettings(str(write_bert(tmp_path / "bert")))) == "dense"
    with pytest.raises(InputError, match="is a model of kind cross; expected dense, "):
        open_retriever(ModelSettings(str(models / "cross")), WORK)
    assert [kind_of_model(ModelSettings(str(models / name))) for name in KINDS] == KINDS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt_name": "s2p"}, "has no prompt 's2p'; its prompts: "),
        ({"truncate_dim": 64}, "has 32 dimensions; expected --truncate-dim of at most 32"),
        ({"normalize": False, "similarity": "cosine"}, "expected --similarity dot"),
    ],
)
def test_refused_options(
    models: Path, release: Release, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        search_with(ModelSettings(str(models / "dual"), **settings), release, tmp_path / "index")


RowHits = list[tuple[int, float]]


def write_vectors(folder: Path, values: np.ndarray, shard_rows: int) -> VectorIndex:
    """Write vectors like the verb encode, in shards of this number of rows, and open them."""
    folder.mkdir(parents=True)
    shards = []
    starts = range(0, len(values), shard_rows)
    for number, start in enumerate(starts):
        part = values[start : start + shard_rows].astype(np.float16)
        path = folder / f"{chunk_name('passages', number, len(starts))}.npy"
        np.save(path, part)
        shards.append(
            {
                "path": path.name,
                "bytes": path.stat().st_size,
                "sha256": sha256_of(path),
                "rows": len(part),
                "longest": 1.0001 * largest_norm(part),
            }
        )
    manifest = {
        "name": NAME,
        "format": 1,
        "of": "passages",
        "config": "corpus",
        "split": "corpus",
        "fingerprint": "0",
        "model": {"name": "m", "fingerprint": "0"},
        "dim": values.shape[1],
        "shards": shards,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return open_vectors(folder)


def brute_force(queries: np.ndarray, passages: np.ndarray, ranks: np.ndarray, top_k: int) -> list[RowHits]:
    """Return all scores, computed in 64 bits and rounded to 32, sorted by score and then by rank of the id."""
    all_scores = (queries.astype(np.float64) @ passages.astype(np.float64).T).astype(np.float32)
    best_hits = []
    for scores in all_scores:
        order = np.lexsort([ranks, -scores])[:top_k]
        best_hits.append([(int(row), float(scores[row])) for row in order])
    return best_hits


def sort_hits(all_hits: Iterator[tuple[np.ndarray, np.ndarray]], ranks: np.ndarray, top_k: int) -> list[RowHits]:
    """Return the best hits of each query, sorted by score and then by rank of the id."""
    best_hits = []
    for rows, scores in all_hits:
        hits = list(zip(rows.tolist(), scores.tolist(), strict=True))
        best_hits.append(sorted(hits, key=lambda hit: (-hit[1], ranks[hit[0]]))[:top_k])
    return best_hits


def engines_of(name: str, queries: np.ndarray, count: int, devices: int = 1) -> list[SearchEngine]:
    """Return an engine for each device. A kept engine scores its candidates itself, as on a GPU."""
    if name == "kept":
        return [TorchEngine(queries, count, keep_bytes=1 << 30) for _ in range(devices)]
    engine_class = FaissEngine if name == "faiss" else TorchEngine
    return [engine_class(queries, count) for _ in range(devices)]


CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "passages": st.integers(1, 90),
        "devices": st.integers(1, 4),
        "top_k": st.integers(1, 12),
        "extra_hits": st.integers(0, 10),  # engines fetch more than top_k
        "engine": st.sampled_from(["faiss", "torch", "kept"]),
        "dim": st.sampled_from([1, 2, 8]),
        "levels": st.sampled_from([0, 1, 3, 1_000]),  # few levels make equal scores
        "shard_rows": st.sampled_from([1, 13, 90]),
        "block": st.sampled_from([1, 5, 32, 64]),
        "scores": st.sampled_from([1, 100, 1 << 26]),
    }
)


@settings(max_examples=40)
@given(case=CASES)
def test_search_is_brute_force(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    highest = case["levels"]
    top_k = case["top_k"]
    fetch_count = top_k + case["extra_hits"]
    passages = rng.integers(-highest, highest + 1, (case["passages"], case["dim"])).astype(np.float16)
    queries = rng.integers(-highest, highest + 1, (4, case["dim"])).astype(np.float16)
    ranks = rng.permutation(case["passages"])
    vectors = write_vectors(tmp_path_factory.mktemp("v") / "p", passages, case["shard_rows"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_search, "BLOCK", case["block"])
        patch.setattr(torch_engine, "SCORES", case["scores"])
        engines = engines_of(case["engine"], queries, fetch_count, case["devices"])
        hits = exact_search.search_unsorted(vectors, queries, engines, top_k, fetch_count, lambda: ranks)
        assert sort_hits(hits, ranks, top_k) == brute_force(queries, passages, ranks, top_k)


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_search_is_brute_force_on_rounded_numbers(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One passage occurs 400 times. Only its queries need a second pass."""
    rng = np.random.default_rng(3)
    passages = rng.standard_normal((5_000, 48)).astype(np.float16)
    passages[rng.permutation(5_000)[:400]] = passages[0]
    queries = rng.standard_normal((40, 48)).astype(np.float16)
    queries[:3] = passages[0]
    ranks = rng.permutation(5_000)
    vectors = write_vectors(tmp_path / "p", passages, 1_700)
    monkeypatch.setattr(exact_search, "BLOCK", 512)
    query_counts = []
    second_pass = exact_search._second_pass

    def count_queries(*args: Any) -> Any:
        query_counts.append(len(args[1]))
        return second_pass(*args)

    monkeypatch.setattr(exact_search, "_second_pass", count_queries)
    hits = exact_search.search_unsorted(vectors, queries, engines_of(engine, queries, 30, 2), 10, 30, lambda: ranks)
    assert sort_hits(hits, ranks, 10) == brute_force(queries, passages, ranks, 10)
    # Scores are rounded, so a few other queries may need a second pass, too.
    assert 3 <= sum(query_counts) <= 6


def unit_rows(count: int, dim: int, seed: int) -> Any:
    """Return random 16-bit embeddings of length 1, some with numbers of the smallest magnitude that 16 bits have."""
    rows = np.random.default_rng(seed).standard_normal((count, dim))
    rows[: count // 2, : dim // 2] *= 1e-7
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


@pytest.mark.parametrize("engine_count", [1, 3])
def test_scores_on_a_device_have_the_bits_of_the_cpu(
    tmp_path: Path, engine_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages, queries = unit_rows(900, 96, 0), unit_rows(30, 96, 1)
    vectors = write_vectors(tmp_path / "p", passages, 400)
    monkeypatch.setattr(exact_search, "BLOCK", 128)
    monkeypatch.setattr(torch_engine, "_PAIRS_PER_STEP", 50)
    engines = [TorchEngine(queries, 20, keep_bytes=1 << 30) for _ in range(engine_count)]
    _, rows = exact_search.find_candidates(vectors, engines, 20)
    rows[0, 3] = -1  # an empty place
    scores = exact_search.scores_on_devices(engines, rows, vectors, 1.0)
    np.testing.assert_array_equal(scores, exact_search.exact_scores(queries, vectors, rows))
    # The engines have forgotten the passages.
    assert exact_search.scores_on_devices(engines, rows, vectors, 1.0) is None


@pytest.mark.parametrize(
    "case", ["small memory", "long query", "32-bit queries", "32-bit passages", "default on a CPU"]
)
def test_scores_whose_bits_could_differ_are_left_to_the_cpu(tmp_path: Path, case: str) -> None:
    passages, queries = unit_rows(300, 32, 0), unit_rows(5, 32, 1)
    vectors = write_vectors(tmp_path / "p", passages, 100)
    keep_bytes = {"small memory": 20_000, "default on a CPU": None}.get(case, 1 << 30)
    engine = TorchEngine(queries.astype(np.float32) if case == "32-bit queries" else queries, 10, keep_bytes=keep_bytes)
    if case == "32-bit passages":
        engine.add(0, engine.prepare(passages.astype(np.float32)))
        rows = engine.best()[1]
    else:
        _, rows = exact_search.find_candidates(vectors, [engine], 10)
    longest_query = 40.0 if case == "long query" else 1.0
    assert exact_search.scores_on_devices([engine], rows, vectors, longest_query) is None


@given(seed=st.integers(0, 10**6), levels=st.sampled_from([2, 10**6]), k=st.integers(1, 40))
def test_top_of_groups_is_topk(seed: int, levels: int, k: int) -> None:
    scores = torch.randint(levels, (3, 32 * 96), generator=torch.Generator().manual_seed(seed)).float()
    top_scores, columns = fast_topk(scores, k)
    assert torch.equal(top_scores, torch.topk(scores, k).values)
    assert torch.equal(scores.gather(1, columns), top_scores)
    for row in columns.tolist():
        assert len(set(row)) == k


@pytest.mark.parametrize("dim", [3, 48, 768])
def test_the_score_of_a_pair_does_not_depend_on_the_others(dim: int) -> None:
    left, right = np.random.default_rng(dim).standard_normal((2, 700, dim)).astype(np.float16)
    scores_alone = []
    for row in range(len(left)):
        scores_alone += exact_search.pair_scores(left[row : row + 1], right[row : row + 1]).tolist()
    np.testing.assert_array_equal(exact_search.pair_scores(left, right), scores_alone)
    exact_scores = (left.astype(np.float64) * right.astype(np.float64)).sum(1)
    np.testing.assert_allclose(scores_alone, exact_scores, rtol=1e-5, atol=1e-6)


def test_an_error_of_one_device_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "BLOCK", 1)  # so one engine alone would search 5,000 blocks
    vectors = write_vectors(tmp_path / "p", np.ones((5_000, 1)), 5_000)
    queries = np.ones((1, 1), np.float16)
    searched_starts: list[int] = []

    class FullEngine(TorchEngine):
        def add(self, start: int, block: Any) -> None:
            raise torch.OutOfMemoryError("out of memory")

    class CountedEngine(TorchEngine):
        def add(self, start: int, block: Any) -> None:
            searched_starts.append(start)
            super().add(start, block)

    with pytest.raises(torch.OutOfMemoryError):
        exact_search.find_candidates(vectors, [CountedEngine(queries, 1), FullEngine(queries, 1)], 1)
    assert len(searched_starts) < 2_500
