"""A user's own search engine: runs and latency, wrong hits, and engines that fail or never return."""

import contextlib
import json
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from releases import QUESTIONS, TEXTS, make_release, md5

from baselines import InputError, Searcher, evaluate, make_searcher, read_run, search
from baselines.retrieve import searchers
from builders.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("own_cache")
IDS = [md5(text) for text in TEXTS]
# The answers of the two dev questions are texts 4 and 5.
FIRST, SECOND = (md5(question) for question in QUESTIONS["dev"])
Hits = Sequence[tuple[str, float]]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


class OverlapEngine:
    """Ranks passages by the number of characters that they share with the query, and keeps all calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def search(self, queries: list[str], top_k: int) -> list[list[tuple[str, float]]]:
        self.calls.append(list(queries))
        return [search_by_overlap(query, top_k) for query in queries]


def search_by_overlap(query: str, top_k: int) -> list[tuple[str, float]]:
    hits = [(md5(text), float(len({*query} & {*text}))) for text in TEXTS]
    return sorted(hits, key=lambda hit: -hit[1])[:top_k]


def test_an_engine_is_measured_one_query_at_a_time(release: Path) -> None:
    engine = OverlapEngine()
    measures = evaluate(engine, release, top_k=3)
    assert isinstance(engine, Searcher)
    # The first search of the first query does not count.
    first_question, second_question = QUESTIONS["dev"]
    assert engine.calls == [[first_question], [first_question], [second_question]]
    assert measures.latency is not None and measures.latency.queries == 2
    assert 0 < measures.latency.p50 <= measures.latency.p95 <= measures.latency.p99
    expected_run = {md5(question): search_by_overlap(question, 3) for question in QUESTIONS["dev"]}
    assert measures == evaluate(expected_run, release)
    assert measures["MRR@10"] == 1.0


def test_the_latency_is_printed(release: Path) -> None:
    measures = evaluate(OverlapEngine(), release)
    for printed in (measures.to_text(), measures.to_markdown()):
        assert "latency of a query, searched alone: p50 " in printed and "(2 queries)" in printed
    assert evaluate({FIRST: {IDS[4]: 1.0}}, release).latency is None


def test_percentiles_of_the_latency_are_those_of_the_calls(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each call reads the clock at its start and at its end. The first call does not count.
    times = iter([0.0, 9.0, 10.0, 10.002, 20.0, 20.004])
    monkeypatch.setattr(searchers, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(searchers, "_SlowQueryWatch", quiet_watch)
    latency = evaluate(OverlapEngine(), release).latency
    assert latency is not None
    assert [latency.p50, latency.p95, latency.p99] == pytest.approx([3.0, 3.9, 3.98])


@contextlib.contextmanager
def quiet_watch(engine_name: str) -> Iterator[Any]:
    """Replace the watch for slow queries by one that reads no clock."""
    yield SimpleNamespace(follow=lambda query: contextlib.nullcontext())


def test_queries_in_one_call_give_the_same_run_without_a_latency(release: Path) -> None:
    engine = OverlapEngine()
    measures = evaluate(engine, release, batch_size=8)
    assert engine.calls == [QUESTIONS["dev"]]
    assert measures.latency is None
    assert measures == evaluate(OverlapEngine(), release)


def test_a_function_of_one_query_is_an_engine(release: Path) -> None:
    assert search(make_searcher(search_by_overlap), release) == search(OverlapEngine(), release)
    assert evaluate(make_searcher(search_by_overlap), release).run == "search_by_overlap"
    for wrong in (OverlapEngine, 3):
        with pytest.raises(UsageError, match=r"make_searcher: expected a function of \(query, top_k\)"):
            make_searcher(wrong)  # type: ignore[arg-type]


def test_a_run_has_a_manifest_with_the_latency(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "engine.run.gz"
    run = search(OverlapEngine(), release, top_k=4, out=out)
    assert read_run(out).to_dict() == run
    manifest = json.loads((tmp_path / "engine.run.gz.manifest.json").read_text())
    assert manifest["model"]["name"] == "OverlapEngine"
    assert (manifest["kind"], manifest["split"], manifest["top_k"]) == ("searcher", "dev", 4)
    assert set(manifest["query_latency"]) == {"p50_ms", "p95_ms", "p99_ms", "queries", "measured"}
    # Two equal runs are the same file, although their times differ.
    search(OverlapEngine(), release, top_k=4, out=tmp_path / "again.run.gz")
    assert (tmp_path / "again.run.gz").read_bytes() == out.read_bytes()


def test_equal_scores_keep_the_order_of_the_engine(release: Path, tmp_path: Path) -> None:
    listed = sorted(IDS, reverse=True)
    engine = make_searcher(lambda query, top_k: [(passage_id, 1.0) for passage_id in listed])
    assert list(search(engine, release, out=tmp_path / "ties.run")[FIRST]) == listed
    assert read_run(tmp_path / "ties.run").rankings[FIRST] == listed


def test_a_query_without_hits_counts_as_0(release: Path) -> None:
    def find_second(query: str, top_k: int) -> list[tuple[str, Any]]:
        return [(IDS[5], np.float32(0.5))] if query == QUESTIONS["dev"][1] else []

    measures = evaluate(make_searcher(find_second), release)
    assert (measures["MRR@10"], measures["QueriesRanked"]) == (0.5, 1)


def fail(query: str, top_k: int) -> Hits:
    raise ConnectionError("no route to host")


async def search_later(query: str, top_k: int) -> Hits:
    return []


WRONG_HITS: dict[str, tuple[Callable[[str, int], Any], str]] = {
    "unknown id": (lambda query, top_k: [("x", 1.0)], "the corpus has no passage 'x'; expected the ids"),
    "repeated id": (
        lambda query, top_k: [(IDS[0], 2.0), (IDS[0], 1.0)],
        "at rank 1 and at rank 2; expected it once",
    ),
    "NaN": (lambda query, top_k: [(IDS[0], math.nan)], "expected a finite number as the score, found nan"),
    "text as score": (lambda query, top_k: [(IDS[0], "1")], "expected a finite number as the score, found '1'"),
    "too many": (lambda query, top_k: [(each, 1.0) for each in IDS], r"expected at most 3 hits \(top_k\), found 6"),
    "rising": (lambda query, top_k: [(IDS[0], 0.1), (IDS[1], 0.2)], "the scores rise from 0.1 to 0.2 at rank 2"),
    "number as id": (lambda query, top_k: [(7, 1.0)], "expected ids of the corpus, which are texts, found 7"),
    "ids alone": (lambda query, top_k: IDS[:2], r"expected a list of \(passage id, score\), found '"),
    "dictionary": (lambda query, top_k: {IDS[0]: 1.0}, "found a value of type dict"),
    "nothing": (lambda query, top_k: None, r"expected a list of \(passage id, score\), found None"),
    "coroutine": (search_later, "found a coroutine; pass a search that is not async"),
    "failure": (fail, "the search failed with ConnectionError: no route to host"),
    "one parameter": (lambda query: [], "the search failed with TypeError: "),  # type: ignore[misc]
}


@pytest.mark.parametrize("name", WRONG_HITS)
def test_wrong_hits_are_one_line_that_names_the_query(release: Path, name: str) -> None:
    wrong_function, expected_error = WRONG_HITS[name]

    def search_one(query: str, top_k: int) -> Any:
        # The first query is right, so the error must name the second query.
        if query == QUESTIONS["dev"][0]:
            return [(IDS[4], 1.0)]
        return wrong_function(query, top_k)

    with pytest.raises(InputError, match=expected_error) as raised:
        evaluate(make_searcher(search_one), release, top_k=3)
    assert f"search_one: query '{SECOND}' ('{QUESTIONS['dev'][1]}'): " in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_first_query_without_a_list_is_named(release: Path) -> None:
    engine = SimpleNamespace(search=lambda queries, top_k: [[(IDS[4], 1.0)]])
    with pytest.raises(InputError, match=f"query '{SECOND}' .*: expected 2 lists of hits, one per query, found 1"):
        search(engine, release, batch_size=2)
    failing_engine = SimpleNamespace(search=lambda queries, top_k: fail("", 1))
    with pytest.raises(InputError, match=f"query '{FIRST}' .* and 1 more in one call: the search failed"):
        search(failing_engine, release, batch_size=2)


def test_an_engine_without_any_hit_is_an_error_and_writes_nothing(release: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty: expected hits, found none for all 2 queries"):

        def empty(query: str, top_k: int) -> Hits:
            return []

        search(make_searcher(empty), release, out=tmp_path / "empty.run")
    assert not list(tmp_path.glob("empty.run*"))


def test_an_engine_that_hangs_is_named_while_it_hangs(
    release: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(searchers, "SLOW_SECONDS", 0.01)
    warned = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.set()

    listener = Listener(logging.WARNING)
    monkeypatch.setattr(searchers.log, "handlers", [*searchers.log.handlers, listener])

    def hang(query: str, top_k: int) -> Hits:
        assert warned.wait(60)  # returns as soon as the warning is there
        return search_by_overlap(query, top_k)

    evaluate(make_searcher(hang), release)
    (message,) = [record.message for record in caplog.records if "takes longer" in record.message]
    assert message.startswith(f"hang: query {FIRST!r} ('{QUESTIONS['dev'][0]}'): the search takes longer than 0.01 s")


def test_an_engine_is_evaluated_on_rewritten_questions(release: Path) -> None:
    searched_texts = []

    def engine(query: str, top_k: int) -> Hits:
        searched_texts.append(query)
        return search_by_overlap(query, top_k)

    measures = evaluate(make_searcher(engine), release, queries={FIRST: "改写的问题"})
    assert set(searched_texts) == {"改写的问题"}
    assert set(measures.per_query()) >= {FIRST}


def test_wrong_engines_and_options_are_refused(release: Path) -> None:
    both = SimpleNamespace(search=OverlapEngine().search, encode=lambda texts: texts)
    with pytest.raises(UsageError, match="SimpleNamespace has search and encode; to measure its search"):
        evaluate(both, release)
    with pytest.raises(UsageError, match="found the class OverlapEngine; pass an instance"):
        evaluate(OverlapEngine, release)
    options: list[dict[str, Any]] = [{"query_prompt": "问："}, {"index": "x"}, {"run": {FIRST: [IDS[0]]}}]
    for wrong_option in options:
        with pytest.raises(UsageError, match=f"an own search engine has no option {next(iter(wrong_option))}"):
            evaluate(OverlapEngine(), release, **wrong_option)
    with pytest.raises(UsageError, match="batch_size: expected a whole number of at least 1, found 0"):
        evaluate(OverlapEngine(), release, batch_size=0)
