"""The figures of a run with unjudged passages, against every way in which these could have been judged."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import run
from test_evaluate import expected_official, expected_others

from baselines.measure.evaluate import evaluate
from baselines.measure.holes import holes
from baselines.measure.qrels import read_qrels
from builders.store.runs import read_run

Reference = dict[str, dict[str, int]]
Lists = dict[str, list[str]]


def write(folder: Path, judged: Reference, lists: Lists) -> tuple[Path, Path]:
    """TREC qrels with negatives, and a run."""
    lines = [f"{query} 0 {passage} {grade}\n" for query, grades in judged.items() for passage, grade in grades.items()]
    (folder / "qrels").write_text("".join(lines))
    (folder / "run").write_text(json.dumps(lists))
    return folder / "qrels", folder / "run"


def measured(folder: Path, judged: Reference, lists: Lists) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the plain figures, those of the holes)."""
    files = write(folder, judged, lists)
    qrels, retrieved = read_qrels(files[0]), read_run(files[1])
    plain = evaluate(retrieved, qrels)[0]
    return plain, holes(retrieved.rankings, qrels, plain)[0]


def any_world(seed: int) -> tuple[Reference, Lists]:
    """Judgments of some passages of few, and lists that hold at most five unjudged ones."""
    draw = random.Random(seed)
    judged: Reference = {}
    lists: Lists = {}
    for query in ("q1", "q2", "q3"):
        known = [f"k{number}" for number in range(6)]
        judged[query] = {"k0": 1, **{passage: draw.randrange(2) for passage in draw.sample(known[1:], 4)}}
        list_ = draw.sample(known, draw.randrange(6)) + [f"u{number}" for number in range(draw.randrange(5))]
        draw.shuffle(list_)
        lists[query] = list_ + [f"n{number}" for number in range(12)] * draw.randrange(2)
        judged[query] |= {f"n{number}": 0 for number in range(12)}
    del lists[draw.choice(("q2", "q3"))]
    return judged, lists


def positives(judged: Reference) -> dict[str, set[str]]:
    return {query: {passage for passage, grade in grades.items() if grade > 0} for query, grades in judged.items()}


def judgings(judged: Reference, lists: Lists, query: str) -> Iterator[dict[str, set[str]]]:
    """The query's positives under every judging of what its list has unjudged."""
    unjudged = [passage for passage in lists.get(query, []) if passage not in judged[query]]
    for number in range(len(unjudged) + 1):
        for more in itertools.combinations(unjudged, number):
            yield {query: positives(judged)[query] | {*more}}


@pytest.mark.parametrize("seed", range(12))
def test_best_is_the_highest_of_every_judging_and_condensed_lacks_the_unjudged(tmp_path: Path, seed: int) -> None:
    judged, lists = any_world(seed)
    reference = positives(judged)
    plain, found = measured(tmp_path, judged, lists)
    official, others = dict.fromkeys(found["best"]["official"], 0.0), dict.fromkeys(found["best"]["ir_measures"], 0.0)
    for query in reference:
        every = list(judgings(judged, lists, query))
        for totals, values in ((official, expected_official), (others, expected_others)):
            values_of = [values(each, {query: lists.get(query, [])}) for each in every]
            for name in totals:
                totals[name] += max(each[name] for each in values_of) / len(reference)
    assert found["best"]["official"] == pytest.approx(official)
    assert found["best"]["ir_measures"] == pytest.approx(others)
    assert all(value >= 0 for kind in found["residual"].values() for value in kind.values())
    assert found["residual"]["ir_measures"]["AP"] == pytest.approx(others["AP"] - plain["ir_measures"]["AP"])
    # Condensed lists are the lists without what is unjudged.
    left = {query: [passage for passage in list_ if passage in judged[query]] for query, list_ in lists.items()}
    expected = expected_official(positives(judged), left)
    assert found["condensed"]["official"] == pytest.approx(
        {name: expected[name] for name in found["condensed"]["official"]}
    )
    assert found["condensed"]["ir_measures"] == pytest.approx(expected_others(positives(judged), left))


def test_an_unjudged_passage_is_worth_the_highest_grade_of_its_query(tmp_path: Path) -> None:
    _, found = measured(tmp_path, {"q": {"a": 3, "b": 1, "n": 0}}, {"q": ["u", "a", "b", "n"]})
    assert found["best"]["ir_measures"]["nDCG@10"] == pytest.approx(1.0)  # 3, 3, 1 is the ideal order
    assert found["best"]["ir_measures"]["AP"] == 1.0


def test_values_by_query_stand_beside_the_plain_ones(tmp_path: Path) -> None:
    judged, lists = {"q": {"a": 1, "n": 0}, "r": {"b": 1}}, {"q": ["u", "n", "a"], "r": ["b"]}
    qrels, retrieved = write(tmp_path, judged, lists)
    target = tmp_path / "values.parquet"
    run("baselines", "evaluate", "--qrels", qrels, "--holes", "--per-query", target, retrieved)
    row = pq.read_table(target).to_pylist()[0]
    assert row["RR@10"] == pytest.approx(1 / 3)
    assert (row["RR(judged_only=True)@10"], row["best RR@10"]) == (0.5, 1.0)
    assert (row["Judged@10"], row["Bpref"]) == (pytest.approx(2 / 3), 0.0)
    assert (row["AP(judged_only=True)"], row["best Success@1"]) == (0.5, 1.0)
