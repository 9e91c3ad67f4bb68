"""Questions that ask the same: training on labelled pairs, and `match`."""

import gzip
import itertools
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
DEV = ["高铁票提前几天买", "手机进水了怎么办"]
TEST = ["哪里可以看雪", "北京冬天"]
QUESTIONS = TRAIN + DEV + TEST
TEXT_OF = {md5(text): text for text in QUESTIONS}
Scores = dict[tuple[str, str], float]  # by the ids of a question and of a training question
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a release, a cross-encoder and a dual-encoder."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    rows = {("corpus", "corpus"): tables()["corpus", "corpus"]}
    for split, questions in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
        rows["queries", split] = [{"_id": md5(text), "text": text} for text in questions]
    make_release(folder / "release", rows)
    write_cross(folder / "cross", texts=QUESTIONS)
    write_dual(folder / "dual", texts=QUESTIONS)
    return folder


def match(world: Path, out: Path, *words: object, code: int = 0) -> Done:
    """Match the questions with the training questions. A second ``--model`` in ``words`` replaces the first."""
    options = ["--release", world / "release", "--model", world / "cross", "--device", "cpu", "--out", out]
    return run("baselines", "match", options, words, code=code)


def _score_all_pairs(world: Path) -> Scores:
    """Return the cross-encoder's probability of every pair of a question and a training question."""
    pairs = list(itertools.product(DEV + TEST, TRAIN))
    model = CrossEncoder(str(world / "cross"), device="cpu")
    scores: Scores = {}
    for (question, training_question), score in zip(pairs, model.predict(pairs).tolist(), strict=True):
        scores[md5(question), md5(training_question)] = score
    return scores


def _read_scores(path: Path) -> Scores:
    """Return the scores of a run."""
    scores: Scores = {}
    for question_id, hits in read_run(path).hits.items():
        for training_id, score in hits:
            scores[question_id, training_id] = score
    return scores


def test_scores_are_the_probabilities_of_the_cross_encoder(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "a.run", "--encoder", world / "dual", "--top-k", 7)
    scores = _read_scores(tmp_path / "a.run")
    expected_scores = _score_all_pairs(world)
    assert set(scores) == set(expected_scores)  # so many candidates are all
    for pair, score in scores.items():
        assert 0 <= score <= 1
        assert score == pytest.approx(expected_scores[pair], abs=1e-5)


def test_a_dual_encoder_scores_by_the_cosine_of_two_queries(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "a.run", "--model", world / "dual", "--top-k", 7, "--recall-sample", 4)
    scores = _read_scores(tmp_path / "a.run")
    assert len(scores) == 4 * len(TRAIN)
    model = SentenceTransformer(str(world / "dual"), device="cpu")
    vectors = {}
    for question_id, text in TEXT_OF.items():
        vectors[question_id] = model.encode_query(text, normalize_embeddings=True)
    for (question_id, training_id), score in scores.items():
        cosine = float(vectors[question_id] @ vectors[training_id])
        assert score == pytest.approx(max(0, cosine), abs=2e-3)  # 16-bit embeddings
    # A dual-encoder finds its own candidates.
    match(world, tmp_path / "b.run", "--model", world / "dual", "--encoder", world / "dual", code=1)


def _calibrate(world: Path, model: str, pairs: list[tuple[str, str, int]], code: int = 0) -> Done:
    """Calibrate a threshold on labelled pairs. It is written to the file MODEL.json, too."""
    lines = []
    for first, second, label in pairs:
        lines.append(json.dumps({"text1": first, "text2": second, "label": label}))
    (world / "pairs.json").write_text("\n".join(lines))
    options = ["--model", world / model, "--calibrate", world / "pairs.json", "--device", "cpu", "--precision", 0.9]
    return run("baselines", "match", options, "--out", world / f"{model}.json", "--format", "json", code=code)


def _pairs_of_different_questions() -> list[tuple[str, str]]:
    """Return all pairs of a training question and another question."""
    return [(first, second) for first, second in itertools.product(TRAIN, QUESTIONS) if first != second]


def test_a_threshold_of_a_dual_encoder_is_calibrated(world: Path) -> None:
    # As many equal pairs as different pairs, because a threshold needs both in each half.
    labelled = [(question, question, 1) for question in TRAIN * 10]
    labelled += [(first, second, 0) for first, second in _pairs_of_different_questions()]
    calibration = json.loads(_calibrate(world, "dual", labelled).stdout)
    # The threshold of one half is measured on the other half, so the precision may miss the requested 0.9.
    assert calibration["recall"] == 1 and calibration["precision"] > 0.8
    assert 0 < calibration["threshold"] < 1
    assert calibration == json.loads((world / "dual.json").read_text())


