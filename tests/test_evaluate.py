"""The measures, with holes and near-duplicates, against their definitions, and the output of the verb."""

import itertools
import json
import math
import os
import random
import re
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from commands import names, process, run
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
    reciprocal_sum = 0.0
    hits_at_1 = 0
    hits_at_50 = 0
    for query_id, positive_ids in reference.items():
        passage_ids = run.get(query_id, [])[:50]
        is_positive = [passage_id in positive_ids for passage_id in passage_ids]
        for position in range(min(10, len(is_positive))):
            if is_positive[position]:
                reciprocal_sum += 1.0 / (position + 1)
                break
        hits_at_1 += is_positive[:1] == [True]
        hits_at_50 += True in is_positive
    count = len(reference)
    return {
        "MRR@10": reciprocal_sum / count,
        "recall@1": hits_at_1 / count,
        "recall@50": hits_at_50 / count,
        "QueriesRanked": len(run),
    }


def discounted(gains: list[int]) -> float:
    """Return the sum of gains, each divided by the logarithm of its rank plus 1."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


def average_precision(gains: list[int], positive_count: int) -> float:
    """Return the mean of the precision at the rank of each positive. A positive that is not ranked counts 0."""
    precision_sum = 0.0
    for rank, gain in enumerate(gains, 1):
        if gain:
            precision_sum += sum(gains[:rank]) / rank
    return precision_sum / positive_count


def expected_others(reference: dict[str, set[str]], run: dict[str, list[str]]) -> dict[str, float]:
    """Return the means of the measures of ir_measures. A passage that is listed twice counts once."""
    totals = dict.fromkeys(["Success@1", "Success@5", "Success@10", "Success@50", "R@10", "R@50", "nDCG@10", "AP"], 0.0)
    for query_id, positive_ids in reference.items():
        ranking = dict.fromkeys(run.get(query_id, []))
        gains = [int(passage_id in positive_ids) for passage_id in ranking]
        for k in (1, 5, 10, 50):
            totals[f"Success@{k}"] += 1 if sum(gains[:k]) else 0
        for k in (10, 50):
            totals[f"R@{k}"] += sum(gains[:k]) / len(positive_ids)
        ideal_gains = [1] * min(10, len(positive_ids))
        totals["nDCG@10"] += discounted(gains[:10]) / discounted(ideal_gains)
        totals["AP"] += average_precision(gains, len(positive_ids))
    return {name: total / len(reference) for name, total in totals.items()}


def measure(folder: Path, reference: dict[str, set[str]], run: dict[str, list[str]]) -> dict[str, Any]:
    """Write the judgments and the run to files, and measure them."""
    with open(folder / "qrels", "w") as file:
        for query_id, positive_ids in reference.items():
            file.writelines(f"{query_id} 0 {passage_id} 1\n" for passage_id in sorted(positive_ids))
    (folder / "run.json").write_text(json.dumps(run))
    return measure_run(read_run(folder / "run.json"), read_qrels(folder / "qrels"))[0]


def list_with_positive(rank: int, length: int) -> list[str]:
    """Return a list of passages with the passage ``good`` at a rank. A rank above the length: the list lacks it."""
    return ["good" if position == rank else f"other{position}" for position in range(1, length + 1)]


LISTS = {
    "a": list_with_positive(rank=99, length=0),
    "b": list_with_positive(rank=1, length=1),
    "c": list_with_positive(rank=10, length=10),
    "d": list_with_positive(rank=11, length=50),
    "e": list_with_positive(rank=50, length=50),
    "f": list_with_positive(rank=51, length=60),
    "g": list_with_positive(rank=3, length=60),
    "h": list_with_positive(rank=99, length=1),
}
# By case: the judgments, the run, and the official figures.
HAND_MADE = {
    "lists of 0, 1, 10, 50 and 60": (
        {name: {"good"} for name in LISTS},
        LISTS,
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
    # Without a common query, the run is probably of another split.
    if reference.keys().isdisjoint(run):
        with pytest.raises(InputError, match="no matching query"):
            measure(folder, reference, run)
        return
    result = measure(folder, reference, run)
    assert result["official"] == pytest.approx(expected_official(reference, run))
    assert result["ir_measures"] == pytest.approx(expected_others(reference, run))


@pytest.fixture
def qrels_path(tmp_path: Path) -> Path:
    """Judgments of three queries. Query q3 has no positive passage."""
    path = tmp_path / "qrels"
    path.write_text("q1 0 a 1\nq1 0 b 1\nq2 0 c 1\nq3 0 d 0\n")
    return path


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run without the query q2. Query q1 lists passage a twice."""
    path = tmp_path / "one.run"
    path.write_text("q1 Q0 n 1 3 t\nq1 Q0 a 2 2 t\nq1 Q0 a 3 1 t\nq3 Q0 d 1 1 t\n")
    return path


