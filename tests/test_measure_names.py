"""Any measure of ir-measures: names in any case, values against their definitions, grades, and wrong names."""

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st

from baselines import compare_runs, evaluate, evaluate_runs
from baselines.measure.measure_names import resolve_measures
from baselines.measure.measures import measure_run, values_of
from baselines.measure.qrels import Qrels
from builders.core.errors import InputError
from builders.store.runs import Run

# Grades of the passages that are judged for the query q. The passage d is judged negative.
GRADES = {"a": 3, "b": 1, "c": 2, "d": 0}
RANKING = ["d", "b", "u", "a", "v"]  # u and v are unjudged


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Write judgments with grades, and a run of two queries. Nobody judged r's passage v."""
    qrels_path, run_path = tmp_path / "qrels.trec", tmp_path / "one.run"
    judgments = [f"q 0 {passage_id} {grade}\n" for passage_id, grade in GRADES.items()]
    qrels_path.write_text("".join([*judgments, "r 0 a 1\n"]))
    hits = [f"q Q0 {passage_id} {rank} {-rank} t\n" for rank, passage_id in enumerate(RANKING, 1)]
    run_path.write_text("".join([*hits, "r Q0 v 1 1 t\n"]))
    return [qrels_path, run_path]


def measure_query(
    name: str, ranking: Sequence[str] = RANKING, scores: Sequence[float] = (), ties: str = "listed"
) -> float:
    """Return the value of a measure for a ranking of the query q."""
    hits = list(zip(ranking, scores or range(len(ranking), 0, -1), strict=True))
    positives = {passage_id: grade for passage_id, grade in GRADES.items() if grade > 0}
    qrels = Qrels("grades", {"q": positives}, {"q": {"d"}})
    (resolved_name,) = resolve_measures([name], ties)
    _, table = measure_run(Run("run", {"q": hits}), qrels, ties, [resolved_name])
    return float(values_of(table, resolved_name)[0])


