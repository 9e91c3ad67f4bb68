"""`mine --denoise`: negatives and hidden positives by brute force, questions without labels, and resumed calls."""

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_of, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import CrossEncoder
from tiny_models import write_cross
from whole_release import make_whole

from baselines.measure.qrels import read_queries
from baselines.train import denoising
from baselines.train.hard_negatives import NegativeCandidates
from baselines.train.mine import mine_negatives
from builders.core.errors import InputError
from builders.store.judgments import read_machine_labels
from builders.store.own_queries import OwnQueries
from builders.store.reader import open_release
from builders.store.runs import write_run

QUERIES = [md5(question) for question in QUESTIONS["train"]]
OTHERS = [first + second for first, second in itertools.product(TEXTS, TEXTS)]
CORPUS = [*TEXTS, *OTHERS]
TEXT_OF = {md5(text): text for text in CORPUS}
# The tiny model's probabilities are near its median, so the test's limits are, too.
TOP_K, FILL_TO = 8, 30
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("denoising")
    make_release(folder / "release", tables(CORPUS), rows_per_shard=20)
    write_cross(folder / "cross", texts=CORPUS)
    write_run(folder / "train.run", [(query_id, ranked(query_id)) for query_id in QUERIES])
    return folder


def ranked(query_id: str) -> list[tuple[str, float]]:
    texts = random.Random(query_id).sample(CORPUS, 40)
    return [(md5(text), 1 / rank) for rank, text in enumerate(texts, 1)]


def probabilities(world: Path, question: str, passage_ids: list[str]) -> dict[str, float]:
    model = CrossEncoder(str(world / "cross"), device="cpu")
    scores = model.predict([(question, TEXT_OF[passage_id]) for passage_id in passage_ids])
    return dict(zip(passage_ids, scores.tolist(), strict=True))


def limits_of(world: Path) -> tuple[float, float]:
    """Return limits that a quarter and three quarters of a question's passages are below."""
    ids = [passage_id for passage_id, _ in ranked(QUERIES[0])]
    scores = sorted(probabilities(world, QUESTIONS["train"][0], ids).values())
    return (scores[9] + scores[10]) / 2, (scores[29] + scores[30]) / 2


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mine(world: Path, out: Path, **options: Any) -> Any:
    max_score, positive_score = limits_of(world)
    return mine_negatives(
        world / "release",
        run=options.pop("run", world / "train.run"),
        out=out,
        cross_encoder=str(world / "cross"),
        denoise=True,
        max_score=max_score,
        positive_score=positive_score,
        top_k=TOP_K,
        fill_to=FILL_TO,
        device="cpu",
        **options,
    )


def test_denoised_negatives_equal_brute_force(world: Path, tmp_path: Path) -> None:
    result = mine(world, tmp_path / "n.jsonl", hidden_positives=tmp_path / "hidden.jsonl")
    negatives = {line["query-id"]: line["negative-ids"] for line in lines_of(tmp_path / "n.jsonl")}
    hidden = {line["query-id"]: line for line in lines_of(tmp_path / "hidden.jsonl")}
    max_score, positive_score = limits_of(world)
    filled_count = 0
    for query_id, question, positive in zip(QUERIES, QUESTIONS["train"], TEXTS, strict=False):
        ids = [passage_id for passage_id, _ in ranked(query_id) if passage_id != md5(positive)]
        top_ids = [passage_id for passage_id, _ in ranked(query_id)[:TOP_K] if passage_id in ids]
        scores = probabilities(world, question, ids)
        rejected_top = {passage_id for passage_id in top_ids if scores[passage_id] < max_score}
        below = [passage_id for passage_id, _ in ranked(query_id)[TOP_K:FILL_TO] if passage_id in ids]
        rejected_below = [passage_id for passage_id in below if scores[passage_id] < max_score]
        # All of the top are used first. Only the lacking ones come from below, best rank first.
        filled = max(0, 4 - len(rejected_top))
        from_top = negatives[query_id][: min(4, len(rejected_top))]
        assert set(from_top) <= rejected_top and len(set(from_top)) == len(from_top)
        assert negatives[query_id][len(from_top) :] == rejected_below[:filled]
        filled_count += filled
        expected_hidden = {passage_id for passage_id in top_ids if scores[passage_id] > positive_score}
        assert expected_hidden <= set(hidden.get(query_id, {}).get("positive-ids", []))
        for passage_id in hidden.get(query_id, {}).get("positive-ids", []):
            assert scores[passage_id] > positive_score
    assert filled_count and hidden and result.excluded > 0
    assert {line["labelled-by"] for line in hidden.values()} == {"cross"}
    manifest = json.loads((tmp_path / "hidden.jsonl.manifest.json").read_text())
    assert (manifest["labelled_by"], manifest["questions"]) == ("cross", len(hidden))
    assert manifest["positives"] == sum(len(line["positive-ids"]) for line in hidden.values())


def test_questions_without_labels_get_positives_and_negatives(world: Path, tmp_path: Path) -> None:
    new_question = "新的问题是什么？"
    dev_question = QUESTIONS["dev"][0]
    questions = tmp_path / "questions.tsv"
    questions.write_text(f"new\t{new_question}\nleak\t{dev_question.replace('？', '?')} !\n", encoding="utf-8")
    write_run(tmp_path / "q.run", [("new", ranked("new")), ("leak", ranked("leak"))])
    mine(world, tmp_path / "labels.jsonl", run=tmp_path / "q.run", queries_file=questions)
    # The dev question is skipped, although it is written with other characters.
    (labels,) = read_machine_labels(tmp_path / "labels.jsonl")
    assert (labels.query_id, labels.query) == ("new", new_question)
    max_score, positive_score = limits_of(world)
    scores = probabilities(world, new_question, [passage_id for passage_id, _ in ranked("new")])
    top_ids = [passage_id for passage_id, _ in ranked("new")[:TOP_K]]
    assert set(top_ids) & {p for p in scores if scores[p] > positive_score} <= set(labels.positive_ids)
    assert all(scores[passage_id] > positive_score for passage_id in labels.positive_ids)
    assert len(labels.negative_ids) == 4 and all(scores[passage_id] < max_score for passage_id in labels.negative_ids)


