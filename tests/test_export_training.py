"""Exports of training data with mined negatives, of runs, and of official predictions."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from commands import Done, names, run
from releases import QUESTIONS, TEXTS, json_lines, make_release, md5, tables

from builders.store.runs import write_run

TRAIN = QUESTIONS["train"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release without negatives. Text n answers train question n; text 4 also answers the first question."""
    rows = tables()
    for split in ("train", "dev"):
        for row in rows[split, split]:
            row["negative_passages"] = []
    rows["train", "train"][0]["positive_passages"].append({"docid": md5(TEXTS[4]), "title": "", "text": TEXTS[4]})
    rows["qrels", "train"].append({"query-id": md5(TRAIN[0]), "corpus-id": md5(TEXTS[4]), "score": 1})
    return make_release(tmp_path / "release", rows)


def write_negatives(path: Path, texts_by_query: dict[str, list[int]]) -> Path:
    """Write a file of mined negatives, from the numbers of texts for each question."""
    lines = []
    for question, text_numbers in texts_by_query.items():
        negative_ids = [md5(TEXTS[number]) for number in text_numbers]
        lines.append(json.dumps({"query-id": md5(question), "negative-ids": negative_ids}) + "\n")
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))
    return path


def export(release: Path, layout: str, *words: object, code: int = 0) -> tuple[Done, Path]:
    """Export the release to a folder beside it, and return the folder, too."""
    out = release.parent / layout
    return run("builders", "export", "--release", release, "--format", layout, "--out", out, words, code=code), out


# Query 0 has the positives 0 and 4 and the negatives 1, 2, 3 and 5. Query 1 has the positive 1 and the negative 0.
FLAG = [
    {"query": TRAIN[0], "pos": [TEXTS[0], TEXTS[4]], "neg": [TEXTS[1], TEXTS[2], TEXTS[3], TEXTS[5]]},
    {"query": TRAIN[1], "pos": [TEXTS[1]], "neg": [TEXTS[0]]},
]
TRIPLETS = [
    {"query": TRAIN[0], "positive": TEXTS[0], "negative": TEXTS[1]},
    {"query": TRAIN[0], "positive": TEXTS[0], "negative": TEXTS[2]},
    {"query": TRAIN[0], "positive": TEXTS[4], "negative": TEXTS[3]},
    {"query": TRAIN[0], "positive": TEXTS[4], "negative": TEXTS[5]},
    {"query": TRAIN[1], "positive": TEXTS[1], "negative": TEXTS[0]},
]
PYLATE = [
    {
        "query": TRAIN[0],
        "positive": TEXTS[0],
        "negative_1": TEXTS[1],
        "negative_2": TEXTS[2],
        "negative_3": TEXTS[3],
    },
    {
        "query": TRAIN[0],
        "positive": TEXTS[4],
        "negative_1": TEXTS[5],
        "negative_2": TEXTS[1],
        "negative_3": TEXTS[2],
    },
    {
        "query": TRAIN[1],
        "positive": TEXTS[1],
        "negative_1": TEXTS[0],
        "negative_2": TEXTS[0],
        "negative_3": TEXTS[0],
    },
]
LABELLED = [
    {"query": TRAIN[0], "passage": TEXTS[0], "label": 1.0},
    {"query": TRAIN[0], "passage": TEXTS[1], "label": 0.0},
    {"query": TRAIN[0], "passage": TEXTS[2], "label": 0.0},
    {"query": TRAIN[0], "passage": TEXTS[4], "label": 1.0},
    {"query": TRAIN[0], "passage": TEXTS[3], "label": 0.0},
    {"query": TRAIN[0], "passage": TEXTS[5], "label": 0.0},
    {"query": TRAIN[1], "passage": TEXTS[1], "label": 1.0},
    {"query": TRAIN[1], "passage": TEXTS[0], "label": 0.0},
]
# By format: the number of negatives per positive, the name of the file, and its rows.
DEALT = {
    "flagembedding": (4, "train.jsonl", FLAG),
    "triplets": (2, "train.jsonl", TRIPLETS),
    "pylate": (3, "train.jsonl", PYLATE),
    "sentence-transformers": (2, "train.pairs.jsonl", LABELLED),
}


