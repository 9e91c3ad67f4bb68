"""Exact search compared with brute force: scores, order, ties, devices."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baselines.retrieve import dense
from baselines.retrieve.dense import Engine, FaissEngine, TorchEngine, top
from baselines.retrieve.encoder import largest_norm
from baselines.retrieve.index import NAME, Index, chunk_name, open_vectors
from builders.core.files import sha256_of

Hits = list[tuple[int, float]]
pytestmark = pytest.mark.usefixtures("own_cache")


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


@settings(max_examples=40, deadline=None)
@given(case=st.builds(SimpleNamespace, **CASES))
def test_search_is_brute_force(tmp_path_factory: pytest.TempPathFactory, case: SimpleNamespace) -> None:
    """Few levels: nearly all scores tie, and ids decide; levels 0: all embeddings are the same."""
    rng = np.random.default_rng(case.seed)
    levels, fetched = case.levels, case.top_k + case.more
    values, queries = (rng.integers(-levels, levels + 1, (n, case.dim)).astype(np.float16) for n in (case.passages, 4))
    ranks = rng.permutation(case.passages)
    vectors = write_vectors(tmp_path_factory.mktemp("v") / "p", values, case.shard_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "BLOCK", case.block)
        patch.setattr(dense, "SCORES", case.scores)
        engines = engines_of(case.engine, queries, fetched, case.devices)
        found = dense.search(vectors, queries, engines, case.top_k, fetched, lambda: ranks)
        assert ordered(found, ranks, case.top_k) == brute_force(queries, values, ranks, case.top_k)


@pytest.mark.parametrize("engine", ["faiss", "torch"])
def test_search_is_brute_force_on_rounded_numbers(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real numbers, with passages that are there up to 400 times: only these queries take a second pass."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((5_000, 48)).astype(np.float16)
    values[rng.permutation(5_000)[:400]] = values[0]
    queries = rng.standard_normal((40, 48)).astype(np.float16)
    queries[:3] = values[0]
    ranks = rng.permutation(5_000)
    vectors = write_vectors(tmp_path / "p", values, 1_700)
    monkeypatch.setattr(dense, "BLOCK", 512)
    passes = []
    second = dense._second_pass
    monkeypatch.setattr(dense, "_second_pass", lambda *args: passes.append(len(args[1])) or second(*args))
    found = dense.search(vectors, queries, engines_of(engine, queries, 30, 2), 10, 30, lambda: ranks)
    assert ordered(found, ranks, 10) == brute_force(queries, values, ranks, 10)
    assert 3 <= sum(passes) <= 6


@given(seed=st.integers(0, 10**6), levels=st.sampled_from([2, 10**6]), k=st.integers(1, 40))
def test_top_of_groups_is_topk(seed: int, levels: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (3, 32 * 96), generator=generator).float()
    values, places = top(scores, k)
    assert torch.equal(values, torch.topk(scores, k).values)
    assert torch.equal(scores.gather(1, places), values)
    assert all(len(set(row)) == k for row in places.tolist())


@pytest.mark.parametrize("dim", [3, 48, 768])
def test_the_score_of_a_pair_does_not_depend_on_the_others(dim: int) -> None:
    left, right = np.random.default_rng(dim).standard_normal((2, 700, dim)).astype(np.float16)
    alone = [dense.pair_scores(left[n : n + 1], right[n : n + 1])[0] for n in range(len(left))]
    np.testing.assert_array_equal(dense.pair_scores(left, right), alone)
    np.testing.assert_allclose(alone, (left.astype(np.float64) * right.astype(np.float64)).sum(1), rtol=1e-5, atol=1e-6)


def test_what_one_device_raises_ends_the_search(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "BLOCK", 1)
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
        dense.candidates(vectors, [Slow(queries, 1), Full(queries, 1)], 1)
    assert len(searched) < 2_500
