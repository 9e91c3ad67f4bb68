"""Questions that ask the same: training on labelled pairs, and `match`."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Done, run
from releases import make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_bert, write_cross, write_dual
from training_world import training_of

from baselines.retrieve.question_pairs import QuestionPair, pair_file, read_question_pairs
from baselines.retrieve.threshold_calibration import calibrate_threshold
from baselines.train.matching_pairs import hold_out
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
    found = calibrate_threshold(scores.tolist(), labels.tolist(), 0.8)
    assert found["threshold"] == lowest and found["precision"] == pytest.approx(0.8, abs=0.03)
    low, high = found["intervals"]["recall"]
    assert low < (labels[scores > lowest].sum() / labels.sum()) < high
    assert calibrate_threshold([0.2, 0.8] * 100, [0, 1] * 100, 0.8)["recall"] == 1
    # Too few pairs, scores without information, and a precision that chance reaches.
    for own, count, precision in [(scores, 30, 0.8), (draw.random(2_000), 2_000, 0.8), (scores, 2_000, 0.3)]:
        with pytest.raises(InputError, match="cannot tell"):
            calibrate_threshold(own[:count].tolist(), labels[:count].tolist(), precision)


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


PAIRS = [QuestionPair("怎么煮饺子", "饺子怎么煮", 1), QuestionPair('高铁票, "提前"几天买', "多肉怎么浇水", 0)]


def _read(path: Path, columns: str = "") -> list[QuestionPair]:
    return read_question_pairs([pair_file(f"{path}{columns}")])


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("lcqmc.tsv", 'text_a\ttext_b\tlabel\n怎么煮饺子\t饺子怎么煮\t1\n高铁票, "提前"几天买\t多肉怎么浇水\t0\n', ""),
        ("bq.csv", 'sentence1,sentence2,label\n怎么煮饺子,饺子怎么煮,1\n"高铁票, ""提前""几天买",多肉怎么浇水,0\n', ""),
        ("cmedqq.txt", '1\t怎么煮饺子\t饺子怎么煮\r\n0\t高铁票, "提前"几天买\t多肉怎么浇水\r\n', ":label,text1,text2"),
    ],
)
def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path, name: str, content: str, columns: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert _read(tmp_path / name, columns) == PAIRS
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert _read(tmp_path / f"{name}.gz", columns) == PAIRS


def test_json_lines_are_read_with_labels_as_numbers_or_texts(tmp_path: Path) -> None:
    rows = [
        {"sentence1": PAIRS[0].first, "sentence2": PAIRS[0].second, "label": "1"},
        {"label": 0, "id": 3, "query2": PAIRS[1].second, "query1": PAIRS[1].first},
    ]
    path = tmp_path / "afqmc.json"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    assert _read(path) == PAIRS


def test_a_held_out_pair_shares_no_question_with_those_that_are_trained_on() -> None:
    chosen = np.random.default_rng(0)
    pairs = [QuestionPair(f"q{a}", f"q{b}", 0) for a, b in chosen.integers(100, size=(200, 2)).tolist()]
    train, held = hold_out(pairs, 0.1, seed=3)
    assert len(held) == 20
    assert not {text for pair in held for text in pair[:2]} & {text for pair in train for text in pair[:2]}
    apart = {text for pair in held for text in pair[:2]}
    assert train == [pair for pair in pairs if not apart & {*pair[:2]}]
    assert hold_out(pairs, 0.1, seed=3)[1] == held != hold_out(pairs, 0.1, seed=4)[1]


# The label depends only on the mark at the start of the second question.
WORDS = [f"{a}{b}" for a in "北京饺子高铁" for b in "冬天煮票多肉"]
SMALL = ["data.passage_length=16", "train.batch=32", "train.learning_rate=2e-3", "train.saves=1", "train.evaluations=2"]


def write_pairs(path: Path, count: int, seed: int) -> Path:
    chosen = random.Random(seed)
    lines = ["text1\ttext2\tlabel"]
    for _ in range(count):
        label = chosen.randrange(2)
        lines.append(f"{chosen.choice(WORDS)}\t{'是' if label else '否'}{chosen.choice(WORDS)}\t{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_it_learns_what_tells_pairs_apart(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    pairs, dev = write_pairs(tmp_path / "train.tsv", 800, 1), write_pairs(tmp_path / "dev.tsv", 60, 2)
    out = tmp_path / "m"
    words = ["--start", write_bert(tmp_path / "bert", [*WORDS, "是否"]), "--device", "cpu", "--pairs", pairs]
    words += [word for value in SMALL for word in ("--set", value)]
    command = ["train", "question-matching-cpu", *words, "--out", out, "--dev-pairs", dev, "--set", "train.epochs=4"]
    printed = json.loads(run("baselines", *command).stdout)
    same, other = CrossEncoder(str(out), device="cpu").predict([("北京", "是饺子"), ("北京", "否饺子")])
    assert other < 0.2 and same > 0.8
    training = training_of(out)
    assert printed["dev"] == training["dev"][-1:] and len(training["dev"]) == 2
    assert training["dev"][-1]["AUC"] > 0.95 and training["dev"][-1]["accuracy"] > 0.9
    assert (training["counts"]["pairs"], training["counts"]["dev pairs"]) == (800, 60)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "for deciding if two questions ask the same" in card and "license: other" in card
    assert "Training data, files of labelled question pairs with their SHA-256:" in card and "train.tsv" in card
    # Without --dev-pairs, a part of the pairs is held out.
    held = ["--set", "train.max_steps=1", "--set", "data.held_out=0.01", "--out", tmp_path / "held"]
    run("baselines", "train", "question-matching-cpu", *words, *held)
    counts = training_of(tmp_path / "held")["counts"]
    assert counts["dev pairs"] == 8 and 0 < counts["pairs"] < 792
