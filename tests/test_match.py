"""`match`: probabilities of the cross-encoder, candidates, their recall, and interruptions."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Done, run
from releases import make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual

from builders.store.runs import read_run

TRAIN = ["北京冬天冷吗", "冬天北京冷不冷", "饺子怎么煮", "身份证丢了", "多肉怎么浇水", "手机进水怎么办", "哪里看雪"]
ASKED = {"dev": ["高铁票提前几天买", "手机进水了怎么办"], "test": ["哪里可以看雪", "北京冬天"]}
TEXT = {md5(text): text for text in [*TRAIN, *ASKED["dev"], *ASKED["test"]]}
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    rows = {place: content for place, content in tables().items() if place[0] == "corpus"}
    for split, questions in {"train": TRAIN, **ASKED}.items():
        rows["queries", split] = [{"_id": md5(text), "text": text} for text in questions]
    make_release(folder / "release", rows)
    write_cross(folder / "cross", texts=[*TEXT.values()])
    write_dual(folder / "dual", texts=[*TEXT.values()])
    return folder


def match(world: Path, out: Path, *words: object, code: int = 0) -> Done:
    given = ["--release", world / "release", "--model", world / "cross", "--device", "cpu", "--out", out]
    return run("baselines", "match", *given, *words, code=code)


def _every_pair(world: Path) -> dict[tuple[str, str], float]:
    """Return the cross-encoder's own probability of every pair."""
    pairs = [(md5(text), md5(other)) for texts in ASKED.values() for text in texts for other in TRAIN]
    model = CrossEncoder(str(world / "cross"), device="cpu")
    scores = model.predict([(TEXT[one], TEXT[other]) for one, other in pairs])
    return dict(zip(pairs, map(float, scores), strict=True))


def _scores(path: Path) -> dict[tuple[str, str], float]:
    return {(query, other): score for query, hits in read_run(path).hits.items() for other, score in hits}


def test_scores_are_the_probabilities_of_the_cross_encoder(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "a.run", "--encoder", world / "dual", "--top-k", 7)
    found, expected = _scores(tmp_path / "a.run"), _every_pair(world)
    assert set(found) == set(expected)  # so many candidates are all
    assert all(0 <= score <= 1 for score in found.values())
    for pair, score in found.items():
        assert score == pytest.approx(expected[pair], abs=1e-5)


def test_candidates_are_the_best_by_words_and_by_vectors(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "words.run", "--top-k", 1)
    words = set(_scores(tmp_path / "words.run"))
    expected = {("手机进水了怎么办", "手机进水怎么办"), ("哪里可以看雪", "哪里看雪"), ("北京冬天", "北京冬天冷吗")}
    shared = {(TEXT[one], TEXT[other]) for one, other in words}
    assert {pair[0] for pair in shared} >= {pair[0] for pair in expected}
    assert expected - shared <= {("北京冬天", "北京冬天冷吗")}  # the other question has the same words
    match(world, tmp_path / "both.run", "--top-k", 1, "--encoder", world / "dual")
    model = SentenceTransformer(str(world / "dual"), device="cpu")
    asked = [text for texts in ASKED.values() for text in texts]
    best = np.argmax(model.encode_query(asked) @ model.encode_query(TRAIN).T, axis=1)
    vectors = {(md5(text), md5(TRAIN[place])) for text, place in zip(asked, best.tolist(), strict=True)}
    assert set(_scores(tmp_path / "both.run")) == words | vectors


def test_recall_is_the_share_of_all_similar_pairs_among_the_candidates(world: Path, tmp_path: Path) -> None:
    every = _every_pair(world)
    threshold = float(np.median(list(every.values())))
    options = ("--top-k", 2, "--threshold", threshold, "--recall-sample", 10, "--format", "json")
    result = json.loads(match(world, tmp_path / "a.run", *options).stdout)
    candidates = set(_scores(tmp_path / "a.run"))
    similar = {pair for pair, score in every.items() if score > threshold}
    share = pytest.approx(len(similar & candidates) / len(similar))
    assert result["recall"] == {"questions": 4, "similar_pairs": len(similar), "words": share, "together": share}
    assert result["pairs"] == len(candidates) and result["training_questions"] == len(TRAIN)
    assert result["similar_pairs"] == len(similar & candidates)
    assert result["similar_questions"] == len({one for one, _ in similar & candidates})
    assert result["similar_training_questions"] == len({other for _, other in similar & candidates})
