"""Pools of runs; releases relabelled by re-rankers or by the judgments of a round."""

import gzip
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from annotating import Labels, judged_round, judgment
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from whole_release import ENGLISH

from builders.annotate.annotate_options import WrittenFiles
from builders.annotate.merge_judgments import merge_judgments
from builders.annotate.pool_steps import pool_passages, relabel_negatives
from builders.annotate.round_steps import merge_round
from builders.annotate.rounds import State, add_judgments
from builders.core.errors import InputError, UsageError
from builders.core.results import Report
from builders.store.manifest import read_stats
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

P = [md5(text) for text in TEXTS]
ONE, TWO = (md5(question) for question in QUESTIONS["dev"])  # answered by P[4] and P[5]
Rankings = dict[str, list[int]]


def write_ranking(path: Path, rankings: Rankings) -> Path:
    """Write a run of the texts with these numbers, best first."""
    hits_by_query = []
    for query_id, numbers in rankings.items():
        hits_by_query.append((query_id, [(P[number], -float(rank)) for rank, number in enumerate(numbers)]))
    write_run(path, hits_by_query)
    return path


def write_scores(path: Path, scores: dict[str, dict[int, float]]) -> Path:
    """Write a run of query -> number of the text -> score."""
    hits_by_query = []
    for query_id, query_scores in scores.items():
        hits_by_query.append((query_id, [(P[number], score) for number, score in query_scores.items()]))
    write_run(path, hits_by_query)
    return path


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A release, two runs with different passages, and two re-rankers' scores of their union at depth 2."""
    make_release(tmp_path / "release")
    write_ranking(tmp_path / "bm25.dev.run.gz", {ONE: [0, 1, 2], TWO: [5, 3]})
    write_ranking(tmp_path / "dense.dev.run", {ONE: [1, 4], TWO: [5, 2]})
    third = math.log(3)  # its sigmoid is 3/4
    write_scores(tmp_path / "a", {ONE: {0: third, 1: 0, 4: third, 5: 9}, TWO: {5: third, 3: -third, 2: 0}})
    write_scores(tmp_path / "b", {ONE: {0: -third, 1: 0, 4: third}, TWO: {5: 0, 3: 0, 2: 0}})
    return tmp_path


def pool(world: Path, action: str, *words: object, runs: tuple[str, ...] = (), code: int | None = 0) -> Done:
    """Run `annotate pool` on the runs of these names in the folder ``world``."""
    options: list[object] = ["--release", world / "release", "--runs"]
    options += [world / name for name in runs or ("bm25.dev.run.gz", "dense.dev.run")]
    options += words
    return run("builders", "annotate", "pool", action, options, code=code)


def select(world: Path, out: str, *words: object, runs: tuple[str, ...] = (), code: int | None = 0) -> Done:
    """Run `annotate pool select` with the scores of both re-rankers."""
    options: list[object] = ["--scores", world / "a", world / "b", "--out", world / out]
    options += words
    return pool(world, "select", *options, runs=runs, code=code)


