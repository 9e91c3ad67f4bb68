"""`similar`: removed training questions (Section 2.3), and training pairs compared with the benchmark."""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from conftest import Once
from releases import TEXTS, make_release, md5, tables
from whole_release import Rows, make_whole

from builders.check.release_report import check
from builders.core.errors import UsageError
from builders.core.results import Report
from builders.similar.find_similar import find_similar
from builders.store.reader import open_release
from builders.store.runs import write_run
from builders.store.written_release import WrittenRelease
from builders.text.likeness import LikeTexts

# Additional training questions. The first two are similar to a development question, the last is not.
PUNCTUATED, NEAR, UNLIKE = "高铁票 提前几天买？", "那么高铁票提前几天买", "饺子馅怎么调"
TICKETS, PHONE, PARAPHRASE = "高铁票提前几天买", "手机进水怎么办", "火车票早多久可以订"


def _add(rows: Rows, questions: list[str]) -> None:
    answered = rows["dev", "dev"][0]
    for text in questions:
        rows["queries", "train"].append({"_id": md5(text), "text": text})
        rows["train", "train"].append({**answered, "query_id": md5(text), "query": text})
        rows["qrels", "train"].append({**rows["qrels", "dev"][0], "query-id": md5(text)})
    for config, split in [key for key in rows if key[0] in ("train-similar", "duplicated", "others")]:
        del rows[config, split]


Release = Callable[..., Path]


@pytest.fixture
def release_with(once: Once) -> Release:
    """Return ``release_with(question, ...)``: a read-only release with additional training questions."""

    def made(*questions: str) -> Path:
        name = f"similar-{md5('|'.join(questions))}"
        return once(name, lambda folder: make_whole(folder, lambda rows: _add(rows, list(questions))))

    return made


def _rows(release: Path, config: str, split: str) -> list[dict[str, Any]]:
    found = open_release(release)
    return list(found.table(config, split).to_pylist()) if (config, split) in found.splits() else []


def _questions(release: Path, config: str, split: str) -> list[str]:
    return [row.get("text") or row["query"] for row in _rows(release, config, split)]


def _scores(path: Path, *pairs: tuple[str, str, float]) -> Path:
    hits: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for question, trained, score in pairs:
        hits[md5(question)].append((md5(trained), score))
    write_run(path, hits.items())
    return path


def test_duplicates_are_removed_without_a_model_and_kept_apart(release_with: Release, tmp_path: Path) -> None:
    release, out = release_with(PUNCTUATED, NEAR, UNLIKE), tmp_path / "out"
    before = _questions(release, "queries", "train")
    done = run("builders", "similar", "--release", release, "--out", out, "--jaccard", 0.75)
    assert "python -m baselines match" in done.stderr
    left = [text for text in before if text not in (PUNCTUATED, NEAR)]
    assert _questions(out, "queries", "train") == left == _questions(out, "train", "train")
    assert {row["query-id"] for row in _rows(out, "qrels", "train")} == {md5(text) for text in left}
    kept = [row for row in _rows(release, "train", "train") if row["query"] in (PUNCTUATED, NEAR)]
    assert _rows(out, "train-similar", "train") == kept and kept[0]["positive_passages"]
    assert _questions(out, "duplicated", "dev") == [TICKETS]
    assert _questions(out, "others", "dev") == [PHONE] and _questions(out, "others", "test") == ["哪里可以看雪"]
    assert _rows(out, "corpus", "corpus") == _rows(release, "corpus", "corpus")


def test_the_new_release_passes_every_test_of_check(release_with: Release, tmp_path: Path) -> None:
    release, out = release_with(PUNCTUATED), tmp_path / "out"
    scores = _scores(tmp_path / "run", (PHONE, "北京冬天冷吗", 0.9))  # this question has a translation
    run("builders", "similar", "--release", release, "--scores", scores, "--threshold", 0.5, "--out", out)
    assert not check(open_release(out)).errors
    assert "北京冬天冷吗" not in [row["query_zh"] for row in _rows(out, "crosslingual", "train")]


