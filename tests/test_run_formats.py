"""Runs of other tools: BEIR's and mteb's JSON, MS MARCO's TSV, Parquet, and the runs that `export` writes."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines import evaluate, open_release
from builders.core.errors import InputError
from builders.export.export_formats import export_set
from builders.store import reader
from builders.store.runs import read_run, write_run

HITS = {"q": [("a", 3.0), ("b", 2.5), ("c", 2.5)], "r": [("b", -1.0)]}
RESULTS = {"q": {"b": 2.5, "a": 3, "c": 2.5}, "r": {"b": -1.0}, "none": {}}
RANKED = {"q": ["a", "b", "c"], "r": ["b"]}
MTEB = {"mteb_model_meta": {"model_name": "m", "revision": None}}


def write(tmp_path: Path, content: str | bytes, name: str = "some.run") -> Path:
    """Write a file whose name says nothing about its content."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(RESULTS),
        "\ufeff" + json.dumps(RESULTS, indent=1),
        gzip.compress(json.dumps(RESULTS).encode()),
        json.dumps(MTEB | {"default": {"dev": RESULTS}}),
        json.dumps({"dev": RESULTS}),
        json.dumps({"dev": {"q": RESULTS["q"]}, "test": {"r": RESULTS["r"]}}),
        "q\tb\t2\t2.5\nq\ta\t1\t3\r\n\nq\tc\t3\t2.5\nr\tb\t1\t-1\n",
        "q Q0 b 2 2.5 t\nq Q0 a 1 3 t\nq\tQ0\tc\t3\t2.5\tt\nr Q0 b 1 -1 t\n",
    ],
    ids=["BEIR", "BEIR with BOM", "gzipped", "mteb", "mteb, one level", "mteb, two splits", "MS MARCO", "TREC"],
)
def test_the_hits_are_read_whatever_the_name(tmp_path: Path, content: str | bytes) -> None:
    hits = read_run(write(tmp_path, content)).hits
    assert {query_id: ranking for query_id, ranking in hits.items() if ranking} == HITS


def test_equal_scores_of_results_keep_the_order_of_the_file(tmp_path: Path) -> None:
    results = {"q": {"z": 1.0, "a": 1.0, "m": 2.0}}
    assert read_run(write(tmp_path, json.dumps(results))).rankings == {"q": ["m", "z", "a"]}


def test_ms_marco_is_ordered_by_rank(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, "q\tb\t7\nr\tb\t1\nq\ta\t1\nq\tc\t10\n"))
    assert run.rankings == RANKED
    assert run.hits["q"] == [("a", 1.0), ("b", 1 / 2), ("c", 1 / 3)]


@pytest.mark.parametrize("columns", [("query_id", "passage_id"), ("qid", "docno"), ("query-id", "corpus-id")])
def test_parquet_has_a_row_per_hit(tmp_path: Path, columns: tuple[str, str]) -> None:
    rows = [("q", "c", 3, 2.5), ("q", "b", 2, 2.5), ("r", "b", 1, -1.0), ("q", "a", 1, 3.0)]
    frame = pd.DataFrame(rows, columns=[*columns, "rank", "score"])
    frame.to_parquet(tmp_path / "run.gz")
    assert read_run(tmp_path / "run.gz").hits == HITS
    frame.drop(columns="score").to_parquet(tmp_path / "x")
    assert read_run(tmp_path / "x").rankings == RANKED


def test_numbers_as_ids_and_a_frame_of_a_run_are_read_from_parquet(tmp_path: Path) -> None:
    pd.DataFrame({"qid": [7], "docid": [10**12], "score": [1]}).to_parquet(tmp_path / "numbers")
    assert read_run(tmp_path / "numbers").hits == {"7": [(str(10**12), 1.0)]}
    run = read_run(write(tmp_path, json.dumps(RESULTS)))
    run.to_pandas().to_parquet(tmp_path / "again")
    assert read_run(tmp_path / "again").hits == HITS


