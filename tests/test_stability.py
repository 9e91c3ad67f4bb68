"""The order of systems when judgments are deleted, where it can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run

from baselines.measure.evaluate import evaluate
from baselines.measure.qrels import read_qrels
from baselines.stability import Judgment, kept, values
from builders.store.runs import read_run

LISTS = {
    "one": {"q1": ["a"], "q2": ["x", "b"]},  # 1 and 1/2
    "two": {"q1": ["x"], "q2": ["b"]},  # 0 and 1
}


def write(folder: Path, qrels: str = "q1 0 a 1\nq2 0 b 1\n") -> list[str]:
    """The words that name the reference and the runs."""
    (folder / "qrels").write_text(qrels)
    for name, lists in LISTS.items():
        (folder / f"{name}.run").write_text(json.dumps(lists))
    return ["--qrels", str(folder / "qrels"), *(str(folder / f"{name}.run") for name in LISTS)]


def found(folder: Path, *words: object) -> dict[str, Any]:
    done = run("baselines", "stability", "--format", "json", *words, *write(folder), "--measures", "MRR@10", "AP")
    return dict(json.loads(done.stdout))


def test_of_two_queries_each_half_of_the_judgments_has_its_own_order(tmp_path: Path) -> None:
    shown = found(tmp_path, "--keep", 0.5, "--trials", 40)
    assert shown["systems"]["MRR@10"] == {"one": 0.75, "two": 0.5}
    half = shown["kept"][0]
    assert (half["judgments"], half["queries"]) == (1, 1)
    measure = half["measures"]["MRR@10"]
    # Tau is 1 where the first query is left, -1 where the second is.
    assert measure["lowest"] == -1.0 and 0.2 < measure["best_stays"] < 0.8
    assert measure["tau"] == pytest.approx(2 * measure["best_stays"] - 1)
    assert measure["mean"] == pytest.approx(0.5 * measure["best_stays"] + 0.75 * (1 - measure["best_stays"]))


def test_nothing_deleted_is_the_same_order(tmp_path: Path) -> None:
    whole = found(tmp_path, "--keep", 1, "--trials", 2)["kept"][0]
    assert whole["measures"]["AP"] == {"tau": 1.0, "lowest": 1.0, "best_stays": 1.0, "mean": 0.625}


def test_the_seed_says_what_is_deleted(tmp_path: Path) -> None:
    words = ["--keep", 0.5, "--trials", 9]
    assert found(tmp_path, *words) == found(tmp_path, *words)
    assert found(tmp_path, *words)["kept"] != found(tmp_path, *words, "--seed", 1)["kept"]


def test_equal_systems_have_no_order(tmp_path: Path) -> None:
    write(tmp_path)
    runs = [tmp_path / "one.run", tmp_path / "one.run"]
    words = ["--qrels", tmp_path / "qrels", *runs, "--names", "a", "b", "--trials", 2]
    shown = json.loads(run("baselines", "stability", *words, "--format", "json").stdout)
    assert shown["kept"][0]["measures"]["MRR@10"]["tau"] is None
    assert "- (-)" in run("baselines", "stability", *words).stdout


def test_a_pool_makes_negatives_of_what_is_unjudged_in_it(tmp_path: Path) -> None:
    assert found(tmp_path, "--trials", 1)["negatives"] == 0
    shown = found(tmp_path, "--trials", 1, "--pool", 1)
    assert (shown["judgments"], shown["negatives"]) == (4, 2)  # x of both queries


def test_every_query_keeps_a_positive_where_it_is_asked_for(tmp_path: Path) -> None:
    for words, queries in ((["--every-query"], 2), ([], 1)):
        row = found(tmp_path, "--keep", 0.25, "--trials", 3, "--pool", 1, *words)["kept"][0]
        assert (row["queries"] == queries) if words else (row["queries"] <= queries)


def test_what_is_deleted_stays_deleted() -> None:
    judgments = [Judgment(f"q{n % 4}", f"p{n}", n % 2) for n in range(20)]
    order = list(range(20))[::-1]
    left = [kept(judgments, order, share, False) for share in (0.9, 0.5, 0.1)]
    assert [len(each) for each in left] == [18, 10, 2]
    assert {*left[2]} < {*left[1]} < {*left[0]}
    assert {each.query for each in kept(judgments, order, 0.1, True) if each.grade} == {"q1", "q3"}


def test_values_are_those_that_evaluate_prints(tmp_path: Path) -> None:
    write(tmp_path, "q1 0 a 1\nq1 0 x 0\nq2 0 b 1\n")
    qrels, retrieved = read_qrels(tmp_path / "qrels"), read_run(tmp_path / "one.run")
    judgments = [Judgment("q1", "a", 1), Judgment("q1", "x", 0), Judgment("q2", "b", 1)]
    measured = evaluate(retrieved, qrels)[0]
    here = values({"one": retrieved.rankings}, judgments, ["recall@1", "nDCG@10", "RR(judged_only=True)@10"])
    assert here is not None and here.queries == 2
    assert here.means["recall@1"] == [measured["official"]["recall@1"]]
    assert here.means["nDCG@10"] == [measured["ir_measures"]["nDCG@10"]]
    assert here.means["RR(judged_only=True)@10"] == [1.0]  # x of q2 is unjudged
    assert values({"one": retrieved.rankings}, judgments[1:2], ["recall@1"]) is None


def test_one_system_has_no_order(tmp_path: Path) -> None:
    done = run("baselines", "stability", *write(tmp_path)[:3], code=2)
    assert "at least two runs" in done.stderr
