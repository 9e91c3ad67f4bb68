"""The dev curve of a training: what it ranks, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual

from baselines.retrieve.passages import Passages, open_passages
from baselines.train.data import Reranked, Sampled, dev_sample
from baselines.train.recipe import Recipe, read_recipe
from builders.store.reader import Release, open_release

FIRST, SECOND = QUESTIONS["dev"]  # texts 4 and 5 answer them


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Release, Passages]:
    release = open_release(make_release(tmp_path / "release"))
    return release, open_passages(release, keep=tmp_path / "keep")


def _write(path: Path, ranked: dict[str, list[int]]) -> Path:
    path.write_text(json.dumps({md5(q): [md5(TEXTS[n]) for n in own] for q, own in ranked.items()}), encoding="utf-8")
    return path


def _cross(*overrides: str) -> Recipe:
    return read_recipe("ce-bm25-neg", ["data.passage_length=32", *overrides])


def test_a_cross_encoder_ranks_the_top_of_the_run_and_misses_what_it_lacks(
    opened: tuple[Release, Passages], tmp_path: Path
) -> None:
    ranked = {FIRST: [0, 4, 1], SECOND: [2, 3]}  # nothing that answers the second question
    sample = dev_sample(opened[0], _cross(), opened[1], _write(tmp_path / "run.json", ranked))
    assert isinstance(sample, Reranked)
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), device="cpu")
    scores = model.predict([(FIRST, TEXTS[n]) for n in (0, 4, 1)])
    rank = 1 + int((scores > scores[1]).sum())
    found = sample.measures(model, 8)
    assert found == {"MRR@10": 1 / rank / 2, "recall@1": (rank == 1) / 2, "recall@50": 1 / 2}


def test_a_dual_encoder_ranks_the_passages_of_the_sample(opened: tuple[Release, Passages], tmp_path: Path) -> None:
    recipe = read_recipe("de-bm25-neg", ["data.dev_passages=50"])
    sample = dev_sample(opened[0], recipe, opened[1], None)
    assert isinstance(sample, Sampled) and set(sample.passages.values()) == set(TEXTS)
    for similarity in ("dot", "cosine"):
        model = SentenceTransformer(str(write_dual(tmp_path / similarity, similarity=similarity)), device="cpu")
        scores = np.asarray(model.similarity(model.encode_query([FIRST, SECOND]), model.encode_document(TEXTS)))
        ranks = [1 + int((scores[n] > scores[n, 4 + n]).sum()) for n in (0, 1)]
        found = sample.measures(model, 8)
        assert found["MRR@10"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
        assert found["recall@1"] == np.mean([rank == 1 for rank in ranks]) and found["recall@50"] == 1
