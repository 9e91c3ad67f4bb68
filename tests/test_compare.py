"""The verb `compare` as a user sees it: its tables, formats, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from compared_runs import QUERIES, write_judgments, write_runs
from releases import QUESTIONS, TEXTS, make_release, md5, quality_tables

from builders.store.runs import write_run

HIT, MISS = "good", "other"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The judgments, then the runs of :mod:`compared_runs`. Read them, never write."""
    folder = tmp_path_factory.mktemp("compared")
    return [write_judgments(folder / "qrels"), *write_runs(folder)]


def compare(qrels: Path, *words: object, code: int = 0) -> Done:
    return run("baselines", "compare", "--qrels", qrels, "--resamples", 999, *words, code=code)


def result_of(*words: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(compare(*words, "--format", "json").stdout)
    return result


def ranked(path: Path, ranks: dict[str, int | None]) -> Path:
    """A run with the positive passage of each query at this rank of 12."""
    lists = {
        query: [HIT if place == rank else f"{MISS}{place}" for place in range(1, 13)] for query, rank in ranks.items()
    }
    write_run(path, [(query, [(passage, -n) for n, passage in enumerate(each)]) for query, each in lists.items()])
    return path


def test_superscripts_say_who_is_significantly_better_than_whom(world: list[Path]) -> None:
    names = [word for path in world[1:] for word in ("--name", path.stem)]
    lines = compare(*world, *names).stdout.splitlines()
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
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 {HIT} 1\n" for n in (5, 4, 3, 2, 1, 0)))
    new = ranked(tmp_path / "new.run", {"q0": 1, "q1": 1, "q2": 12, "q3": 2, "q4": 1, "q5": 1})
    old = ranked(tmp_path / "old.run", {"q0": 2, "q1": None, "q2": 1, "q3": 2, "q4": 1, "q5": 11})
    (pair,) = result_of(tmp_path / "qrels", old, new, "--changed", 9)["changed"]
    assert (pair["better"], pair["worse"]) == ("b", "a")
    # By the change, then by how far the passage moved: from nowhere, by eleven, by ten. q3 and q4 did not change.
    found = [
        (query["query_id"], query["difference"], query["rank_of_worse"], query["rank"]) for query in pair["queries"]
    ]
    assert found == [("q1", 1, None, 1), ("q2", -1, 1, 12), ("q5", 1, 11, 1), ("q0", 0.5, 2, 1)]
    (pair,) = result_of(tmp_path / "qrels", old, new, "--changed", 1)["changed"]
    assert [query["query_id"] for query in pair["queries"]] == ["q1"]
    lines = compare(tmp_path / "qrels", old, new).stdout.splitlines()
    assert "q1     +100.00  - → 1" in lines  # of a file of judgments no texts are known
    assert compare(tmp_path / "qrels", old, new, "--changed", 0).stdout.splitlines()[-1].startswith("Recall@50")


def test_changed_queries_have_their_texts_which_are_never_read_as_markup(tmp_path: Path) -> None:
    ids, asked = [md5(text) for text in TEXTS], [md5(question) for question in QUESTIONS["dev"]]
    runs = [tmp_path / name for name in ("right.run", "half.run")]  # both answers first; only the second's
    for path, firsts in zip(runs, ((4, 5), (0, 5)), strict=True):
        write_run(path, [(q, [(ids[n], 1.0)]) for q, n in zip(asked, firsts, strict=True)])
    words = ["--release", make_release(tmp_path / "release", quality_tables()), "--split", "dev"]
    before = ["--qrels-config", "qrels-before", "--format", "json"]
    result = json.loads(run("baselines", "compare", *words, *before, *reversed(runs)).stdout)
    assert [query["text"] for query in result["changed"][0]["queries"]] == [QUESTIONS["dev"][0]]
    assert result["changed"][0]["better"] == "a"  # before, text 0 was the answer
    rows = quality_tables()
    rows["queries", "dev"][0]["text"] = "<b>高铁|票</b>\n\x1b[31m" + "长" * 10_000
    make_release(tmp_path / "release", rows)
    printed = run("baselines", "compare", *words, *runs, "--format", "markdown").stdout
    assert r"| \<b\>高铁\|票\</b\>\\n\\x1b\[31m长" in printed
    printed = run("baselines", "compare", *words, *runs).stdout
    assert "\x1b" not in printed and max(map(len, printed.splitlines())) < 200


def test_every_measure_of_single_queries_can_be_compared(world: list[Path]) -> None:
    result = result_of(*world, "--measure", "nDCG@10", "--measure", "Success@5")
    assert list(result["measures"]) == ["nDCG@10", "Success@5"]
    evaluated = json.loads(run("baselines", "evaluate", "--qrels", *world, "--format", "json").stdout)
    for system, of in zip(result["systems"], evaluated, strict=True):
        assert system["means"] == {name: of["ir_measures"][name] for name in ("nDCG@10", "Success@5")}
    holes = result_of(*world, "--measure", "Judged@10")
    evaluated = json.loads(run("baselines", "evaluate", "--holes", "--qrels", *world, "--format", "json").stdout)
    found = [system["means"]["Judged@10"] for system in holes["systems"]]
    assert found == [of["holes"]["Judged@10"] for of in evaluated] and found[0] > found[-1]
    error = compare(*world, "--measure", "MRR", code=1).error
    assert error.startswith("no measure 'MRR'") and "recall@50" in error and "nDCG@10" in error


def test_latex_is_a_table_with_names_as_they_are_and_the_best_in_bold(world: list[Path]) -> None:
    qrels, strong, _, _, weak = world
    names = ["--name", r"100 %_of \{a}$ #1 & ~^<b>|", "--name", "弱"]
    printed = compare(qrels, strong, weak, *names, "--format", "latex").stdout
    (row,) = [line for line in printed.splitlines() if line.startswith("a & ")]
    name = r"100 \%\_of \textbackslash{}\{a\}\$ \#1 \& \textasciitilde{}\textasciicircum{}\textless{}b\textgreater{}"
    assert row.startswith(rf"a & {name}\textbar{{}} & \textbf{{85.06}}$^{{\mathrm{{b}}}}$ & ")
    assert [line for line in printed.splitlines() if line.startswith("b & ")] == [r"b & 弱 & 30.79 & 15.00 & 90.00 \\"]
    assert printed.count("{") == printed.count("}")
    assert r"\toprule" in printed and r"one pair, p \textless{}= 0.05)." in printed


def test_what_cannot_be_compared_is_said(world: list[Path], tmp_path: Path) -> None:
    qrels, *runs = world
    assert compare(qrels, runs[0], code=1).error == "expected 2 to 25 runs, found 1"
    (tmp_path / "one").write_text("q0 0 good 1\n")
    assert "at least two queries" in compare(tmp_path / "one", *runs, code=1).error
    printed = compare(qrels, runs[0], runs[0]).stdout
    assert "a - b: MRR@10 is the same on every query" in printed and "nan" not in printed
    done = compare(*world, "--test", "randomisation", "--resamples", 99)
    assert "no pair can be told apart" in done.stderr and "ᵈ" not in done.stdout