def test_text_is_percent(qrels_path: Path, run_path: Path) -> None:
    done = run("baselines", "evaluate", "--qrels", qrels_path, run_path)
    heading = "official keys, percent, with 95 % intervals over queries (recall@k here is a hit rate: Success@k)"
    assert heading in done.stdout
    official_line = next(line for line in done.stdout.splitlines() if line.startswith(str(run_path)))
    # Columns are separated by two or more spaces.
    cells = re.split(r"\s{2,}", official_line.strip())[1:]
    assert cells == ["25.00 (0.00 to 50.00)", "0.00 (0.00 to 0.00)", "50.00 (0.00 to 100.00)", "2"]
    assert "1 queries without a positive passage are excluded" in done.stderr
    assert "lacks 1 of 2 queries; they count as 0" in done.stderr
    assert "1 queries list a passage more than once" in done.stderr


def test_a_table_has_every_query(qrels_path: Path, run_path: Path, tmp_path: Path) -> None:
    table_path = tmp_path / "new" / "values.parquet"
    run("baselines", "evaluate", "--qrels", qrels_path, run_path, "--per-query", table_path)
    assert names(table_path.parent) == ["values.parquet"]
    first, second = pq.read_table(table_path).to_pylist()
    assert (first["query_id"], first["run"]) == ("q1", str(run_path))
    assert (first["RR@10"], first["first_positive_rank"], first["positives"]) == (0.5, 2, 2)
    assert (second["query_id"], second["run"]) == ("q2", str(run_path))
    assert (second["RR@10"], second["first_positive_rank"], second["AP"]) == (0.0, None, 0.0)


@pytest.mark.parametrize("config", ["qrels", "queries", "corpus"])
def test_what_comes_twice_in_a_release_is_one_line_with_its_shard_and_row(tmp_path: Path, config: str) -> None:
    rows = tables()
    split = "corpus" if config == "corpus" else "dev"
    rows[config, split] += rows[config, split][:1]
    release = make_release(tmp_path / "release", rows)
    # A shard has two rows, and the repeated row is the last.
    shard_number, row_in_shard = divmod(len(rows[config, split]) - 1, 2)
    location = f"{config}/{split}-{shard_number:05d}-of-{shard_number + 1:05d}.parquet, row {row_in_shard + 1}: "
    if config == "corpus":  # every verb that reads passages by row opens this cache
        with pytest.raises(InputError, match=location):
            open_passages(open_release(release), keep=tmp_path / "keep")
    else:
        (tmp_path / "run").write_text("q Q0 p 1 1.0 t\n")
        assert location in run("baselines", "evaluate", tmp_path / "run", "--release", release, code=1).error


@pytest.mark.slow
def test_files_that_a_command_line_names_may_be_pipes(tmp_path: Path) -> None:
    """For example ``evaluate <(zcat RUN)``. Each pipe has more than a pipe's buffer, and is opened more than once."""
    (tmp_path / "qrels").write_text("".join(f"q{n} 0 p{n} 1\n" for n in range(9_000)))
    (tmp_path / "run").write_text("".join(f"q{n} Q0 p{n + n % 2} 1 1.0 t\n" for n in range(9_000)))
    pipes = tmp_path / "pipes"
    pipes.mkdir()
    for name in ("qrels", "run"):
        # A thread writes each pipe, because opening a pipe waits for its reader.
        os.mkfifo(pipes / name)
        content = (tmp_path / name).read_bytes()
        threading.Thread(target=(pipes / name).write_bytes, args=(content,), daemon=True).start()
    options = ["--quiet", "--format", "json", "--qrels"]
    by_name = process("baselines", "evaluate", options, tmp_path / "qrels", tmp_path / "run").stdout
    by_pipe = process("baselines", "evaluate", options, pipes / "qrels", pipes / "run").stdout
    assert by_pipe.replace(str(pipes), str(tmp_path)) == by_name
    assert json.loads(by_name)[0]["official"]["QueriesRanked"] == 9_000