def read_pool_rows(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines, compressed or not."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.decode().splitlines()]


def pairs_in(pool_rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (query id, passage id) of each row."""
    return [(row["query-id"], row["corpus-id"]) for row in pool_rows]


def test_candidates_are_the_union_of_the_best_of_every_run(world: Path) -> None:
    done = pool(world, "candidates", "--depth", 2, "--out", world / "union.run", "--format", "json")
    ids = {query_id: set(ids) for query_id, ids in read_run(world / "union.run").rankings.items()}
    assert ids == {ONE: {P[0], P[1], P[4]}, TWO: {P[5], P[3], P[2]}}
    counts = json.loads(done.stdout)
    assert counts["candidates"] == {"pairs": 6, "judged": 2, "positives": 2, "unjudged": 4}
    assert counts["runs"] == [
        {"run": "bm25", "pairs": 4, "alone": 2, "positives": 1, "positives_alone": 0},
        {"run": "dense", "pairs": 4, "alone": 2, "positives": 2, "positives_alone": 1},
    ]
    assert counts["depths"] == [
        {"depth": 1, "pairs": 3, "positives": 1, "share": 0.5},
        {"depth": 2, "pairs": 6, "positives": 2, "share": 1.0},
    ]


def test_the_pool_holds_the_best_by_the_mean_of_the_probabilities(world: Path) -> None:
    select(world, "pool.jsonl.gz", "--depth", 2, "--top", 2)
    pool_rows = read_pool_rows(world / "pool.jsonl.gz")
    # Means of 3/4 and 1/4, and of 1/2 and 1/2, are equal, so the id decides.
    assert pairs_in(pool_rows) == [(ONE, P[4]), (ONE, min(P[0], P[1])), (TWO, P[5]), (TWO, P[2])]
    assert [row["rank"] for row in pool_rows] == [1, 2, 1, 2]
    assert [row["score"] for row in pool_rows] == pytest.approx([0.75, 0.5, 0.625, 0.5])
    assert pool_rows[0].keys() == {"query-id", "corpus-id", "rank", "score", "runs", "judged"}
    assert pool_rows[0]["runs"] == {"dense": 2}
    assert pool_rows[0]["judged"] == 1
    assert pool_rows[2]["runs"] == {"bm25": 1, "dense": 1}
    assert pool_rows[3]["judged"] is None


def test_one_sure_re_ranker_outweighs_the_others_in_logits_only(world: Path) -> None:
    write_ranking(world / "run", {ONE: [0, 1]})
    write_scores(world / "a", {ONE: {0: 10, 1: 1.5}})
    write_scores(world / "b", {ONE: {0: -1, 1: 1.5}})
    for scale, expected in (("sigmoid", [P[1], P[0]]), ("none", [P[0], P[1]])):
        select(world, scale, "--scale", scale, runs=("run",))
        assert [row["corpus-id"] for row in read_pool_rows(world / scale)] == expected


def test_passages_below_the_cut_of_a_re_ranker_have_no_score(world: Path) -> None:
    (world / "a.manifest.json").write_text('{"top_k": 1}')
    assert "lacks 5 of 6 candidates" in select(world, "pool", "--depth", 2, code=1).error


@pytest.mark.parametrize("seed", range(3))
def test_a_topped_up_pool_is_the_pool_of_all_runs(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    make_release(tmp_path / "release")
    for name in ("old", "new"):
        write_ranking(tmp_path / name, {query_id: generator.sample(range(6), 3) for query_id in (ONE, TWO)})
    for name in ("a", "b"):
        scores: dict[str, dict[int, float]] = {}
        for query_id in (ONE, TWO):
            scores[query_id] = {number: generator.gauss(0, 3) for number in range(6)}
        write_scores(tmp_path / name, scores)
    select(tmp_path, "whole", "--top", 2, runs=("old", "new"))
    select(tmp_path, "pool", "--top", 2, runs=("old",))
    select(tmp_path, "more", "--top", 2, "--pool", tmp_path / "pool", runs=("new",))
    old_pairs = set(pairs_in(read_pool_rows(tmp_path / "pool")))
    added_pairs = set(pairs_in(read_pool_rows(tmp_path / "more")))
    assert added_pairs == set(pairs_in(read_pool_rows(tmp_path / "whole"))) - old_pairs


def test_a_call_from_python_takes_runs_and_returns_tables(world: Path) -> None:
    runs = [read_run(world / "bm25.dev.run.gz"), world / "dense.dev.run"]
    out = world / "pool.jsonl"
    with pytest.raises(UsageError, match="select needs --scores"):
        pool_passages("select", world / "release", runs=runs, out=out)
    # A run may be an object or a path.
    scores = [read_run(world / "a"), world / "b"]
    report = pool_passages("select", world / "release", runs=runs, depth=2, scores=scores, top=2, out=out)
    by_title = {table.title: table for table in report.all_tables()}
    assert list(by_title) == ["candidates", "selected", "runs", "depths", "ranks"]
    assert by_title["depths"].to_csv() == "depth,pairs,positives,share\n1,3,1,0.5\n2,6,2,1.0\n"
    assert "| 1 | 3 | 1 | 50.00 |" in by_title["depths"].to_markdown()
    assert by_title["ranks"].to_pandas()["pairs"].tolist() == [2, 2]


def test_a_finished_pool_is_found_again_until_an_input_changes(world: Path) -> None:
    first = select(world, "pool", "--depth", 2, "--format", "json")
    second = select(world, "pool", "--depth", 2, "--format", "json")
    assert "already done" in second.stderr and second.stdout == first.stdout
    assert "made again, because top: 5 -> 2" in select(world, "pool", "--depth", 2, "--top", 2).stderr
    # The scores of the first re-ranker change.
    (world / "a").write_text((world / "b").read_text())
    changed = select(world, "pool", "--depth", 2, "--top", 2)
    assert "made again, because the re-rankers' runs changed (1)" in changed.stderr


Q = [md5(question) for question in QUESTIONS["train"]]  # question n is answered by text n
NINE = math.log(9)  # its sigmoid is 9/10


@pytest.fixture
def scored_release(tmp_path: Path) -> Path:
    """Negatives of two queries. Both re-rankers score (Q0, P5) high, one scores (Q0, P2) high, none (Q1, P3)."""
    make_release(tmp_path / "release")
    lines = [{"query-id": Q[0], "negative-ids": [P[2], P[5], P[0]]}, {"query-id": Q[1], "negative-ids": [P[3]]}]
    (tmp_path / "negatives.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_scores(tmp_path / "one.run", {Q[0]: {2: NINE, 5: NINE}, Q[1]: {3: -NINE}})
    write_scores(tmp_path / "two.run", {Q[0]: {2: 0.0, 5: NINE}, Q[1]: {3: -NINE}})
    return tmp_path


def relabel(scored_release: Path, action: str, *words: object, code: int | None = 0) -> Done:
    """Run `annotate relabel` on the negatives."""
    options: list[object] = ["--release", scored_release / "release"]
    options += ["--negatives", scored_release / "negatives.jsonl"]
    options += words
    return run("builders", "annotate", "relabel", action, options, code=code)


def move(scored_release: Path, *words: object, code: int | None = 0) -> Done:
    """Relabel by the scores of both re-rankers."""
    options: list[object] = ["--scores", scored_release / "one.run", scored_release / "two.run"]
    options += ["--out", scored_release / "new"]
    options += words
    return relabel(scored_release, "move", *options, code=code)


def read_moved(release: Path) -> list[dict[str, Any]]:
    """Return the negatives that became positives."""
    return [json.loads(line) for line in (release / "relabelled.train.jsonl").read_text("utf-8").splitlines()]


def moved_pairs(release: Path) -> list[tuple[str, str]]:
    return pairs_in(read_moved(release))


def test_negatives_that_the_ensemble_holds_positive_are_positives_of_the_new_release(scored_release: Path) -> None:
    counts = json.loads(move(scored_release, "--threshold", 0.65, "--format", "json").stdout)
    assert counts == {
        "queries": 4,
        "negatives": 3,
        "held_positive": {"one": 2, "two": 1},
        "moved": 2,
        "queries_with_moved": 1,
        "per_query_before": 1.0,
        "per_query_after": 1.5,
    }
    old_qrels = qrels(scored_release / "release", split="train")
    new_qrels = qrels(scored_release / "new", split="train")
    assert sorted(new_qrels) == sorted([*old_qrels, (Q[0], P[2], 1), (Q[0], P[5], 1)])
    release = open_release(scored_release / "new")
    positives = {row["query_id"]: row["positive_passages"] for row in release.table("train", "train").to_pylist()}
    assert [passage["docid"] for passage in positives[Q[0]]] == [P[0], P[2], P[5]]
    assert positives[Q[0]][1]["text"] == TEXTS[2]
    assert positives[Q[1]] == [{"docid": P[1], "title": "", "text": TEXTS[1]}]
    text = move(scored_release, "--threshold", 0.65).stdout
    assert "moved 2 of 3 negatives (66.7%), of 1 of 4 queries\none scores 2 as positive; two scores 1" in text


def test_the_list_says_who_moved_it_and_a_second_relabelling_goes_on_from_it(scored_release: Path) -> None:
    first = scored_release / "new"
    second = scored_release / "newer"
    move(scored_release, "--threshold", 0.8)
    (row,) = read_moved(first)
    assert row["scores"] == {"one": pytest.approx(0.9), "two": pytest.approx(0.9)}
    move(scored_release, "--threshold", 0.65, "--release", first, "--out", second)
    assert moved_pairs(second) == [(Q[0], P[5]), (Q[0], P[2])]
    assert len(read_moved(first)) == 1


def test_relabelling_from_python_returns_the_run_and_then_the_counts(scored_release: Path) -> None:
    release = scored_release / "release"
    negatives = scored_release / "negatives.jsonl"
    candidates_path = scored_release / "candidates.run"
    candidates = relabel_negatives("candidates", release, negatives=negatives, out=candidates_path)
    assert isinstance(candidates, WrittenFiles)
    assert candidates.paths == (candidates_path,)
    assert candidates.text.endswith(f"queries: {candidates_path}")
    scores = [scored_release / "one.run", read_run(scored_release / "two.run")]
    out = scored_release / "new"
    report = relabel_negatives("move", release, negatives=negatives, scores=scores, threshold=0.65, out=out)
    assert isinstance(report, Report)
    counts, by_model = report.all_tables()
    assert counts.to_pandas()["moved"].tolist() == [2]
    assert by_model.to_csv() == "re-ranker,scored as positive\none,2\ntwo,1\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--threshold", "0.69"], [P[2], P[5]]),  # 0.9 and 0.5: 0.7 on average
        (["--threshold", "0.71"], [P[5]]),
        (["--threshold", "0.69", "--agree", "all"], [P[5]]),
        (["--threshold", "0.95"], []),
        (["--threshold", "1", "--scale", "none"], [P[2], P[5]]),  # ln 9 and 0: 1.1 on average
    ],
)
def test_thresholds_are_for_the_mean_or_each_score(scored_release: Path, words: list[str], expected: list[str]) -> None:
    move(scored_release, *words)
    assert moved_pairs(scored_release / "new") == [(Q[0], passage_id) for passage_id in expected]


def test_what_people_refuted_no_model_takes_back(scored_release: Path) -> None:
    rows = tables()
    rows["qrels", "train"].append({"query-id": Q[0], "corpus-id": P[5], "score": 0})
    make_release(scored_release / "release", rows)
    move(scored_release)
    assert moved_pairs(scored_release / "new") == [(Q[0], P[2])]
    assert (Q[0], P[5], 0) in qrels(scored_release / "new", split="train")


def merge(release: Path, labels: Labels) -> tuple[Path, dict[str, Any]]:
    """Merge a round with an accepted package of these labels. Return the new release and the counts of dev."""
    round_ = judged_round(release.parent / "round", release, {"dev-001": ("accepted", labels)}, "dev")
    out = release.parent / "merged"
    return out, merge_judgments(round_, open_release(release), out)["dev"]


def read_rows(release: Path, config: str, split: str = "dev") -> list[dict[str, Any]]:
    return list(open_release(release).table(config, split).to_pylist())


def qrels(release: Path, config: str = "qrels", split: str = "dev") -> list[tuple[str, str, int]]:
    """Return (query id, passage id, score) of every judgment."""
    return [(row["query-id"], row["corpus-id"], row["score"]) for row in read_rows(release, config, split)]


def check_as_json(release: Path) -> dict[str, Any]:
    """Return what `check` prints."""
    report: dict[str, Any] = json.loads(run("builders", "check", "--release", release, "--format", "json").stdout)
    return report


LABELS = {(ONE, P[0]): 1, (ONE, P[4]): 1, (ONE, P[1]): 0, (TWO, P[5]): 0, (TWO, P[2]): 1}


def test_a_merge_keeps_the_old_qrels_and_joined_rows_follow_in_both_languages(whole_copy: Path) -> None:
    first_qrels = qrels(whole_copy, "qrels-before")
    assert qrels(whole_copy) != first_qrels
    out, _ = merge(whole_copy, LABELS)
    assert qrels(out) == [(ONE, P[4], 1), (ONE, P[0], 1), (ONE, P[1], 0), (TWO, P[5], 0), (TWO, P[2], 1)]
    assert qrels(out, "qrels-before") == first_qrels  # a second merge does not change qrels-before
    assert check_as_json(out)["errors"] == 0
    for config, query_id in (("dev", ONE), ("crosslingual", md5(ENGLISH["高铁票提前几天买"]))):
        joined_rows = {row["query_id"]: row for row in read_rows(out, config)}
        positives = joined_rows[query_id]["positive_passages"]
        assert [(passage["docid"], passage["text"]) for passage in positives] == [(P[4], TEXTS[4]), (P[0], TEXTS[0])]
        # P[0] and P[1] were negatives. P[1] is judged 0.
        assert [passage["docid"] for passage in joined_rows[query_id]["negative_passages"]] == [P[1]]


def test_a_merge_drops_what_was_drawn_from_the_old_judgments(
    whole_copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old_configs = {config for config, _ in open_release(whole_copy).splits()}
    drawn = {config for config in old_configs if config.startswith(("restrain-", "resttest-", "sample-"))}
    assert drawn
    out, _ = merge(whole_copy, LABELS)
    assert {config for config, _ in open_release(out).splits()} == old_configs - drawn | {"qrels-before"}
    assert not read_stats(out).keys() & {"extrapolation", "samples"}
    assert all(config in caplog.text for config in drawn)


def test_the_first_merge_makes_the_old_qrels_qrels_before(whole_copy: Path) -> None:
    old_qrels = qrels(whole_copy)
    shutil.rmtree(whole_copy / "qrels-before")
    manifest_path = whole_copy / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    manifest["files"] = [entry for entry in manifest["files"] if not entry["path"].startswith("qrels-before")]
    manifest_path.write_text(json.dumps(manifest))
    out, _ = merge(whole_copy, LABELS)
    assert qrels(out, "qrels-before") == old_qrels


def test_a_merge_prints_a_row_for_each_split_and_for_the_paper(whole_copy: Path) -> None:
    round_ = judged_round(whole_copy.parent / "round", whole_copy, {"dev-001": ("accepted", LABELS)})
    report = merge_round(round_, release=whole_copy, out=whole_copy.parent / "merged")
    (table,) = report.all_tables()
    rows_by_split = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows_by_split["paper"]["positives a query after"] == 4.91
    false_negatives = report.value["release"]["dev"]["share_with_false_negatives"]
    assert rows_by_split["dev"]["queries with a false negative"] == false_negatives
    assert "| paper |  | 2.43 | 4.91 | 71.53 |" in report.to_markdown()


@pytest.mark.slow
def test_a_query_without_a_positive_stays_and_is_said(whole_copy: Path) -> None:
    out, counts = merge(whole_copy, {(TWO, P[5]): 0})
    assert counts["without_positives"] == 1
    assert [row["query_id"] for row in read_rows(out, "dev")] == [ONE, TWO]
    report = check_as_json(out)
    assert report["errors"] == 0
    findings = {test["test"]: test["findings"] for test in report["tests"]}
    (finding,) = findings["no-positives-left"]
    assert (finding["level"], finding["where"], finding["examples"]) == ("warning", "qrels/dev", [TWO])


def test_packages_that_were_not_accepted_and_models_change_nothing(whole_copy: Path) -> None:
    packages: dict[str, tuple[State, Labels]] = {
        "dev-001": ("accepted", {(ONE, P[0]): 1}),
        "dev-002": ("sent back", {(TWO, P[2]): 1}),
    }
    round_ = judged_round(whole_copy.parent / "round", whole_copy, packages)
    add_judgments(round_, [judgment((ONE, P[0]), 0, "dev-001", "model")])
    merge_judgments(round_, open_release(whole_copy), whole_copy.parent / "merged")
    assert qrels(whole_copy.parent / "merged") == [(ONE, P[4], 1), (ONE, P[0], 1), (TWO, P[5], 1)]


@pytest.mark.parametrize(("state", "passage", "message"), [("open", P[0], "1 of 1 packages"), ("accepted", "x", "'x'")])
def test_a_round_that_does_not_fit_is_refused(whole_copy: Path, state: State, passage: str, message: str) -> None:
    round_ = judged_round(whole_copy.parent / "round", whole_copy, {"dev-001": (state, {(ONE, passage): 1})})
    with pytest.raises(InputError, match=message):
        merge_judgments(round_, open_release(whole_copy), whole_copy.parent / "merged")
    assert not (whole_copy.parent / "merged").exists()
