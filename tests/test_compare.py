"""The verb `compare` and its statistics, against worked examples, scipy, statsmodels and ranx 0.3.21.

``tests/ranx.json`` was printed by ranx for the same files, in the test of the commit 01ea70a.
"""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, quality_tables
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

import baselines
from baselines.measure.compare import compare_runs
from baselines.measure.comparison import table_of_run
from baselines.measure.holes import HOLE_MEASURES
from baselines.measure.measures import IR_MEASURES, measure_names
from baselines.measure.qrels import read_qrels
from baselines.measure.significance import (
    compare_paired,
    detectable_difference,
    holm_correction,
    indistinguishable_groups,
    of_means,
    randomisation_test,
)
from builders.core.errors import InputError
from builders.store.runs import read_run, write_run

HIT = "good"
MISS = "other"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of judgments and runs. Do not change them."""
    folder = tmp_path_factory.mktemp("compared")
    return [write_judgments(folder / "qrels"), *write_runs(folder)]


def compare(paths: list[Path], *options: object, code: int = 0) -> Done:
    """Run `compare` with few resamples. ``paths``: the judgments and the runs."""
    return run("baselines", "compare", "--qrels", paths, "--resamples", 999, options, code=code)


def result_of(paths: list[Path], *options: object) -> dict[str, Any]:
    """Return the result of `compare`."""
    return json.loads(compare(paths, *options, "--format", "json").stdout)


def name_options(run_paths: list[Path]) -> list[str]:
    """Return options that give each run the name of its file."""
    words = []
    for path in run_paths:
        words += ["--name", path.stem]
    return words


def ranked(path: Path, ranks: dict[str, int | None]) -> Path:
    """Write a run whose positive passage is at the given rank of each query, or missing (None)."""
    hits_by_query = []
    for query_id, positive_rank in ranks.items():
        hits: list[tuple[str, float]] = []
        for rank in range(1, 13):
            hits.append((HIT if rank == positive_rank else f"{MISS}{rank}", -rank))
        hits_by_query.append((query_id, hits))
    write_run(path, hits_by_query)
    return path


def test_superscripts_say_who_is_significantly_better_than_whom(world: list[Path]) -> None:
    lines = compare(world, *name_options(world[1:])).stdout.splitlines()
    assert lines[0] == f"reference: {world[0]}, {len(QUERIES)} queries"
    assert "Student's paired t-test, Holm's correction over 6 pairs, p <= 0.05" in lines[2]
    assert lines[4].split() == ["system", "MRR@10", "Recall@1", "Recall@50"]
    # ranx's means, and Holm's correction of its p-values (tests/ranx.json) by hand: of the pairs, sorted, the last but
    # one has 0.00034 x 2 and 0.0241 x 2, the last 0.110 and 0.146. Of Recall@50 the three smallest are 0.0131 x 6.
    assert [line.split() for line in lines[5:9]] == [
        ["a", "strong", "85.06ᶜᵈ", "73.33ᶜᵈ", "100.00"],
        ["b", "alike", "76.68ᶜᵈ", "60.00ᶜᵈ", "100.00"],
        ["c", "middling", "52.74ᵈ", "31.67ᵈ", "100.00"],
        ["d", "weak", "30.79", "15.00", "90.00"],
    ]
    assert "MRR@10: a b | c | d" in lines


def test_queries_that_changed_most_come_first_with_both_ranks(tmp_path: Path) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_text("".join(f"q{number} 0 {HIT} 1\n" for number in (5, 4, 3, 2, 1, 0)))
    new = ranked(tmp_path / "new.run", {"q0": 1, "q1": 1, "q2": 12, "q3": 2, "q4": 1, "q5": 1})
    old = ranked(tmp_path / "old.run", {"q0": 2, "q1": None, "q2": 1, "q3": 2, "q4": 1, "q5": 11})
    (pair,) = result_of([qrels, old, new], "--changed", 9)["changed"]
    assert (pair["better"], pair["worse"]) == ("b", "a")
    # By the change, then by how far the passage moved: from nowhere, by eleven, by ten. q3 and q4 did not change.
    changes = [(row["query_id"], row["difference"], row["rank_of_worse"], row["rank"]) for row in pair["queries"]]
    assert changes == [("q1", 1, None, 1), ("q2", -1, 1, 12), ("q5", 1, 11, 1), ("q0", 0.5, 2, 1)]
    (pair,) = result_of([qrels, old, new], "--changed", 1)["changed"]
    assert [query["query_id"] for query in pair["queries"]] == ["q1"]
    assert "q1     +100.00  - → 1" in compare([qrels, old, new]).stdout.splitlines()  # a file of judgments has no texts
    assert compare([qrels, old, new], "--changed", 0).stdout.splitlines()[-1].startswith("Recall@50")


def test_changed_queries_have_their_texts(tmp_path: Path) -> None:
    first_id, second_id = map(md5, QUESTIONS["dev"])
    right_run = tmp_path / "right.run"
    write_run(right_run, [(first_id, [(md5(TEXTS[4]), 1.0)]), (second_id, [(md5(TEXTS[5]), 1.0)])])
    half_right_run = tmp_path / "half.run"
    write_run(half_right_run, [(first_id, [(md5(TEXTS[0]), 1.0)]), (second_id, [(md5(TEXTS[5]), 1.0)])])
    release = make_release(tmp_path / "release", quality_tables())
    options = ["--release", release, "--split", "dev", "--qrels-config", "qrels-before", "--format", "json"]
    result = json.loads(run("baselines", "compare", options, half_right_run, right_run).stdout)
    (pair,) = result["changed"]
    assert [query["text"] for query in pair["queries"]] == [QUESTIONS["dev"][0]]
    assert pair["better"] == "a"  # before the correction, text 0 was the answer


def test_every_measure_of_single_queries_can_be_compared(world: list[Path]) -> None:
    result = result_of(world, "--measure", "nDCG@10", "--measure", "Success@5")
    assert list(result["measures"]) == ["nDCG@10", "Success@5"]
    evaluated = json.loads(run("baselines", "evaluate", "--qrels", world, "--format", "json").stdout)
    for system, evaluation in zip(result["systems"], evaluated, strict=True):
        assert system["means"] == {name: evaluation["ir_measures"][name] for name in ("nDCG@10", "Success@5")}
    stderr = compare(world, "--measure", "MRP", code=2).stderr
    assert "unknown measure 'MRP'" in stderr and "recall@50" in stderr and "nDCG@20" in stderr


def test_names_of_measures_are_accepted_in_any_case(world: list[Path]) -> None:
    result = result_of(world, "--measure", "ndcg@10", "--measure", "Recall@50", "--measure", "RECALL@50")
    assert result == result_of(world, "--measure", "nDCG@10", "--measure", "recall@50")
    table = table_of_run(read_run(world[1]), read_qrels(world[0]), ["Judged@10"])
    assert set(measure_names(table)) == {"MRR@10", "recall@1", "recall@50", "RR@10", *IR_MEASURES, *HOLE_MEASURES}


def test_wrong_names_of_measures_are_one_error_before_a_run_is_read(world: list[Path], tmp_path: Path) -> None:
    missing_run = tmp_path / "missing.run"
    paths = [*world, missing_run]
    stderr = compare(paths, "--measure", "MRR10", code=2).stderr
    assert "unknown measure 'MRR10'; did you mean MRR@10, RR@10, R@10?; expected MRR@10, " in stderr
    stderr = compare(paths, "--measure", "ndcg10", "--measure", "zzz", code=2).stderr
    assert "unknown measures 'ndcg10', 'zzz'; did you mean nDCG@10, " in stderr
    stderr = compare(paths, "--measure", "Judged@10", "--ties", "expected", code=2).stderr
    assert "'Judged@10' needs an order of the passages" in stderr
    with pytest.raises(InputError, match="unknown measure 'MRR10'"):
        baselines.compare([missing_run] * 2, tmp_path / "missing", measure=["MRR10"])


def test_latex_is_a_table_with_names_as_they_are_and_the_best_in_bold(world: list[Path]) -> None:
    qrels, strong, _, _, weak = world
    names = ["--name", r"100 %_of \{a}$ #1 & ~^<b>|", "--name", "弱"]
    printed = compare([qrels, strong, weak], *names, "--format", "latex").stdout
    (row,) = [line for line in printed.splitlines() if line.startswith("a & ")]
    name = r"100 \%\_of \textbackslash{}\{a\}\$ \#1 \& \textasciitilde{}\textasciicircum{}\textless{}b\textgreater{}"
    assert row.startswith(rf"a & {name}\textbar{{}} & \textbf{{85.06}}$^{{\mathrm{{b}}}}$ & ")
    assert [line for line in printed.splitlines() if line.startswith("b & ")] == [r"b & 弱 & 30.79 & 15.00 & 90.00 \\"]
    assert printed.count("{") == printed.count("}")
    assert r"\toprule" in printed and r"one pair, p \textless{}= 0.05)." in printed


def test_what_cannot_be_compared_is_said(world: list[Path], tmp_path: Path) -> None:
    qrels, *runs = world
    assert "expected 2 to 25 runs, found 1" in compare([qrels, runs[0]], code=2).stderr
    (tmp_path / "one").write_text("q0 0 good 1\n")
    assert "at least two queries" in compare([tmp_path / "one", *runs], code=1).error
    printed = compare([qrels, runs[0], runs[0]]).stdout
    assert "a - b: MRR@10 is the same on every query" in printed and "nan" not in printed
    done = run("baselines", "compare", "--qrels", world, "--test", "randomisation", "--resamples", 99)
    assert "no difference can be significant" in done.stderr and "ᵈ" not in done.stdout


QUERIES = [f"q{number}" for number in range(60)]
# The chance that the positive passage is at a rank, if it was not at an earlier rank.
SYSTEMS = {"strong": 0.7, "alike": 0.62, "middling": 0.35, "weak": 0.12}
DEPTH = 20


def write_judgments(path: Path) -> Path:
    """Write a file with one positive passage for each of ``QUERIES``."""
    path.write_text("".join(f"{query} 0 good 1\n" for query in QUERIES))
    return path


def write_runs(folder: Path) -> list[Path]:
    """Write a TREC run of each of ``SYSTEMS``, the same at every call."""
    rng = random.Random(11)
    paths = []
    for name, quality in SYSTEMS.items():
        lines = []
        for query_id in QUERIES:
            passage_ids = [f"other{position}" for position in range(DEPTH)]
            # Go down the ranking until a draw places the positive passage.
            for position in range(DEPTH):
                if rng.random() < quality:
                    passage_ids[position] = "good"
                    break
            for rank, passage_id in enumerate(passage_ids, 1):
                lines.append(f"{query_id} Q0 {passage_id} {rank} {DEPTH - rank} {name}\n")
        path = folder / f"{name}.run"
        path.write_text("".join(lines))
        paths.append(path)
    return paths


RECORDED = json.loads((ROOT / "tests" / "ranx.json").read_text(encoding="utf-8"))
# ranx's names of measures, and the project's.
RANX_MEASURES = {"mrr@10": "MRR@10", "hit_rate@1": "recall@1"}


@pytest.fixture(scope="module")
def comparison(world: list[Path]) -> dict[str, Any]:
    """The project's comparison of the runs that ranx compared."""
    qrels, *run_paths = world
    options = [*name_options(run_paths), "--qrels", qrels, "--format", "json"]
    result: dict[str, Any] = json.loads(run("baselines", "compare", options, run_paths).stdout)
    return result