@pytest.mark.parametrize("layout", DEALT)
def test_negatives_are_dealt_to_the_positives(release: Path, layout: str) -> None:
    negatives = write_negatives(release.parent / "mined.gz", {TRAIN[0]: [1, 2, 3, 5], TRAIN[1]: [0], TRAIN[2]: []})
    per_positive, name, expected_rows = DEALT[layout]
    done, out = export(release, layout, "--negatives", negatives, "--negatives-per-positive", per_positive)
    assert json_lines(out / name) == expected_rows
    training_files = {"train.jsonl", name}  # dev has no negatives
    assert set(names(out)) == training_files | {"EXPORT"}
    assert "train.jsonl: skipped 2 queries without a positive or negative passage" in done.stderr
    marker = json.loads((out / "EXPORT").read_text("utf-8"))
    assert marker["queries_without_a_positive_or_a_negative"] == dict.fromkeys(training_files, 2)


def test_mined_negatives_come_before_a_row_s_own_and_none_is_a_positive(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")  # its rows have texts 0 and 1 as negatives
    first_file = write_negatives(tmp_path / "one.gz", {TRAIN[2]: [5, 2, 1]})
    second_file = write_negatives(tmp_path / "two.gz", {TRAIN[2]: [4, 5]})
    _, out = export(release, "tevatron", "--negatives", first_file, second_file)
    rows = json_lines(out / "train.jsonl")
    negatives = rows.pop(2)["negative_passages"]
    assert [passage["text"] for passage in negatives] == [TEXTS[5], TEXTS[1], TEXTS[4], TEXTS[0]]
    assert negatives[0] == {"docid": md5(TEXTS[5]), "title": "", "text": TEXTS[5]}
    # The rows of all other queries are as in the release.
    rows_before = tables()["train", "train"]
    del rows_before[2]
    assert rows == rows_before


TIES = "q Q0 c 1 2.5 t\nq Q0 a 2 2.5 t\nq Q0 b 3 2.5000000001 t\nq Q0 d 4 -1 t\nr Q0 a 1 0 t\nr Q0 b 2 0 t\n"
RANKINGS_OF_TIES = {"q": ["b", "c", "a", "d"], "r": ["a", "b"]}


def test_exported_scores_fall_strictly_in_32_bits_and_keep_the_order(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text(TIES)
    _, out = export(release, "trec", "--run", tmp_path / "mine.run")
    passage_ids: dict[str, list[str]] = {}
    scores: dict[str, list[np.float32]] = {}
    for line in (out / "runs" / "mine.trec").read_text().splitlines():
        query_id, _, passage_id, _, score, tag = line.split()
        passage_ids.setdefault(query_id, []).append(passage_id)
        scores.setdefault(query_id, []).append(np.float32(score))
        assert tag == "mine"
    assert passage_ids == RANKINGS_OF_TIES
    for scores_of_query in scores.values():
        assert (np.diff(scores_of_query) < 0).all()
    assert scores["q"][2] == pytest.approx(2.5)


def test_exported_json_keeps_the_order(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text(TIES)
    _, out = export(release, "beir", "--run", tmp_path / "mine.run")
    results = json.loads((out / "runs" / "mine.json").read_text())
    for query_id, scores in results.items():
        assert sorted(scores, key=scores.get, reverse=True) == RANKINGS_OF_TIES[query_id]
    assert results.keys() == RANKINGS_OF_TIES.keys()


def test_trec_eval_finds_in_an_exported_run_what_we_find(release: Path, tmp_path: Path) -> None:
    query_id = md5(QUESTIONS["dev"][0])
    positive_id = md5(TEXTS[4])
    negative_id = "f" * 32
    run_path = tmp_path / "mine.run"
    run_path.write_text(f"{query_id} Q0 {positive_id} 1 1.5 t\n{query_id} Q0 {negative_id} 2 1.5 t\n")
    _, out = export(release, "trec", "--run", run_path)
    evaluator = pytrec_eval.RelevanceEvaluator({query_id: {positive_id: 1}}, {"recip_rank"})

    def reciprocal_rank(path: Path) -> float:
        scores = {}
        for line in path.read_text().splitlines():
            fields = line.split()
            scores[fields[2]] = float(fields[4])
        return evaluator.evaluate({query_id: scores})[query_id]["recip_rank"]

    assert reciprocal_rank(run_path) == 0.5  # there, the higher id comes first among equal scores
    assert reciprocal_rank(out / "runs" / "mine.trec") == 1


def test_a_run_without_ties_is_copied_as_it_is(release: Path, tmp_path: Path) -> None:
    run_path = tmp_path / "mine.trec"
    run_path.write_text("q Q0 a 1 2.123456789012345 t\nq Q0 b 2 1e-30 t\n")
    _, out = export(release, "trec", "--run", run_path)
    assert (out / "runs" / "mine.trec").read_bytes() == run_path.read_bytes()
    _, out = export(release, "trec", "--run", run_path, "--runs-only")
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == ["EXPORT", "mine.trec"]
    done, _ = export(release, "trec", "--runs-only", code=2)
    assert "--runs-only needs --run" in done.stderr
    (tmp_path / "mine.txt").write_text("q Q0 a 1 2.5 t\n")
    done, _ = export(release, "trec", "--quiet", "--run", run_path, tmp_path / "mine.txt", code=1)
    assert done.error.endswith("another run is also named 'mine'; rename one of the files")


def test_a_finished_export_is_found_again_until_a_run_changes(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text(TIES)
    run_option = ("--run", tmp_path / "mine.run")
    first_done, out = export(release, "beir", *run_option)
    modification_time = (out / "EXPORT").stat().st_mtime_ns
    second_done, _ = export(release, "beir", *run_option)
    assert "already done" in second_done.stderr and second_done.stdout == first_done.stdout
    assert (out / "EXPORT").stat().st_mtime_ns == modification_time
    (tmp_path / "mine.run").write_text("q Q0 a 1 2.5 t\n")
    assert "the runs changed (1)" in export(release, "beir", *run_option)[0].stderr


DEV = [md5(question) for question in QUESTIONS["dev"]]
TEST = [md5(question) for question in QUESTIONS["test"]]
PASSAGES = [md5(text) for text in TEXTS]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A release with two dev questions, answered by passages 4 and 5, and one test question without labels."""
    return make_release(tmp_path / "release")


def export_predictions(release: Path, run_path: Path, code: int | None = 0) -> Done:
    """Export a run as official predictions."""
    out = release.parent / "out"
    words = ("--release", release, "--format", "official", "--runs-only", "--run", run_path, "--out", out)
    return run("builders", "export", words, code=code)


def export_rankings(release: Path, rankings: dict[str, list[str]], code: int | None = 0) -> Done:
    """Write a run with these rankings, and export it as official predictions."""
    hits_by_query = {}
    for query_id, passage_ids in rankings.items():
        hits_by_query[query_id] = [(passage_id, -float(rank)) for rank, passage_id in enumerate(passage_ids)]
    write_run(release.parent / "a.run.gz", hits_by_query.items())
    return export_predictions(release, release.parent / "a.run.gz", code)


def read_predictions(release: Path, name: str = "a") -> Any:
    """Return the predictions that :func:`export_predictions` wrote."""
    path = release.parent / "out" / "predictions" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_predictions_are_in_the_releases_order_and_have_the_official_figures_of_their_run(plain: Path) -> None:
    export_rankings(plain, {DEV[1]: [PASSAGES[5]], DEV[0]: [PASSAGES[0], PASSAGES[4]]})
    assert list(read_predictions(plain)) == DEV
    run_path = plain.parent / "a.run.gz"
    predictions_path = plain.parent / "out" / "predictions" / "a.json"
    words = ("--quiet", "--release", plain, "--format", "json", run_path, predictions_path)
    run_figures, prediction_figures = json.loads(run("baselines", "evaluate", words).stdout)
    assert run_figures["official"] == {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
    assert prediction_figures["official"] == run_figures["official"]


def test_a_split_without_labels_has_predictions(plain: Path) -> None:
    rankings = {TEST[0]: [PASSAGES[3], PASSAGES[0]]}
    export_rankings(plain, rankings)
    assert read_predictions(plain) == rankings


def test_queries_that_a_list_of_predictions_lacks_are_named_and_count_0(plain: Path) -> None:
    predictions_path = plain.parent / "given.json"
    predictions_path.write_text(json.dumps({DEV[1]: [PASSAGES[5], *PASSAGES], DEV[0]: []}), encoding="utf-8")
    done = export_predictions(plain, predictions_path)
    assert f"lacks 1 query ({DEV[0]}) of the 2 in dev" in done.stderr and "counts 0" in done.stderr
    # A passage counts once.
    assert read_predictions(plain, "given") == {DEV[1]: [PASSAGES[5], *PASSAGES[:5]]}


@pytest.mark.parametrize(
    ("rankings", "problem"),
    [
        ({DEV[0]: [PASSAGES[0]], DEV[1]: [PASSAGES[0]], TEST[0]: [PASSAGES[0]]}, f"has 1 query ({TEST[0]}) that dev"),
        ({DEV[0]: [PASSAGES[0], "0" * 32]}, f"lacks, such as {'0' * 32}"),
    ],
)
def test_predictions_with_wrong_counts_are_refused(plain: Path, rankings: dict[str, list[str]], problem: str) -> None:
    assert problem in export_rankings(plain, rankings, code=1).error
    assert not (plain.parent / "out").exists()
