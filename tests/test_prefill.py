"""Judgments of models, and the verb `errors`: drawn pairs, their round, and the tally next to Table 10."""

import json
import math
import os
import subprocess
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, annotate, check, judge, judgments, make_round, read_table
from commands import ROOT, Done, command, run
from loopback import Answer, Chat
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.annotate.merge_judgments import settled_labels
from builders.annotate.pool import read_pool
from builders.annotate.prefill import label_in
from builders.annotate.rounds import ERRORS, open_round
from builders.store.published import published
from builders.store.runs import write_run

ANSWERS = dict(zip(QUESTIONS["dev"], TEXTS[4:], strict=True))


def knows(prompt: str) -> Answer:
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
    with warnings.catch_warnings(action="error"):
        one_run = annotate("compare", round_, *words[:3], runs[0], "--format", "json")
    assert json.loads(one_run.stdout)["tau"] is None  # one run has no order
    table = annotate("compare", round_, *words[:-1], "csv").stdout
    assert table.startswith("model,pairs,kappa\njudge-7b,12,0.55")
    assert "MRR@10,people,model\ngood,1.0,1.0\n" in table


CHOICES = ERRORS.choices
CITIES = ("成都", "长沙", "南京", "武汉", "广州", "杭州", "青岛", "昆明")
# Each question has one answer. The passages of other cities are about another place.
CITY_QUESTIONS = [f"{city}地铁几点停运" for city in CITIES]
CITY_ANSWERS = [f"{city}地铁末班车一般在晚上十一点左右，节假日延长一小时。" for city in CITIES]
COPY = f"答：{CITY_ANSWERS[0]}"  # unjudged


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = tables([*CITY_ANSWERS, COPY])
    rows["queries", "dev"] = [{"_id": md5(question), "text": question} for question in CITY_QUESTIONS]
    pairs = zip(map(md5, CITY_QUESTIONS), map(md5, CITY_ANSWERS), strict=True)
    rows["qrels", "dev"] = [{"query-id": query, "corpus-id": answer, "score": 1} for query, answer in pairs]
    del rows["dev", "dev"]
    return make_release(tmp_path_factory.mktemp("errors") / "release", rows)


def write(path: Path, rank: int = 7, **others: list[str]) -> Path:
    """Write a run with the answers at ``rank`` behind other cities. ``others`` sets the whole ranking of a city."""
    rankings = []
    for city, question, answer in zip(CITIES, CITY_QUESTIONS, CITY_ANSWERS, strict=True):
        texts = others.get(city) or [each for each in CITY_ANSWERS if each != answer]
        if city not in others:
            texts.insert(rank - 1, answer)
        rankings.append((md5(question), [(md5(text), 1 / place) for place, text in enumerate(texts, 1)]))
    write_run(path, rankings)
    return path


def errors(release: Path, path: Path, *words: object, code: int | None = 0) -> Done:
    return run(
        "baselines", "errors", "draw", "--quiet", "--release", release, "--split", "dev", *words, path, code=code
    )


def pairs(drawn: Path) -> list[tuple[str, str]]:
    return [(row["query-id"], row["corpus-id"]) for row in read_table(drawn / "packages" / "dev-001.csv")]


@pytest.fixture
def drawn(release: Path, tmp_path: Path) -> Path:
    errors(release, write(tmp_path / "a.run"), "--round", tmp_path / "round")
    return tmp_path / "round"


