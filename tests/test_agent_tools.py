"""The page's tools for programs and agents, their log, and the run that `evaluate` reads from the log."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import md5
from test_space import columns

from baselines.bm25.bm25_index import IndexedTexts
from baselines.bm25.engine_numba import open_index
from baselines.core.passages import open_passages
from baselines.look.agent_tools import AgentTools
from baselines.look.shown_answers import PageSearcher
from baselines.measure.qrels import read_queries
from builders.core.errors import InputError
from builders.core.word_tokens import word_tokens
from builders.store.logged_runs import read_search_log
from builders.store.reader import open_release
from builders.store.runs import write_run
from builders.store.search_log import SearchLog


def reverse_candidates(_: str, passage_ids: Sequence[str]) -> list[tuple[str, float]]:
    """Score candidates by their earlier place, so that the last becomes the first."""
    hits = [(passage_id, float(number)) for number, passage_id in enumerate(passage_ids)]
    return hits[::-1]


@pytest.fixture(scope="module")
def searcher(sample_release: Path) -> PageSearcher:
    """BM25, and a re-ranker that reverses the order of the candidates."""
    release = open_release(sample_release)
    index = open_index(IndexedTexts(release), None, 1)
    return PageSearcher(
        {"BM25": lambda query, top_k: index.search(word_tokens(query), top_k)},
        open_passages(release),
        read_queries(release, "dev"),
        rerank=("BM25 > turned", reverse_candidates),
        top_k=5,
        candidates=8,
    )


@pytest.fixture
def logged(searcher: PageSearcher, tmp_path: Path) -> tuple[AgentTools, Path]:
    """The tools of the page, and their log."""
    log_path = tmp_path / "log.jsonl"
    return AgentTools(searcher, SearchLog(log_path)), log_path


def test_a_search_answers_with_the_passages_of_the_column(searcher: PageSearcher) -> None:
    _, text = searcher.questions[0]
    for name, column in zip(searcher.system_names, columns(searcher.page(text)), strict=True):
        answer = AgentTools(searcher).search(f" {text}\n", 3, name)
        assert answer["query"] == text
        assert answer["system"] == name
        assert [(hit["id"], hit["rank"]) for hit in answer["hits"]] == [
            (hit.passage_id, hit.rank) for hit in column[:3]
        ]
        for hit in answer["hits"]:
            assert md5(hit["text"]) == hit["id"]
            assert hit["text"] == AgentTools(searcher).passage(hit["id"])["text"]
    assert AgentTools(searcher).search(text)["system"] == "BM25"
    assert len(AgentTools(searcher).search(text)["hits"]) == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("手机", 5, "BM26"), "system: expected one of BM25, BM25 > turned; found 'BM26'"),
        ((" \u3000\n",), "query: expected a text that is not blank"),
        ((None,), "query: expected a text that is not blank, found None"),
        (("手" * 1_001,), "query: has 1,001 characters; expected at most 1,000"),
        (("手机", 0), "top_k: expected a whole number from 1 to 100, found 0"),
        (("手机", 101), "top_k: expected a whole number from 1 to 100, found 101"),
        (("手机", 2.5), "top_k: expected a whole number from 1 to 100, found 2.5"),
    ],
)
def test_a_wrong_call_is_one_error_and_is_logged(
    logged: tuple[AgentTools, Path], call: tuple[Any, ...], message: str
) -> None:
    tools, log_path = logged
    with pytest.raises(InputError) as caught:
        tools.search(*call)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    (line,) = log_path.read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["error"] == str(caught.value)


def test_an_unknown_passage_is_one_error(logged: tuple[AgentTools, Path]) -> None:
    tools, _ = logged
    for passage_id in ("no-such", "\ud800", 7):
        with pytest.raises(InputError):
            tools.passage(passage_id)


def test_the_log_is_the_run_of_the_first_searches(
    logged: tuple[AgentTools, Path], searcher: PageSearcher, sample_release: Path, tmp_path: Path
) -> None:
    tools, log_path = logged
    questions = read_queries(open_release(sample_release), "dev")
    train_text = read_queries(open_release(sample_release), "train")[0][1]
    expected_hits = {}
    for query_id, text in questions[:8]:
        expected_hits[query_id] = searcher.hits("BM25", text, 5)
        tools.search(f"  {text} ", 5)
        tools.search(text, 1, "BM25 > turned")  # a later search of the same question
    tools.search(train_text)
    tools.search("没有人问过的问题")
    with pytest.raises(InputError):
        tools.search(questions[9][1], 0)
    tools.passage(next(iter(expected_hits.values()))[0][0])
    write_run(tmp_path / "same.run", expected_hits.items())
    words = ["--release", sample_release, "--format", "json"]
    of_run = run("baselines", "evaluate", words, tmp_path / "same.run")
    of_log = run("baselines", "evaluate", words, log_path)
    expected_counts = (
        f"the first searches of 8 of {len(questions)} questions of dev, by BM25; "
        "other searches: 8 repeated, 1 of other splits, 1 that are no questions of the release"
    )
    assert expected_counts in of_log.stderr
    (log_figures,), (run_figures,) = json.loads(of_log.stdout), json.loads(of_run.stdout)
    for figures in (log_figures, run_figures):
        del figures["run"]
    assert log_figures == run_figures
    # Other verbs, and judgments without texts, cannot use a log.
    assert "is a log of searches; expected a run" in run("baselines", "show", words[:2], log_path, code=1).stderr
    (tmp_path / "qrels").write_text("a 0 b 1\n")
    refused = run("baselines", "evaluate", "--qrels", tmp_path / "qrels", log_path, code=1)
    assert "add --release" in refused.stderr


def test_rising_scores_of_a_log_are_sorted_and_an_empty_search_is_no_ranking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_path = tmp_path / "log.jsonl"
    search_log = SearchLog(log_path)
    for text, hits in (("问", {"a": 0.5, "b": 2.5, "c": 0.5}), ("答", {}), ("答", {"a": 1.0})):
        search_log.append("search", {"query": text, "passage_ids": list(hits), "scores": list(hits.values())})
    run_of_log = read_search_log(log_path, {"dev": [("q1", "问"), ("q2", "答")]}, "dev")
    # The later search of the second question is repeated.
    assert run_of_log.hits == {"q1": [("b", 2.5), ("a", 0.5), ("c", 0.5)]}
    assert f"{log_path}: the ranks of 1 of 1 queries contradict their scores" in caplog.text
    with pytest.raises(InputError, match=f"^{log_path}: the first search of each question of dev found nothing"):
        read_search_log(log_path, {"dev": [("q2", "答")]}, "dev")


def test_threads_write_whole_lines(logged: tuple[AgentTools, Path]) -> None:
    tools, log_path = logged
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: tools.search(f"手机 {number}"), range(40)))
    queries = {json.loads(line)["query"] for line in log_path.read_text(encoding="utf-8").splitlines()}
    assert queries == {f"手机 {number}" for number in range(40)}


def test_a_log_is_not_appended_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 p 1 1.0 tag\n")
    with pytest.raises(InputError, match="is not a log of searches"):
        SearchLog(tmp_path / "run")
