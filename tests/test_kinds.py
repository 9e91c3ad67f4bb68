"""Kinds of model behind one interface, each against brute force over all passages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import SentenceTransformer
from tiny_models import write_bert, write_cross, write_dual

from baselines.kinds import Work, open_retriever
from baselines.kinds.told import kind_told
from baselines.models.settings import ModelSettings
from builders.common.command import InputError
from builders.store.reader import Release, open_release

WORK = Work(["cpu"], "fp32")
ASKED = QUESTIONS["dev"] + QUESTIONS["train"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    write_dual(folder / "dual", prompts={"query": "问", "other": "饺子"})
    write_cross(folder / "cross")
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("kinds") / "release"
    make_release(folder)
    return open_release(folder)


def found_by(settings: ModelSettings, release: Release, folder: Path, top_k: int = 4) -> list[list[tuple[str, float]]]:
    retriever = open_retriever(settings, WORK)
    retriever.index(release, "corpus", folder)
    return list(retriever.search(release, "corpus", folder, ASKED, top_k))


def expect(found: list[list[tuple[str, float]]], scores: np.ndarray, atol: float) -> None:
    """``found`` are the best of ``scores``, shape (queries, passages), falling, within ``atol``."""
    ids = [md5(text) for text in TEXTS]
    assert len(found) == len(scores) == len(ASKED)
    for hits, own in zip(found, scores, strict=True):
        assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
        best = np.sort(own)[::-1][: len(hits)]
        np.testing.assert_allclose([score for _, score in hits], best, atol=atol)
        np.testing.assert_allclose([own[ids.index(corpus)] for corpus, _ in hits], best, atol=atol)


def test_a_dense_model_finds_what_its_own_encode_says(models: Path, release: Release, tmp_path: Path) -> None:
    found = found_by(ModelSettings(str(models / "dual")), release, tmp_path / "index")
    model = SentenceTransformer(str(models / "dual"), device="cpu")
    expect(found, model.encode_query(ASKED) @ model.encode_document(TEXTS).T, 0.02)
    assert {len(hits) for hits in found} == {4}


@pytest.mark.parametrize(
    ("said", "scores"),
    [
        (
            {"query_prompt": "水", "passage_prompt": "火"},
            lambda m: m.encode(ASKED, prompt="水") @ m.encode(TEXTS, prompt="火").T,
        ),
        ({"prompt_name": "other"}, lambda m: m.encode(ASKED, prompt="饺子") @ m.encode_document(TEXTS).T),
        (
            {"truncate_dim": 8, "similarity": "cosine"},
            lambda m: _unit(m.encode_query(ASKED)[:, :8]) @ _unit(m.encode_document(TEXTS)[:, :8]).T,
        ),
        ({"normalize": True}, lambda m: _unit(m.encode_query(ASKED)) @ _unit(m.encode_document(TEXTS)).T),
    ],
)
def test_what_is_said_of_a_model_is_done(
    models: Path,
    release: Release,
    tmp_path: Path,
    said: dict[str, object],
    scores: Callable[[SentenceTransformer], np.ndarray],
) -> None:
    found = found_by(ModelSettings(str(models / "dual"), **said), release, tmp_path / "index")
    expect(found, scores(SentenceTransformer(str(models / "dual"), device="cpu")), 0.02)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_pooling_is_what_was_said(models: Path, release: Release, tmp_path: Path) -> None:
    settings = ModelSettings(str(models / "dual"), pooling="cls", query_prompt="", passage_prompt="")
    found = found_by(settings, release, tmp_path / "index")
    model = SentenceTransformer(str(models / "dual"), device="cpu")
    tokens = [[each[0].numpy() for each in model.encode(t, output_value="token_embeddings")] for t in (ASKED, TEXTS)]
    expect(found, np.stack(tokens[0]) @ np.stack(tokens[1]).T, 0.05)


def test_an_index_is_kept_for_its_settings_alone(models: Path, release: Release, tmp_path: Path) -> None:
    plain = ModelSettings(str(models / "dual"))
    first = found_by(plain, release, tmp_path / "index")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    assert found_by(plain, release, tmp_path / "index") == first
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "index").iterdir()}
    other = open_retriever(ModelSettings(str(models / "dual"), query_prompt="火"), WORK)
    with pytest.raises(InputError, match="with other settings"):
        list(other.search(release, "corpus", tmp_path / "index", ASKED, 4))
    assert other.about()["fingerprint"] != open_retriever(plain, WORK).about()["fingerprint"]


def test_a_models_own_files_say_its_kind(models: Path, tmp_path: Path) -> None:
    assert kind_told(ModelSettings(str(models / "dual"))) == "dense"
    assert kind_told(ModelSettings(str(models / "cross"))) == "cross"
    assert kind_told(ModelSettings(str(write_bert(tmp_path / "bert")))) == "dense"
    with pytest.raises(InputError, match="is a model of kind cross; expected dense"):
        open_retriever(ModelSettings(str(models / "cross")), WORK)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"prompt_name": "s2p"}, "has no prompt 's2p'; its prompts: "),
        ({"pooling": "best"}, "pooling 'best': expected one of cls, max, mean"),
        ({"truncate_dim": 64}, "has 32 dimensions; expected at most so many, not 64"),
        ({"normalize": False, "similarity": "cosine"}, "expected dot"),
    ],
)
def test_what_a_model_cannot_do_is_one_error(
    models: Path, release: Release, tmp_path: Path, said: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        found_by(ModelSettings(str(models / "dual"), **said), release, tmp_path / "index")