def test_removed_and_other_sets_questions_are_skipped(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release")
    opened = open_release(release)
    splits = denoising.question_splits(opened)
    assert {("train-similar", "train"), ("crosslingual-queries", "dev"), ("cmedqa-queries", "test")} <= set(splits)
    for config, split in splits:
        _, text = read_queries(opened, split, config)[0]
        questions = OwnQueries("questions", {"new": "没有人问过", "old": f"{text}？"})
        assert denoising.unlabelled_questions(questions, opened) == {"new": "没有人问过"}


@pytest.mark.parametrize("option", ["--out", "--hidden-positives"])
def test_no_input_is_overwritten(world: Path, tmp_path: Path, option: str) -> None:
    run_path = shutil.copy(world / "train.run", tmp_path / "train.run")
    words = ["mine", "--release", world / "release", "--run", run_path, "--cross-encoder", world / "cross", "--denoise"]
    content = Path(run_path).read_bytes()
    outputs = {"--out": tmp_path / "n", "--hidden-positives": tmp_path / "h"} | {option: run_path}
    for name, path in outputs.items():
        words += [name, path]
    assert f"is both a file to read and {option}" in error_of(run("baselines", words, code=1))
    same = [*words[:8], "--out", tmp_path / "n", "--hidden-positives", tmp_path / "n"]
    assert "--out and --hidden-positives name the same file" in run("baselines", same, code=2).stderr
    questions = tmp_path / "questions.txt"
    questions.write_text("没有人问过\n", encoding="utf-8")
    bm25 = ("bm25", "--release", world / "release", "--queries-file", questions, "--out", questions)
    assert "is both a file to read and --out" in error_of(run("baselines", bm25, code=1))
    assert Path(run_path).read_bytes() == content and sorted(tmp_path.iterdir()) == [questions, Path(run_path)]


def test_an_interrupted_call_resumes(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denoising, "_QUERIES_PER_WINDOW", 1)
    mine(world, tmp_path / "whole.jsonl")
    label = denoising.label_queries
    calls = []

    def label_two(*arguments: Any) -> Any:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        return label(*arguments)

    monkeypatch.setattr(denoising, "label_queries", label_two)
    with pytest.raises(KeyboardInterrupt):
        mine(world, tmp_path / "n.jsonl")
    assert not (tmp_path / "n.jsonl").exists()
    resumed = []
    monkeypatch.setattr(denoising, "label_queries", lambda *a: resumed.append(a) or label(*a))
    mine(world, tmp_path / "n.jsonl")
    assert len(resumed) == len(QUERIES) - 2
    assert (tmp_path / "n.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not list(tmp_path.glob(".n.jsonl.building"))


def test_wrong_options_and_wrong_questions_are_one_line(world: Path, tmp_path: Path) -> None:
    words = ["mine", "--release", world / "release", "--run", world / "train.run", "--out", tmp_path / "n"]
    assert "--denoise needs --cross-encoder" in run("baselines", words, "--denoise", code=2).stderr
    with_model = [*words, "--cross-encoder", world / "cross"]
    assert "--fill-to needs --denoise" in run("baselines", with_model, "--fill-to", "9", code=2).stderr
    limits = ["--denoise", "--max-score", "0.9"]
    assert "below --positive-score" in run("baselines", with_model, limits, code=2).stderr
    questions = tmp_path / "q.tsv"
    questions.write_text(f"a\t{QUESTIONS['dev'][0]}\n", encoding="utf-8")
    done = run("baselines", with_model, "--denoise", "--queries-file", questions, code=1)
    assert "has only questions of" in error_of(done)
    done = run("baselines", with_model, "--denoise", "--hidden-positives", "/dev/null", code=1)
    assert "/dev/null: is a device or a pipe; expected a file" in error_of(done)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"query-id": "q", "labelled-by": "m", "positive-ids": []}', "has no positive-ids"),
        ('{"query-id": "q", "labelled-by": "m", "positive-ids": ["a"], "negative-ids": ["a"]}', "both positive and"),
        ('{"query-id": "q", "positive-ids": ["a"]}', "labelled-by"),
        ('{"query-id": "p", "labelled-by": "m", "positive-ids": ["a"]}', "occurs twice"),
    ],
)
def test_wrong_labels_name_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"query-id": "p", "labelled-by": "m", "positive-ids": ["a"]}\n' + line + "\n")
    with pytest.raises(InputError, match=problem) as error:
        read_machine_labels(path)
    assert f"{path}:2" in str(error.value)


@pytest.mark.parametrize("score_all", [False, True])
def test_a_query_without_top_passages_gets_negatives_from_below(score_all: bool) -> None:
    candidates = NegativeCandidates("q", [], negative_count=2, positive_ids=[], further_ids=["a", "b", "c"])
    limits = denoising.DenoisingLimits(max_score=0.1, positive_score=0.9, score_all=score_all)
    probability_of = {"a": 0.5, "b": 0.01, "c": 0.02}

    def score(groups: Any) -> list[list[float]]:
        return [[probability_of[passage_id] for passage_id in passage_ids] for _, passage_ids in groups]

    (labels,) = denoising.label_queries([("text", candidates)], score, limits)
    assert labels.negative_ids == ["b", "c"] and labels.lacking_count == 0
