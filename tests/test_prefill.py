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
from builders.store.published import published_figures
from builders.store.runs import write_run

ANSWERS = dict(zip(QUESTIONS["dev"], TEXTS[4:], strict=True))


def answer_rightly(prompt: str) -> Answer:
    """Give 3 points to the passage that answers the question, and 1 point to any other passage."""
    for question, text in ANSWERS.items():
        if question in prompt and f"<段落>\n{text}\n" in prompt:
            return "想一想……\n最终得分：3"
    return "想一想……\n最终得分：1"


@pytest.fixture
def round_(tmp_path: Path) -> Path:
    return make_round(tmp_path)


def prefill(round_: Path, url: str, monkeypatch: pytest.MonkeyPatch, *words: object, code: int | None = 0) -> Done:
    """Run `annotate prefill` with the model at this address."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    return annotate("prefill", round_, "--model", "judge-7b", *words, code=code)


def test_a_models_grades_are_marked_and_count_for_no_person(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Chat(answer_rightly) as server:
        done = prefill(round_, server.url, monkeypatch, "--show")
        rows = judgments(round_)
        # The model is asked once about each pair.
        assert "0 pairs judged" in prefill(round_, server.url, monkeypatch).stdout
        assert len(server.asked) == 24
        assert judgments(round_) == rows
    assert "24 pairs judged by judge-7b (a model)" in done.stdout
    assert {(row["kind"], row["model"], row["annotator"]) for row in rows} == {("model", "judge-7b", "judge-7b")}
    right_pairs = {(md5(question), md5(text)) for question, text in ANSWERS.items()}
    expected_grades = {}
    for pair in read_pool(round_.parent / "pool.jsonl"):
        expected_grades[pair.pair] = 3 if pair.pair in right_pairs else 1
    assert {(row["query-id"], row["corpus-id"]): row["label"] for row in rows} == expected_grades
    # The grade becomes a prediction with the model's name in Label Studio.
    for task in json.loads((round_ / "label-studio" / "dev-001.json").read_text()):
        (prediction,) = task["predictions"]
        is_right = (task["data"]["query-id"], task["data"]["corpus-id"]) in right_pairs
        assert prediction["model_version"] == "judge-7b"
        assert prediction["result"][0]["value"]["choices"] == [str(int(is_right))]
    report = check(round_)
    assert [(package["judged"], package["reviews"]) for package in report["packages"]] == [(0, {}), (0, {})]
    assert report["cohen"] == {}
    assert settled_labels(round_, open_round(round_)) == ({}, [])


def test_a_prompt_has_the_grades_and_no_file_has_the_key(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Chat(answer_rightly) as server:
        done = prefill(round_, server.url, monkeypatch, "--show")
    requests = {(request["model"], request["temperature"], key) for request, key in server.asked}
    assert requests == {("judge-7b", 0, "Bearer secret-key")}
    for grade in range(4):
        assert f"{grade} 分：" in server.prompts[0]
    assert "secret-key" not in done.stderr
    for path in (round_ / "judgments").iterdir():
        assert "secret-key" not in path.read_text()


GRADES = {"最终得分：2": 2, "最终得分: **3**": 3, "按格式“最终得分：0”，我给\n最终得分：1": 1, " 0\n": 0}
GRADES |= {"最终得分：4": None, "最终得分：2.5": None, "最终得分：12": None, "相关": None}
CATEGORIES = {"最终类别：8": 8, "最终类别：0": None, "6": 6, "1 2": None}


def test_the_last_grade_or_category_of_an_answer_counts() -> None:
    assert {answer: label_in(answer, "relevance") for answer in GRADES} == GRADES
    assert {answer: label_in(answer, "errors") for answer in CATEGORIES} == CATEGORIES


def test_answers_of_a_killed_judge_are_not_asked_for_again(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_answer_late = threading.Event()  # set when the two late questions may be answered

    def answer(prompt: str) -> Answer:
        is_late = QUESTIONS["dev"][0] in prompt and any(f"<段落>\n{text}\n" in prompt for text in TEXTS[:2])
        if is_late and not may_answer_late.is_set():
            # A judge that was killed no longer reads this answer.
            return may_answer_late.wait(60) and 503
        return answer_rightly(prompt)

    with Chat(answer) as server:
        environment = os.environ | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
        words = command("builders", "annotate", "prefill", "--quiet", "--round", round_, "--model", "judge-7b")
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
        while len(server.asked) < 24 or len(judgments(round_)) < 20:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        may_answer_late.set()
        new_count = int(prefill(round_, server.url, monkeypatch).stdout.split()[0])
        assert new_count <= 4
        assert len(server.asked) == 24 + new_count
    rows = judgments(round_)
    assert len({(row["query-id"], row["corpus-id"]) for row in rows}) == len(rows) == 24


def test_a_judge_that_is_busy_fails_or_gives_no_grade(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy_prompts: set[str] = set()
    second_answer: Answer = 400  # the answer to the second question

    def answer(prompt: str) -> Answer:
        if prompt not in busy_prompts:
            busy_prompts.add(prompt)
            return 503  # the library retries
        return second_answer if QUESTIONS["dev"][1] in prompt else answer_rightly(prompt)

    with Chat(answer) as server:
        error_line = prefill(round_, server.url, monkeypatch, "--parallel", 1, code=1).error
        assert error_line.startswith(f"{server.url}: answered 400")
        assert len(judgments(round_)) == 12
        second_answer = "我不能判断"
        assert "12 answers have no grade" in prefill(round_, server.url, monkeypatch).stderr
        assert {row["query-id"] for row in judgments(round_)} == {md5(QUESTIONS["dev"][0])}
        server.answer = answer_rightly
        assert "12 pairs judged" in prefill(round_, server.url, monkeypatch).stdout


def test_without_an_address_nothing_is_sent(round_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    error_line = annotate("prefill", round_, "--model", "judge-8b", code=1).error
    assert "expected an address in OPENAI_BASE_URL" in error_line


def test_a_re_rankers_scores_are_judgments_of_a_model_and_its_family_is_warned_of(round_: Path) -> None:
    # Logits of every pair of the pool.
    logits = dict.fromkeys(map(md5, TEXTS), math.log(3))
    logits[md5(TEXTS[4])] = 0.0
    logits[md5(TEXTS[0])] = math.log(1 / 4)
    hits: dict[str, list[tuple[str, float]]] = {}
    for pair in read_pool(round_.parent / "pool.jsonl"):
        hits.setdefault(pair.query_id, []).append((pair.corpus_id, logits.get(pair.corpus_id, 0.0)))
    write_run(round_.parent / "one.run", hits.items())
    words = ("--model", "Qwen3-32B", "--scores", round_.parent / "one.run", "--rerankers", "bge-reranker-v2")
    done = annotate("prefill", round_, *words, "Qwen/Qwen3-Reranker-4B")
    assert "Qwen3-32B judges rankings of Qwen/Qwen3-Reranker-4B, a model of its own family" in done.stderr
    labels = {row["corpus-id"]: (row["label"], row["note"]) for row in judgments(round_)}
    assert labels[md5(TEXTS[1])] == (3, "score 0.75")
    assert labels[md5(TEXTS[4])] == (2, "score 0.5")
    assert labels[md5(TEXTS[0])] == (0, "score 0.2")
    assert "family" not in annotate("prefill", round_, *words).stderr


FIRST_QUERY = md5(QUESTIONS["dev"][0])


@pytest.fixture
def round_of_both(round_: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """People find 3 of 12 pairs of the first query relevant. The model finds 2 of these and 1 other pair."""
    passage_ids = pooled_ids(round_)
    relevant_ids = set(passage_ids[:3])
    graded_ids = set(passage_ids[1:4])

    def answer(prompt: str) -> Answer:
        passage = prompt.split("<段落>\n")[1].split("\n</段落>")[0]
        return f"最终得分：{2 if md5(passage) in graded_ids else 0}"

    judge(round_, ANNA, round_ / "packages" / "dev-001.csv", lambda row: int(row["corpus-id"] in relevant_ids))
    with Chat(answer) as server:
        prefill(round_, server.url, monkeypatch)
    return round_


def pooled_ids(round_: Path) -> list[str]:
    """Return the sorted passages of the first query in the pool."""
    return sorted(pair.corpus_id for pair in read_pool(round_.parent / "pool.jsonl") if pair.query_id == FIRST_QUERY)


@pytest.fixture
def three_runs(round_: Path) -> list[Path]:
    """Runs of the first query with a passage that both hold relevant at rank 1, 2 or 3."""
    passage_ids = pooled_ids(round_)
    run_paths = []
    for irrelevant_count, name in enumerate(("good", "fair", "poor")):
        ranking = [*passage_ids[4 : 4 + irrelevant_count], passage_ids[1]]
        run_path = round_.parent / f"{name}.run"
        hits = [(passage_id, -float(rank)) for rank, passage_id in enumerate(ranking)]
        write_run(run_path, [(FIRST_QUERY, hits)])
        run_paths.append(run_path)
    return run_paths


def test_a_model_is_compared_with_people(round_of_both: Path, three_runs: list[Path]) -> None:
    words = ("--model", "judge-7b", "--runs", *three_runs)
    comparison = json.loads(annotate("compare", round_of_both, *words, "--format", "json").stdout)
    assert comparison["pairs"] == 12
    # Agreement 10/12; by chance (3 * 3 + 9 * 9) / 144 = 0.625.
    assert comparison["kappa"] == pytest.approx((10 / 12 - 0.625) / (1 - 0.625))
    assert comparison["grades"][2] == {"grade": 2, "irrelevant": 1, "relevant": 2}
    assert [row["people"] for row in comparison["runs"]] == [1, 1 / 2, pytest.approx(1 / 3)]
    assert comparison["tau"] == 1
    table = annotate("compare", round_of_both, *words, "--format", "csv").stdout
    assert table.startswith("model,pairs,kappa\njudge-7b,12,0.55")
    assert "MRR@10,people,model\ngood,1.0,1.0\n" in table


def test_one_run_has_no_order_to_compare(round_of_both: Path, three_runs: list[Path]) -> None:
    words = ("--model", "judge-7b", "--runs", three_runs[0], "--format", "json")
    with warnings.catch_warnings(action="error"):
        done = annotate("compare", round_of_both, *words)
    assert json.loads(done.stdout)["tau"] is None


def test_a_model_that_judged_no_pair_is_not_compared(round_: Path) -> None:
    error_line = annotate("compare", round_, "--model", "judge-7b", code=1).error
    assert error_line.startswith(f"{round_}: no pair was judged by people and judge-7b")


CHOICES = ERRORS.choices
CITIES = ("成都", "长沙", "南京", "武汉", "广州", "杭州", "青岛", "昆明")
# Each question has one answer. The passages of other cities are about another place.
CITY_QUESTIONS = [f"{city}地铁几点停运" for city in CITIES]
CITY_ANSWERS = [f"{city}地铁末班车一般在晚上十一点左右，节假日延长一小时。" for city in CITIES]
COPY = f"答：{CITY_ANSWERS[0]}"  # unjudged
RANKING_OF_CHENGDU = [*CITY_ANSWERS[3:7], CITY_ANSWERS[0], COPY]  # the answer has rank 5


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a release of the cities' questions and answers."""
    rows = tables([*CITY_ANSWERS, COPY])
    rows["queries", "dev"] = [{"_id": md5(question), "text": question} for question in CITY_QUESTIONS]
    rows["qrels", "dev"] = []
    for question, answer in zip(CITY_QUESTIONS, CITY_ANSWERS, strict=True):
        rows["qrels", "dev"].append({"query-id": md5(question), "corpus-id": md5(answer), "score": 1})
    del rows["dev", "dev"]
    return make_release(tmp_path_factory.mktemp("errors") / "release", rows)


