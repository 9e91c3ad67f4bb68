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

from baselines.match import calibrated
from builders.core.errors import InputError
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


def test_a_dual_encoder_scores_by_the_cosine_of_two_queries(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "a.run", "--model", world / "dual", "--top-k", 7, "--recall-sample", 4)
    model, found = SentenceTransformer(str(world / "dual"), device="cpu"), _scores(tmp_path / "a.run")
    assert len(found) == 4 * len(TRAIN)
    vectors = {each: model.encode_query(text, normalize_embeddings=True) for each, text in TEXT.items()}
    for (one, other), score in found.items():
        assert score == pytest.approx(max(0, float(vectors[one] @ vectors[other])), abs=2e-3)  # 16-bit embeddings
    match(world, tmp_path / "b.run", "--model", world / "dual", "--encoder", world / "dual", code=1)


def _calibrate(world: Path, model: str, pairs: list[tuple[str, str, int]], code: int = 0) -> Done:
    rows = [dict(zip(("text1", "text2", "label"), pair, strict=True)) for pair in pairs]
    (world / "pairs.json").write_text("\n".join(map(json.dumps, rows)))
    given = ["--model", world / model, "--calibrate", world / "pairs.json", "--device", "cpu", "--precision", 0.9]
    return run("baselines", "match", *given, "--out", world / f"{model}.json", "--format", "json", code=code)


def test_a_threshold_is_calibrated_for_both_kinds_of_model(world: Path) -> None:
    alike = [(one, one, 1) for one in TRAIN * 10]
    differ = [(one, other, 0) for one in TRAIN for other in TEXT.values() if one != other]
    found = json.loads(_calibrate(world, "dual", alike + differ).stdout)
    assert found["recall"] == 1 and found["precision"] > 0.8 and 0 < found["threshold"] < 1
    assert found == json.loads((world / "dual.json").read_text())
    model = CrossEncoder(str(world / "cross"), device="cpu")
    scored = sorted(differ, key=lambda pair: float(model.predict([pair[:2]])[0]))
    learned = [(one, other, int(place >= len(scored) // 2)) for place, (one, other, _) in enumerate(scored)]
    threshold = json.loads(_calibrate(world, "cross", learned).stdout)["threshold"]
    assert 0 < threshold <= float(model.predict([scored[len(scored) // 2][:2]])[0])
    mixed = [(*pair[:2], place // 2 % 2) for place, pair in enumerate(scored)]
    assert "cannot tell" in _calibrate(world, "cross", mixed, code=1).error


def test_a_calibration_is_the_lowest_threshold_or_says_why_there_is_none() -> None:
    draw = np.random.default_rng(3)
    labels = draw.integers(2, size=2_000)
    scores = np.clip(draw.normal(0.4 + 0.2 * labels, 0.1), 0, 1)
    tried = {n / 10_000: labels[scores > n / 10_000] for n in range(8_000)}
    lowest = next(threshold for threshold, above in tried.items() if above.mean() >= 0.8)
    found = calibrated(scores.tolist(), labels.tolist(), 0.8)
    assert found["threshold"] == lowest and found["precision"] == pytest.approx(0.8, abs=0.03)
    low, high = found["intervals"]["recall"]
    assert low < (labels[scores > lowest].sum() / labels.sum()) < high
    assert calibrated([0.2, 0.8] * 100, [0, 1] * 100, 0.8)["recall"] == 1
    # Too few pairs, scores without information, and a precision that chance reaches.
    for own, count, precision in [(scores, 30, 0.8), (draw.random(2_000), 2_000, 0.8), (scores, 2_000, 0.3)]:
        with pytest.raises(InputError, match="cannot tell"):
            calibrated(own[:count].tolist(), labels[:count].tolist(), precision)


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
