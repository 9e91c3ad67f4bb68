"""Equal scores: the three rules for their order, exact means over all orders, and the number of tied queries."""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from commands import run as run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, tables

from baselines import (
    compare,
    compare_runs,
    evaluate,
    evaluate_runs,
    open_release,
    read_run,
    report_duplicates,
    report_holes,
    write_run,
)
from baselines.measure.measures import measure_run
from baselines.measure.qrels import Qrels
from builders.core.errors import UsageError
from builders.store.runs import Run

Hits = list[tuple[str, float]]


def figures(run: Run, qrels: Qrels, ties: str = "listed") -> dict[str, float]:
    """Return the means of all measures, without the number of queries, which differs between the runs here."""
    means = measure_run(run, qrels, ties)[0]
    measures: dict[str, float] = means["official"] | means["ir_measures"]
    return measures | {"QueriesRanked": 0}


def all_orders(hits: Hits) -> list[Hits]:
    """Return the hits in every order of the hits with equal scores."""
    orders_of_ties = []
    for _, tied_hits in itertools.groupby(hits, key=lambda hit: hit[1]):
        orders_of_ties.append(list(itertools.permutations(tied_hits)))
    return [list(itertools.chain(*order)) for order in itertools.product(*orders_of_ties)]


def mean_over_orders(hits: Hits, positives: dict[str, int]) -> dict[str, float]:
    """Measure every order as a query of its own, with the same positives: the means are those over the orders."""
    run = {}
    qrels = Qrels("orders")
    for number, order in enumerate(all_orders(hits)):
        run[str(number)] = order
        qrels.positives[str(number)] = positives
    return figures(Run("orders", run), qrels)