def write_city_run(path: Path, rank: int = 7, **rankings: list[str]) -> Path:
    """Write a run with the answers at ``rank`` behind other cities. ``rankings`` sets the whole ranking of a city."""
    hits_by_query = []
    for city, question, answer in zip(CITIES, CITY_QUESTIONS, CITY_ANSWERS, strict=True):
        if city in rankings:
            texts = rankings[city]
        else:
            texts = [text for text in CITY_ANSWERS if text != answer]
            texts.insert(rank - 1, answer)
        hits_by_query.append((md5(question), [(md5(text), 1 / rank) for rank, text in enumerate(texts, 1)]))
    write_run(path, hits_by_query)
    return path


def draw_errors(release: Path, run_path: Path, *words: object, code: int = 0) -> Done:
    """Draw pairs of the run for people."""
    options = ["--quiet", "--release", release, "--split", "dev", *words]
    return run("baselines", "errors", "draw", options, run_path, code=code)


def test_a_run_without_passages_has_no_failed_query(release: Path, tmp_path: Path) -> None:
    run_path = tmp_path / "empty.json"
    run_path.write_text(json.dumps({md5(CITY_QUESTIONS[0]): []}), encoding="utf-8")
    refused = draw_errors(release, run_path, code=1)
    assert refused.error == f"{run_path}: has no passage for any query of {release} dev with a positive"


