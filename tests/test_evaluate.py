"""The measures, with holes and near-duplicates, against their definitions, and the output of the verb."""

import itertools
import json
import math
import os
import random
import threading
from collections.abc import Iterator
from itertools import starmap
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import process, run
from hypothesis import given
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, tables

from baselines.core.passages import open_passages
from baselines.measure.compare import compare_runs
from baselines.measure.error_steps import report_holes
from baselines.measure.evaluate import evaluate_runs
from baselines.measure.holes import measure_holes
from baselines.measure.measures import measure_run
from baselines.measure.qrels import read_qrels
from builders.core.errors import InputError, UsageError
from builders.core.help import help_text
from builders.store.reader import open_release
from builders.store.runs import read_run


def expected_official(reference: dict[str, set[str]], run: dict[str, list[str]]) -> dict[str, float]:
    """Return the official means: lists of 50, a hit is a positive in the first k, over all reference queries."""
    reciprocal, top1, top50 = 0.0, 0, 0
    for query in reference:
        passages = run[query][:50] if query in run else []
        hit = [passage in reference[query] for passage in passages]
        for position in range(min(10, len(hit))):
            if hit[position]:
                reciprocal += 1.0 / (position + 1)
                break
        top1 += hit[:1] == [True]
        top50 += True in hit
    count = len(reference)
    shares = {"MRR@10": reciprocal / count, "recall@1": top1 / count, "recall@50": top50 / count}
    return shares | {"QueriesRanked": len(run)}


def expected_others(reference: dict[str, set[str]], run: dict[str, list[str]]) -> dict[str, float]:
    totals = dict.fromkeys(["Success@1", "Success@5", "Success@10", "Success@50", "R@10", "R@50", "nDCG@10", "AP"], 0.0)
    for query, positives in reference.items():
        ranking = [*dict.fromkeys(run.get(query, []))]
        gains = [1 if passage in positives else 0 for passage in ranking]
        for k in (1, 5, 10, 50):
            totals[f"Success@{k}"] += 1 if sum(gains[:k]) else 0
        for k in (10, 50):
            totals[f"R@{k}"] += sum(gains[:k]) / len(positives)
        ideal = sum(1 / math.log2(i + 2) for i in range(min(10, len(positives))))
        totals["nDCG@10"] += sum(gain / math.log2(i + 2) for i, gain in enumerate(gains[:10])) / ideal
        totals["AP"] += sum(sum(gains[: i + 1]) / (i + 1) for i, gain in enumerate(gains) if gain) / len(positives)
    return {name: total / len(reference) for name, total in totals.items()}


def measure(folder: Path, reference: dict[str, set[str]], run: dict[str, list[str]]) -> dict[str, Any]:
    lines = [f"{query} 0 {passage} 1\n" for query, passages in reference.items() for passage in sorted(passages)]
    (folder / "qrels").write_text("".join(lines))
    (folder / "run.json").write_text(json.dumps(run))
    return measure_run(read_run(folder / "run.json"), read_qrels(folder / "qrels"))[0]


def far(position: int, length: int, good: str = "good") -> list[str]:
    return [good if place == position else f"other{place}" for place in range(1, length + 1)]