@pytest.mark.parametrize("ranx_measure", RANX_MEASURES)
def test_means_wins_and_p_values_are_those_of_ranx(comparison: dict[str, Any], ranx_measure: str) -> None:
    measure = RANX_MEASURES[ranx_measure]
    names = {system["label"]: system["name"] for system in comparison["systems"]}
    for system in comparison["systems"]:
        ranx_mean = RECORDED["student"][system["name"]]["scores"][ranx_measure]
        assert system["means"][measure] == pytest.approx(ranx_mean, abs=1e-12)
    for row in comparison["measures"][measure]["pairs"]:
        better_name = names[row["better"]]
        worse_name = names[row["worse"]]
        student = RECORDED["student"][better_name]
        ranx_counts = student["win_tie_loss"][worse_name][ranx_measure]
        assert [row["wins"], row["ties"], row["losses"]] == [ranx_counts[key] for key in "WTL"]
        assert row["wins"] + row["ties"] + row["losses"] == len(QUERIES)
        assert row["t"]["p"] == pytest.approx(student["comparisons"][worse_name][ranx_measure])
        # These are 10,000 draws, ranx's 100,000: allow four standard errors, and what one draw is worth.
        fisher_p = RECORDED["fisher"][better_name]["comparisons"][worse_name][ranx_measure]
        tolerance = 4 * math.sqrt(fisher_p / 5_000) + 2e-4
        assert row["randomisation"]["p"] == pytest.approx(fisher_p, abs=tolerance)


