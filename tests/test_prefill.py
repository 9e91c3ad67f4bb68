"""Judgments of models: of a language model on loopback, of a re-ranker's scores; marked, and never people's."""

from __future__ import annotations

import json
import math
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, annotate, check, judge, judgments, make_round, truth
from chat_server import Answer, chat
from commands import ROOT, Done, command
from releases import QUESTIONS, TEXTS, md5

from builders.annotate.answers import answers_of
from builders.annotate.compare import kendall_tau
from builders.annotate.families import families_of
from builders.annotate.labels import settled_labels
from builders.annotate.rounds import open_round
from builders.annotate.umbrela import category_in, grade_in, prompt_of
from builders.pool.pairs import read_pool
from builders.store.runs import write_run

ANSWERS = dict(zip(QUESTIONS["dev"], TEXTS[4:], strict=True))


def knows(prompt: str) -> Answer:
    """A judge that is right."""
    right = any(question in prompt and f"<段落>\n{text}\n" in prompt for question, text in ANSWERS.items())
    return f"想一想……\n最终得分：{3 if right else 1}"


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    """Two packages of twelve pairs."""
    return make_round(tmp_path)


def prefill(round_: Path, url: str, monkeypatch: pytest.MonkeyPatch, *words: object, code: int | None = 0) -> Done:
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    return annotate("prefill", round_, "--model", "judge-7b", *words, code=code)


def compare(round_: Path, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(annotate("compare", round_, *words, "--format", "json").stdout)
    return found


def test_every_pair_gets_a_grade_that_is_marked_as_a_models(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(knows) as server:
        done = prefill(round_, server.url, monkeypatch)
    assert "24 pairs judged by judge-7b (a model)" in done.stdout
    found = judgments(round_)
    assert {(each["kind"], each["model"], each["annotator"]) for each in found} == {("model", "judge-7b", "judge-7b")}
    assert {(each["query-id"], each["corpus-id"]): each["label"] for each in found} == {
        (md5(question), pair.corpus_id): 3 if pair.corpus_id == md5(ANSWERS[question]) else 1
        for question in ANSWERS
        for pair in read_pool(round_.parent / "pool.jsonl")
        if pair.query_id == md5(question)
    }
    assert {each[0]["model"] for each in server.asked} == {"judge-7b"}
    assert {each[0]["temperature"] for each in server.asked} == {0}
    assert {each[1] for each in server.asked} == {"Bearer secret-key"}
    assert "secret-key" not in done.stderr + "".join(path.read_text() for path in (round_ / "judgments").iterdir())


def test_the_judge_is_asked_in_chinese_with_the_pair_and_the_four_grades() -> None:
    prompt = prompt_of("高铁票提前几天买", "高铁票可以在开车前十五天购买。")
    assert "<查询>\n高铁票提前几天买\n</查询>" in prompt and "<段落>\n高铁票可以在开车前十五天购买。\n</段落>" in prompt
    assert all(f"{grade} 分：" in prompt for grade in range(4))


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("最终得分：2", 2),
        ("最终得分: **3**", 3),
        ("按格式“最终得分：0”，我给\n最终得分：1", 1),
        (" 0\n", 0),
        ("最终得分：4", None),
        ("最终得分：2.5", None),
        ("最终得分：12", None),
        ("相关", None),
    ],
)
def test_the_last_grade_of_an_answer_counts(answer: str, grade: int | None) -> None:
    assert grade_in(answer) == grade


@pytest.mark.parametrize(("answer", "category"), [("最终类别：8", 8), ("最终类别：0", None), ("6", 6), ("1 2", None)])
def test_the_category_of_an_error_is_one_of_eight(answer: str, category: int | None) -> None:
    assert category_in(answer) == category


