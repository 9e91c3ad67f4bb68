"""The engines of exact search: their best over blocks and devices, and how much of a device they take."""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_scan import write_vectors
from torch.utils._python_dispatch import TorchDispatchMode

from baselines.vectors import engines, scan
from baselines.vectors.engines import FaissEngine, TorchEngine


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from([FaissEngine, TorchEngine]),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    levels=st.sampled_from([1, 3, 1_000]),
    count=st.integers(1, 30),
    scores=st.sampled_from([1, 100, 1 << 26]),
)
def test_the_best_of_all_blocks_are_kept(
    seed: int, kind: Any, sizes: list[int], levels: int, count: int, scores: int
) -> None:
    """Whole numbers: sums in 32 bits are exact, so that brute force has the same scores."""
    rng = np.random.default_rng(seed)
    passages = rng.integers(-levels, levels + 1, (sum(sizes), 4)).astype(np.float16)
    queries = rng.integers(-levels, levels + 1, (7, 4)).astype(np.float16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "SCORES", scores)
        engine, start = kind(queries, count), 0
        for size in sizes:
            engine.add(start, engine.prepare(passages[start : start + size]))
            start += size
    found, rows = engine.best()
    every = queries.astype(np.float32) @ passages.astype(np.float32).T
    have = min(count, len(passages))
    np.testing.assert_array_equal(found[:, :have], -np.sort(-every, axis=1)[:, :have])
    np.testing.assert_array_equal(np.take_along_axis(every, rows[:, :have], 1), found[:, :have])
    assert all(len(set(row)) == have for row in rows[:, :have].tolist())
    assert (rows[:, have:] == -1).all() and np.isneginf(found[:, have:]).all()


class Memory(TorchDispatchMode):
    """Bytes of all tensors that are made inside it, now and at most: a storage counts until nothing uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._users: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                self._use(storage._cdata, storage.nbytes(), 1)
                weakref.finalize(each, self._use, storage._cdata, storage.nbytes(), -1)
        return result

    def _use(self, key: int, size: int, change: int) -> None:
        before = self._users[key]
        self._users[key] += change
        if not before or not self._users[key]:
            self.now += size * change
        self.most = max(self.most, self.now)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_card_holds_the_queries_their_best_a_block_and_some_scores(precision: str) -> None:
    """The whole collection's shapes without its numbers (device meta): 86,395 queries, blocks of 65,536 x 768."""
    queries, dim, count, width = 86_395, 768, 100, {"fp32": 4, "bf16": 2}[precision]
    with Memory() as memory:
        engine = TorchEngine(np.zeros((queries, dim), np.float16), count, "meta", precision)
        held = memory.now
        block = torch.empty((scan.BLOCK, dim), dtype=torch.float16, device="meta")
        most = []
        for number in range(2):
            engine.add(number * scan.BLOCK, block)
            most.append(memory.most)
        del block
        assert memory.now == held
    # The queries in the engine's precision, their best: a score and a row each.
    assert held == queries * (dim * width + count * 12)
    # A block as it comes and in the engine's precision, the scores; what else there is (groups' maxima) is small.
    passages, scores = scan.BLOCK * dim * (2 + width), engines.SCORES * width
    assert held + passages + scores <= memory.most <= 1.1 * (held + passages + scores) < 1.1e9
    assert len(set(most)) == 1  # no block adds to it


def test_every_device_searches_its_own_blocks_and_reads_ahead_by_one(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BLOCK", 10)
    vectors = write_vectors(tmp_path / "p", np.arange(95)[:, None].astype(np.float16), 40)
    ahead: list[int] = []

    class Counting(TorchEngine):
        prepared = added = 0
        starts: list[int]

        def prepare(self, block: Any) -> Any:
            self.prepared += 1
            ahead.append(self.prepared - self.added)
            return super().prepare(block)

        def add(self, start: int, block: Any) -> None:
            self.starts = [*getattr(self, "starts", []), start]
            super().add(start, block)
            self.added += 1

    devices = [Counting(np.ones((1, 1), np.float16), 3) for _ in range(3)]
    scores, rows = scan.candidates(vectors, devices, 3)
    assert rows.tolist() == [[94, 93, 92]] and scores.tolist() == [[94.0, 93.0, 92.0]]
    assert [each.starts for each in devices] == [[0, 30, 60, 90], [10, 40, 70], [20, 50, 80]]
    assert max(ahead) <= 2  # one that is searched, one that is read


def test_what_one_device_raises_ends_the_search(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK", 1)
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
        scan.candidates(vectors, [Slow(queries, 1), Full(queries, 1)], 1)
    assert len(searched) < 2_500