def test_a_second_removal_adds_to_the_first(release_with: Release, tmp_path: Path) -> None:
    release, first, out = release_with(PUNCTUATED, PARAPHRASE), tmp_path / "first", tmp_path / "out"
    run("builders", "similar", "--release", release, "--out", first)
    scores = _scores(tmp_path / "run", (PHONE, PARAPHRASE, 0.9))
    words = ["--release", first, "--scores", scores, "--threshold", 0.5, "--out", out, "--format", "json"]
    counts = json.loads(run("builders", "similar", *words).stdout)
    assert (counts["removed"], counts["duplicated"]) == (2, 2)
    assert _questions(out, "train-similar", "train") == [PUNCTUATED, PARAPHRASE]
    assert _questions(out, "duplicated", "dev") == [TICKETS, PHONE]
    assert not check(open_release(out)).errors


def test_a_release_without_joined_rows_keeps_the_removed_ones_joined(tmp_path: Path) -> None:
    def change(rows: Rows) -> None:
        _add(rows, [PUNCTUATED])
        del rows["train", "train"]

    release, out = make_whole(tmp_path / "release", change), tmp_path / "out"
    run("builders", "similar", "--release", release, "--out", out)
    (row,) = _rows(out, "train-similar", "train")
    assert (row["query_id"], row["query"]) == (md5(PUNCTUATED), PUNCTUATED)
    assert [passage["text"] for passage in row["positive_passages"]] == ["高铁票可以在开车前十五天购买。"]


def test_the_list_names_every_pair(release_with: Release, tmp_path: Path) -> None:
    release = release_with(PUNCTUATED, PARAPHRASE)
    scores = _scores(tmp_path / "run", (PHONE, PUNCTUATED, 0.75), (TICKETS, PARAPHRASE, 0.51), (PHONE, PARAPHRASE, 0.5))
    words = ["--release", release, "--scores", scores, "--out", tmp_path / "out", "--list", tmp_path / "list"]
    refused = run("builders", "similar", *words, code=2).stderr  # 0.5 would be wrong for cosines
    assert "--scores needs --threshold: 0.5 for probabilities, or the result of `match --calibrate`" in refused
    run("builders", "similar", *words, "--threshold", 0.5)
    lines = [json.loads(line) for line in (tmp_path / "list").read_text(encoding="utf-8").splitlines()]
    found = [(line["query"], line["train"], line["by"], line["score"]) for line in lines]
    assert found == [
        (TICKETS, PUNCTUATED, "normalised", 1.0),
        (PHONE, PUNCTUATED, "model", 0.75),
        (TICKETS, PARAPHRASE, "model", 0.51),  # the score must be above 0.5
    ]


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        ("孕妇不能吃什么", "孕妇不能吃什么肉", False),
        ("了解是什么意思", "不了解是什么意思", False),
        ("孕妇不能吃什么肉", "请问孕妇不能吃什么肉", True),  # only fillers are added
    ],
)
def test_added_letters_change_the_meaning_unless_they_are_fillers(one: str, other: str, found: bool) -> None:
    for text, asked in ((one, other), (other, one)):
        (likes,) = LikeTexts({"q": asked}, share=0.75).find([text])
        assert bool(likes) is found


def test_every_near_duplicate_is_found_and_nothing_else() -> None:
    draw = random.Random(7)
    letters = [chr(0x4E00 + number) for number in range(60)]
    texts = ["".join(draw.choices(letters, k=draw.randint(5, 40))) for _ in range(150)]
    others = []
    for text in texts:
        places = draw.sample(range(len(text)), k=draw.randint(0, 3))
        others.append("".join("改" if place in places else letter for place, letter in enumerate(text)))

    def grams(text: str) -> set[str]:
        return {first + second for first, second in pairwise(text)}

    expected = {
        (place, str(number))
        for place, other in enumerate(others)
        for number, text in enumerate(texts)
        if len(grams(other) & grams(text)) / len(grams(other) | grams(text)) >= 0.7
    }
    index = LikeTexts({str(number): text for number, text in enumerate(texts)}, ["n-gram"], 2, 0.7)
    found = {(place, like.id) for place, likes in enumerate(index.find(others)) for like in likes}
    assert len(expected) > 60
    assert found == expected


