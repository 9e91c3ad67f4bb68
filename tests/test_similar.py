"""`similar`: removed training questions (Section 2.3), and training pairs compared with the benchmark."""

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
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

from builders.check.release_report import run_check
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
    """Add training questions with the answer of the first development question."""
    answered_row = rows["dev", "dev"][0]
    judgment = rows["qrels", "dev"][0]
    for text in questions:
        rows["queries", "train"].append({"_id": md5(text), "text": text})
        rows["train", "train"].append(answered_row | {"query_id": md5(text), "query": text})
        rows["qrels", "train"].append(judgment | {"query-id": md5(text)})
    for config, split in list(rows):
        if config in ("train-similar", "duplicated", "others"):
            del rows[config, split]


Release = Callable[..., Path]


@pytest.fixture
def release_with(once: Once) -> Release:
    """Return ``release_with(question, ...)``: a read-only release with additional training questions."""

    def make_release_with(*questions: str) -> Path:
        name = f"similar-{md5('|'.join(questions))}"
        return once(name, lambda folder: make_whole(folder, lambda rows: _add(rows, list(questions))))

    return make_release_with


def _rows(release: Path, config: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split, or none if the release lacks the split."""
    opened = open_release(release)
    if (config, split) not in opened.splits():
        return []
    return list(opened.table(config, split).to_pylist())


def _questions(release: Path, config: str, split: str) -> list[str]:
    """Return the texts of the questions of a split."""
    return [row.get("text") or row["query"] for row in _rows(release, config, split)]


def _scores(path: Path, *pairs: tuple[str, str, float]) -> Path:
    """Write scores of pairs of a benchmark question and a training question as a run."""
    hits: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for question, training_question, score in pairs:
        hits[md5(question)].append((md5(training_question), score))
    write_run(path, hits.items())
    return path


def test_duplicates_are_removed_without_a_model_and_kept_apart(release_with: Release, tmp_path: Path) -> None:
    release = release_with(PUNCTUATED, NEAR, UNLIKE)
    out = tmp_path / "out"
    before = _questions(release, "queries", "train")
    done = run("builders", "similar", "--release", release, "--out", out, "--jaccard", 0.75)
    assert "python -m baselines match" in done.stderr
    remaining = [text for text in before if text not in (PUNCTUATED, NEAR)]
    assert _questions(out, "queries", "train") == remaining
    assert _questions(out, "train", "train") == remaining
    assert {row["query-id"] for row in _rows(out, "qrels", "train")} == {md5(text) for text in remaining}
    removed_rows = [row for row in _rows(release, "train", "train") if row["query"] in (PUNCTUATED, NEAR)]
    assert _rows(out, "train-similar", "train") == removed_rows
    assert removed_rows[0]["positive_passages"]
    assert _questions(out, "duplicated", "dev") == [TICKETS]
    assert _questions(out, "others", "dev") == [PHONE]
    assert _questions(out, "others", "test") == ["哪里可以看雪"]
    assert _rows(out, "corpus", "corpus") == _rows(release, "corpus", "corpus")


def test_the_new_release_passes_every_test_of_check(release_with: Release, tmp_path: Path) -> None:
    release = release_with(PUNCTUATED)
    out = tmp_path / "out"
    scores = _scores(tmp_path / "run", (PHONE, "北京冬天冷吗", 0.9))  # this question has a translation
    assert "北京冬天冷吗" in [row["query_zh"] for row in _rows(release, "crosslingual", "train")]
    run("builders", "similar", "--release", release, "--scores", scores, "--threshold", 0.5, "--out", out)
    assert not run_check(open_release(out)).errors
    assert "北京冬天冷吗" not in [row["query_zh"] for row in _rows(out, "crosslingual", "train")]


def test_a_second_removal_adds_to_the_first(release_with: Release, tmp_path: Path) -> None:
    release, first, out = release_with(PUNCTUATED, PARAPHRASE), tmp_path / "first", tmp_path / "out"
    run("builders", "similar", "--release", release, "--out", first)
    scores = _scores(tmp_path / "run", (PHONE, PARAPHRASE, 0.9))
    words = ["--release", first, "--scores", scores, "--threshold", 0.5, "--out", out, "--format", "json"]
    counts = json.loads(run("builders", "similar", words).stdout)
    assert (counts["removed"], counts["duplicated"]) == (2, 2)
    assert _questions(out, "train-similar", "train") == [PUNCTUATED, PARAPHRASE]
    assert _questions(out, "duplicated", "dev") == [TICKETS, PHONE]
    assert not run_check(open_release(out)).errors


def test_removed_questions_get_joined_rows_even_if_the_release_has_none(tmp_path: Path) -> None:
    def change(rows: Rows) -> None:
        _add(rows, [PUNCTUATED])
        del rows["train", "train"]

    release, out = make_whole(tmp_path / "release", change), tmp_path / "out"
    run("builders", "similar", "--release", release, "--out", out)
    (row,) = _rows(out, "train-similar", "train")
    assert (row["query_id"], row["query"]) == (md5(PUNCTUATED), PUNCTUATED)
    # _add has given the question the answer of the first dev question.
    assert [passage["text"] for passage in row["positive_passages"]] == ["高铁票可以在开车前十五天购买。"]


def test_the_list_names_every_pair(release_with: Release, tmp_path: Path) -> None:
    release = release_with(PUNCTUATED, PARAPHRASE)
    scores = _scores(tmp_path / "run", (PHONE, PUNCTUATED, 0.75), (TICKETS, PARAPHRASE, 0.51), (PHONE, PARAPHRASE, 0.5))
    words = ["--release", release, "--scores", scores, "--out", tmp_path / "out", "--list", tmp_path / "list"]
    refused = run("builders", "similar", words, code=2).stderr  # 0.5 would be wrong for cosines
    assert "--scores needs --threshold: 0.5 for probabilities, or the result of `match --calibrate`" in refused
    run("builders", "similar", words, "--threshold", 0.5)
    lines = [json.loads(line) for line in (tmp_path / "list").read_text(encoding="utf-8").splitlines()]
    pairs = [(line["query"], line["train"], line["by"], line["score"]) for line in lines]
    assert pairs == [
        (TICKETS, PUNCTUATED, "normalised", 1.0),
        (PHONE, PUNCTUATED, "model", 0.75),
        (TICKETS, PARAPHRASE, "model", 0.51),  # the score must be above 0.5
    ]


def test_a_list_inside_the_new_release_is_refused(release_with: Release, tmp_path: Path) -> None:
    release = release_with(PUNCTUATED)
    out = tmp_path / "out"
    words = ["--release", release, "--out", out, "--list", out / "pairs.jsonl"]
    refused = f"--list {out / 'pairs.jsonl'} is inside the release {out}; choose another place"
    assert refused in run("builders", "similar", words, code=2).stderr
    assert not out.exists()
    # A list would replace a file of the release.
    words = ["--release", release, "--out", out, "--list", release / "stats.json"]
    assert f"--list {release / 'stats.json'} is inside the release" in run("builders", "similar", words, code=2).stderr
    words = ["--release", release, "--out", out, "--list", out / "pairs.jsonl"]
    # An earlier release stays.
    run("builders", "similar", "--release", release, "--out", out)
    assert refused in run("builders", "similar", words, code=2).stderr
    assert open_release(out).rows("train-similar", "train") == 1


@pytest.mark.parametrize(
    ("first_text", "second_text", "is_similar"),
    [
        ("孕妇不能吃什么", "孕妇不能吃什么肉", False),
        ("了解是什么意思", "不了解是什么意思", False),
        ("孕妇不能吃什么肉", "请问孕妇不能吃什么肉", True),  # only fillers are added
    ],
)
def test_added_letters_change_the_meaning_unless_they_are_fillers(
    first_text: str, second_text: str, is_similar: bool
) -> None:
    for text, indexed_text in ((first_text, second_text), (second_text, first_text)):
        (likes,) = LikeTexts({"q": indexed_text}, share=0.75).find([text])
        assert bool(likes) is is_similar


def bigrams(text: str) -> set[str]:
    """Return the pairs of neighbouring letters."""
    return {first + second for first, second in pairwise(text)}


def jaccard(first: set[str], second: set[str]) -> float:
    """Return the share of common elements in all elements of two sets."""
    return len(first & second) / len(first | second)


def test_every_near_duplicate_is_found_and_nothing_else() -> None:
    draw = random.Random(7)
    letters = [chr(0x4E00 + number) for number in range(60)]
    texts = ["".join(draw.choices(letters, k=draw.randint(5, 40))) for _ in range(150)]
    changed_texts = []
    for text in texts:
        changed_letters = list(text)
        for position in draw.sample(range(len(text)), k=draw.randint(0, 3)):
            changed_letters[position] = "改"
        changed_texts.append("".join(changed_letters))
    expected = set()
    for changed_number, changed_text in enumerate(changed_texts):
        for number, text in enumerate(texts):
            if jaccard(bigrams(changed_text), bigrams(text)) >= 0.7:
                expected.add((changed_number, str(number)))
    index = LikeTexts({str(number): text for number, text in enumerate(texts)}, ["n-gram"], 2, 0.7)
    pairs = set()
    for changed_number, likes in enumerate(index.find(changed_texts)):
        pairs |= {(changed_number, like.id) for like in likes}
    assert len(expected) > 60
    assert pairs == expected


NEAR_TEXT = TEXTS[5].replace("急着", "急于")
OTHER = "完全不同的一段文字，讲的是怎样种树。"
# A row with TICKETS and its answer, in the format of each library.
ROWS: dict[str, Any] = {
    "FlagEmbedding": {"query": TICKETS, "pos": [TEXTS[4]], "neg": [TEXTS[5]], "prompt": "x"},
    "Tevatron": {
        "query_id": "1",
        "query": TICKETS,
        "negative_passages": [{"docid": "2", "title": "", "text": TEXTS[5]}],
        "positive_passages": [{"docid": "1", "title": "", "text": TEXTS[4]}],
    },
    "triplet": {"anchor": TICKETS, "positive": TEXTS[4], "negative": TEXTS[5]},
    "pair of sentences": {"sentence1": TICKETS, "sentence2": TEXTS[4], "score": 1.0},
    "DuReader": {
        "question_id": "1",
        "question": TICKETS,
        "answer_paragraphs": [{"paragraph_id": "1", "paragraph_text": TEXTS[4]}],
    },
    "list": [TICKETS, TEXTS[4], TEXTS[5]],
}


def _lines(path: Path, rows: Iterable[Any]) -> Path:
    """Write rows as JSON lines, compressed if the name ends in .gz."""
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    content = "".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _report(tmp_path: Path, *words: object) -> dict[str, Any]:
    """Return the report on training pairs, compared with a small release."""
    if not (tmp_path / "release").exists():
        make_release(tmp_path / "release")
    return json.loads(run("builders", "similar", "--release", tmp_path / "release", words, "--format", "json").stdout)


def _dev(report: dict[str, Any]) -> tuple[int, int, int]:
    """Return how many questions, positives and questions with a positive of dev were found."""
    counts = report["all"]["splits"]["dev"]
    question_count = counts["questions"]["found"]
    positive_count = counts["positives"]["found"]
    return question_count, positive_count, counts["questions with a positive"]["found"]


@pytest.mark.parametrize("name", ROWS)
def test_pairs_of_every_library_are_read(tmp_path: Path, name: str) -> None:
    path = _lines(tmp_path / "pairs.jsonl.gz", [ROWS[name]])
    assert _dev(_report(tmp_path, "--against", path)) == (1, 1, 1)


@pytest.mark.parametrize("name", ["FlagEmbedding", "Tevatron", "triplet"])
def test_pairs_in_parquet_are_read(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.Table.from_pylist([ROWS[name]]), tmp_path / "pairs.parquet")
    assert _dev(_report(tmp_path, "--against", tmp_path / "pairs.parquet")) == (1, 1, 1)


def test_texts_without_a_role_are_questions_or_passages(tmp_path: Path) -> None:
    questions = _lines(tmp_path / "queries.jsonl", [{"_id": "1", "text": PHONE}])
    passages = _lines(tmp_path / "corpus.jsonl", [{"_id": "2", "title": "", "text": TEXTS[4]}])
    assert _dev(_report(tmp_path, "--against", questions, passages)) == (1, 1, 0)
    pairs = _lines(tmp_path / "pairs.jsonl", [{"frage": TICKETS, "antwort": TEXTS[4], "text": PHONE}])
    options = ["--question", "frage", "--positive", "antwort"]
    assert _dev(_report(tmp_path, "--against", pairs, *options)) == (1, 1, 1)


def test_each_text_counts_once_by_its_strongest_way(tmp_path: Path) -> None:
    rows = [
        {"query": f"{PHONE}？", "pos": [NEAR_TEXT]},
        {"query": PHONE, "pos": [OTHER]},
        {"query": OTHER, "pos": [NEAR_TEXT, f"{TEXTS[4]}！"]},
    ]
    report = _report(tmp_path, "--against", _lines(tmp_path / "pairs.jsonl", rows), "--jaccard", 0.7)
    assert report["all"]["splits"]["dev"] == {
        "questions": {"of": 2, "found": 1, "exact": 1, "normalised": 0, "n-gram": 0, "model": 0},
        "positives": {"of": 2, "found": 2, "exact": 0, "normalised": 1, "n-gram": 1, "model": 0},
        "questions with a positive": {"of": 2, "found": 1},
    }
    no_question = {"of": 1, "found": 0, "exact": 0, "normalised": 0, "n-gram": 0, "model": 0}
    assert report["all"]["splits"]["test"]["questions"] == no_question
    assert (report["all"]["rows"], report["all"]["texts"]) == (3, {"questions": 3, "passages": 4})


def test_a_model_s_scores_find_paraphrases(tmp_path: Path) -> None:
    rows = [{"query": PARAPHRASE, "pos": [OTHER]}, {"query": OTHER, "pos": []}]
    pairs = _lines(tmp_path / "pairs.jsonl", rows)
    release = make_release(tmp_path / "release")
    words = ["--release", release, "--against", pairs, "--questions", tmp_path / "questions"]
    run("builders", "similar", words)
    questions = open_release(tmp_path / "questions")
    assert questions.table("queries", "train")["text"].to_pylist() == [PARAPHRASE, OTHER]
    assert questions.table("queries", "dev").to_pylist() == tables()["queries", "dev"]
    training_ids = questions.table("queries", "train")["_id"].to_pylist()
    write_run(tmp_path / "run", [(md5(TICKETS), [(training_ids[0], 0.8), (training_ids[1], 0.5)])])
    words = ["--against", pairs, "--scores", tmp_path / "run", "--threshold", 0.5]
    counts = _report(tmp_path, *words)["all"]["splits"]["dev"]["questions"]
    assert (counts["found"], counts["model"]) == (1, 1)


def test_examples_show_both_texts_and_their_line(tmp_path: Path) -> None:
    rows = [{"query": OTHER, "pos": [OTHER]}]
    for mark in "？！。…、":
        rows.append({"query": f"{TICKETS}{mark}", "pos": [NEAR_TEXT]})
    (file,) = _report(tmp_path, "--against", _lines(tmp_path / "pairs.jsonl", rows), "--jaccard", 0.7)["files"]
    examples = []
    for example in file["examples"]:
        examples.append((example["kind"], example["how"], example["line"], example["text"], example["found"]))
    # By turns, a question and its positive. Only the first three lines are examples.
    assert examples == [
        ("question", "normalised", 2, TICKETS, f"{TICKETS}？"),
        ("positive", "n-gram", 2, TEXTS[5], NEAR_TEXT),
        ("question", "normalised", 3, TICKETS, f"{TICKETS}！"),
        ("positive", "n-gram", 3, TEXTS[5], NEAR_TEXT),
        ("question", "normalised", 4, TICKETS, f"{TICKETS}。"),
        ("positive", "n-gram", 4, TEXTS[5], NEAR_TEXT),
    ]


def test_the_report_is_text_on_stdout_or_in_a_file(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    pairs = _lines(tmp_path / "pairs.jsonl", [{"query": f"{TICKETS}！\u0007", "pos": []}])
    words = ["--release", release, "--against", pairs]
    text = run("builders", "similar", words).stdout
    assert "dev: questions" in text and "50.00%" in text
    assert rf"  question, normalised (1), line 1: {TICKETS} = {TICKETS}！\x07" in text.splitlines()
    assert not run("builders", "similar", words, "--out", tmp_path / "report.txt").stdout
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") == text
    assert not run("builders", "similar", words, "--out", tmp_path / "report.json", "--format", "json").stdout
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["all"]["rows"] == 1


def test_python_gets_the_release_with_a_report_or_the_report(release_with: Release, tmp_path: Path) -> None:
    release = find_similar(release_with(PUNCTUATED), out=tmp_path / "out", by=["exact", "normalised"])
    assert isinstance(release, WrittenRelease) and release.path == tmp_path / "out"
    assert release.report.value["by"]["normalised"] == 1
    pairs = _lines(tmp_path / "pairs.jsonl", [{"query": f"{TICKETS}！", "pos": []}])
    report = find_similar(release, against=[pairs])
    assert isinstance(report, Report)
    dev = report.to_pandas().query("file == 'All files' and split == 'dev' and text == 'questions'")
    assert dev[["of", "found", "share"]].values.tolist() == [[2, 1, 0.5]]
    with pytest.raises(UsageError, match="--scores needs --threshold"):
        find_similar(release, out=tmp_path / "more", scores=[tmp_path / "run"])


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    rows = []
    for number in range(2_100):
        rows.append({"query": f"{TICKETS}？" if number % 7 == 0 else f"{OTHER}{number}", "pos": []})
    rows.append({"query": PHONE, "pos": [TEXTS[5]]})
    pairs = _lines(tmp_path / "pairs.jsonl", rows)
    of_one_process = _report(tmp_path, "--against", pairs, "--workers", 1)
    of_two_processes = _report(tmp_path, "--against", pairs, "--workers", 2)
    assert of_one_process == of_two_processes
    assert _dev(of_one_process) == (2, 1, 1)
