"""`compare` prints the figures of ranx 0.3.21 for the same files.

``tests/ranx.json`` is what ranx printed. Running ranx itself takes a minute (it compiles) and an environment of its
own: ``TEST_RANX=1``.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, run
from compared_runs import QUERIES, SYSTEMS, write_judgments, write_runs
from environments import clean_environ, environment

RECORDED = json.loads((ROOT / "tests" / "ranx.json").read_text(encoding="utf-8"))
OURS = {"mrr@10": "MRR@10", "hit_rate@1": "recall@1"}
RANX = """
import json, sys
from ranx import Qrels, Run, compare
qrels, *paths = sys.argv[1:]
runs = [Run.from_file(path, kind="trec") for path in paths]
qrels = Qrels.from_file(qrels, kind="trec")
said = [compare(qrels, runs, ["mrr@10", "hit_rate@1"], stat_test=test, n_permutations=100_000, make_comparable=True)
        for test in ("student", "fisher")]
print(json.dumps({"student": said[0].to_dict(), "fisher": said[1].to_dict()}))
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("compared")
    paths = write_runs(folder)
    names = [word for path in paths for word in ("--name", path.stem)]
    words = [*names, "--qrels", write_judgments(folder / "qrels"), *paths, "--format", "json"]
    result: dict[str, Any] = json.loads(run("baselines", "compare", *words).stdout)
    return result


@pytest.mark.parametrize("measure", OURS)
def test_means_wins_and_p_values_are_those_of_ranx(ours: dict[str, Any], measure: str) -> None:
    names = {system["label"]: system["name"] for system in ours["systems"]}
    for system in ours["systems"]:
        theirs = RECORDED["student"][system["name"]]["scores"][measure]
        assert system["means"][OURS[measure]] == pytest.approx(theirs, abs=1e-12)
    for row in ours["measures"][OURS[measure]]["pairs"]:
        better, worse = names[row["better"]], names[row["worse"]]
        student, fisher = RECORDED["student"][better], RECORDED["fisher"][better]["comparisons"][worse][measure]
        counted = student["win_tie_loss"][worse][measure]
        assert [row["wins"], row["ties"], row["losses"]] == [counted[key] for key in "WTL"]
        assert row["wins"] + row["ties"] + row["losses"] == len(QUERIES)
        assert row["t"]["p"] == pytest.approx(student["comparisons"][worse][measure])
        # Ours are 10,000 draws, ranx's 100,000: four standard errors, and what one draw is worth.
        assert row["randomisation"]["p"] == pytest.approx(fisher, abs=4 * math.sqrt(fisher / 5_000) + 2e-4)


@pytest.mark.skipif(not os.environ.get("TEST_RANX"), reason="set TEST_RANX=1: an environment, and a minute to compile")
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="ranx's environment is pinned for Python 3.11")
def test_ranx_says_what_is_recorded_of_it(tmp_path: Path) -> None:
    requirements = ROOT / "tests" / "ranx-requirements.txt"
    python = environment("ranx", requirements, "DUREADER_RETRIEVAL_VENV_RANX", borrow=True) / "python"
    words = [python, "-c", RANX, write_judgments(tmp_path / "qrels"), *write_runs(tmp_path)]
    done = subprocess.run(
        words, cwd=tmp_path, env=clean_environ() | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["student"] == RECORDED["student"]
    for name in SYSTEMS:  # its draws differ from one time to another: the seed is not that of its threads
        for other, found in said["fisher"][name]["comparisons"].items():
            for measure, p_value in found.items():
                before = RECORDED["fisher"][name]["comparisons"][other][measure]
                assert p_value == pytest.approx(before, abs=6 * math.sqrt(max(before, 1e-5) / 100_000))
