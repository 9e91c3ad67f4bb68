"""Kinds of model behind one interface, and exact search, compared with brute force over all passages."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
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
from baselines.retrieve.index_files import NAME, Index, chunk_name, open_vectors
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.search_engines import Engine, FaissEngine
from baselines.retrieve.torch_engine import TorchEngine, top
from baselines.retrieve.vector_index import open_retriever
from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.store.reader import Release, open_release

WORK = Work(("cpu",), "fp32")
ASKED = QUESTIONS["dev"] + QUESTIONS["train"]
KINDS = ["static", "sparse", "multi-vector"]  # models by the names of their kinds
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual", prompts={"query": "问", "other": "饺子"})
    write_cross(folder / "cross")
    write_static(folder / "static")
    write_multi_vector(folder / "multi-vector")
    write_sparse(folder / "sparse")
    write_sparse(folder / "inference-free", inference_free=True)
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("kinds") / "release"
    make_release(folder)
    return open_release(folder)


def found_by(settings: ModelSettings, release: Release, folder: Path, top_k: int = 4) -> list[list[tuple[str, float]]]:
    retriever = open_retriever(settings, WORK)
    return list(retriever.search(release, "corpus", retriever.index(release, "corpus", folder), ASKED, top_k))


def expect(found: list[list[tuple[str, float]]], scores: np.ndarray, atol: float) -> None:
    ids = [md5(text) for text in TEXTS]
    assert len(found) == len(scores) == len(ASKED)
    for hits, own in zip(found, scores, strict=True):
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        best = np.sort(own)[::-1][: len(hits)]
        np.testing.assert_allclose([score for _, score in hits], best, atol=atol)
        np.testing.assert_allclose([own[ids.index(corpus)] for corpus, _ in hits], best, atol=atol)


PROMPTS, SHORT = {"query_prompt": "水", "passage_prompt": "火"}, {"truncate_dim": 8, "similarity": "cosine"}


@pytest.mark.parametrize(
    ("said", "scores"),
    [
        (PROMPTS, lambda m: m.encode(ASKED, prompt="水") @ m.encode(TEXTS, prompt="火").T),
        ({"prompt_name": "other"}, lambda m: m.encode(ASKED, prompt="饺子") @ m.encode_document(TEXTS).T),
        (SHORT, lambda m: _unit(m.encode_query(ASKED)[:, :8]) @ _unit(m.encode_document(TEXTS)[:, :8]).T),
        ({"normalize": True}, lambda m: _unit(m.encode_query(ASKED)) @ _unit(m.encode_document(TEXTS)).T),
    ],
)
def test_settings_of_a_model_are_used(
    models: Path, release: Release, tmp_path: Path, said: dict[str, object], scores: Callable[..., np.ndarray]
) -> None:
    found = found_by(ModelSettings(str(models / "dual"), **said), release, tmp_path / "index")
    expect(found, scores(SentenceTransformer(str(models / "dual"), device="cpu")), 0.02)


def test_a_static_model_equals_its_own_encode(models: Path, release: Release, tmp_path: Path) -> None:
    found = found_by(ModelSettings(str(models / "static")), release, tmp_path / "index")
    model = SentenceTransformer(str(models / "static"), device="cpu")
    expect(found, _unit(model.encode_query(ASKED)) @ _unit(model.encode_document(TEXTS)).T, 0.002)
    cut = found_by(ModelSettings(str(models / "static"), max_length=3), release, tmp_path / "cut")
    firsts = [_unit(model.encode([text[:3] for text in texts])) for texts in (ASKED, TEXTS)]
    expect(cut, firsts[0] @ firsts[1].T, 0.002)


@pytest.mark.parametrize("kind", ["sparse", "inference-free"])
def test_an_inverted_index_equals_the_whole_embeddings(
    models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = found_by(ModelSettings(str(models / kind)), release, tmp_path / "index")
    model = SparseEncoder(str(models / kind), device="cpu")
    queries, passages = model.encode_query(ASKED).to_dense(), model.encode_document(TEXTS).to_dense()
    expect(found, (queries.double() @ passages.double().T).numpy(), 1e-4)
    retriever = open_retriever(ModelSettings(str(models / kind)), WORK)
    if kind == "inference-free":  # a query has the dimensions of its own characters alone: none, nothing is found
        index = retriever.index(release, "corpus", tmp_path / "index")
        assert list(retriever.search(release, "corpus", index, [""], 4)) == [[]]
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 2)
    parts = found_by(ModelSettings(str(models / kind)), release, tmp_path / "parts")
    for hits, again in zip(found, parts, strict=True):
        assert [corpus for corpus, _ in hits] == [corpus for corpus, _ in again]
        np.testing.assert_allclose([score for _, score in hits], [score for _, score in again], rtol=1e-5)


def test_an_index_is_resumed(models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 2)
    encode, encoded = sparse.SparseSide.encode, []

    def noted(side: sparse.SparseSide, texts: list[str]) -> object:
        if side.task == "document":
            if len(encoded) == 1:
                encoded.append([])
                raise KeyboardInterrupt
            encoded.append(texts)
        return encode(side, texts)

    monkeypatch.setattr(sparse.SparseSide, "encode", noted)
    with pytest.raises(KeyboardInterrupt):
        found_by(ModelSettings(str(models / "sparse")), release, tmp_path / "index")
    found = found_by(ModelSettings(str(models / "sparse")), release, tmp_path / "index")
    assert encoded == [TEXTS[:2], [], TEXTS[2:4], TEXTS[4:]]  # each passage once
    assert found == found_by(ModelSettings(str(models / "sparse")), release, tmp_path / "again")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "cache", "index"]


def test_a_masked_language_model_is_sparse_if_the_user_says_so(release: Release, tmp_path: Path, models: Path) -> None:
    plain = ModelSettings(str(write_masked(tmp_path / "masked")))
    assert kind_of_model(plain) == "dense"
    retriever = open_retriever(plain, WORK, "sparse")
    index = retriever.index(release, "corpus", tmp_path / "index")
    assert len(list(retriever.search(release, "corpus", index, ASKED, 3))) == len(ASKED)
    with pytest.raises(InputError, match="is no sparse encoder"):
        open_retriever(ModelSettings(str(write_bert(tmp_path / "bert"))), WORK, "sparse").open_model()


def test_late_interaction_sums(models: Path, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModelSettings(str(models / "multi-vector"))
    found = found_by(settings, release, tmp_path / "index")
    model = MultiVectorEncoder(str(models / "multi-vector"), device="cpu")
    queries, passages = (
        [own.numpy() for own in encode(texts)]
        for encode, texts in ((model.encode_query, ASKED), (model.encode_document, TEXTS))
    )
    assert {len(own) for own in queries} == {12} and len({len(own) for own in passages}) > 2
    expect(found, np.array([[(query @ own.T).max(1).sum() for own in passages] for query in queries]), 0.02)
    # One passage per part, and one block per passage.
    monkeypatch.setattr("baselines.retrieve.vector_index.ROWS_ON_CPU", 1)
    monkeypatch.setattr("baselines.retrieve.multi_vector._TOKENS", 1)
    for hits, again in zip(found, found_by(settings, release, tmp_path / "parts"), strict=True):
        np.testing.assert_allclose([score for _, score in hits], [score for _, score in again], atol=0.01)
    with pytest.raises(InputError, match="is no late-interaction model"):
        open_retriever(ModelSettings(str(models / "dual")), WORK, "multi-vector").open_model()


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_an_index_is_reused_only_with_the_same_settings(models: Path, release: Release, tmp_path: Path) -> None:
    plain = ModelSettings(str(models / "dual"))
    first = found_by(plain, release, tmp_path / "index")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    assert found_by(plain, release, tmp_path / "index") == first
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    other = open_retriever(ModelSettings(str(models / "dual"), query_prompt="火"), WORK)
    assert other.about["fingerprint"] != open_retriever(plain, WORK).about["fingerprint"]


def test_the_kind_of_a_model_is_read_from_its_files(models: Path, tmp_path: Path) -> None:
    assert kind_of_model(ModelSettings(str(models / "dual"))) == "dense"
    assert kind_of_model(ModelSettings(str(models / "cross"))) == "cross"
    assert kind_of_model(ModelSettings(str(write_bert(tmp_path / "bert")))) == "dense"
    with pytest.raises(InputError, match="is a model of kind cross; expected dense, "):
        open_retriever(ModelSettings(str(models / "cross")), WORK)
    assert [kind_of_model(ModelSettings(str(models / name))) for name in KINDS] == KINDS


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"prompt_name": "s2p"}, "has no prompt 's2p'; its prompts: "),
        ({"truncate_dim": 64}, "has 32 dimensions; expected --truncate-dim of at most 32"),
        ({"normalize": False, "similarity": "cosine"}, "expected --similarity dot"),
    ],
)
def test_refused_options(models: Path, release: Release, tmp_path: Path, said: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        found_by(ModelSettings(str(models / "dual"), **said), release, tmp_path / "index")


Hits = list[tuple[int, float]]


def write_vectors(folder: Path, values: np.ndarray, shard_rows: int) -> Index:
    folder.mkdir(parents=True)
    shards = []
    starts = range(0, len(values), shard_rows)
    for number, start in enumerate(starts):
        part = values[start : start + shard_rows].astype(np.float16)
        path = folder / f"{chunk_name('passages', number, len(starts))}.npy"
        np.save(path, part)
        file = {"path": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
        shards.append({**file, "rows": len(part), "longest": 1.0001 * largest_norm(part)})
    of = {"of": "passages", "config": "corpus", "split": "corpus", "fingerprint": "0"}
    model = {"name": "m", "fingerprint": "0"}
    manifest = {"name": NAME, "format": 1, **of, "model": model, "dim": values.shape[1], "shards": shards}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return open_vectors(folder)


def brute_force(queries: np.ndarray, passages: np.ndarray, ranks: np.ndarray, top_k: int) -> list[Hits]:
    """Return all scores, computed in 64 bits and rounded to 32, sorted by score and then by id."""
    scores = (queries.astype(np.float64) @ passages.astype(np.float64).T).astype(np.float32)
    best = []
    for row in scores:
        order = sorted(range(len(row)), key=lambda place: (-row[place], ranks[place]))[:top_k]
        best.append([(place, float(row[place])) for place in order])
    return best


def ordered(found: Iterator[tuple[np.ndarray, np.ndarray]], ranks: np.ndarray, top_k: int) -> list[Hits]:
    hits = [list(zip(rows.tolist(), scores.tolist(), strict=True)) for rows, scores in found]
    return [sorted(each, key=lambda hit: (-hit[1], ranks[hit[0]]))[:top_k] for each in hits]


def engines_of(name: str, queries: np.ndarray, count: int, devices: int = 1) -> list[Engine]:
    kind = FaissEngine if name == "faiss" else TorchEngine
    return [kind(queries, count) for _ in range(devices)]


CASES = {
    **{"seed": st.integers(0, 10**6), "passages": st.integers(1, 90), "devices": st.integers(1, 4)},
    **{"top_k": st.integers(1, 12), "more": st.integers(0, 10), "engine": st.sampled_from(["faiss", "torch"])},
    **{"dim": st.sampled_from([1, 2, 8]), "levels": st.sampled_from([0, 1, 3, 1_000])},
    **{"shard_rows": st.sampled_from([1, 13, 90]), "block": st.sampled_from([1, 5, 32, 64])},
    "scores": st.sampled_from([1, 100, 1 << 26]),
}


@settings(max_examples=40)
@given(case=st.builds(SimpleNamespace, **CASES))
def test_search_is_brute_force(tmp_path_factory: pytest.TempPathFactory, case: SimpleNamespace) -> None:
    rng = np.random.default_rng(case.seed)
    levels, fetched = case.levels, case.top_k + case.more
    values, queries = (rng.integers(-levels, levels + 1, (n, case.dim)).astype(np.float16) for n in (case.passages, 4))
    ranks = rng.permutation(case.passages)
    vectors = write_vectors(tmp_path_factory.mktemp("v") / "p", values, case.shard_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_search, "BLOCK", case.block)
        patch.setattr(torch_engine, "SCORES", case.scores)
        engines = engines_of(case.engine, queries, fetched, case.devices)
        found = exact_search.search(vectors, queries, engines, case.top_k, fetched, lambda: ranks)
        assert ordered(found, ranks, case.top_k) == brute_force(queries, values, ranks, case.top_k)


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_search_is_brute_force_on_rounded_numbers(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One passage occurs 400 times. Only its queries need a second pass."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((5_000, 48)).astype(np.float16)
    values[rng.permutation(5_000)[:400]] = values[0]
    queries = rng.standard_normal((40, 48)).astype(np.float16)
    queries[:3] = values[0]
    ranks = rng.permutation(5_000)
    vectors = write_vectors(tmp_path / "p", values, 1_700)
    monkeypatch.setattr(exact_search, "BLOCK", 512)
    passes = []
    second = exact_search._second_pass
    monkeypatch.setattr(exact_search, "_second_pass", lambda *args: passes.append(len(args[1])) or second(*args))
    found = exact_search.search(vectors, queries, engines_of(engine, queries, 30, 2), 10, 30, lambda: ranks)
    assert ordered(found, ranks, 10) == brute_force(queries, values, ranks, 10)
    assert 3 <= sum(passes) <= 6


@given(seed=st.integers(0, 10**6), levels=st.sampled_from([2, 10**6]), k=st.integers(1, 40))
def test_top_of_groups_is_topk(seed: int, levels: int, k: int) -> None:
    scores = torch.randint(levels, (3, 32 * 96), generator=torch.Generator().manual_seed(seed)).float()
    values, places = top(scores, k)
    assert torch.equal(values, torch.topk(scores, k).values)
    assert torch.equal(scores.gather(1, places), values)
    assert all(len(set(row)) == k for row in places.tolist())


@pytest.mark.parametrize("dim", [3, 48, 768])
def test_the_score_of_a_pair_does_not_depend_on_the_others(dim: int) -> None:
    left, right = np.random.default_rng(dim).standard_normal((2, 700, dim)).astype(np.float16)
    alone = [exact_search.pair_scores(left[n : n + 1], right[n : n + 1])[0] for n in range(len(left))]
    np.testing.assert_array_equal(exact_search.pair_scores(left, right), alone)
    np.testing.assert_allclose(alone, (left.astype(np.float64) * right.astype(np.float64)).sum(1), rtol=1e-5, atol=1e-6)


def test_an_error_of_one_device_ends_the_search(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "BLOCK", 1)
    vectors = write_vectors(tmp_path / "p", np.ones((5_000, 1)), 5_000)
    queries, searched = np.ones((1, 1), np.float16), []

    class Full(TorchEngine):
        def add(self, start: int, block: Any) -> None:
            raise torch.OutOfMemoryError("out of memory")

    class Slow(TorchEngine):
        def add(self, start: int, block: Any) -> None:
            searched.append(start)
            super().add(start, block)

    with pytest.raises(torch.OutOfMemoryError):
        exact_search.candidates(vectors, [Slow(queries, 1), Full(queries, 1)], 1)
    assert len(searched) < 2_500