def drawn_pairs(drawn_round: Path) -> list[tuple[str, str]]:
    """Return (query id, passage id) of each row that people get."""
    rows = read_table(drawn_round / "packages" / "dev-001.csv")
    return [(row["query-id"], row["corpus-id"]) for row in rows]


@pytest.fixture
def drawn_round(release: Path, tmp_path: Path) -> Path:
    """Draw five pairs of each of the eight queries."""
    draw_errors(release, write_city_run(tmp_path / "a.run"), "--round", tmp_path / "round")
    return tmp_path / "round"


def test_only_queries_without_a_positive_in_their_top_are_analysed(release: Path, tmp_path: Path) -> None:
    run_path = write_city_run(tmp_path / "a.run", rank=6, 成都=RANKING_OF_CHENGDU)
    done = draw_errors(release, run_path, "--round", tmp_path / "round")
    assert f"{run_path}: 7 of 8 queries have no positive in their top 5; drawn: 7 queries, 35 pairs" in done.stdout
    pairs = drawn_pairs(tmp_path / "round")
    assert len(pairs) == 35
    assert md5(CITY_QUESTIONS[0]) not in {query_id for query_id, _ in pairs}
    for question, answer in zip(CITY_QUESTIONS, CITY_ANSWERS, strict=True):
        assert (md5(question), md5(answer)) not in pairs


