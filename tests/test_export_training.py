"""Exports of training data with mined negatives, of runs, and of official predictions."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from commands import Done, run
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


def mined(path: Path, rows: dict[str, list[int]]) -> Path:
    lines = [{"query-id": md5(query), "negative-ids": [md5(TEXTS[n]) for n in texts]} for query, texts in rows.items()]
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))
    return path


def export(release: Path, layout: str, *words: object, code: int = 0) -> tuple[Done, Path]:
    out = release.parent / layout
    return run("builders", "export", "--release", release, "--format", layout, "--out", out, *words, code=code), out


PAIRS = [(0, 0, 1.0), (0, 1, 0.0), (0, 2, 0.0), (0, 4, 1.0), (0, 3, 0.0), (0, 5, 0.0), (1, 1, 1.0), (1, 0, 0.0)]
FLAG = [
    {"query": TRAIN[0], "pos": [TEXTS[0], TEXTS[4]], "neg": [TEXTS[n] for n in (1, 2, 3, 5)]},
    {"query": TRAIN[1], "pos": [TEXTS[1]], "neg": [TEXTS[0]]},
]
TRIPLETS = [
    {"query": TRAIN[query], "positive": TEXTS[positive], "negative": TEXTS[negative]}
    for query, positive, negative in ((0, 0, 1), (0, 0, 2), (0, 4, 3), (0, 4, 5), (1, 1, 0))
]
PYLATE = [
    {"query": TRAIN[query], "positive": TEXTS[positive]} | {f"negative_{n}": TEXTS[d] for n, d in enumerate(dealt, 1)}
    for query, positive, dealt in ((0, 0, (1, 2, 3)), (0, 4, (5, 1, 2)), (1, 1, (0, 0, 0)))
]
LABELLED = [{"query": TRAIN[query], "passage": TEXTS[n], "label": label} for query, n, label in PAIRS]
DEALT = {"flagembedding": (4, FLAG), "triplets": (2, TRIPLETS), "pylate": (3, PYLATE)}
DEALT["sentence-transformers"] = (2, LABELLED)


@pytest.mark.parametrize("layout", DEALT)
def test_negatives_are_dealt_to_the_positives(release: Path, layout: str) -> None:
    negatives = mined(release.parent / "mined.gz", {TRAIN[0]: [1, 2, 3, 5], TRAIN[1]: [0], TRAIN[2]: []})
    each, expected = DEALT[layout]
    name = "train.pairs.jsonl" if expected is LABELLED else "train.jsonl"
    done, out = export(release, layout, "--negatives", negatives, "--negatives-per-positive", each)
    assert json_lines(out / name) == expected
    names = {"train.jsonl", name}  # dev has no negatives
    assert {path.name for path in out.iterdir()} == {"EXPORT", *names}
    assert "train.jsonl: skipped 2 queries without a positive or negative passage" in done.stderr
    left_out = json.loads((out / "EXPORT").read_text("utf-8"))["queries_without_a_positive_or_a_negative"]
    assert left_out == dict.fromkeys(names, 2)


def test_mined_negatives_come_before_a_row_s_own_and_none_is_a_positive(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")  # its rows have texts 0 and 1 as negatives
    given = mined(tmp_path / "one.gz", {TRAIN[2]: [5, 2, 1]}), mined(tmp_path / "two.gz", {TRAIN[2]: [4, 5]})
    _, out = export(release, "tevatron", "--negatives", *given)
    rows = json_lines(out / "train.jsonl")
    assert [row["docid"] for row in rows[2]["negative_passages"]] == [md5(TEXTS[n]) for n in (5, 1, 4, 0)]
    assert rows[2]["negative_passages"][0] == {"docid": md5(TEXTS[5]), "title": "", "text": TEXTS[5]}
    del rows[2]
    assert rows == tables()["train", "train"][:2] + tables()["train", "train"][3:]


TIES = "q Q0 c 1 2.5 t\nq Q0 a 2 2.5 t\nq Q0 b 3 2.5000000001 t\nq Q0 d 4 -1 t\nr Q0 a 1 0 t\nr Q0 b 2 0 t\n"


def test_exported_scores_fall_strictly_in_32_bits_and_keep_the_order(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text(TIES)
    ours = {"q": ["b", "c", "a", "d"], "r": ["a", "b"]}
    _, out = export(release, "trec", "--run", tmp_path / "mine.run")
    found: dict[str, list[tuple[str, np.float32]]] = {}
    for line in (out / "runs" / "mine.trec").read_text().splitlines():
        query, _, passage, _, score, tag = line.split()
        found.setdefault(query, []).append((passage, np.float32(score)))
        assert tag == "mine"
    assert {query: [passage for passage, _ in hits] for query, hits in found.items()} == ours
    assert all((np.diff([score for _, score in hits]) < 0).all() for hits in found.values())
    assert found["q"][2][1] == pytest.approx(2.5)
    _, out = export(release, "beir", "--run", tmp_path / "mine.run")
    results = json.loads((out / "runs" / "mine.json").read_text())
    assert {query: sorted(own, key=lambda each: -own[each]) for query, own in results.items()} == ours


def test_trec_eval_finds_in_an_exported_run_what_we_find(release: Path, tmp_path: Path) -> None:
    query, right, wrong = md5(QUESTIONS["dev"][0]), md5(TEXTS[4]), "f" * 32
    (tmp_path / "mine.run").write_text(f"{query} Q0 {right} 1 1.5 t\n{query} Q0 {wrong} 2 1.5 t\n")
    _, out = export(release, "trec", "--run", tmp_path / "mine.run")
    judged = pytrec_eval.RelevanceEvaluator({query: {right: 1}}, {"recip_rank"})

    def reciprocal_rank(path: Path) -> float:
        lines = [line.split() for line in path.read_text().splitlines()]
        return judged.evaluate({query: {line[2]: float(line[4]) for line in lines}})[query]["recip_rank"]

    assert reciprocal_rank(tmp_path / "mine.run") == 0.5  # there, the higher id comes first among equal scores
    assert reciprocal_rank(out / "runs" / "mine.trec") == 1


def test_a_run_without_ties_is_copied_as_it_is(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.trec").write_text("q Q0 a 1 2.123456789012345 t\nq Q0 b 2 1e-30 t\n")
    _, out = export(release, "trec", "--run", tmp_path / "mine.trec")
    assert (out / "runs" / "mine.trec").read_bytes() == (tmp_path / "mine.trec").read_bytes()
    _, out = export(release, "trec", "--run", tmp_path / "mine.trec", "--runs-only")
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == ["EXPORT", "mine.trec"]
    done, _ = export(release, "trec", "--runs-only", code=2)
    assert "--runs-only needs --run" in done.stderr
    (tmp_path / "mine.txt").write_text("q Q0 a 1 2.5 t\n")
    done, _ = export(release, "trec", "--quiet", "--run", tmp_path / "mine.trec", tmp_path / "mine.txt", code=1)
    assert done.error.endswith("another run is also named 'mine'; rename one of the files")


def test_a_finished_export_is_found_again_until_a_run_changes(release: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text(TIES)
    words = ("--run", tmp_path / "mine.run")
    first, out = export(release, "beir", *words)
    written = (out / "EXPORT").stat().st_mtime_ns
    second, _ = export(release, "beir", *words)
    assert "already done" in second.stderr and second.stdout == first.stdout
    assert (out / "EXPORT").stat().st_mtime_ns == written
    (tmp_path / "mine.run").write_text("q Q0 a 1 2.5 t\n")
    assert "the runs changed (1)" in export(release, "beir", *words)[0].stderr


DEV, TEST = ([md5(question) for question in QUESTIONS[split]] for split in ("dev", "test"))
PASSAGES = [md5(text) for text in TEXTS]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A release with two dev questions, answered by passages 4 and 5, and one test question without labels."""
    return make_release(tmp_path / "release")