# Student (1908): hours of sleep gained by ten patients under two drugs.
FIRST_DRUG = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SECOND_DRUG = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])


def test_student_s_own_example_has_the_values_of_the_textbooks() -> None:
    result = compare_paired(FIRST_DRUG, SECOND_DRUG, level=0.95)
    assert result["difference"] == pytest.approx(-1.58)
    assert result["t"]["p"] == pytest.approx(0.002833, abs=5e-7)
    assert result["interval"] == pytest.approx([-2.4598858, -0.7001142], abs=5e-8)
    assert (result["wins"], result["ties"], result["losses"]) == (0, 1, 9)
    # Of the 512 ways to swap nine pairs, two are as far out.
    assert result["randomisation"]["p"] == pytest.approx(2 / 512, abs=0.0025)


def test_randomisation_is_scipy_s_exact_permutation_test_but_for_the_draws() -> None:
    values = np.random.default_rng(4).normal(0.4, 1, size=(6, 12)).round(1)
    for differences in values:
        exact = stats.permutation_test((differences,), np.mean, permutation_type="samples", n_resamples=5_000)
        tolerance = 4 * np.sqrt(exact.pvalue / 5_000)
        assert randomisation_test(differences) == pytest.approx(exact.pvalue, abs=tolerance)


def test_where_all_differences_are_equal_the_other_test_stands_in_for_student_s() -> None:
    better = compare_paired(np.ones(3), np.zeros(3), level=0.95)
    assert better["t"]["p"] == better["randomisation"]["p"] == pytest.approx(2 / 8, abs=0.02)  # not 0
    assert (better["deviation"], better["interval"]) == (0.0, [1.0, 1.0])
    equal = compare_paired(np.ones(3), np.ones(3), level=0.95)
    assert equal["t"]["p"] == equal["randomisation"]["p"] == 1.0


