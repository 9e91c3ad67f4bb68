"""`errors stages`: failed queries of a two-stage search by the stage that failed."""

import json
import math
from pathlib import Path

import pytest
from commands import run
from hypothesis import assume, given
from hypothesis import strategies as st

from baselines import read_run, report_stages
from baselines.measure.qrels import Qrels
from baselines.measure.significance import wilson
from baselines.measure.stage_errors import REASONS, find_stage_errors, stage_report
from builders.core.errors import InputError, UsageError
from builders.store.runs import Run

PASSAGES = "abcdefgh"
Lists = dict[str, list[str]]


def run_of(name: str, lists: Lists) -> Run:
    """Return a run with falling scores."""
    hits = {}
    for query_id, passage_ids in lists.items():
        hits[query_id] = [(passage_id, -float(rank)) for rank, passage_id in enumerate(passage_ids)]
    return Run(name, hits)


def count_by_brute_force(first: Lists, second: Lists, positives: dict[str, set[str]], top_k: int) -> dict[str, int]:
    """Count the reasons, passage by passage."""
    counts = dict.fromkeys(REASONS, 0)
    for query_id, positive_ids in positives.items():
        was_found = False
        is_ranked = False
        is_hit = False
        for passage_id in positive_ids:
            if passage_id in second.get(query_id, [])[:top_k]:
                is_hit = True
            if passage_id in first.get(query_id, []):
                was_found = True
                is_ranked = is_ranked or passage_id in second.get(query_id, [])
        if not is_hit and not was_found:
            counts["never found"] += 1
        elif not is_hit and is_ranked:
            counts["ranked too low"] += 1
        elif not is_hit:
            counts["thrown out"] += 1
    return counts


lists_of_queries = st.dictionaries(
    st.sampled_from("123456"), st.lists(st.sampled_from(PASSAGES), min_size=1, max_size=6, unique=True), max_size=6
)
positives_of_queries = st.dictionaries(
    st.sampled_from("123456"), st.sets(st.sampled_from(PASSAGES), min_size=1, max_size=3), min_size=1
)


@given(lists_of_queries, lists_of_queries, positives_of_queries, st.integers(1, 6))
def test_the_counts_are_those_of_a_brute_force(
    first: Lists, second: Lists, positives: dict[str, set[str]], top_k: int
) -> None:
    assume(positives.keys() & first.keys() and positives.keys() & second.keys())
    qrels = Qrels("qrels")
    for query_id, positive_ids in positives.items():
        qrels.positives[query_id] = dict.fromkeys(positive_ids, 1)
    runs = (run_of("first", first), run_of("second", second))
    errors = find_stage_errors(*runs, qrels, top_k)
    value = stage_report(errors, runs, top_k).value
    counts = {entry["reason"]: entry["queries"] for entry in value["reasons"]}
    assert counts == count_by_brute_force(first, second, positives, top_k)
    # Every failed query has one reason, and the failures of both stages differ by the gained and the lost queries.
    assert sum(counts.values()) == value["failed"]
    assert value["failed"] == value["first_failed"] - value["gained"] + value["lost"]


@pytest.mark.parametrize(("count", "total"), [(0, 7), (3, 20), (20, 20)])
def test_the_interval_is_wilsons(count: int, total: int) -> None:
    z = 1.959963984540054
    share = count / total
    center = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z / (1 + z**2 / total) * math.sqrt(share * (1 - share) / total + z**2 / (4 * total**2))
    assert wilson(count, total) == pytest.approx((center - half, center + half), abs=1e-12)