def test_no_models_judgment_counts_as_a_persons(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(lambda _: "最终得分：3") as server:
        prefill(round_, server.url, monkeypatch)
    found = check(round_)
    assert [(each["judged"], each["reviews"]) for each in found["packages"]] == [(0, {}), (0, {})]
    assert found["cohen"] == {}
    assert settled_labels(round_, open_round(round_)).labels == {}


def test_what_is_judged_is_not_asked_again(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(knows) as server:
        prefill(round_, server.url, monkeypatch)
        before = judgments(round_)
        assert "0 pairs judged" in prefill(round_, server.url, monkeypatch).stdout
        assert len(server.asked) == 24 and judgments(round_) == before


def test_a_judge_that_breaks_off_leaves_what_it_has_judged(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(lambda prompt: 400 if QUESTIONS["dev"][1] in prompt else knows(prompt)) as server:
        error = prefill(round_, server.url, monkeypatch, "--parallel", 1, code=1).error
        assert error.startswith(f"{server.url}: answered 400")
        assert len(judgments(round_)) == 12
        server.answer = knows
        assert "12 pairs judged" in prefill(round_, server.url, monkeypatch).stdout


def test_answers_that_a_killed_judge_was_given_are_not_asked_for_again(
    round_: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with four questions under way: 24 pairs are asked about 28 times at most, and each is judged once."""
    late = threading.Event()  # nobody is answered any more

    def answer(prompt: str) -> Answer:
        return knows(prompt) if len(server.asked) <= 15 or late.is_set() else late.wait(60) and 503

    with chat(answer) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
        words = command("builders", "annotate", "prefill", "--quiet", "--round", round_, "--model", "judge-7b")
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        while len(server.asked) < 19:  # 15 are answered, 4 wait
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        late.set()
        assert "9 pairs judged" in prefill(round_, server.url, monkeypatch).stdout
        assert len(server.asked) == 24 + 4
    assert len({(each["query-id"], each["corpus-id"]) for each in judgments(round_)}) == len(judgments(round_)) == 24


def test_a_judge_asks_in_one_process_at_a_time(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answers_of(round_, "judge-7b"), chat(knows) as server:
        assert prefill(round_, server.url, monkeypatch, code=1).error.startswith(f"{round_}: is being built by another")
        assert server.asked == []


def test_a_busy_server_is_asked_again(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()

    def busy_once(prompt: str) -> Answer:
        again = prompt in seen
        seen.add(prompt)
        return knows(prompt) if again else 503

    with chat(busy_once) as server:
        assert "24 pairs judged" in prefill(round_, server.url, monkeypatch).stdout


def test_answers_without_a_grade_are_no_judgments(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(lambda prompt: "我不能判断" if QUESTIONS["dev"][1] in prompt else knows(prompt)) as server:
        done = prefill(round_, server.url, monkeypatch)
    assert "12 pairs judged" in done.stdout and "12 answers gave no grade" in done.stderr
    assert {each["query-id"] for each in judgments(round_)} == {md5(QUESTIONS["dev"][0])}


@pytest.mark.parametrize(
    ("answer", "message"),
    [(b"<html>", "expected JSON"), (b'{"choices": []}', "answered with no choice"), (b'{"id": 1}', "lacks choices")],
)
def test_what_is_no_chat_completion_is_one_error(
    round_: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, message: str
) -> None:
    with chat(lambda _: answer) as server:
        error = prefill(round_, server.url, monkeypatch, code=1).error
    assert error.startswith(server.url) and message in error
    assert judgments(round_) == []


def test_nothing_is_sent_anywhere_unless_an_address_is_given(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    error = annotate("prefill", round_, "--model", "judge-7b", code=1).error
    assert "expected an address in OPENAI_BASE_URL" in error


def test_a_re_rankers_scores_are_judgments_of_a_model(round_: Path) -> None:
    scores = {md5(text): 3 / 4 for text in TEXTS} | {md5(TEXTS[4]): 0.5, md5(TEXTS[0]): 0.2}
    every = [(query, passages(round_, query, scores)) for query in map(md5, QUESTIONS["dev"])]
    write_run(round_.parent / "one.run", every)
    annotate("prefill", round_, "--model", "ce-one", "--scores", round_.parent / "one.run")
    found = {each["corpus-id"]: (each["label"], each["note"]) for each in judgments(round_)}
    assert found[md5(TEXTS[1])] == (3, "score 0.75")
    assert found[md5(TEXTS[4])] == (2, "score 0.5") and found[md5(TEXTS[0])] == (0, "score 0.2")


def passages(round_: Path, query: str, probabilities: dict[str, float]) -> list[tuple[str, float]]:
    """A re-ranker's logits of every pair of a query in the pool; 0 where nothing is said."""
    pool = [pair.corpus_id for pair in read_pool(round_.parent / "pool.jsonl") if pair.query_id == query]
    return [(each, math.log(p / (1 - p)) if (p := probabilities.get(each)) else 0.0) for each in pool]


def test_predictions_for_label_studio_name_the_model(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chat(knows) as server:
        prefill(round_, server.url, monkeypatch, "--show")
    tasks = json.loads((round_ / "label-studio" / "dev-001.json").read_text())
    shown = {
        task["data"]["corpus-id"]: (each["model_version"], each["result"][0]["value"]["choices"])
        for task in tasks
        for each in task["predictions"]
    }
    assert shown[md5(TEXTS[4])] == ("judge-7b", ["1"]) and shown[md5(TEXTS[0])] == ("judge-7b", ["0"])


def test_kappa_of_a_model_and_people_is_that_of_the_textbook(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 pairs people find 3 relevant, of which the model finds 2, and 1 of the others: kappa 5/9, by hand."""
    ours = sorted(read_pool(round_.parent / "pool.jsonl"), key=lambda pair: pair.corpus_id)
    first = [pair.corpus_id for pair in ours if pair.query_id == md5(QUESTIONS["dev"][0])]
    relevant, graded = set(first[:3]), set(first[1:4])
    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", lambda row: int(row["corpus-id"] in relevant))

    def grades(prompt: str) -> Answer:
        text = prompt.split("<段落>\n")[1].split("\n</段落>")[0]
        return f"最终得分：{2 if md5(text) in graded else 0}"

    with chat(grades) as server:
        prefill(round_, server.url, monkeypatch)
    found = compare(round_, "--model", "judge-7b")
    # Agreement 10/12; by chance (3 * 3 + 9 * 9) / 144 = 0.625.
    assert found["pairs"] == 12 and found["kappa"] == pytest.approx((10 / 12 - 0.625) / (1 - 0.625))
    assert found["grades"][2] == {"grade": 2, "irrelevant": 1, "relevant": 2}
    assert found["grades"][0] == {"grade": 0, "irrelevant": 8, "relevant": 1}


def test_systems_are_put_into_order_by_both(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        judge(round_, ANNA, round_ / "packages" / f"dev-00{number}.csv", truth)
    for name, place in (("good", 0), ("fair", 1), ("poor", 2)):  # the answer behind so many others
        rankings = []
        for question, answer in ANSWERS.items():
            others = [text for text in TEXTS if text != answer]
            ids = [md5(text) for text in (*others[:place], answer, *others[place:])]
            rankings.append((md5(question), [(each, -float(rank)) for rank, each in enumerate(ids)]))
        write_run(round_.parent / f"{name}.run", rankings)
    with chat(knows) as server:
        prefill(round_, server.url, monkeypatch)
    runs = [round_.parent / f"{name}.run" for name in ("good", "fair", "poor")]
    found = compare(round_, "--model", "judge-7b", "--runs", *runs)
    assert [row["people"] for row in found["runs"]] == [1, 1 / 2, pytest.approx(1 / 3)]
    assert found["tau"] == 1


def test_kendalls_tau_counts_pairs_in_order_and_takes_off_ties() -> None:
    # Of six pairs four agree, one does not, and the first list ties one: (4 - 1) / sqrt(5 * 6).
    assert kendall_tau([1, 2, 2, 3], [1, 3, 2, 2.5]) == pytest.approx(3 / math.sqrt(30))
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    assert kendall_tau([1, 1, 1], [3, 2, 1]) is None


def test_a_judge_of_the_re_rankers_family_is_warned_of(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(round_.parent / "x.run", [(md5(question), [(md5(TEXTS[0]), 0.0)]) for question in ANSWERS])
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    words = ("--model", "Qwen3-32B", "--scores", round_.parent / "x.run", "--rerankers")
    done = annotate("prefill", round_, *words, "bge-reranker-v2", "Qwen/Qwen3-Reranker-4B", code=1)
    assert "Qwen3-32B judges what Qwen/Qwen3-Reranker-4B ranked, of its own family" in done.stderr
    assert "family" not in annotate("prefill", round_, *words, "bge-reranker-v2", code=1).stderr


@pytest.mark.parametrize(
    ("name", "families"),
    [
        ("hfl/chinese-macbert-base", {"BERT"}),
        ("gpt-4o", {"GPT"}),
        ("multilingual-e5-small", {"E5"}),
        ("style5", set()),
        ("ernie-3.0-base-zh", {"ERNIE"}),
        ("deepseek-r1-distill-qwen-7b", {"DeepSeek", "Qwen"}),
    ],
)
def test_families_are_told_by_names(name: str, families: set[str]) -> None:
    assert families_of(name) == families


def test_a_comparison_without_common_pairs_is_one_error(round_: Path) -> None:
    judge(round_, BEN, round_ / "packages" / "dev-001.csv", truth)
    error = annotate("compare", round_, "--model", "judge-7b", code=1).error
    assert error.startswith(f"{round_}: has no pair that people and judge-7b have judged")