def test_holm_s_correction_is_that_of_statsmodels() -> None:
    for seed in range(5):
        p_values = np.random.default_rng(seed).beta(0.3, 1, size=1 + 5 * seed).round(3)  # some of them equal
        corrected_values = multipletests(p_values, method="holm")[1]
        assert holm_correction(p_values.tolist()) == pytest.approx(corrected_values.tolist())


@pytest.mark.parametrize(("queries", "alpha", "power"), [(10, 0.05, 0.8), (34, 0.05, 0.8), (300, 0.005, 0.9)])
def test_the_detectable_difference_is_that_of_statsmodels(queries: int, alpha: float, power: float) -> None:
    difference = detectable_difference(1.0, queries, alpha=alpha, power=power)
    assert TTestPower().power(difference, queries, alpha) == pytest.approx(power, abs=5e-4)
    assert detectable_difference(0.3, queries, alpha=alpha, power=power) == pytest.approx(0.3 * difference)


def largest_sets(systems: str, different_pairs: list[tuple[str, str]]) -> list[set[str]]:
    """Return the sets without a pair of different systems that are part of no larger such set, by brute force."""
    alike_sets: list[set[str]] = []
    for size in range(1, len(systems) + 1):
        for subset in map(set, itertools.combinations(systems, size)):
            if not any(subset.issuperset(pair) for pair in different_pairs):
                alike_sets.append(subset)
    return [subset for subset in alike_sets if not any(map(subset.__lt__, alike_sets))]


def test_groups_are_the_largest_sets_without_a_pair_that_is_told_apart() -> None:
    rng = random.Random(0)
    for _ in range(60):
        systems = "bdaecf"[: rng.randint(2, 6)]
        different_pairs = [pair for pair in itertools.combinations(systems, 2) if rng.random() < 0.4]
        system_groups = indistinguishable_groups(systems, different_pairs)
        expected_groups = largest_sets(systems, different_pairs)
        assert sorted(map(sorted, system_groups)) == sorted(map(sorted, expected_groups))
        for group in system_groups:
            assert group == sorted(group, key=systems.index)


def test_the_intervals_are_those_of_scipy() -> None:
    values = np.random.default_rng(5).exponential(size=(300, 2))
    intervals = of_means(values, resamples=5000)
    bootstrap = stats.bootstrap((values,), np.mean, axis=0, n_resamples=5000, method="percentile", rng=1)
    lows = [low for low, _ in intervals]
    highs = [high for _, high in intervals]
    assert lows == pytest.approx(bootstrap.confidence_interval.low.tolist(), abs=0.01)
    assert highs == pytest.approx(bootstrap.confidence_interval.high.tolist(), abs=0.01)


def test_the_same_values_have_the_same_intervals_and_equal_ones_none() -> None:
    values = np.random.default_rng(0).random((50, 1))
    assert of_means(values) == of_means(values) != of_means(values, seed=1)
    assert of_means(np.ones((9, 1))) == [(1.0, 1.0)]


def test_a_comparison_has_tables_of_fractions(world: list[Path]) -> None:
    qrels, strong, *_, weak = world
    report = compare_runs([strong, weak], qrels=qrels, name=["strong", "weak"], resamples=999)
    systems = report.to_pandas()
    assert systems["system"].tolist() == ["strong", "weak"] and systems["MRR@10 better than"].tolist() == ["b", ""]
    assert systems["MRR@10"].tolist() == [system["means"]["MRR@10"] for system in report.value["systems"]]
    pairs = report.all_tables()[1].to_pandas()
    assert pairs["measure"].tolist() == ["MRR@10", "recall@1", "recall@50"]
    first_pair = report.value["measures"]["MRR@10"]["pairs"][0]
    assert pairs["difference"][0] == first_pair["difference"]