def test_a_run_without_a_query_of_the_split_is_refused(release: Path, tmp_path: Path) -> None:
    run_path = tmp_path / "train.run"
    write_run(run_path, [(md5("另一个问题"), [(md5(CITY_ANSWERS[0]), 1.0)])])
    done = draw_errors(release, run_path, "--round", tmp_path / "round", code=1)
    assert done.error == f"{run_path}: no matching query: the run has none of the 8 queries of {release} dev"
    assert not (tmp_path / "round").exists()


def test_the_same_seed_draws_the_same_queries(release: Path, tmp_path: Path) -> None:
    run_path = write_city_run(tmp_path / "a.run", rank=6, 成都=RANKING_OF_CHENGDU)
    samples = []
    for name, seed in (("one", 0), ("again", 0), ("other", 2)):
        draw_errors(release, run_path, "--sample", 3, "--seed", seed, "--round", tmp_path / name)
        samples.append(drawn_pairs(tmp_path / name))
    assert samples[0] == samples[1] != samples[2]
    assert len({query_id for query_id, _ in samples[0]}) == 3


# The categories that people give to the five pairs of each query.
ROTATION = (1, 1, 2, 6, 8)


def categories_of(drawn_round: Path) -> dict[tuple[str, str], int]:
    """Return the category of each pair by ``ROTATION``."""
    return {pair: ROTATION[number % 5] for number, pair in enumerate(drawn_pairs(drawn_round))}


def judge_by_rotation(drawn_round: Path) -> None:
    """Let Anna answer for every pair."""
    categories = categories_of(drawn_round)
    sheet = drawn_round / "packages" / "dev-001.csv"
    judge(drawn_round, ANNA, sheet, lambda row: categories[row["query-id"], row["corpus-id"]])


def tally(drawn_round: Path, *words: object) -> dict[str, Any]:
    """Return what `errors tally` prints."""
    done = run("baselines", "errors", "tally", drawn_round, words, "--format", "json")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def pair_counts(report: dict[str, Any]) -> dict[str, int]:
    """Return the number of pairs of each category that has pairs."""
    return {name: row["pairs"] for name, row in report["categories"].items() if row["pairs"]}