def test_the_verb_prints_and_lists_the_failed_queries(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("hit 0 p 1\nnever 0 p 1\nlow 0 p 1\nout 0 p 1\nout 0 r 1\n")
    first_lines = []
    second_lines = []
    for query_id, first_list, second_list in [
        ("hit", "ap", "pa"),
        ("never", "ab", "ba"),
        ("low", "pab", "bap"),
        ("out", "abrp", "ba"),
    ]:
        for lines, passage_ids in ((first_lines, first_list), (second_lines, second_list)):
            for rank, passage_id in enumerate(passage_ids, start=1):
                lines.append(f"{query_id} Q0 {passage_id} {rank} {-rank} tag\n")
    (tmp_path / "first").write_text("".join(first_lines))
    (tmp_path / "second").write_text("".join(second_lines))
    paths = [tmp_path / "first", tmp_path / "second"]
    words = ["--qrels", tmp_path / "qrels", "--top-k", 2, *paths]
    done = run("baselines", "errors", "stages", words, "--list", tmp_path / "failed")
    assert "without a positive in the top 2, of 4 queries: first stage 2, second stage 3" in done.stdout
    assert "(1 lost" not in done.stdout and "(0 gained, 1 lost)" in done.stdout
    assert "ranked too low        1  33.33 (6.15 to 79.23)  25.00 (4.56 to 69.94)" in done.stdout
    failed = [json.loads(line) for line in (tmp_path / "failed").read_text().splitlines()]
    assert [(query["query_id"], query["reason"], query["first_rank"], query["second_rank"]) for query in failed] == [
        ("never", "never found", None, None),
        ("low", "ranked too low", 1, 3),
        ("out", "thrown out", 3, None),
    ]
    report = report_stages(*paths, qrels=tmp_path / "qrels", top_k=2)
    assert report.value == json.loads(run("baselines", "errors", "stages", words, "--format", "json").stdout)
    with pytest.raises(UsageError, match="either --release DIR or --qrels FILE"):
        report_stages(*paths)


def test_a_second_stage_with_other_passages_causes_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    qrels = Qrels("qrels")
    qrels.positives.update({"1": {"p": 1}, "2": {"p": 1}})
    first = run_of("first", {"1": ["a"], "2": ["p"]})
    second = run_of("second", {"1": ["b", "p"], "2": ["p"]})
    errors = find_stage_errors(first, second, qrels, 1)
    assert "second: 1 of 2 queries have passages that first lacks" in caplog.text
    # The first stage never found the positive, although the second stage has it.
    assert [query.reason for query in errors.failed] == ["never found"]


@pytest.mark.parametrize(("first_query", "second_query", "foreign_run"), [("1", "9", "second"), ("9", "1", "first")])
def test_a_run_without_a_judged_query_is_refused(first_query: str, second_query: str, foreign_run: str) -> None:
    qrels = Qrels("qrels")
    qrels.positives.update({"1": {"p": 1}, "2": {"p": 1}})
    runs = (run_of("first", {first_query: ["p"]}), run_of("second", {second_query: ["p"]}))
    with pytest.raises(InputError, match=f"^{foreign_run}: no matching query: .* has none of the 2 queries of qrels"):
        find_stage_errors(*runs, qrels, 1)


def test_no_failed_query_has_no_share(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("1 0 p 1\n")
    (tmp_path / "run").write_text("1 Q0 p 1 1.0 tag\n")
    value = report_stages(tmp_path / "run", tmp_path / "run", qrels=tmp_path / "qrels").value
    assert value["failed"] == 0
    assert [entry["of_failed"] for entry in value["reasons"]] == [None, None, None]


def test_the_latency_of_both_stages_is_printed(tmp_path: Path) -> None:
    (tmp_path / "qrels").write_text("1 0 p 1\n")
    path = tmp_path / "run"
    path.write_text("1 Q0 p 1 1.0 tag\n")
    latency = {"p50_ms": 1.26, "p95_ms": 2.0, "p99_ms": 3.0, "queries": 9, "measured": "each query alone"}
    manifest = {"run": {"bytes": path.stat().st_size}, "query_latency": latency}
    (tmp_path / "run.manifest.json").write_text(json.dumps(manifest))
    report = report_stages(path, read_run(path), qrels=tmp_path / "qrels")
    assert str(report).count("p50 1.3 ms, p95 2.0 ms, p99 3.0 ms a query") == 2