def test_no_common_query_is_one_line_and_exit_1(qrels_path: Path, tmp_path: Path) -> None:
    other_run = tmp_path / "other.run"
    other_run.write_text("zz Q0 n 1 3 t\n")
    # The only test of the exit code of `python -m baselines`.
    done = process("baselines", "evaluate", "--qrels", qrels_path, other_run, "--quiet", code=1)
    assert done.stdout == ""
    assert f"{other_run}: no matching query" in done.error


Grades = dict[str, dict[str, int]]  # by query and passage
Lists = dict[str, list[str]]


def write_qrels(path: Path, grades_by_query: Grades) -> Path:
    """Write judgments in the format of TREC."""
    with open(path, "w") as file:
        for query_id, grades in grades_by_query.items():
            file.writelines(f"{query_id} 0 {passage_id} {grade}\n" for passage_id, grade in grades.items())
    return path


def measure_with_holes(folder: Path, judged: Grades, lists: Lists) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the figures of a run, and its figures under several assumptions about unjudged passages."""
    qrels = read_qrels(write_qrels(folder / "qrels", judged))
    (folder / "run").write_text(json.dumps(lists))
    ranked = read_run(folder / "run")
    plain = measure_run(ranked, qrels)[0]
    return plain, measure_holes(ranked.rankings, qrels, plain)[0]


def random_judgments(seed: int) -> tuple[Grades, Lists]:
    """Return judgments of three queries and lists for two of them.

    The passages are k0 to k5, of which five are judged, u0 to u3 without judgments, and n0 to n11, judged negative.
    """
    draw = random.Random(seed)
    judged: Grades = {}
    lists: Lists = {}
    negative_ids = [f"n{number}" for number in range(12)]
    for query_id in ("q1", "q2", "q3"):
        candidate_ids = [f"k{number}" for number in range(6)]
        judged[query_id] = {"k0": 1}
        for passage_id in draw.sample(candidate_ids[1:], 4):
            judged[query_id][passage_id] = draw.randrange(2)
        ranking = draw.sample(candidate_ids, draw.randrange(6))
        ranking += [f"u{number}" for number in range(draw.randrange(5))]
        draw.shuffle(ranking)
        lists[query_id] = ranking + negative_ids * draw.randrange(2)
        judged[query_id] |= dict.fromkeys(negative_ids, 0)
    del lists[draw.choice(("q2", "q3"))]
    return judged, lists


def positives(judged: Grades) -> dict[str, set[str]]:
    """Return the positive passages of each query."""
    positive_ids: dict[str, set[str]] = {}
    for query_id, grades in judged.items():
        positive_ids[query_id] = {passage_id for passage_id, grade in grades.items() if grade > 0}
    return positive_ids


def possible_positives(judged: Grades, ranking: list[str], query_id: str) -> Iterator[dict[str, set[str]]]:
    """Yield the query's positives for all possible labels of the unjudged passages of its list."""
    unjudged_ids = [passage_id for passage_id in ranking if passage_id not in judged[query_id]]
    for number in range(len(unjudged_ids) + 1):
        for new_positives in itertools.combinations(unjudged_ids, number):
            yield {query_id: positives(judged)[query_id].union(new_positives)}