def test_only_queries_without_a_positive_in_their_top_are_analysed(release: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.run", rank=6, 成都=[*CITY_ANSWERS[3:7], CITY_ANSWERS[0], COPY])
    done = errors(release, path, "--round", tmp_path / "round")
    assert f"{path}: 7 of 8 queries have no positive in their top 5; drawn: 7 queries, 35 pairs" in done.stdout
    found = pairs(tmp_path / "round")
    assert len(found) == 35 and md5(CITY_QUESTIONS[0]) not in {query for query, _ in found}
    assert not {(md5(q), md5(a)) for q, a in zip(CITY_QUESTIONS, CITY_ANSWERS, strict=True)} & {*found}
    drawn = []
    for name, seed in (("one", 0), ("again", 0), ("other", 2)):  # the same seed draws the same queries
        errors(release, path, "--sample", 3, "--seed", seed, "--round", tmp_path / name)
        drawn.append(pairs(tmp_path / name))
    assert drawn[0] == drawn[1] != drawn[2] and len({query for query, _ in drawn[0]}) == 3


ROTATION = (1, 1, 2, 6, 8)


def by_place(drawn: Path) -> Any:
    places = {pair: number % 5 for number, pair in enumerate(pairs(drawn))}
    return lambda row: ROTATION[places[row["query-id"], row["corpus-id"]]]


def tally(drawn: Path) -> dict[str, Any]:
    return json.loads(run("baselines", "errors", "tally", drawn, "--format", "json").stdout)


def test_answers_are_tallied_beside_table_10(drawn: Path) -> None:
    judge(drawn, ANNA, drawn / "packages" / "dev-001.csv", by_place(drawn))
    found = tally(drawn)
    assert (found["pairs"], found["judged"], found["decided"], found["queries"]) == (40, 40, 40, 8)
    rows = found["categories"]
    assert {key: row["pairs"] for key, row in rows.items() if row["pairs"]} == {
        **{"entity_mismatch": 16, "numeral_mismatch": 8, "term_overlap": 8, "other": 8}
    }
    assert [row["paper"] for row in rows.values()] == [0.39, 0.05, 0.094, 0.01, 0.016, 0.21, 0.148, 0.082]
    entity = rows["entity_mismatch"]
    assert entity["share"] == 0.4
    assert entity["low"] == pytest.approx(0.4) and entity["high"] == pytest.approx(0.4)  # each query has two of five
    lines = run("baselines", "errors", "tally", drawn).stdout.splitlines()
    assert lines[0] == "40 of 40 pairs judged, 0 of them undecided; 0 of 1 packages accepted; percent"
    assert lines[3].split() == ["entity", "mismatch", "16", "40.00", "40.00", "to", "40.00", "39.00"]


def test_the_sums_of_section_3_5_follow_the_categories(drawn: Path) -> None:
    judge(drawn, ANNA, drawn / "packages" / "dev-001.csv", by_place(drawn))
    lines = run("baselines", "errors", "tally", drawn).stdout.splitlines()
    assert lines[-2].split("  ")[0] == "sum: salient phrase mismatch" and lines[-2].split()[-1] == "53.40"
    assert lines[-1].split() == ["sum:", "other", "challenges", "8", "20.00", "20.00", "to", "20.00", "22.60"]
    found = tally(drawn)
    salient = [
        found["categories"][key]["pairs"] for key in ("entity_mismatch", "numeral_mismatch", "modifier_mismatch")
    ]
    assert found["sums"]["salient_phrase_mismatch"]["pairs"] == sum(salient) == 24


def test_the_papers_sums_are_the_sums_of_its_categories() -> None:
    shares = published()["table10"]
    for paper_sum in published()["table10_sums"].values():
        assert paper_sum["share"] == pytest.approx(sum(shares[key] for key in paper_sum["categories"]))


def test_people_answer_with_a_category_and_an_adjudicator_decides(drawn: Path) -> None:
    sheet = drawn / "packages" / "dev-001.csv"
    names = {1: "实体不符", 2: "numeral mismatch", 6: "Term_Overlap", 8: "其他"}
    with pytest.raises(AssertionError, match="label: expected 1 to 8, found '0'"):
        judge(drawn, ANNA, sheet, lambda row: 0)
    judge(drawn, ANNA, sheet, lambda row: names[by_place(drawn)(row)])
    judge(drawn, BEN, sheet, lambda row: 1 if by_place(drawn)(row) == 2 else by_place(drawn)(row))
    assert (tally(drawn)["judged"], tally(drawn)["decided"]) == (40, 32)
    assert annotate("adjudicate", drawn).stdout.endswith("8 pairs to decide\n")
    judge(drawn, "carl", drawn / "adjudication" / "dev-001.csv", lambda row: 7)
    assert tally(drawn)["categories"]["false_negative"]["pairs"] == 8


def test_a_models_answers_are_tallied_where_asked_for(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with Chat(lambda prompt: f"最终类别：{7 if CITY_QUESTIONS[0] in prompt else 1}") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert "40 pairs judged by judge-7b" in annotate("prefill", drawn, "--model", "judge-7b", "--show").stdout
    assert all(f"{choice.label} {choice.name}：" in server.asked[0][0]["messages"][0]["content"] for choice in CHOICES)
    judged = {(each["kind"], each["model"], each["question"]) for each in judgments(drawn)}
    assert judged == {("model", "judge-7b", "errors")}
    tasks = json.loads((drawn / "label-studio" / "dev-001.json").read_text(encoding="utf-8"))
    assert {task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks} == {"1", "7"}
    found = json.loads(run("baselines", "errors", "tally", drawn, "--model", "judge-7b", "--format", "json").stdout)
    assert {key: row["pairs"] for key, row in found["categories"].items() if row["pairs"]} == {
        **{"entity_mismatch": 35, "false_negative": 5}
    }
    assert "add some by `annotate import`" in run("baselines", "errors", "tally", drawn, code=1).error