def test_answers_are_tallied_beside_table_10(drawn_round: Path) -> None:
    judge_by_rotation(drawn_round)
    report = tally(drawn_round)
    assert (report["pairs"], report["judged"], report["decided"], report["queries"]) == (40, 40, 40, 8)
    assert pair_counts(report) == {"entity_mismatch": 16, "numeral_mismatch": 8, "term_overlap": 8, "other": 8}
    paper_shares = [row["paper"] for row in report["categories"].values()]
    assert paper_shares == [0.39, 0.05, 0.094, 0.01, 0.016, 0.21, 0.148, 0.082]
    entity_mismatch = report["categories"]["entity_mismatch"]
    assert entity_mismatch["share"] == 0.4
    # Each query has two of five, so that the interval is empty.
    assert entity_mismatch["low"] == pytest.approx(0.4)
    assert entity_mismatch["high"] == pytest.approx(0.4)
    lines = run("baselines", "errors", "tally", drawn_round).stdout.splitlines()
    assert lines[0] == "40 of 40 pairs judged, 0 of them undecided; 0 of 1 packages accepted; percent"
    assert lines[3].split() == ["entity", "mismatch", "16", "40.00", "40.00", "to", "40.00", "39.00"]


def test_the_sums_of_section_3_5_follow_the_categories(drawn_round: Path) -> None:
    judge_by_rotation(drawn_round)
    lines = run("baselines", "errors", "tally", drawn_round).stdout.splitlines()
    assert lines[-2].startswith("sum: salient phrase mismatch  ")
    assert lines[-2].endswith(" 53.40")
    assert lines[-1].split() == ["sum:", "other", "challenges", "8", "20.00", "20.00", "to", "20.00", "22.60"]
    report = tally(drawn_round)
    salient_categories = ("entity_mismatch", "numeral_mismatch", "modifier_mismatch")
    pair_sum = sum(report["categories"][name]["pairs"] for name in salient_categories)
    assert report["sums"]["salient_phrase_mismatch"]["pairs"] == pair_sum == 24


def test_the_papers_sums_are_the_sums_of_its_categories() -> None:
    shares = published_figures()["table10"]
    for paper_sum in published_figures()["table10_sums"].values():
        assert paper_sum["share"] == pytest.approx(sum(shares[key] for key in paper_sum["categories"]))


def test_people_answer_with_a_category_and_an_adjudicator_decides(drawn_round: Path) -> None:
    sheet = drawn_round / "packages" / "dev-001.csv"
    categories = categories_of(drawn_round)
    # A category may be a number, or a name in Chinese or English.
    category_names = {1: "实体不符", 2: "numeral mismatch", 6: "Term_Overlap", 8: "其他"}

    def answer_as_anna(row: dict[str, str]) -> str:
        return category_names[categories[row["query-id"], row["corpus-id"]]]

    def answer_as_ben(row: dict[str, str]) -> int:
        category = categories[row["query-id"], row["corpus-id"]]
        return 1 if category == 2 else category

    with pytest.raises(AssertionError, match="label: expected 1 to 8, found '0'"):
        judge(drawn_round, ANNA, sheet, lambda row: 0)
    judge(drawn_round, ANNA, sheet, answer_as_anna)
    judge(drawn_round, BEN, sheet, answer_as_ben)
    report = tally(drawn_round)
    assert (report["judged"], report["decided"]) == (40, 32)
    assert annotate("adjudicate", drawn_round).stdout.endswith("8 pairs to decide\n")
    judge(drawn_round, "carl", drawn_round / "adjudication" / "dev-001.csv", lambda row: 7)
    assert tally(drawn_round)["categories"]["false_negative"]["pairs"] == 8


def test_a_models_answers_are_tallied_where_asked_for(drawn_round: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with Chat(lambda prompt: f"最终类别：{7 if CITY_QUESTIONS[0] in prompt else 1}") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        done = annotate("prefill", drawn_round, "--model", "judge-7b", "--show")
    assert "40 pairs judged by judge-7b" in done.stdout
    for choice in CHOICES:
        assert f"{choice.label} {choice.name}：" in server.prompts[0]
    rows = judgments(drawn_round)
    assert {(row["kind"], row["model"], row["question"]) for row in rows} == {("model", "judge-7b", "errors")}
    tasks = json.loads((drawn_round / "label-studio" / "dev-001.json").read_text(encoding="utf-8"))
    choices = {task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks}
    assert choices == {"1", "7"}
    report = tally(drawn_round, "--model", "judge-7b")
    assert pair_counts(report) == {"entity_mismatch": 35, "false_negative": 5}
    assert "add some by `annotate import`" in run("baselines", "errors", "tally", drawn_round, code=1).error