@pytest.mark.parametrize("seed", range(12))
def test_best_is_the_highest_of_every_judging(tmp_path: Path, seed: int) -> None:
    judged, lists = random_judgments(seed)
    plain, holes = measure_with_holes(tmp_path, judged, lists)
    best_means = {"official": dict.fromkeys(holes["best"]["official"], 0.0)}
    best_means["ir_measures"] = dict.fromkeys(holes["best"]["ir_measures"], 0.0)
    for query_id in judged:
        ranking = lists.get(query_id, [])
        for group, expected_values in (("official", expected_official), ("ir_measures", expected_others)):
            values = [
                expected_values(reference, {query_id: ranking})
                for reference in possible_positives(judged, ranking, query_id)
            ]
            for name in best_means[group]:
                best_means[group][name] += max(figures[name] for figures in values) / len(judged)
    assert holes["best"]["official"] == pytest.approx(best_means["official"])
    assert holes["best"]["ir_measures"] == pytest.approx(best_means["ir_measures"])
    # The residual is the room between the best and the measured figure.
    assert min(holes["residual"]["official"].values()) >= 0
    assert min(holes["residual"]["ir_measures"].values()) >= 0
    residual = best_means["ir_measures"]["AP"] - plain["ir_measures"]["AP"]
    assert holes["residual"]["ir_measures"]["AP"] == pytest.approx(residual)


@pytest.mark.parametrize("seed", range(12))
def test_condensed_lists_lack_the_unjudged_passages(tmp_path: Path, seed: int) -> None:
    judged, lists = random_judgments(seed)
    _, holes = measure_with_holes(tmp_path, judged, lists)
    condensed_lists: Lists = {}
    for query_id, ranking in lists.items():
        condensed_lists[query_id] = [passage_id for passage_id in ranking if passage_id in judged[query_id]]
    official = expected_official(positives(judged), condensed_lists)
    for name, value in holes["condensed"]["official"].items():
        assert value == pytest.approx(official[name])
    assert holes["condensed"]["ir_measures"] == pytest.approx(expected_others(positives(judged), condensed_lists))


def test_an_unjudged_passage_is_worth_at_best_the_highest_grade_of_its_query(tmp_path: Path) -> None:
    _, holes = measure_with_holes(tmp_path, {"q": {"a": 3, "b": 1, "n": 0}}, {"q": ["u", "a", "b", "n"]})
    assert holes["best"]["ir_measures"]["nDCG@10"] == pytest.approx(1.0)  # 3, 3, 1 is the ideal order
    assert holes["best"]["ir_measures"]["AP"] == 1.0


# The first two passages differ in a blank and a full stop, the third in three characters of fifty.
REPORT = "本市去年全年接待游客三千二百万人次，旅游总收入达到四百八十亿元，比上年增长百分之十二点五，再创历史新高"
COPY = f" {REPORT}。"
NEAR = f"{REPORT[:-3]}新纪录"
OTHERS = TEXTS[:3]
QUESTION = "高铁票提前几天买"


def write_release(folder: Path, judged: dict[str, int], texts: list[str]) -> Path:
    """Write a release with the texts and one dev query, whose judgments are grades by text."""
    rows = tables(list(dict.fromkeys(TEXTS + texts)))
    rows["queries", "dev"] = [{"_id": md5(QUESTION), "text": QUESTION}]
    rows["qrels", "dev"] = [
        {"query-id": md5(QUESTION), "corpus-id": md5(text), "score": score} for text, score in judged.items()
    ]
    del rows["dev", "dev"]
    return make_release(folder / "release", rows)


def measure_duplicates(folder: Path, judged: dict[str, int], ranking: list[str], copies: str) -> dict[str, Any]:
    """Return the figures of a ranking of texts with near-duplicates counted as one passage."""
    release = write_release(folder, judged, list(judged) + ranking)
    (folder / "run").write_text(json.dumps({md5(QUESTION): [md5(text) for text in ranking]}))
    options = ["--release", release, "--copies", copies, "--format", "json"]
    done = run("baselines", "errors", "duplicates", *options, folder / "run")
    return dict(json.loads(done.stdout)[0]["duplicates"])


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