@settings(max_examples=60, deadline=None)
@given(
    above=st.sampled_from([0, 0, 1, 7, 8, 9, 47, 48]),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda sizes: sum(sizes) <= 8),
    seed=st.integers(0, 10**6),
)
def test_expected_measures_are_the_means_over_all_orders(above: int, sizes: list[int], seed: int) -> None:
    draw = random.Random(seed)
    hits = [(f"above{number}", 100.0 - number) for number in range(above)]  # moves the ties to the cutoffs 10 and 50
    for number, size in enumerate(sizes):
        hits += [(f"tied{number}-{hit_number}", -float(number)) for hit_number in range(size)]
    # Positives are the last passage above the ties, or tied passages.
    candidates = [passage for passage, _ in hits[max(0, above - 1) :]]
    positive_count = min(len(candidates), draw.choice([1, 2, 3]))
    positives = {passage: draw.choice([1, 1, 2]) for passage in draw.sample(candidates, positive_count)}
    if draw.random() < 0.5:
        positives["not in the run"] = 1
    expected = figures(Run("r", {"q": hits}), Qrels("one", {"q": positives}), "expected")
    assert expected == pytest.approx(mean_over_orders(hits, positives), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(scores=st.dictionaries(st.sampled_from([f"p{n}" for n in range(70)]), st.floats(-9, 9), min_size=1))
def test_without_ties_the_expected_measures_are_those_of_the_list(scores: dict[str, float]) -> None:
    unique = {score: passage for passage, score in scores.items()}
    hits = [(passage, score) for score, passage in sorted(unique.items(), reverse=True)]
    run = Run("r", {"q": hits})
    qrels = Qrels("one", {"q": {"p1": 1, "p2": 3, "p69": 1}})
    assert figures(run, qrels, "expected") == pytest.approx(figures(run, qrels), abs=1e-12)


def test_a_repeated_passage_counts_each_time_for_the_official_keys_and_once_for_the_others() -> None:
    hits = [("a", 1.0), ("a", 1.0), ("b", 1.0), ("a", 0.5), ("c", 0.5)]
    run = Run("r", {"q": hits})
    qrels = Qrels("one", {"q": {"a": 1}})
    expected = figures(run, qrels, "expected")
    assert expected["recall@1"] == pytest.approx(2 / 3)
    assert expected["MRR@10"] == pytest.approx(mean_over_orders(hits, {"a": 1})["MRR@10"])
    assert expected["Success@1"] == expected["R@10"] / 2 == pytest.approx(1 / 2)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def constant_scorer(release: Path, *, positives_first: bool) -> dict[str, dict[str, float]]:
    """Return a run with the same score for all passages, in which the positives are first or last."""
    run = {}
    for query_id, positives in open_release(release).qrels("dev").items():
        ids = sorted(map(md5, TEXTS), key=lambda passage: (passage in positives) != positives_first)
        run[query_id] = dict.fromkeys(ids, 1.0)
    return run


def test_a_constant_scorer_is_reported_and_its_expected_measures_do_not_depend_on_its_lists(
    release: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = constant_scorer(release, positives_first=True)
    last = constant_scorer(release, positives_first=False)
    assert evaluate(first, release)["MRR@10"] == 1.0
    assert evaluate(last, release)["recall@1"] == 0.0
    assert caplog.text.count("2 of 2 queries have ties around a positive passage in the top 50") == 2
    expected = evaluate(first, release, ties="expected")
    assert expected == evaluate(last, release, ties="expected")
    assert expected["recall@1"] == pytest.approx(1 / len(TEXTS)) and expected.tied_query_count == 2
    # The positive is at each rank equally often.
    reciprocal_ranks = [1 / rank for rank in range(1, min(len(TEXTS), 10) + 1)]
    assert expected["MRR@10"] == pytest.approx(sum(reciprocal_ranks) / len(TEXTS))
    assert {values["recall@1"] for values in expected.per_query().values()} == {expected["recall@1"]}


@pytest.mark.parametrize("ties", ["listed", "id", "expected"])
def test_each_rule_is_the_same_for_a_dictionary_a_frame_and_a_file(release: Path, tmp_path: Path, ties: str) -> None:
    run = constant_scorer(release, positives_first=True)
    rows = []
    for query_id, scores in run.items():
        rows += [(query_id, passage_id, score) for passage_id, score in scores.items()]
    frame = pd.DataFrame(rows, columns=["query_id", "passage_id", "score"])
    file = write_run(run, tmp_path / "r.run")
    in_memory = read_run(run)
    expected = evaluate(run, release, ties=ties)
    assert evaluate(frame, release, ties=ties) == evaluate(file, release, ties=ties) == expected
    assert evaluate(in_memory, release, ties=ties) == expected
    done = run_command("baselines", "evaluate", "--release", release, "--ties", ties, file, "--format", "json")
    printed = json.loads(done.stdout)[0]
    assert printed["official"] | printed["ir_measures"] == expected
    assert printed["ties"] == {"rule": ties, "queries": 2}


def test_ties_by_id_are_ordered_as_in_a_written_run(tmp_path: Path) -> None:
    run = {"q": {"c": 2.0, "z": 1.0, "b": 1.0}}
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    by_rule = {}
    for ties in ("listed", "id", "expected"):
        report = evaluate_runs([run], qrels=tmp_path / "qrels", ties=ties)
        by_rule[ties] = report.value[0]["official"]["MRR@10"]
    mean_of_orders = (1 / 2 + 1 / 3) / 2
    assert by_rule == {"listed": 1 / 3, "id": 1 / 2, "expected": pytest.approx(mean_of_orders)}


@pytest.mark.parametrize(
    ("scores", "positives", "tied"),
    [
        ([2, 1, 1], {"p2": 1}, 1),
        ([2, 1, 1], {"p0": 1}, 0),  # the ties hold no positive
        ([2, 1, 1], {"p1": 1, "p2": 1}, 0),  # both tied passages are positive
        ([100 - n for n in range(49)] + [1, 1], {"p50": 1}, 1),  # ranks 50 and 51
        ([100 - n for n in range(50)] + [1, 1], {"p50": 1}, 0),  # ranks 51 and 52
    ],
)
def test_ties_around_a_positive_begin_in_the_top_50_and_hold_another_passage(
    scores: Sequence[float], positives: dict[str, int], tied: int
) -> None:
    hits = [(f"p{number}", float(score)) for number, score in enumerate(scores)]
    means, _ = measure_run(Run("r", {"q": hits}), Qrels("one", {"q": positives}))
    assert means["ties"] == {"rule": "listed", "queries": tied}


def test_compare_has_the_rules_too(release: Path) -> None:
    first = constant_scorer(release, positives_first=True)
    last = constant_scorer(release, positives_first=False)
    listed: Any = compare([first, last], release).value
    assert listed["systems"][0]["means"]["MRR@10"] == 1.0
    expected: Any = compare([first, last], release, ties="expected", measure=["MRR@10", "AP", "recall@50"]).value
    first_means, last_means = (system["means"] for system in expected["systems"])
    assert first_means == last_means
    assert first_means["recall@50"] == 1.0 and 0 < first_means["MRR@10"] < 1
    with pytest.raises(UsageError, match="Judged@10"):
        compare_runs([first, last], release=release, ties="expected", measure=["Judged@10"])


def test_figures_that_need_an_order_have_no_expected_ties(release: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        evaluate_runs([{"q": ["p"]}], release=release, ties="expected", answers=True)
    for step in (report_holes, report_duplicates):
        with pytest.raises(UsageError, match="ties: expected one of listed, id"):
            step([{"q": ["p"]}], release=release, ties="expected")


def test_tables_name_a_rule_that_is_not_the_default(release: Path) -> None:
    run = constant_scorer(release, positives_first=True)
    assert "ties" not in str(evaluate_runs([run], release=release))
    assert "; ties: means over all orders" in str(evaluate_runs([run], release=release, ties="expected"))


def test_groups_and_values_by_query_are_expected_too(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables())
    run = constant_scorer(release, positives_first=True)
    values_path = tmp_path / "values.parquet"
    report = evaluate_runs([run], release=release, ties="expected", by="query_length", per_query=values_path)
    means = report.value[0]
    assert len(means["by"]) > 0
    for group in means["by"]:
        assert group["recall@1"] == pytest.approx(1 / len(TEXTS))
    assert pd.read_parquet(values_path)["recall@1"].mean() == pytest.approx(means["official"]["recall@1"])