def discounted(gains: Sequence[int]) -> float:
    """Return the sum of gains, each divided by the logarithm of its rank plus 1."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


EXPECTED = {
    "nDCG@3": discounted([0, 1, 0]) / discounted([3, 2, 1]),
    "nDCG@20": discounted([0, 1, 0, 3]) / discounted([3, 2, 1]),
    "nDCG(gains={2: 3, 3: 7})@20": discounted([0, 1, 0, 7]) / discounted([7, 3, 1]),
    "P@5": 2 / 5,
    "Precision@4": 2 / 4,
    "P(rel=2)@5": 1 / 5,
    "R@3": 1 / 3,
    "R(rel=2)@100": 1 / 2,
    "MRR@100": 1 / 2,
    "MRR(rel=2)@100": 1 / 4,
    "MRR@1": 0,
    "RR": 1 / 2,
    "AP": (1 / 2 + 2 / 4) / 3,
    "AP@2": (1 / 2) / 3,
    "Success@2": 1,
    "Rprec": 1 / 3,
    "SetP": 2 / 5,
    "SetF": 2 / (5 / 2 + 3 / 2),
    "Judged@5": 3 / 5,
    "P(judged_only=True)@2": 1 / 2,  # the judged passages of the list are d, b, a
    "IPrec@0.1": 1 / 2,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_values_are_those_of_the_definitions(name: str) -> None:
    assert measure_query(name) == pytest.approx(EXPECTED[name])
    assert measure_query(name.lower().replace("true", "True")) == measure_query(name)


def test_measures_of_one_call_do_not_disturb_each_other(files: list[Path]) -> None:
    names = [*EXPECTED, "RR@100", "infAP", "Bpref", "Compat(p=0.9)"]
    (result,) = evaluate_runs([files[1]], qrels=files[0], measures=names).value
    for name, alone in zip(resolve_measures(names), names, strict=True):
        (result_alone,) = evaluate_runs([files[1]], qrels=files[0], measures=[alone]).value
        assert result["measures"][name] == result_alone["measures"][name]
    # MRR@100 and RR@100 are the same measure. The mean is over two queries, and r has 0.
    assert result["measures"]["MRR@100"] == result["measures"]["RR@100"] == 1 / 4


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_random_rankings(randomness: random.Random, depth: int) -> None:
    ranking = randomness.sample([*GRADES, *"uvwxyz"], 8)
    gains = [GRADES.get(passage_id, 0) for passage_id in ranking][:depth]
    assert measure_query(f"nDCG@{depth}", ranking) == pytest.approx(discounted(gains) / discounted([3, 2, 1][:depth]))
    assert measure_query(f"P@{depth}", ranking) == pytest.approx(sum(gain > 0 for gain in gains) / depth)
    first_ranks = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    assert measure_query(f"MRR@{depth}", ranking) == pytest.approx(1 / first_ranks[0] if first_ranks else 0)


@pytest.mark.parametrize("name", ["P@2", "MRR@2", "RR@4", "nDCG@3", "R@2"])
def test_expected_values_are_means_over_all_orders_of_ties(name: str) -> None:
    # u, a and b have equal scores below d.
    orders = [["d", *order, "v"] for order in itertools.permutations("uab")]
    mean_of_orders = sum(measure_query(name, order) for order in orders) / len(orders)
    assert measure_query(name, orders[0], [9, 5, 5, 5, 1], "expected") == pytest.approx(mean_of_orders)


def test_names_in_any_case_mean_one_measure() -> None:
    names = ["ndcg@20", "NDCG@20", "mrr@10", "MRR@100", "Recall@50", "p( rel = 2 )@5", "MAP"]
    assert resolve_measures(names) == ["nDCG@20", "MRR@10", "MRR@100", "recall@50", "P(rel=2)@5", "MAP"]


ERRORS = {
    "nDGC@20": "unknown measure 'nDGC@20'; did you mean nDCG@20, ",
    "ndcg20": "unknown measure 'ndcg20'; did you mean nDCG@20, ",
    "zzz": "unknown measure 'zzz'; expected MRR@10, recall@1, recall@50 or a measure of ir-measures, for",
    "": "unknown measure ''; expected ",
    "P": r"measure 'P': expected P\(rel=..., judged_only=...\)@k",
    "BPM@10": r"expected BPM\(T=..., min_rel=..., max_rel=...\)@k, where k is a number; k and max_rel must be",
    "P(depth=2)@5": r"measure 'P\(depth=2\)@5': expected P\(rel=",
    "P@0": "measure 'P@0': expected cutoff from 1 to 1000000, found 0",
    "Success@0": "expected cutoff from 1 to",
    "P(rel=0)@5": "expected rel from 1 to",
    "nDCG(gains={1: -1})@5": "expected ",
    "IPrec@2": "expected recall from 0 to 1, found 2.0",
    "recall@100": "'recall@100' has two meanings; expected R@100, .* or Success@100, the share of queries",
    "NumRet": "'NumRet' is a count; expected a mean over queries",
    "ERR@10": "ir-measures cannot compute it with the installed packages; expected another measure",
    "nDCG(dcg='exp-log2')@10": r"expected the gains 2\*\*grade - 1 in full, for example nDCG\(gains=",
    "P@5@5": "unknown measure 'P@5@5'",
    "__import__('os')": "unknown measure",
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_name_is_one_line(name: str) -> None:
    with pytest.raises(InputError, match=ERRORS[name]) as raised:
        resolve_measures([name])
    assert "\n" not in str(raised.value)


@given(st.one_of(st.text(max_size=20), st.from_regex(r"(P|R|RR|nDCG|AP|Success|SetF|IPrec)(\(\w+=\d+\))?@\d+")))
def test_any_text_is_a_measure_or_one_error(name: str) -> None:
    try:
        (resolved_name,) = resolve_measures([name])
    except InputError:
        return
    assert resolve_measures([resolved_name]) == [resolved_name]
    # trec_eval ends the process for some parameters.
    assert 0 <= measure_query(resolved_name) <= 1


def test_the_command_prints_the_chosen_measures(files: list[Path], tmp_path: Path) -> None:
    words = ["evaluate", "--qrels", *files, "--measures", "ndcg@20", "p@5", "mrr@10"]
    printed = run("baselines", words, "--per-query", tmp_path / "values.parquet").stdout
    assert "chosen measures, percent, with 95 % intervals over queries" in printed and "Success@5" not in printed
    heading = next(line for line in printed.splitlines() if "nDCG@20" in line)
    assert heading.split() == ["run", "nDCG@20", "P@5", "MRR@10"]
    table = pq.read_table(tmp_path / "values.parquet")
    assert table["P@5"].to_pylist() == pytest.approx([2 / 5, 0])
    (result,) = json.loads(run("baselines", words, "--format", "json").stdout)
    assert set(result["measures"]) == {"nDCG@20", "P@5", "MRR@10"} and "AP" in result["ir_measures"]
    low, high = result["intervals"]["P@5"]
    assert result["measures"]["P@5"] == pytest.approx(1 / 5)
    assert low <= result["measures"]["P@5"] <= high
    csv_heading = run("baselines", words, "--format", "csv").stdout.splitlines()[0]
    assert csv_heading.endswith(",QueriesRanked,nDCG@20,nDCG@20 low,nDCG@20 high,P@5,P@5 low,P@5 high")


def test_groups_and_comparisons_have_the_chosen_measures(sample_release: Path, tmp_path: Path) -> None:
    run_path = tmp_path / "bm25.run"
    run("baselines", "bm25", "--release", sample_release, "--out", run_path)
    words = ["--release", sample_release, run_path, "--measures", "P@5", "--by", "query_length", "--format", "json"]
    (result,) = json.loads(run("baselines", "evaluate", words).stdout)
    sums = [group["queries"] * group["P@5"] for group in result["by"]]
    assert sum(sums) / result["queries"] == pytest.approx(result["measures"]["P@5"])
    comparison = compare_runs([run_path, run_path], release=sample_release, measure=["p@5", "Judged@10"]).value
    assert comparison["systems"][0]["means"]["P@5"] == result["measures"]["P@5"]
    figures = evaluate(run_path, sample_release, measures=["p@5"])
    assert figures["P@5"] == result["measures"]["P@5"]
    assert list(figures.intervals()["P@5"]) == result["intervals"]["P@5"]
    assert "P@5" in figures.to_pandas().columns


def test_a_run_behind_the_measures_is_one_hint(files: list[Path]) -> None:
    qrels_path, run_path = files
    stderr = run("baselines", "evaluate", "--qrels", qrels_path, "--measures", "P@5", run_path, code=2).stderr
    assert "missing RUN; --measures takes all words up to the next option, so name RUN before it" in stderr
