"""`evaluate --answers --budget`: answers in the first N characters of a list."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import error_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import md5, raw_row, write_rows

from baselines import evaluate_runs
from baselines.measure.reading_budget import read_top
from builders import build_release
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run, write_run
from builders.store.stored_answers import read_answers
from builders.text.span_f1 import is_positive
from builders.text.span_options import THRESHOLD

FILLER = "春天来了天气很好真的"  # 10 characters, none of them in the answer
ANSWER = "杏花三月开。"  # 6 characters
LINES = ["甲乙戊", "己庚辛壬癸", "甲己乙庚丙", "辛壬", "癸甲乙丙丁"]
TEXTS = [FILLER, FILLER + ANSWER, ANSWER]


@given(st.lists(st.text("ab", max_size=6), max_size=6), st.integers(1, 20))
def test_a_reader_sees_the_first_characters(texts: list[str], budget: int) -> None:
    reading = read_top(texts, budget)
    assert "".join(reading) == "".join(texts)[:budget]
    # Only the last text is cut.
    assert reading[:-1] == texts[: len(reading)][:-1]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A release with one question with an answer, and one without."""
    rows = [raw_row(1, "杏花几月开", [[text] for text in TEXTS], ["三月开。"])]
    write_rows(tmp_path / "raw/search.dev.json", rows)
    write_rows(tmp_path / "raw/search.test.json", [raw_row(2, "梨花几月开", [[FILLER]])])
    run("builders", "release", "--quiet", "--raw", tmp_path / "raw", "--out", tmp_path / "small", "--min-chars", 1)
    return tmp_path / "small"


def test_an_answer_counts_if_it_was_read(small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hits = [(md5(text), -float(rank)) for rank, text in enumerate(TEXTS)]
    run_path = tmp_path / "run"
    write_run(run_path, [(md5("杏花几月开"), hits)])
    # The second passage, from character 10 to 26, has its answer from character 22 on.
    budgets = [10, 21, 26, 500]
    words = ["--release", small, "--answers", "--budget", budgets]
    report = evaluate_runs([run_path], release=small, answers=True, budget=budgets, per_query=tmp_path / "q.parquet")
    assert (
        "the lists of 1 of 1 questions have fewer than 500 characters; a deeper run may have further answers"
        in caplog.text
    )
    figures = report.value[0]["budgets"]
    assert [figures[str(budget)]["answer"] for budget in budgets] == [0.0, 0.0, 1.0, 1.0]
    assert [figures[str(budget)]["characters"] for budget in budgets] == [10, 21, 26, 32]
    table = pq.read_table(tmp_path / "q.parquet")
    assert [table[f"answer_in_{budget}"].to_pylist() for budget in budgets] == [[False], [False], [True], [True]]
    printed = run("baselines", "evaluate", run_path, words)
    assert printed.stdout.rstrip("\n") == str(report)
    value = json.loads(run("baselines", "evaluate", run_path, words, "--format", "json").stdout)
    assert value == report.value


def test_budgets_equal_a_brute_force(sample_release: Path, tmp_path: Path) -> None:
    run_path = tmp_path / "run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--top-k", 5, "--out", run_path)
    budgets = [32, 100]
    (value,) = evaluate_runs([run_path], release=sample_release, answers=True, unit="char", budget=budgets).value
    release = open_release(sample_release)
    texts = release.texts("corpus", "corpus")
    rankings = read_run(run_path).rankings
    for budget in budgets:
        labels = []
        for query_id, row in read_answers(release, "main", "dev").items():
            if not row["answers"]:
                continue
            is_answered = False
            remaining = budget
            for passage_id in rankings.get(query_id, []):
                text = texts[passage_id][:remaining]
                is_answered = is_answered or is_positive(text, row["answers"], THRESHOLD)
                remaining -= len(text)
            labels.append(is_answered)
        assert value["budgets"][str(budget)]["answer"] == sum(labels) / len(labels)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A release with one question, whose answer is "甲乙丙丁", and every text of LINES as a passage."""
    folder = tmp_path_factory.mktemp("lines")
    rows = [raw_row(1, "问", [[text] for text in LINES], ["甲乙丙丁"])]
    write_rows(folder / "raw/search.dev.json", rows)
    return build_release(raw=[folder / "raw"], out=folder / "lines", min_chars=1, unit="char", workers=1)


@settings(max_examples=25, deadline=None)
@given(st.permutations(LINES), st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_any_list_and_budget_equals_a_brute_force(
    lines: Release, order: list[str], length: int, budgets: list[int]
) -> None:
    run = Run.in_memory("r", {md5("问"): [(md5(text), -float(rank)) for rank, text in enumerate(order[:length])]})
    (value,) = evaluate_runs([run], release=lines, answers=True, unit="char", budget=budgets).value
    shares = {}
    for budget in budgets:
        # Read character by character: a passage is read until its end, or until the budget is spent.
        read_texts = [""]
        for text in order[:length]:
            for character in text:
                if sum(map(len, read_texts)) < budget:
                    read_texts[-1] += character
            read_texts.append("")
        shares[budget] = float(any(is_positive(text, ["甲乙丙丁"], THRESHOLD) for text in read_texts if text))
        assert value["budgets"][str(budget)]["answer"] == shares[budget]
        assert value["budgets"][str(budget)]["characters"] == sum(map(len, read_texts))
    # Who reads more never has fewer answers.
    rising = [shares[budget] for budget in sorted(budgets)]
    assert rising == sorted(rising)


def test_a_split_without_judgments_has_budgets(small: Path, tmp_path: Path) -> None:
    # The test split has no qrels, and its question has no answer.
    run_path = tmp_path / "run"
    write_run(run_path, [(md5("梨花几月开"), [(md5(FILLER), 1.0)])])
    words = ["--release", small, "--split", "test", "--answers", "--budget", 10]
    error = error_of(run("baselines", "evaluate", run_path, words, code=1))
    assert "no query of the split has an answer" in error


def test_a_foreign_passage_is_an_error(small: Path) -> None:
    foreign = Run.in_memory("foreign", {md5("杏花几月开"): [("elsewhere", 1.0)]})
    words = {"release": small, "answers": True, "budget": [5]}
    with pytest.raises(Exception, match="has a passage 'elsewhere' that"):
        evaluate_runs([foreign], **words)


@pytest.mark.parametrize("budget", ["0", "-1", "1.5", "x"])
def test_a_wrong_budget_is_one_line(small: Path, budget: str) -> None:
    stderr = run("baselines", "evaluate", "RUN", "--release", small, "--answers", "--budget", budget, code=2).stderr
    error_lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(error_lines) == 1 and "--budget" in error_lines[0]


def test_a_budget_needs_answers(small: Path) -> None:
    stderr = run("baselines", "evaluate", "RUN", "--release", small, "--budget", 5, code=2).stderr
    assert "--budget needs --answers" in stderr