NO_ANSWERS = {
    **{"query_id": md5(QUESTIONS["dev"][0]), "answers": [], "question_type": "", "fact_or_opinion": ""},
    **{"yesno_answers": [], "entity_answers": [], "source": "", "answer_passages": []},
}
EXPECTED = "expected 6 columns (query-id Q0 corpus-id rank score tag)"
REPEATED = "occurs twice; expected every key once"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a question\n", f":1: {EXPECTED}, found 2; a run may also be MS MARCO's TSV"),
        ("query-id\tcorpus-id\tscore\nq\ta\t1\n", ":1: is a file of judgments; expected a run"),
        ("q\t0\ta\t1\n", ":1: is a file of judgments; expected a run"),
        ("\nq\ta\t1\nq\tb\n", ":3: expected 3 columns of MS MARCO's TSV (query-id, corpus-id, rank), found 2"),
        ("q\ta\t0.5\n", ":1: expected a whole number as the rank, found '0.5'"),
        ("q\ta\t1\n\nq\tb\t1\n", ":3: query 'q' has the rank 1 twice; expected every rank once"),
        ("q\t\t1\n", ":1: the id of the passage is empty"),
        ('{"q": {"a": 1.0},\n"q": {"b": 1.0}}', f":2: the key 'q' {REPEATED}"),
        ('{"q": {"a": 1.0},\n"r": {"b": 1.0,\n "b": 2}}', f":3: the key 'b' {REPEATED}"),
        ('{"q": ["a"],\n"\\u0071": ["b"]}', f":2: the key 'q' {REPEATED}"),
        ('{"q": {"a": "1.0"}}', "q.a: expected `float`, found '1.0'; expected {query id: {passage id: score}} or"),
        ('{"q": {"a": true}}', "q.a: expected `float`"),
        ('{"q": {"a": 1e999}}', "expected a number of at most 64 bits"),
        ('{"dev": {"q": {"a": 1}}, "test": {"q": {"a": 1}}}', "query 'q' is in dev and in test; expected a file"),
        ('{"question": "text"}', "question: expected `object`, found 'text'"),
        ("", "is empty"),
    ],
)
def test_what_is_no_run_is_one_error_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(InputError) as error:
        read_run(path)
    assert message in str(error.value)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"query_id": ["q"], "score": [1.0]}, "Parquet file with the columns query_id, score; expected a row per hit"),
        ({"query_id": ["q"], "docid": ["a"]}, "Parquet file with the columns query_id, docid; expected a row per hit"),
        ({"query_id": ["q", None], "docid": ["a", "b"], "score": [1.0, 2]}, "row 2, column query_id: expected a value"),
        ({"query_id": ["q"], "docid": [""], "score": [1.0]}, "row 1, column docid: expected an id, found ''"),
        ({"query_id": ["q"], "docid": ["a"], "score": ["1"]}, "column score: expected numbers, found"),
        ({"query_id": ["q"], "docid": ["a"], "score": [float("inf")]}, "row 1, column score: expected a finite number"),
        ({"query_id": ["q"] * 2, "docid": ["a", "b"], "rank": [1, 1]}, "row 2: query 'q' has the rank 1 twice"),
        ({"query_id": [0.5], "docid": ["a"], "rank": [1]}, "column query_id: expected texts or whole numbers"),
    ],
)
def test_parquet_of_another_form_is_refused(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    pd.DataFrame(columns).to_parquet(tmp_path / "x.run")
    with pytest.raises(InputError, match=message):
        read_run(tmp_path / "x.run")


@pytest.mark.parametrize(("form", "name"), [("beir", "json"), ("trec", "trec"), ("official", "json"), ("rag", "jsonl")])
def test_what_export_writes_is_read_back(tmp_path: Path, form: str, name: str) -> None:
    release_path = make_release(tmp_path / "release", tables() | {("answers", "dev"): [NO_ANSWERS]})
    passage_ids = [md5(text) for text in TEXTS]
    run_path = tmp_path / "my.run"
    # Equal scores become different scores, in the same order.
    hits = [(passage_id, 1.0) for passage_id in passage_ids[:4]] + [(passage_ids[4], 0.5)]
    write_run(run_path, [(md5(question), hits) for question in QUESTIONS["dev"]])
    export_set(reader.open_release(release_path), form, tmp_path / "out", runs=[run_path], runs_only=True)
    (exported_path,) = (tmp_path / "out").rglob(f"my.{name}")
    exported = read_run(exported_path)
    assert exported.rankings == read_run(run_path).rankings
    release = open_release(release_path)
    assert evaluate(exported_path, release) == evaluate(run_path, release)
    # A run of another format is never copied as it is.
    export_set(reader.open_release(release_path), "trec", tmp_path / "again", runs=[exported_path], runs_only=True)
    assert read_run(tmp_path / "again" / "runs" / "my.trec").rankings == exported.rankings