NEAR_TEXT = TEXTS[5].replace("急着", "急于")
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
    return json.loads(run("builders", "similar", "--release", tmp_path / "release", *words, "--format", "json").stdout)


def _dev(report: dict[str, Any]) -> tuple[int, int, int]:
    found = report["all"]["splits"]["dev"]
    return tuple(found[kind]["found"] for kind in ("questions", "positives", "questions with a positive"))  # type: ignore[return-value]


@pytest.mark.parametrize("name", ROWS)
def test_pairs_of_every_library_are_read(tmp_path: Path, name: str) -> None:
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
        {"query": f"{PHONE}？", "pos": [NEAR_TEXT]},
        {"query": PHONE, "pos": [OTHER]},
        {"query": OTHER, "pos": [NEAR_TEXT, f"{TEXTS[4]}！"]},
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
    words = ["--against", pairs, "--scores", tmp_path / "run", "--threshold", 0.5]
    found = _report(tmp_path, *words)["all"]["splits"]["dev"]["questions"]
    assert (found["found"], found["model"]) == (1, 1)


def test_examples_show_both_texts_and_their_line(tmp_path: Path) -> None:
    rows = [
        {"query": OTHER, "pos": [OTHER]},
        *[{"query": f"{TICKETS}{mark}", "pos": [NEAR_TEXT]} for mark in "？！。…、"],
    ]
    (file,) = _report(tmp_path, "--against", _lines(tmp_path / "pairs.jsonl", *rows), "--jaccard", 0.7)["files"]
    found = [(each["kind"], each["how"], each["line"], each["text"], each["found"]) for each in file["examples"]]
    assert found[::2] == [("question", "normalised", n, TICKETS, TICKETS + mark) for n, mark in enumerate("？！。", 2)]
    assert found[1::2] == [("positive", "n-gram", n, TEXTS[5], NEAR_TEXT) for n in (2, 3, 4)]


def test_the_report_is_text_on_stdout_or_in_a_file(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    pairs = _lines(tmp_path / "pairs.jsonl", {"query": f"{TICKETS}！\u0007", "pos": []})
    words = ["--release", release, "--against", pairs]
    text = run("builders", "similar", *words).stdout
    assert "dev: questions" in text and "50.00%" in text
    assert rf"  question, normalised (1), line 1: {TICKETS} = {TICKETS}！\x07" in text.splitlines()
    assert not run("builders", "similar", *words, "--out", tmp_path / "report.txt").stdout
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text
    assert not run("builders", "similar", *words, "--out", tmp_path / "report.json", "--format", "json").stdout
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["all"]["rows"] == 1


def test_python_gets_the_release_with_a_report_or_the_report(release_with: Release, tmp_path: Path) -> None:
    release = find_similar(release_with(PUNCTUATED), out=tmp_path / "out", by=["exact", "normalised"])
    assert isinstance(release, WrittenRelease) and release.path == tmp_path / "out"
    assert release.report.value["by"]["normalised"] == 1
    pairs = _lines(tmp_path / "pairs.jsonl", {"query": f"{TICKETS}！", "pos": []})
    report = find_similar(release, against=[pairs])
    assert isinstance(report, Report)
    dev = report.to_pandas().query("file == 'All files' and split == 'dev' and text == 'questions'")
    assert dev[["of", "found", "share"]].values.tolist() == [[2, 1, 0.5]]
    with pytest.raises(UsageError, match="--scores needs --threshold"):
        find_similar(release, out=tmp_path / "more", scores=[tmp_path / "run"])


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    rows = [{"query": f"{TICKETS}？" if number % 7 == 0 else f"{OTHER}{number}", "pos": []} for number in range(2_100)]
    pairs = _lines(tmp_path / "pairs.jsonl", *rows, {"query": PHONE, "pos": [TEXTS[5]]})
    one, two = (_report(tmp_path, "--against", pairs, "--workers", workers) for workers in (1, 2))
    assert one == two
    assert _dev(one) == (2, 1, 1)
