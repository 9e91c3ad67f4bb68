"""Near-duplicates in a run: what they count as, and what they must not join."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import run
from releases import TEXTS, make_release, md5, tables

# Passages of which the first two differ in a blank and a full stop, the third in three characters of fifty.
REPORT = "本市去年全年接待游客三千二百万人次，旅游总收入达到四百八十亿元，比上年增长百分之十二点五，再创历史新高"
COPY = f" {REPORT}。"
NEAR = f"{REPORT[:-3]}新纪录"
OTHERS = TEXTS[:3]
QUESTION = "高铁票提前几天买"


def release(folder: Path, judged: dict[str, int], texts: list[str]) -> Path:
    """A release with one dev question and these judgments of passages."""
    rows = tables([*dict.fromkeys([*TEXTS, *texts])])
    rows["queries", "dev"] = [{"_id": md5(QUESTION), "text": QUESTION}]
    rows["qrels", "dev"] = [
        {"query-id": md5(QUESTION), "corpus-id": md5(text), "score": score} for text, score in judged.items()
    ]
    del rows["dev", "dev"]
    return make_release(folder / "release", rows)


def result(folder: Path, judged: dict[str, int], ranking: list[str], *words: str) -> dict[str, Any]:
    """Return the figures of `evaluate` for one list."""
    where = release(folder, judged, [*judged, *ranking])
    (folder / "run").write_text(json.dumps({md5(QUESTION): [md5(text) for text in ranking]}))
    done = run("baselines", "evaluate", "--release", where, *words, "--format", "json", folder / "run")
    return dict(json.loads(done.stdout)[0])


@pytest.mark.parametrize("copy", [COPY, NEAR])
def test_an_unjudged_copy_of_a_positive_counts_as_the_positive(tmp_path: Path, copy: str) -> None:
    found = result(tmp_path, {REPORT: 1}, [OTHERS[0], copy], "--duplicates", "removed")
    assert found["official"]["MRR@10"] == 0.0
    assert found["duplicates"]["official"]["MRR@10"] == 0.5
    assert found["duplicates"]["copies"] == 1


@pytest.mark.parametrize(("way", "reciprocal"), [("removed", 1 / 2), ("kept", 1 / 3)])
def test_what_repeats_a_passage_above_is_removed_or_kept_as_a_miss(tmp_path: Path, way: str, reciprocal: float) -> None:
    found = result(tmp_path, {OTHERS[0]: 1}, [REPORT, NEAR, OTHERS[0], COPY], "--duplicates", way)["duplicates"]
    assert found["official"]["MRR@10"] == found["ir_measures"]["AP"] == pytest.approx(reciprocal)
    assert found["repeated@10"] == 0.5  # two of four places
    assert (found["repeated_queries"], found["copies"]) == (1.0, 0)


def test_positives_that_are_copies_of_each_other_are_one_to_find(tmp_path: Path) -> None:
    found = result(tmp_path, {REPORT: 1, COPY: 1, OTHERS[0]: 1}, [REPORT, OTHERS[0]], "--duplicates", "removed")
    assert found["ir_measures"]["R@10"] == pytest.approx(2 / 3)
    assert found["duplicates"]["ir_measures"]["R@10"] == 1.0
    assert found["duplicates"]["positives"] == 2


def test_a_copy_that_people_judged_negative_stays_one(tmp_path: Path) -> None:
    found = result(tmp_path, {REPORT: 1, NEAR: 0}, [NEAR, REPORT], "--duplicates", "removed")["duplicates"]
    assert found["official"]["MRR@10"] == 0.5
    assert (found["contradicted"], found["copies"]) == (1, 0)


def test_a_chain_of_small_differences_joins_nothing(tmp_path: Path) -> None:
    steps = [REPORT[: len(REPORT) - 4 * number] + OTHERS[1][: 4 * number] for number in range(6)]
    found = result(tmp_path, {steps[0]: 1}, steps[::-1], "--duplicates", "removed")["duplicates"]
    # The positive leads those that are near it; of the others the highest does, so that no list becomes one passage.
    assert found["official"]["recall@1"] == 0.0
    assert 0 < found["repeated@10"] < 1 - 1 / len(steps)


def test_text_values_by_query_and_the_list_have_every_pair(tmp_path: Path) -> None:
    where = release(tmp_path, {REPORT: 1}, [REPORT, NEAR])
    (tmp_path / "run").write_text(json.dumps({md5(QUESTION): [md5(OTHERS[0]), md5(NEAR)]}))
    words = ["--holes", "--duplicates", "kept", "--per-query", tmp_path / "values", "--list", tmp_path / "pairs"]
    shown = run("baselines", "evaluate", "--release", where, *words, tmp_path / "run").stdout
    assert "a passage and its copies as one, later copies kept, percent (1 positives of 1 are left)" in shown
    row = pq.read_table(tmp_path / "values").to_pylist()[0]
    assert (row["RR@10"], row["fair RR@10"], row["best RR@10"]) == (0.0, 0.5, 1.0)
    (pair,) = map(json.loads, (tmp_path / "pairs").read_text().splitlines())
    assert (pair["corpus-id"], pair["like"], pair["labels"]) == (md5(NEAR), md5(REPORT), [None, 1])