def export_predictions(plain: Path, given: Path, code: int | None = 0) -> Done:
    out = plain.parent / "out"
    words = ("--release", plain, "--format", "official", "--runs-only", "--run", given, "--out", out)
    return run("builders", "export", *words, code=code)


def written(plain: Path, rankings: dict[str, list[str]], code: int | None = 0) -> Done:
    hits = {query: [(passage, -float(rank)) for rank, passage in enumerate(found)] for query, found in rankings.items()}
    write_run(plain.parent / "a.run.gz", hits.items())
    return export_predictions(plain, plain.parent / "a.run.gz", code)


def read(plain: Path, name: str = "a") -> Any:
    return json.loads((plain.parent / "out" / "predictions" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_predictions_are_in_the_releases_order_and_have_the_official_figures_of_their_run(plain: Path) -> None:
    written(plain, {DEV[1]: [PASSAGES[5]], DEV[0]: [PASSAGES[0], PASSAGES[4]]})
    assert list(read(plain)) == DEV
    files = [plain.parent / name for name in ("a.run.gz", "out/predictions/a.json")]
    words = ("--quiet", "--release", plain, "--format", "json", *files)
    of_run, of_predictions = json.loads(run("baselines", "evaluate", *words).stdout)
    assert of_run["official"] == {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
    assert of_predictions["official"] == of_run["official"]
    written(plain, {TEST[0]: [PASSAGES[3], PASSAGES[0]]})  # a split without labels
    assert read(plain) == {TEST[0]: [PASSAGES[3], PASSAGES[0]]}


def test_queries_that_a_list_of_predictions_lacks_are_named_and_count_0(plain: Path) -> None:
    given = plain.parent / "given.json"
    given.write_text(json.dumps({DEV[1]: [PASSAGES[5], *PASSAGES], DEV[0]: []}), encoding="utf-8")
    done = export_predictions(plain, given)
    assert f"lacks 1 query ({DEV[0]}) of the 2 in dev" in done.stderr and "counts 0" in done.stderr
    assert read(plain, "given") == {DEV[1]: [PASSAGES[5], *PASSAGES[:5]]}  # a passage counts once


@pytest.mark.parametrize(
    ("rankings", "said"),
    [
        ({DEV[0]: [PASSAGES[0]], DEV[1]: [PASSAGES[0]], TEST[0]: [PASSAGES[0]]}, f"has 1 query ({TEST[0]}) that dev"),
        ({DEV[0]: [PASSAGES[0], "0" * 32]}, f"lacks, such as {'0' * 32}"),
    ],
)
def test_predictions_with_wrong_counts_are_refused(plain: Path, rankings: dict[str, list[str]], said: str) -> None:
    assert said in written(plain, rankings, code=1).error
    assert not (plain.parent / "out").exists()