SHAPES = ((99, 0), (1, 1), (10, 10), (11, 50), (50, 50), (51, 60), (3, 60), (99, 1))  # rank of the positive, length
HAND_MADE = {
    "lists of 0, 1, 10, 50 and 60": (
        {name: {"good"} for name in "abcdefgh"},
        dict(zip("abcdefgh", starmap(far, SHAPES), strict=True)),
        # 1 + 1/10 + 1/3, of 8; b; b c d e g
        {"MRR@10": (1 + 1 / 10 + 1 / 3) / 8, "recall@1": 1 / 8, "recall@50": 5 / 8, "QueriesRanked": 8},
    ),
    "missing queries count 0, others are ignored but ranked": (
        {"a": {"x"}, "b": {"y"}},
        {"a": ["n", "x"], "c": ["y"], "d": []},
        {"MRR@10": 0.25, "recall@1": 0.0, "recall@50": 0.5, "QueriesRanked": 3},
    ),
    "duplicates keep their places": (
        {"a": {"x", "y"}},
        {"a": ["n", "n", "n", "x", "x", "y"]},
        {"MRR@10": 0.25, "recall@1": 0.0, "recall@50": 1.0, "QueriesRanked": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAND_MADE)
def test_hand_made_cases_have_the_values_worked_out_by_hand(tmp_path: Path, case: str) -> None:
    reference, run, golden = HAND_MADE[case]
    result = measure(tmp_path, reference, run)
    assert result["queries"] == len(reference)
    assert result["official"] == pytest.approx(golden)
    assert expected_official(reference, run) == pytest.approx(golden)
    assert result["ir_measures"] == pytest.approx(expected_others(reference, run))


_PASSAGE = st.sampled_from([f"p{n}" for n in range(12)])
_QUERY = st.sampled_from([f"q{n}" for n in range(5)])


@given(
    reference=st.dictionaries(_QUERY, st.sets(_PASSAGE, min_size=1), min_size=1),
    run=st.dictionaries(_QUERY, st.lists(_PASSAGE, max_size=15) | st.lists(_PASSAGE, min_size=48, max_size=60)),
)
def test_any_run_has_the_values_of_the_definitions(
    tmp_path_factory: pytest.TempPathFactory, reference: dict[str, set[str]], run: dict[str, list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    if not set(reference) & set(run):
        with pytest.raises(InputError, match="no matching query"):
            measure(folder, reference, run)
        return
    result = measure(folder, reference, run)
    assert result["official"] == pytest.approx(expected_official(reference, run))
    assert result["ir_measures"] == pytest.approx(expected_others(reference, run))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "qrels").write_text("q1 0 a 1\nq1 0 b 1\nq2 0 c 1\nq3 0 d 0\n")
    (tmp_path / "one.run").write_text("q1 Q0 n 1 3 t\nq1 Q0 a 2 2 t\nq1 Q0 a 3 1 t\nq3 Q0 d 1 1 t\n")
    return tmp_path / "qrels", tmp_path / "one.run"


def test_text_is_percent_and_a_table_has_every_query(files: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "new" / "values.parquet"
    done = run("baselines", "evaluate", "--qrels", *files, "--per-query", target)
    heading = "official keys, percent, with 95 % intervals over queries (recall@k here is a hit rate: Success@k)"
    assert heading in done.stdout
    official = next(line for line in done.stdout.splitlines() if line.startswith(str(files[1]))).split("  ")[1:]
    cells = [cell.strip() for cell in official if cell.strip()]
    assert cells == ["25.00 (0.00 to 50.00)", "0.00 (0.00 to 0.00)", "50.00 (0.00 to 100.00)", "2"]
    assert "1 queries without a positive passage are excluded" in done.stderr
    assert "lacks 1 of 2 queries; they count as 0" in done.stderr
    assert "1 queries list a passage more than once" in done.stderr
    assert [path.name for path in target.parent.iterdir()] == ["values.parquet"]
    rows = pq.read_table(target).to_pylist()
    assert [(row["query_id"], row["run"]) for row in rows] == [("q1", str(files[1])), ("q2", str(files[1]))]
    assert (rows[0]["RR@10"], rows[0]["first_positive_rank"], rows[0]["positives"]) == (0.5, 2, 2)
    assert (rows[1]["RR@10"], rows[1]["first_positive_rank"], rows[1]["AP"]) == (0.0, None, 0.0)


@pytest.mark.parametrize("config", ["qrels", "queries", "corpus"])
def test_what_comes_twice_in_a_release_is_one_line_with_its_shard_and_row(tmp_path: Path, config: str) -> None:
    rows = tables()
    place = (config, "corpus" if config == "corpus" else "dev")
    rows[place] += rows[place][:1]
    release = make_release(tmp_path / "release", rows)
    number, rest = divmod(len(rows[place]) - 1, 2)
    last = f"{'/'.join(place)}-{number:05d}-of-{number + 1:05d}.parquet, row {rest + 1}: "
    if config == "corpus":  # every verb that reads passages by row opens this cache
        with pytest.raises(InputError, match=last):
            open_passages(open_release(release), keep=tmp_path / "keep")
    else:
        (tmp_path / "run").write_text("q Q0 p 1 1.0 t\n")
        assert last in run("baselines", "evaluate", tmp_path / "run", "--release", release, code=1).error


@pytest.mark.slow
def test_files_that_a_command_line_names_may_be_pipes(tmp_path: Path) -> None:
    """For example ``evaluate <(zcat RUN)``. Each pipe has more than a pipe's buffer, and is opened more than once."""
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 p{n} 1\n" for n in range(9_000)))
    (tmp_path / "run").write_text("".join(f"q{n} Q0 p{n + n % 2} 1 1.0 t\n" for n in range(9_000)))
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    for name in ("qrels", "run"):
        os.mkfifo(pipes / name)
        content = (tmp_path / name).read_bytes()
        threading.Thread(target=(pipes / name).write_bytes, args=(content,), daemon=True).start()
    by_name, by_pipe = (
        process("baselines", "evaluate", "--quiet", "--format", "json", "--qrels", folder / "qrels", folder / "run")
        for folder in (tmp_path, pipes)
    )
    assert by_pipe.stdout.replace(str(pipes), str(tmp_path)) == by_name.stdout
    assert json.loads(by_name.stdout)[0]["official"]["QueriesRanked"] == 9_000


def test_no_common_query_is_one_line_and_exit_1(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "other.run").write_text("zz Q0 n 1 3 t\n")
    # The only test of the exit code of `python -m baselines`.
    done = process("baselines", "evaluate", "--qrels", files[0], tmp_path / "other.run", "--quiet", code=1)
    assert done.stdout == ""
    assert f"{tmp_path / 'other.run'}: no matching query" in done.error


Reference, Lists = dict[str, dict[str, int]], dict[str, list[str]]


def write(folder: Path, judged: Reference, lists: Lists) -> tuple[Path, Path]:
    lines = [f"{query} 0 {passage} {grade}\n" for query, grades in judged.items() for passage, grade in grades.items()]
    (folder / "qrels").write_text("".join(lines))
    (folder / "run").write_text(json.dumps(lists))
    return folder / "qrels", folder / "run"


def measured(folder: Path, judged: Reference, lists: Lists) -> tuple[dict[str, Any], dict[str, Any]]:
    files = write(folder, judged, lists)
    qrels, retrieved = read_qrels(files[0]), read_run(files[1])
    plain = measure_run(retrieved, qrels)[0]
    return plain, measure_holes(retrieved.rankings, qrels, plain)[0]


def any_world(seed: int) -> tuple[Reference, Lists]:
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
    """Yield the query's positives for all possible labels of the unjudged passages of its list."""
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
    # Condensed lists have no unjudged passages.
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


# The first two passages differ in a blank and a full stop, the third in three characters of fifty.
REPORT = "本市去年全年接待游客三千二百万人次，旅游总收入达到四百八十亿元，比上年增长百分之十二点五，再创历史新高"
COPY = f" {REPORT}。"
NEAR = f"{REPORT[:-3]}新纪录"
OTHERS = TEXTS[:3]
QUESTION = "高铁票提前几天买"


def release(folder: Path, judged: dict[str, int], texts: list[str]) -> Path:
    rows = tables([*dict.fromkeys([*TEXTS, *texts])])
    rows["queries", "dev"] = [{"_id": md5(QUESTION), "text": QUESTION}]
    rows["qrels", "dev"] = [
        {"query-id": md5(QUESTION), "corpus-id": md5(text), "score": score} for text, score in judged.items()
    ]
    del rows["dev", "dev"]
    return make_release(folder / "release", rows)


def result(folder: Path, judged: dict[str, int], ranking: list[str], copies: str) -> dict[str, Any]:
    where = release(folder, judged, [*judged, *ranking])
    (folder / "run").write_text(json.dumps({md5(QUESTION): [md5(text) for text in ranking]}))
    words = ("--release", where, "--copies", copies, "--format", "json")
    done = run("baselines", "errors", "duplicates", *words, folder / "run")
    return dict(json.loads(done.stdout)[0])


REPEATED = {"repeated@10": 0.5, "repeated_queries": 1.0, "copies": 0}  # two of four places
# By case: the judgments, the ranking, --copies, and the figures. A copy of a positive is positive. A repeated
# passage is removed, or a miss. Equal positives count once. A copy that people judged negative stays negative.
DUPLICATES: dict[str, tuple[dict[str, int], list[str], str, dict[str, float]]] = {
    "a copy": ({REPORT: 1}, [OTHERS[0], COPY], "removed", {"MRR@10": 0.5, "copies": 1}),
    "a near-duplicate": ({REPORT: 1}, [OTHERS[0], NEAR], "removed", {"MRR@10": 0.5, "copies": 1}),
    "removed": ({OTHERS[0]: 1}, [REPORT, NEAR, OTHERS[0], COPY], "removed", {"AP": 1 / 2, **REPEATED}),
    "kept": ({OTHERS[0]: 1}, [REPORT, NEAR, OTHERS[0], COPY], "kept", {"AP": 1 / 3, **REPEATED}),
    "equal": ({REPORT: 1, COPY: 1, OTHERS[0]: 1}, [REPORT, OTHERS[0]], "removed", {"R@10": 1.0, "positives": 2}),
    "negative": ({REPORT: 1, NEAR: 0}, [NEAR, REPORT], "removed", {"MRR@10": 0.5, "contradicted": 1, "copies": 0}),
}


@pytest.mark.parametrize(("judged", "ranking", "way", "expected"), DUPLICATES.values(), ids=DUPLICATES)
def test_duplicates(tmp_path: Path, judged: Any, ranking: list[str], way: str, expected: dict[str, float]) -> None:
    found = result(tmp_path, judged, ranking, way)["duplicates"]
    found |= found["official"] | found["ir_measures"]
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_chain_of_small_differences_joins_nothing(tmp_path: Path) -> None:
    steps = [REPORT[: len(REPORT) - 4 * number] + OTHERS[1][: 4 * number] for number in range(6)]
    found = result(tmp_path, {steps[0]: 1}, steps[::-1], "removed")["duplicates"]
    # The positive leads its near-duplicates. Among other passages the highest leads, so no list becomes one passage.
    assert found["official"]["recall@1"] == 0.0
    assert 0 < found["repeated@10"] < 1 - 1 / len(steps)


def test_text_values_by_query_and_the_list_have_every_pair(tmp_path: Path) -> None:
    where = release(tmp_path, {REPORT: 1}, [REPORT, NEAR])
    (tmp_path / "run").write_text(json.dumps({md5(QUESTION): [md5(OTHERS[0]), md5(NEAR)]}))
    words = ["--copies", "kept", "--per-query", tmp_path / "values", "--list", tmp_path / "pairs"]
    shown = run("baselines", "errors", "duplicates", "--release", where, *words, tmp_path / "run").stdout
    assert "near-duplicates counted as one passage; later copies are kept (1 of 1 positives are distinct)" in shown
    row = pq.read_table(tmp_path / "values").to_pylist()[0]
    assert (row["RR@10"], row["fair RR@10"]) == (0.0, 0.5)
    (pair,) = map(json.loads, (tmp_path / "pairs").read_text().splitlines())
    assert (pair["corpus-id"], pair["like"], pair["labels"]) == (md5(NEAR), md5(REPORT), [None, 1])


def test_holes_writes_its_values_by_query(files: tuple[Path, Path], tmp_path: Path) -> None:
    report = report_holes([files[1]], qrels=files[0], per_query=tmp_path / "values")
    values = pq.read_table(tmp_path / "values")["Judged@10"].to_pylist()
    assert sum(values) / len(values) == pytest.approx(report.value[0]["holes"]["Judged@10"])


def test_evaluate_measures_and_its_help_fits_on_a_screen() -> None:
    lines = help_text("python -m baselines evaluate", evaluate_runs, width=80).splitlines()
    assert len(lines) <= 50
    for option in ("--holes", "--duplicates", "--ngram", "--jaccard", "--list"):
        assert "Unknown option" in run("baselines", "evaluate", "--release", "R", "N", option, code=2).stderr


def test_a_call_from_python_returns_figures_as_a_table(files: tuple[Path, Path]) -> None:
    qrels, path = files
    report = report_holes([path, read_run(path)], qrels=qrels)
    printed = run("baselines", "errors", "holes", "--qrels", qrels, path, path, "--format", "json").stdout
    assert report.value == json.loads(printed)
    frame = report.to_pandas()
    assert frame["MRR@10"].tolist() == [result["official"]["MRR@10"] for result in report.value]
    csv_lines = run("baselines", "evaluate", "--qrels", qrels, path, "--format", "csv").stdout.splitlines()
    assert csv_lines[0].startswith("run,MRR@10,MRR@10 low,MRR@10 high,recall@1,") and len(csv_lines) == 2


def test_a_call_names_either_a_release_or_a_file(files: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="expected either --release DIR or --qrels FILE"):
        evaluate_runs([files[1]])
    with pytest.raises(UsageError, match="expected either --release DIR or --qrels FILE"):
        compare_runs([files[1], files[1]], qrels=files[0], release="release")