@pytest.mark.parametrize(("judged", "ranking", "copies", "expected"), DUPLICATES.values(), ids=DUPLICATES)
def test_duplicates(tmp_path: Path, judged: Any, ranking: list[str], copies: str, expected: dict[str, float]) -> None:
    duplicates = measure_duplicates(tmp_path, judged, ranking, copies)
    figures = duplicates | duplicates["official"] | duplicates["ir_measures"]
    for name, value in expected.items():
        assert figures[name] == pytest.approx(value), name


def test_a_chain_of_small_differences_joins_nothing(tmp_path: Path) -> None:
    # Each text differs from the one before by four characters at its end, and the last by twenty from the first.
    chain = [REPORT]
    for changed_length in (4, 8, 12, 16, 20):
        chain.append(REPORT[:-changed_length] + OTHERS[1][:changed_length])
    duplicates = measure_duplicates(tmp_path, {chain[0]: 1}, chain[::-1], "removed")
    # The positive leads its near-duplicates. Among other passages the highest leads, so no list becomes one passage.
    assert duplicates["official"]["recall@1"] == 0.0
    assert 0 < duplicates["repeated@10"] < 1 - 1 / len(chain)


def test_text_values_by_query_and_the_list_have_every_pair(tmp_path: Path) -> None:
    release = write_release(tmp_path, {REPORT: 1}, [REPORT, NEAR])
    (tmp_path / "run").write_text(json.dumps({md5(QUESTION): [md5(OTHERS[0]), md5(NEAR)]}))
    options = ["--release", release, "--copies", "kept"]
    options += ["--per-query", tmp_path / "values", "--list", tmp_path / "pairs"]
    stdout = run("baselines", "errors", "duplicates", *options, tmp_path / "run").stdout
    assert "near-duplicates counted as one passage; later copies are kept (1 of 1 positives are distinct)" in stdout
    row = pq.read_table(tmp_path / "values").to_pylist()[0]
    assert (row["RR@10"], row["fair RR@10"]) == (0.0, 0.5)
    pair = json.loads((tmp_path / "pairs").read_text())  # the only line
    assert (pair["corpus-id"], pair["like"], pair["labels"]) == (md5(NEAR), md5(REPORT), [None, 1])


def test_holes_writes_its_values_by_query(qrels_path: Path, run_path: Path, tmp_path: Path) -> None:
    report = report_holes([run_path], qrels=qrels_path, per_query=tmp_path / "values")
    values = pq.read_table(tmp_path / "values")["Judged@10"].to_pylist()
    assert statistics.mean(values) == pytest.approx(report.value[0]["holes"]["Judged@10"])


def test_evaluate_measures_and_its_help_fits_on_a_screen() -> None:
    lines = help_text("python -m baselines evaluate", evaluate_runs, width=80).splitlines()
    assert len(lines) <= 50
    for option in ("--holes", "--duplicates", "--ngram", "--jaccard", "--list"):
        assert "Unknown option" in run("baselines", "evaluate", "--release", "R", "N", option, code=2).stderr


def test_a_call_from_python_returns_figures_as_a_table(qrels_path: Path, run_path: Path) -> None:
    report = report_holes([run_path, read_run(run_path)], qrels=qrels_path)
    words = ["--qrels", qrels_path, run_path, run_path, "--format", "json"]
    assert report.value == json.loads(run("baselines", "errors", "holes", *words).stdout)
    frame = report.to_pandas()
    assert frame["MRR@10"].tolist() == [figures["official"]["MRR@10"] for figures in report.value]


def test_a_csv_of_figures_has_a_line_for_each_run(qrels_path: Path, run_path: Path) -> None:
    csv_text = run("baselines", "evaluate", "--qrels", qrels_path, run_path, "--format", "csv").stdout
    heading, _ = csv_text.splitlines()
    assert heading.startswith("run,MRR@10,MRR@10 low,MRR@10 high,recall@1,")


def test_a_call_names_either_a_release_or_a_file(qrels_path: Path, run_path: Path) -> None:
    with pytest.raises(UsageError, match="expected either --release DIR or --qrels FILE"):
        evaluate_runs([run_path])
    with pytest.raises(UsageError, match="expected either --release DIR or --qrels FILE"):
        compare_runs([run_path, run_path], qrels=qrels_path, release="release")