def test_a_threshold_of_a_cross_encoder_is_calibrated(world: Path) -> None:
    model = CrossEncoder(str(world / "cross"), device="cpu")
    # The better half of the pairs is labelled 1, so the lowest score of this half is a threshold without errors.
    pairs = sorted(_pairs_of_different_questions(), key=lambda pair: float(model.predict([pair])[0]))
    middle = len(pairs) // 2
    labelled = [(first, second, int(number >= middle)) for number, (first, second) in enumerate(pairs)]
    threshold = json.loads(_calibrate(world, "cross", labelled).stdout)["threshold"]
    assert 0 < threshold <= float(model.predict([pairs[middle]])[0])
    # Labels that alternate along the scores have no threshold.
    mixed = [(first, second, number // 2 % 2) for number, (first, second) in enumerate(pairs)]
    assert "cannot tell" in _calibrate(world, "cross", mixed, code=1).error


def _scores_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """Return 2,000 scores that are higher by 0.2 where the label is 1."""
    rng = np.random.default_rng(3)
    labels = rng.integers(2, size=2_000)
    return np.clip(rng.normal(0.4 + 0.2 * labels, 0.1), 0, 1), labels


def _lowest_threshold(scores: np.ndarray, labels: np.ndarray, precision: float) -> float:
    """Return the lowest threshold with this precision, by trying every threshold with four decimals."""
    for ten_thousandths in range(8_000):
        threshold = ten_thousandths / 10_000
        if labels[scores > threshold].mean() >= precision:
            return threshold
    raise AssertionError("no threshold has this precision")


def test_a_calibration_is_the_lowest_threshold() -> None:
    scores, labels = _scores_and_labels()
    lowest = _lowest_threshold(scores, labels, 0.8)
    calibration = calibrate_threshold(scores.tolist(), labels.tolist(), 0.8)
    assert calibration["threshold"] == lowest
    assert calibration["precision"] == pytest.approx(0.8, abs=0.03)
    low, high = calibration["intervals"]["recall"]
    assert low < (labels[scores > lowest].sum() / labels.sum()) < high
    assert calibrate_threshold([0.2, 0.8] * 100, [0, 1] * 100, 0.8)["recall"] == 1


def test_a_calibration_says_why_there_is_no_threshold() -> None:
    scores, labels = _scores_and_labels()
    random_scores = np.random.default_rng(4).random(2_000)
    with pytest.raises(InputError, match="cannot tell"):  # too few pairs
        calibrate_threshold(scores[:30].tolist(), labels[:30].tolist(), 0.8)
    with pytest.raises(InputError, match="cannot tell"):  # scores without information
        calibrate_threshold(random_scores.tolist(), labels.tolist(), 0.8)
    with pytest.raises(InputError, match="cannot tell"):  # a precision that chance reaches
        calibrate_threshold(scores.tolist(), labels.tolist(), 0.3)


def test_candidates_are_the_best_by_words(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "words.run", "--top-k", 1)
    pairs = {(TEXT_OF[first], TEXT_OF[second]) for first, second in _read_scores(tmp_path / "words.run")}
    assert ("手机进水了怎么办", "手机进水怎么办") in pairs
    assert ("哪里可以看雪", "哪里看雪") in pairs
    # Two training questions have the same words, so the candidate is either of them.
    assert "北京冬天" in {question for question, _ in pairs}


def test_candidates_are_the_best_by_words_and_by_vectors(world: Path, tmp_path: Path) -> None:
    match(world, tmp_path / "words.run", "--top-k", 1)
    match(world, tmp_path / "both.run", "--top-k", 1, "--encoder", world / "dual")
    model = SentenceTransformer(str(world / "dual"), device="cpu")
    questions = DEV + TEST
    nearest = np.argmax(model.encode_query(questions) @ model.encode_query(TRAIN).T, axis=1)
    nearest_pairs = {(md5(text), md5(TRAIN[number])) for text, number in zip(questions, nearest, strict=True)}
    word_pairs = set(_read_scores(tmp_path / "words.run"))
    assert set(_read_scores(tmp_path / "both.run")) == word_pairs | nearest_pairs


def test_recall_is_the_share_of_all_similar_pairs_among_the_candidates(world: Path, tmp_path: Path) -> None:
    all_scores = _score_all_pairs(world)
    threshold = float(np.median(list(all_scores.values())))
    options = ("--top-k", 2, "--threshold", threshold, "--recall-sample", 10, "--format", "json")
    result = json.loads(match(world, tmp_path / "a.run", *options).stdout)
    candidates = set(_read_scores(tmp_path / "a.run"))
    similar_pairs = {pair for pair, score in all_scores.items() if score > threshold}
    similar_candidates = similar_pairs & candidates
    share = pytest.approx(len(similar_candidates) / len(similar_pairs))
    # Only words found candidates, so words and all ways together have the same recall.
    assert result["recall"] == {"questions": 4, "similar_pairs": len(similar_pairs), "words": share, "together": share}
    assert result["pairs"] == len(candidates)
    assert result["training_questions"] == len(TRAIN)
    assert result["similar_pairs"] == len(similar_candidates)
    assert result["similar_questions"] == len({question_id for question_id, _ in similar_candidates})
    assert result["similar_training_questions"] == len({training_id for _, training_id in similar_candidates})


PAIRS = [QuestionPair("怎么煮饺子", "饺子怎么煮", 1), QuestionPair('高铁票, "提前"几天买', "多肉怎么浇水", 0)]


def _read(path: Path, columns: str = "") -> list[QuestionPair]:
    """Read pairs from a file. ``columns``: their names, after a colon."""
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
    first_row = {"sentence1": PAIRS[0].first, "sentence2": PAIRS[0].second, "label": "1"}
    second_row = {"label": 0, "id": 3, "query2": PAIRS[1].second, "query1": PAIRS[1].first}
    lines = [json.dumps(row, ensure_ascii=False) for row in (first_row, second_row)]
    path = tmp_path / "afqmc.json"
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    assert _read(path) == PAIRS


def _questions_of(pairs: list[QuestionPair]) -> set[str]:
    """Return all questions of the pairs."""
    return {pair.first for pair in pairs} | {pair.second for pair in pairs}


def test_a_held_out_pair_shares_no_question_with_those_that_are_trained_on() -> None:
    numbers = np.random.default_rng(0).integers(100, size=(200, 2)).tolist()
    pairs = [QuestionPair(f"q{first}", f"q{second}", 0) for first, second in numbers]
    train_pairs, held_out_pairs = hold_out(pairs, 0.1, seed=3)
    assert len(held_out_pairs) == 20
    held_out_questions = _questions_of(held_out_pairs)
    assert held_out_questions.isdisjoint(_questions_of(train_pairs))
    assert train_pairs == [pair for pair in pairs if held_out_questions.isdisjoint((pair.first, pair.second))]
    assert hold_out(pairs, 0.1, seed=3)[1] == held_out_pairs
    assert hold_out(pairs, 0.1, seed=4)[1] != held_out_pairs


# The label depends only on the mark at the start of the second question.
WORDS = [first + second for first, second in itertools.product("北京饺子高铁", "冬天煮票多肉")]


def write_pairs(path: Path, count: int, seed: int) -> Path:
    """Write random pairs of questions with labels."""
    rng = random.Random(seed)
    lines = ["text1\ttext2\tlabel"]
    for _ in range(count):
        label = rng.randrange(2)
        lines.append(f"{rng.choice(WORDS)}\t{'是' if label else '否'}{rng.choice(WORDS)}\t{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def train_matching(start: Path, pairs: Path, out: Path, *words: object) -> Done:
    """Train a cross-encoder on the pairs with small batches."""
    options: list[object] = ["--start", start, "--device", "cpu", "--pairs", pairs, "--out", out]
    options += ["--set", "data.passage_length=16", "--set", "train.batch=32", "--set", "train.learning_rate=2e-3"]
    options += ["--set", "train.saves=1", "--set", "train.evaluations=2"]
    return run("baselines", "train", "question-matching-cpu", options, words)


@pytest.mark.slow
def test_it_learns_what_tells_pairs_apart(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    start = write_bert(tmp_path / "bert", [*WORDS, "是否"])
    pairs = write_pairs(tmp_path / "train.tsv", 800, 1)
    dev_pairs = write_pairs(tmp_path / "dev.tsv", 60, 2)
    out = tmp_path / "m"
    done = train_matching(start, pairs, out, "--dev-pairs", dev_pairs, "--set", "train.epochs=4")
    similar, different = CrossEncoder(str(out), device="cpu").predict([("北京", "是饺子"), ("北京", "否饺子")])
    assert different < 0.2 and similar > 0.8
    training = training_of(out)
    assert len(training["dev"]) == 2
    assert json.loads(done.stdout)["dev"] == training["dev"][-1:]
    last_figures = training["dev"][-1]
    assert last_figures["AUC"] > 0.95 and last_figures["accuracy"] > 0.9
    assert (training["counts"]["pairs"], training["counts"]["dev pairs"]) == (800, 60)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "for deciding if two questions ask the same" in card and "license: other" in card
    assert "Training data, files of labelled question pairs with their SHA-256:" in card and "train.tsv" in card


@pytest.mark.slow
def test_without_dev_pairs_a_part_of_the_pairs_is_held_out(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    start = write_bert(tmp_path / "bert", [*WORDS, "是否"])
    pairs = write_pairs(tmp_path / "train.tsv", 800, 1)
    train_matching(start, pairs, tmp_path / "m", "--set", "train.max_steps=1", "--set", "data.held_out=0.01")
    counts = training_of(tmp_path / "m")["counts"]
    assert counts["dev pairs"] == 8 and 0 < counts["pairs"] < 792
