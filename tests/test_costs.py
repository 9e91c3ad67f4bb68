"""The cost of a run in its manifest: texts per second, the latency of a query, and texts that the length cuts."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from tiny_kinds import write_multi_vector, write_sparse, write_static
from tiny_models import write_cross, write_dual
from tokenizers import Tokenizer

from baselines import run_model, search_bm25
from baselines.core import run_costs
from baselines.core.latency import Latency
from baselines.core.run_costs import RunCosts, collect_costs, preparing, report_texts, time_queries
from baselines.retrieve import cut_texts as cut_module
from baselines.retrieve.cut_texts import CutTexts, cut_texts
from builders.core.errors import InputError
from builders.core.sampling import draw_in_order, draw_sample

pytestmark = pytest.mark.usefixtures("own_cache")


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def move(self, seconds: float) -> None:
        self.now += seconds


def test_the_first_query_is_repeated_and_the_budget_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    searched: list[str] = []

    def search(query: str) -> None:
        searched.append(query)
        clock.move(0.4)

    assert time_queries(search, list("abcdef"), budget=0.0) == pytest.approx([0.4, 0.4, 0.4])  # 1 second
    assert searched == list("aabc")
    assert len(time_queries(search, list("abcdef"), budget=1.7)) == 5
    assert time_queries(search, [], budget=1.0) == []


def test_measured_queries_are_no_texts_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    def search(seconds: float) -> None:
        with report_texts("queries", 1):
            clock.move(seconds)

    with collect_costs() as costs:
        with report_texts("queries", 4):
            clock.move(2.0)
            with preparing():  # opening a model is not the speed of the model
                clock.move(30.0)
        costs.measure_queries(search, {"a": 0.003, "b": 0.001, "c": 0.002})
    manifest = costs.to_json()
    assert manifest["throughput"] == {"queries": {"texts": 4, "seconds": 2.0, "texts_per_second": 2.0}}
    assert manifest["query_latency"]["p50_ms"] == 2.0
    assert manifest["query_latency"]["queries"] == 3
    assert costs.query_seconds == pytest.approx(sorted_by_draw({"a": 0.003, "b": 0.001, "c": 0.002}))


def sorted_by_draw(values: dict[str, float]) -> list[float]:
    return [values[query_id] for query_id in draw_in_order(values, len(values), 0)]


def test_a_smaller_sample_begins_a_larger_sample() -> None:
    ids = [str(number) for number in range(50)]
    assert draw_in_order(ids, 20, 0)[:5] == draw_in_order(reversed(ids), 5, 0)
    assert draw_sample(ids, 7, 0) == set(draw_in_order(ids, 7, 0))


def test_a_failed_measurement_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fail(query: str) -> None:
        raise InputError("the server is gone")

    costs = RunCosts()
    costs.measure_queries(fail, {"a": "a"})
    assert costs.to_json() == {}
    assert "the latency of a query is not measured: the server is gone" in caplog.text


def manifest_of(out: Path) -> dict[str, Any]:
    return json.loads(out.with_name(f"{out.name}.manifest.json").read_text(encoding="utf-8"))


def expect_latency(manifest: dict[str, Any], queries: int, measured: str = run_costs.ALONE) -> None:
    latency = manifest["query_latency"]
    assert latency.keys() == {*Latency(1.0, 1.0, 1.0, 1).to_json(), "measured"}
    assert 0 < latency["p50_ms"] <= latency["p95_ms"] <= latency["p99_ms"]
    assert (latency["queries"], latency["measured"]) == (queries, measured)


def test_the_manifest_of_bm25_has_costs_and_the_run_stays_the_same(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    contents = []
    for again in (False, True):
        search_bm25(release, out=tmp_path / "a.run", top_k=3, again=again)
        contents.append((tmp_path / "a.run").read_bytes())
        manifest = manifest_of(tmp_path / "a.run")
        assert manifest["throughput"]["queries"]["texts"] == len(QUESTIONS["dev"])
        expect_latency(manifest, len(QUESTIONS["dev"]))
    assert contents[0] == contents[1]
    # The times of the manifest do not make the finished run another run.
    search_bm25(release, out=tmp_path / "a.run", top_k=3)
    assert manifest_of(tmp_path / "a.run") == manifest
    in_memory = search_bm25(release, top_k=3)
    assert in_memory.manifest is not None and "query_latency" not in in_memory.manifest


def test_the_manifests_of_models_have_costs(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    dual = write_dual(tmp_path / "dual")
    cross = write_cross(tmp_path / "cross")
    words = ["--release", release, "--device", "cpu", "--top-k", 3]
    query_count = len(QUESTIONS["dev"])
    first = tmp_path / "first.run"

    done = run("baselines", "run", dual, words, "--out", first)
    manifest = manifest_of(first)
    assert manifest["throughput"]["passages"]["texts"] == len(set(TEXTS))
    assert manifest["throughput"]["queries"]["texts"] == query_count
    assert manifest["texts_cut"]["passages"]["texts"] == len(set(TEXTS))
    expect_latency(manifest, query_count)
    shown_lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert f"queries cut 0.00 % of {query_count} queries, by the model's length" in shown_lines
    assert any(line.startswith("query latency p50 ") for line in shown_lines)
    # The index of the second call is reused, so that no passage is encoded.
    run("baselines", "run", dual, words, "--out", tmp_path / "again.run")
    assert manifest_of(tmp_path / "again.run")["throughput"].keys() == {"queries"}
    assert (tmp_path / "again.run").read_bytes() == first.read_bytes()

    for name, model in (("dual", dual), ("cross", cross)):
        out = tmp_path / f"{name}.run"
        run("baselines", "rerank", words, "--run", first, "--model", model, "--out", out)
        expect_latency(manifest_of(out), query_count)
    pair_count = len(first.read_text().splitlines())
    assert manifest_of(tmp_path / "cross.run")["throughput"]["pairs"]["texts"] == pair_count
    assert manifest_of(tmp_path / "cross.run")["texts_cut"]["pairs"]["texts"] == pair_count

    run("baselines", "encode", words[:4], "--model", dual, "--out", tmp_path / "passages")
    run("baselines", "encode", words[:4], "--model", dual, "--queries", "--out", tmp_path / "queries")
    words += ["--passages", tmp_path / "passages", "--out", tmp_path / "search.run"]
    run("baselines", "search", words, "--model", dual)
    expect_latency(manifest_of(tmp_path / "search.run"), query_count)
    run("baselines", "search", words, "--queries", tmp_path / "queries")
    expect_latency(manifest_of(tmp_path / "search.run"), query_count, f"{run_costs.ALONE}, without its encoding")


def test_a_model_in_memory_prints_the_share_of_cut_texts(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    model_run = run_model(str(write_dual(tmp_path / "dual")), release, max_length=5, device="cpu")
    assert "passages cut     100.00 %" in str(model_run.report)
    assert "query latency" not in str(model_run.report)


LONG_TEXTS = [text * repeat for text in TEXTS for repeat in (1, 2, 5)]


def write_short_dual(folder: Path) -> SentenceTransformer:
    model = SentenceTransformer(str(write_dual(folder, query_length=None, document_length=None)))
    model.max_seq_length = 40
    return model


def write_router(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(write_dual(folder, document_length=40, router=True)))


def write_short_sparse(folder: Path) -> SparseEncoder:
    model = SparseEncoder(str(write_sparse(folder)))
    model.max_seq_length = 40
    return model


def write_short_static(folder: Path) -> SentenceTransformer:
    model = SentenceTransformer(str(write_static(folder)))
    tokenizer: Any = model[0].tokenizer
    tokenizer.enable_truncation(40)
    return model


def write_short_multi_vector(folder: Path) -> MultiVectorEncoder:
    model = MultiVectorEncoder(str(write_multi_vector(folder)))
    model.max_seq_length = 40
    return model


@pytest.mark.parametrize(
    ("write_model", "special_tokens", "prompt"),
    [
        (write_short_dual, True, ""),
        (write_router, True, ""),
        (write_short_sparse, True, ""),
        (write_short_static, False, ""),
        (write_short_multi_vector, True, "文"),
    ],
)
def test_cut_texts_have_more_tokens_than_the_limit(
    tmp_path: Path, write_model: Callable[[Path], Any], special_tokens: bool, prompt: str
) -> None:
    model = write_model(tmp_path / "model")
    tokenizer = Tokenizer.from_str(getattr(model.tokenizer, "backend_tokenizer", model.tokenizer).to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lengths = [len(tokenizer.encode(prompt + text, add_special_tokens=special_tokens)) for text in LONG_TEXTS]
    expected_count = sum(length > 40 for length in lengths)
    assert 0 < expected_count < len(LONG_TEXTS)
    for _ in range(2):  # the limits are in force again afterwards
        counts = cut_texts(model, len(LONG_TEXTS), lambda numbers: [LONG_TEXTS[n] for n in numbers], "document")
        assert counts == CutTexts(expected_count, len(LONG_TEXTS), len(LONG_TEXTS))
        assert counts.interval() is None


def test_cut_pairs_have_more_tokens_than_the_limit(tmp_path: Path) -> None:
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), max_length=40)
    pairs = [(QUESTIONS["dev"][0], text) for text in LONG_TEXTS]
    tokenizer = Tokenizer.from_str(model.tokenizer.backend_tokenizer.to_str())
    tokenizer.no_truncation()
    expected_count = sum(len(tokenizer.encode(*pair)) > 40 for pair in pairs)
    counts = cut_texts(model, len(pairs), lambda numbers: [pairs[number] for number in numbers], "")
    assert counts.cut == expected_count and 0 < expected_count < len(pairs)


def test_of_many_texts_a_sample_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_module, "READ_TEXTS", 4)
    model = write_short_dual(tmp_path / "model")
    counts = cut_texts(model, len(LONG_TEXTS), lambda numbers: [LONG_TEXTS[number] for number in numbers], "document")
    assert (counts.read, counts.texts) == (4, len(LONG_TEXTS))
    low, high = counts.to_json()["interval"]
    assert 0 <= low <= counts.share <= high <= 1
