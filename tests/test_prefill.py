"""Test judgments of models: from a language model on loopback, and from a re-ranker's scores."""

import json
import math
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from annotating import ANNA, annotate, check, judge, judgments, make_round
from chat_server import Answer, Chat
from commands import ROOT, Done, command
from releases import QUESTIONS, TEXTS, md5

from builders.annotate.pool import read_pool
from builders.annotate.prefill import label_in
from builders.annotate.relabel import settled_labels
from builders.annotate.rounds import open_round
from builders.store.runs import write_run

ANSWERS = dict(zip(QUESTIONS["dev"], TEXTS[4:], strict=True))


def knows(prompt: str) -> Answer:
    """Return the right grade for a prompt."""
    right = any(question in prompt and f"<段落>\n{text}\n" in prompt for question, text in ANSWERS.items())
    return f"想一想……\n最终得分：{3 if right else 1}"


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return make_round(tmp_path)


def prefill(round_: Path, url: str, monkeypatch: pytest.MonkeyPatch, *words: object, code: int | None = 0) -> Done:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    return annotate("prefill", round_, "--model", "judge-7b", *words, code=code)


def test_a_models_grades_are_marked_and_count_for_no_person(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Chat(knows) as server:
        done = prefill(round_, server.url, monkeypatch, "--show")
        assert "24 pairs judged by judge-7b (a model)" in done.stdout
        found = judgments(round_)
        assert "0 pairs judged" in prefill(round_, server.url, monkeypatch).stdout
        assert len(server.asked) == 24 and judgments(round_) == found  # the model is asked once about each pair
    assert {(each["kind"], each["model"], each["annotator"]) for each in found} == {("model", "judge-7b", "judge-7b")}
    grades = {(each["query-id"], each["corpus-id"]): each["label"] for each in found}
    right = {(md5(question), md5(text)) for question, text in ANSWERS.items()}
    assert grades == {pair.pair: 3 if pair.pair in right else 1 for pair in read_pool(round_.parent / "pool.jsonl")}
    asked = {(sent["model"], sent["temperature"], key) for sent, key in server.asked}
    assert asked == {("judge-7b", 0, "Bearer secret-key")}
    assert "secret-key" not in done.stderr + "".join(path.read_text() for path in (round_ / "judgments").iterdir())
    assert all(f"{grade} 分：" in server.prompts[0] for grade in range(4))
    # The grade becomes a prediction with the model's name in Label Studio.
    for task in json.loads((round_ / "label-studio" / "dev-001.json").read_text()):
        (shown,) = task["predictions"]
        choice = str(int((task["data"]["query-id"], task["data"]["corpus-id"]) in right))
        assert (shown["model_version"], shown["result"][0]["value"]["choices"]) == ("judge-7b", [choice])
    judged = check(round_)
    assert [(each["judged"], each["reviews"]) for each in judged["packages"]] == [(0, {}), (0, {})]
    assert judged["cohen"] == {} and settled_labels(round_, open_round(round_)) == ({}, [])


ENDS = {"最终得分：2": 2, "最终得分: **3**": 3, "按格式“最终得分：0”，我给\n最终得分：1": 1, " 0\n": 0}
ENDS |= dict.fromkeys(("最终得分：4", "最终得分：2.5", "最终得分：12", "相关"))
CATEGORIES = {"最终类别：8": 8, "最终类别：0": None, "6": 6, "1 2": None}


def test_the_last_grade_or_category_of_an_answer_counts() -> None:
    assert {answer: label_in(answer, "relevance") for answer in ENDS} == ENDS
    assert {answer: label_in(answer, "errors") for answer in CATEGORIES} == CATEGORIES


def test_answers_of_a_killed_judge_are_not_asked_for_again(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after 22 answers, with two questions in flight, leaves at least 20 saved answers."""
    late = threading.Event()  # set when the two late questions may be answered

    def answer(prompt: str) -> Answer:
        is_slow = QUESTIONS["dev"][0] in prompt and any(f"<段落>\n{text}\n" in prompt for text in TEXTS[:2])
        return late.wait(60) and 503 if is_slow and not late.is_set() else knows(prompt)

    with Chat(answer) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
        words = command("builders", "annotate", "prefill", "--quiet", "--round", round_, "--model", "judge-7b")
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        while len(server.asked) < 24 or len(judgments(round_)) < 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        late.set()
        again = int(prefill(round_, server.url, monkeypatch).stdout.split()[0])
        assert again <= 4 and len(server.asked) == 24 + again
    assert len({(each["query-id"], each["corpus-id"]) for each in judgments(round_)}) == len(judgments(round_)) == 24


def test_a_judge_that_is_busy_fails_or_gives_no_grade(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    second: list[Answer] = [400]  # statuses of the answers to the second question

    def answer(prompt: str) -> Answer:
        if prompt not in seen:
            seen.add(prompt)
            return 503  # the library retries
        return second[0] if QUESTIONS["dev"][1] in prompt else knows(prompt)

    with Chat(answer) as server:
        error = prefill(round_, server.url, monkeypatch, "--parallel", 1, code=1).error
        assert error.startswith(f"{server.url}: answered 400") and len(judgments(round_)) == 12
        second[0] = "我不能判断"
        assert "12 answers have no grade" in prefill(round_, server.url, monkeypatch).stderr
        assert {each["query-id"] for each in judgments(round_)} == {md5(QUESTIONS["dev"][0])}
        server.answer = knows
        assert "12 pairs judged" in prefill(round_, server.url, monkeypatch).stdout
    monkeypatch.delenv("OPENAI_BASE_URL")  # without an address, nothing is sent
    error = annotate("prefill", round_, "--model", "judge-8b", code=1).error
    assert "expected an address in OPENAI_BASE_URL" in error


def test_a_re_rankers_scores_are_judgments_of_a_model_and_its_family_is_warned_of(round_: Path) -> None:
    # Logits of every pair of the pool, 0 by default.
    known = {md5(text): math.log(3) for text in TEXTS} | {md5(TEXTS[4]): 0.0, md5(TEXTS[0]): math.log(1 / 4)}
    hits: dict[str, list[tuple[str, float]]] = {}
    for pair in read_pool(round_.parent / "pool.jsonl"):
        hits.setdefault(pair.query_id, []).append((pair.corpus_id, known.get(pair.corpus_id, 0.0)))
    write_run(round_.parent / "one.run", hits.items())
    words = ("--model", "Qwen3-32B", "--scores", round_.parent / "one.run", "--rerankers", "bge-reranker-v2")
    done = annotate("prefill", round_, *words, "Qwen/Qwen3-Reranker-4B")
    assert "Qwen3-32B judges rankings of Qwen/Qwen3-Reranker-4B, a model of its own family" in done.stderr
    found = {each["corpus-id"]: (each["label"], each["note"]) for each in judgments(round_)}
    expected = {1: (3, "score 0.75"), 4: (2, "score 0.5"), 0: (0, "score 0.2")}
    assert {n: found[md5(TEXTS[n])] for n in expected} == expected
    assert "family" not in annotate("prefill", round_, *words).stderr


def test_a_model_is_compared_with_people(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People find 3 of 12 pairs relevant. The model finds 2 of these and 1 other pair, so kappa is 5/9."""
    query = md5(QUESTIONS["dev"][0])
    first = sorted(pair.corpus_id for pair in read_pool(round_.parent / "pool.jsonl") if pair.query_id == query)
    relevant, graded = set(first[:3]), set(first[1:4])

    def grades(prompt: str) -> Answer:
        passage = prompt.split("<段落>\n")[1].split("\n</段落>")[0]
        return f"最终得分：{2 if md5(passage) in graded else 0}"

    error = annotate("compare", round_, "--model", "judge-7b", code=1).error
    assert error.startswith(f"{round_}: no pair was judged by people and judge-7b")
    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", lambda row: int(row["corpus-id"] in relevant))
    with Chat(grades) as server:
        prefill(round_, server.url, monkeypatch)
    runs = []
    for place, name in enumerate(("good", "fair", "poor")):  # first[1] is relevant, and at rank place + 1
        ids = [*first[4 : 4 + place], first[1]]
        runs.append(round_.parent / f"{name}.run")
        write_run(runs[-1], [(query, [(each, -float(rank)) for rank, each in enumerate(ids)])])
    words = ("--model", "judge-7b", "--runs", *runs, "--format", "json")
    found = json.loads(annotate("compare", round_, *words).stdout)
    # Agreement 10/12; by chance (3 * 3 + 9 * 9) / 144 = 0.625.
    assert found["pairs"] == 12 and found["kappa"] == pytest.approx((10 / 12 - 0.625) / (1 - 0.625))
    assert found["grades"][2] == {"grade": 2, "irrelevant": 1, "relevant": 2}
    assert [row["people"] for row in found["runs"]] == [1, 1 / 2, pytest.approx(1 / 3)] and found["tau"] == 1
