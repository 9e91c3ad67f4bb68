"""Test the comparison of training pairs with the benchmark."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.store.reader import open_release
from builders.store.runs import write_run

TICKETS, PHONE = QUESTIONS["dev"]  # answered by TEXTS[4] and TEXTS[5]
NEAR = TEXTS[5].replace("急着", "急于")
OTHER = "完全不同的一段文字，讲的是怎样种树。"

# A row with TICKETS and its answer, in the format of each library.
ROWS: dict[str, Any] = {
    "FlagEmbedding": {"query": TICKETS, "pos": [TEXTS[4]], "neg": [TEXTS[5]], "prompt": "x"},
    "Tevatron": {
        **{"query_id": "1", "query": TICKETS, "negative_passages": [{"docid": "2", "title": "", "text": TEXTS[5]}]},
        "positive_passages": [{"docid": "1", "title": "", "text": TEXTS[4]}],
    },
    "triplet": {"anchor": TICKETS, "positive": TEXTS[4], "negative": TEXTS[5]},
    "pair of sentences": {"sentence1": TICKETS, "sentence2": TEXTS[4], "score": 1.0},
    "DuReader": {
        **{"question_id": "1", "question": TICKETS},
        "answer_paragraphs": [{"paragraph_id": "1", "paragraph_text": TEXTS[4]}],
    },
    "list": [TICKETS, TEXTS[4], TEXTS[5]],
}


def _lines(path: Path, *rows: Any) -> Path:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _report(tmp_path: Path, *words: object) -> dict[str, Any]:
    if not (tmp_path / "release").exists():
        make_release(tmp_path / "release")
    done = run("builders", "similar", "--release", tmp_path / "release", *words, "--format", "json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _dev(report: dict[str, Any]) -> tuple[int, int, int]:
    found = report["all"]["splits"]["dev"]
    return tuple(found[kind]["found"] for kind in ("questions", "positives", "questions with a positive"))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ROWS)
def test_pairs_of_every_library_are_read(tmp_path: Path, name: str) -> None:
    """A row's negative passage does not count, even if it is a positive of the benchmark."""
    assert _dev(_report(tmp_path, "--against", _lines(tmp_path / "pairs.jsonl.gz", ROWS[name]))) == (1, 1, 1)
    if name in ("FlagEmbedding", "Tevatron", "triplet"):
        pq.write_table(pa.Table.from_pylist([ROWS[name]]), tmp_path / "pairs.parquet")
        assert _dev(_report(tmp_path, "--against", tmp_path / "pairs.parquet")) == (1, 1, 1)


def test_texts_without_a_role_are_questions_or_passages(tmp_path: Path) -> None:
    questions = _lines(tmp_path / "queries.jsonl", {"_id": "1", "text": PHONE})
    passages = _lines(tmp_path / "corpus.jsonl", {"_id": "2", "title": "", "text": TEXTS[4]})
    assert _dev(_report(tmp_path, "--against", questions, passages)) == (1, 1, 0)
    pairs = _lines(tmp_path / "pairs.jsonl", {"frage": TICKETS, "antwort": TEXTS[4], "text": PHONE})
    options = ["--question", "frage", "--positive", "antwort"]
    assert _dev(_report(tmp_path, "--against", pairs, *options)) == (1, 1, 1)


def test_each_text_counts_once_by_its_strongest_way(tmp_path: Path) -> None:
    rows = [
        {"query": f"{PHONE}？", "pos": [NEAR]},
        {"query": PHONE, "pos": [OTHER]},
        {"query": OTHER, "pos": [NEAR, f"{TEXTS[4]}！"]},
    ]
    report = _report(tmp_path, "--against", _lines(tmp_path / "pairs.jsonl", *rows), "--jaccard", 0.7)
    of, none = {"of": 2}, dict.fromkeys(("exact", "normalised", "n-gram", "model"), 0)
    assert report["all"]["splits"]["dev"] == {
        "questions": {**of, "found": 1, **none, "exact": 1},
        "positives": {**of, "found": 2, **none, "normalised": 1, "n-gram": 1},
        "questions with a positive": {"of": 2, "found": 1},
    }
    assert report["all"]["splits"]["test"]["questions"] == {"of": 1, "found": 0, **none}
    assert (report["all"]["rows"], report["all"]["texts"]) == (3, {"questions": 3, "passages": 4})


def test_a_model_s_scores_find_paraphrases(tmp_path: Path) -> None:
    pairs = _lines(
        tmp_path / "pairs.jsonl", {"query": "火车票早多久可以订", "pos": [OTHER]}, {"query": OTHER, "pos": []}
    )
    release = make_release(tmp_path / "release")
    words = ["--release", release, "--against", pairs, "--questions", tmp_path / "questions"]
    run("builders", "similar", *words)
    questions = open_release(tmp_path / "questions")
    assert questions.table("queries", "train")["text"].to_pylist() == ["火车票早多久可以订", OTHER]
    assert questions.table("queries", "dev").to_pylist() == tables()["queries", "dev"]
    trained = questions.table("queries", "train")["_id"].to_pylist()
    write_run(tmp_path / "run", [(md5(TICKETS), [(trained[0], 0.8), (trained[1], 0.5)])])
    found = _report(tmp_path, "--against", pairs, "--scores", tmp_path / "run")["all"]["splits"]["dev"]["questions"]
    assert (found["found"], found["model"]) == (1, 1)


def test_examples_show_both_texts_and_their_line(tmp_path: Path) -> None:
    rows = [{"query": OTHER, "pos": [OTHER]}, *[{"query": f"{TICKETS}{mark}", "pos": [NEAR]} for mark in "？！。…、"]]
    pairs = _lines(tmp_path / "pairs.jsonl", *rows)
    (file,) = _report(tmp_path, "--against", pairs, "--jaccard", 0.7)["files"]
    found = [(each["kind"], each["how"], each["line"], each["text"], each["found"]) for each in file["examples"]]
    assert found[::2] == [("question", "normalised", n, TICKETS, TICKETS + mark) for n, mark in enumerate("？！。", 2)]
    assert found[1::2] == [("positive", "n-gram", n, TEXTS[5], NEAR) for n in (2, 3, 4)]


def test_the_report_is_text_on_stdout_or_in_a_file(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    pairs = _lines(tmp_path / "pairs.jsonl", {"query": f"{TICKETS}！\u0007", "pos": []})
    words = ["--release", release, "--against", pairs]
    text = run("builders", "similar", *words).stdout
    assert "dev: questions" in text and "50.00%" in text
    assert rf"  question, normalised (1), line 1: {TICKETS} = {TICKETS}！\x07" in text.splitlines()
    assert not run("builders", "similar", *words, "--out", tmp_path / "report.txt").stdout
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    rows = [{"query": f"{TICKETS}？" if number % 7 == 0 else f"{OTHER}{number}", "pos": []} for number in range(2_100)]
    pairs = _lines(tmp_path / "pairs.jsonl", *rows, {"query": PHONE, "pos": [TEXTS[5]]})
    one, two = (_report(tmp_path, "--against", pairs, "--workers", workers) for workers in (1, 2))
    assert one == two
    assert _dev(one) == (2, 1, 1)
