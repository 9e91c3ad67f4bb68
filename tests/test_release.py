"""`release` from raw rows: Algorithm 1, passages, rows and files, and builds that are killed."""

import gzip
import hashlib
import itertools
import json
import subprocess
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import ROOT, Done, command, run, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import md5, raw_row, write_rows

from builders.core.errors import UsageError
from builders.release import rows as raw
from builders.release.build import build_from_raw
from builders.release.build_release import build_release
from builders.release.label import label_rows
from builders.release.paragraphs import cut_passages
from builders.sources import lines as blocks
from builders.store import layout
from builders.store.reader import open_release
from builders.store.written_release import WrittenRelease
from builders.text.span_f1 import Questions, f1, is_positive, label_questions
from builders.text.span_options import Options
from builders.text.span_scan import best_f1

LONG = "绿萝喜阴,放在散光处,见干见湿,冬天少浇水。" * 15  # 330 characters


def build(*words: object, code: int = 0) -> Done:
    return run("builders", "release", *words, code=code)


def rows_of(release: Path, config: str, split: str) -> list[dict[str, Any]]:
    return open_release(release).table(config, split).to_pylist()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    shared = "两个问题都用得上的一段话,同一篇文章里写着答案。"
    train = [
        raw_row(1, "绿萝怎么养", [["步骤阅读", LONG, "最后一句。"], [shared]], ["见干见湿,冬天少浇水"]),
        raw_row(2, "绿萝怎么浇水", [[shared], [""], [" ", "\u3000"]], ["同一篇文章里写着答案"]),
        raw_row(3, "谁也答不上来的问题", [["无关的话。"]], ["完全不同"]),
        raw_row(4, "没有人答", [["没有人答这个。"]], []),
        raw_row(1, "绿萝怎么养", [["绿萝要少晒太阳,见干见湿,冬天少浇水。"]], ["见干见湿,冬天少浇水"]),
    ]
    test = [raw_row(9, "测试问题", [["行分隔\u2028符", LONG]])]
    write_rows(tmp_path / "raw/search.train.json", train)
    write_rows(tmp_path / "raw/search.test.json", test)
    return tmp_path / "raw"


def test_python_gets_the_release_with_a_report(small: Path, tmp_path: Path) -> None:
    release = build_release([str(small)], out=tmp_path / "out", threshold=0.5, unit="char")  # type: ignore[arg-type,list-item]
    assert isinstance(release, WrittenRelease) and release.rows("queries", "test") == 1
    assert tree(release.path) == tree(
        build_release(
            train=[small / "search.train.json"], test=[small / "search.test.json"], out=tmp_path / "again", unit="char"
        ).path
    )
    table, _ = release.report.all_tables()
    assert list(table.columns) == ["statistic", "train", "test"] and table.rows[0] == ["queries", 2, 1]
    with pytest.raises(UsageError, match="threshold: expected a number above 0 and at most 1"):
        build_release([small], out=tmp_path / "more", threshold=Fraction(3, 2))


def test_a_small_release_by_hand(small: Path, tmp_path: Path) -> None:
    done = build("--raw", small, "--out", tmp_path / "out", "--unit", "char", "--format", "json")
    first, rest = "步骤阅读" + LONG, "最后一句。"
    shared = "两个问题都用得上的一段话,同一篇文章里写着答案。"
    again = "绿萝要少晒太阳,见干见湿,冬天少浇水。"
    texts = [first, rest, shared, "无关的话。", "没有人答这个。", again, "行分隔\u2028符" + LONG]
    assert rows_of(tmp_path / "out", "corpus", "corpus") == [{"_id": md5(t), "title": "", "text": t} for t in texts]
    assert [row["text"] for row in rows_of(tmp_path / "out", "queries", "train")] == ["绿萝怎么养", "绿萝怎么浇水"]
    judged = [("绿萝怎么养", first), ("绿萝怎么养", again), ("绿萝怎么浇水", shared)]
    assert rows_of(tmp_path / "out", "qrels", "train") == [
        {"query-id": md5(query), "corpus-id": md5(text), "score": 1} for query, text in judged
    ]
    joined = rows_of(tmp_path / "out", "train", "train")
    assert [(r["query"], [p["text"] for p in r["positive_passages"]], r["negative_passages"]) for r in joined] == [
        ("绿萝怎么养", [first, again], []),
        ("绿萝怎么浇水", [shared], []),
    ]
    test = rows_of(tmp_path / "out", "test", "test")
    assert test == [
        {"query_id": md5("测试问题"), "query": "测试问题", "positive_passages": [], "negative_passages": []}
    ]
    assert not (tmp_path / "out/qrels/test-00000-of-00001.parquet").exists()
    stats = json.loads(done.stdout)
    assert stats == json.loads((tmp_path / "out/stats.json").read_text())
    table = {"queries": 2, "positive_passages": 3, "passages_per_query": 1.5, "chars_per_query": 5.5}
    table["chars_per_passage"] = round((len(first) + len(again) + len(shared)) / 3, 4)
    assert stats["table3"]["train"] == table
    read = {"questions": 5, "answered": 4, "same_text_again": 1, "without_positive": 2, "blank_passages_dropped": 1}
    assert stats["read"]["train"] == read
    assert stats["collections"]["corpus"]["passages"] == len(texts)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_real_rows_give_the_official_passages(shared_data: Path, tmp_path: Path, workers: int) -> None:
    done = build("--raw", shared_data / "dureader-2.0-demo", "--out", tmp_path / "out", "--workers", workers)
    for split in ("train", "dev", "test"):
        assert f"{split}: 100 questions read" in done.stdout
    corpus = {r["_id"]: r["text"] for r in rows_of(tmp_path / "out", "corpus", "corpus")}
    assert all(md5(text) == key for key, text in corpus.items())
    # Every passage of the official samples from these rows' documents equals a passage of the release.
    documents: dict[str, list[str]] = {}  # question -> texts of its documents, with joined paragraphs
    for path in (shared_data / "dureader-2.0-demo").iterdir():
        for line in gzip.decompress(path.read_bytes()).splitlines():
            found = json.loads(line)
            documents[found["question"]] = ["".join(each["paragraphs"]) for each in found["documents"]]
    samples = shared_data / "dureader-retrieval-samples"
    train, passages = (
        [line.split("\t") for line in (samples / name).read_text("utf-8").split("\n") if line]
        for name in ("cross.train.tsv", "dureader.para")
    )
    official = {fields[2] for fields in train} | {fields[1] for fields in passages}
    every = [text for texts in documents.values() for text in texts]
    comparable = {text for text in official if any(text in document for document in every)}
    assert comparable == official & set(corpus.values())
    positives = {(fields[0], fields[2]) for fields in train if fields[3] == "1"}
    assert (len(official), len(comparable), len(positives)) == (186, 22, 20)
    assert all(any(text in document for document in documents[question]) for question, text in positives)
    # The ids of the published dev questions are also the MD5 of their texts.
    for query in rows_of(tmp_path / "out", "queries", "test"):
        assert query["_id"] == md5(query["text"])


def test_the_count_of_positive_paragraphs_on_the_real_rows(shared_data: Path) -> None:
    """Compare with an independent count: 993 positives on characters, 997 on the words of the rows."""
    for unit, expected in (("char", 993), ("word", 997)):
        positive = 0
        for block in blocks.read_blocks(raw.find_sources([shared_data / "dureader-2.0-demo"])):
            rows = [row for _, row in raw.parse_rows(block, segmented=unit == "word")]
            positive += int(label_rows(rows, Options(unit=unit)).sum())
        assert positive == expected


def test_words_are_cut_where_the_rows_carry_none(tmp_path: Path) -> None:
    bare = raw_row(1, "绿萝怎么浇水", [["绿萝浇水要见干见湿"]], ["浇水要见干见湿"])
    cut = json.loads(json.dumps(bare))
    import jieba

    cut["documents"][0]["segmented_paragraphs"] = [jieba.lcut(t) for t in cut["documents"][0]["paragraphs"]]
    cut["segmented_answers"] = [jieba.lcut(t) for t in cut["answers"]]
    for name, content in (("bare", bare), ("cut", cut)):
        write_rows(tmp_path / name / "train.json", [content])
        build("--raw", tmp_path / name, "--out", tmp_path / f"{name}.out")
    assert rows_of(tmp_path / "bare.out", "qrels", "train") == rows_of(tmp_path / "cut.out", "qrels", "train")


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_not_a_byte(small: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, options = raw.find_sources([small]), Options(unit="char", min_chars=4)
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 2)
    build_from_raw(sources, tmp_path / "plain", options)
    monkeypatch.setattr("builders.release.build._SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(blocks.read_blocks, "__defaults__", (64, ()))  # so that the shared passage is in several blocks
    build_from_raw(sources, tmp_path / "blocks", options, workers)
    assert tree(tmp_path / "plain") == tree(tmp_path / "blocks")
    found = open_release(tmp_path / "blocks")
    assert len(found.shards("corpus", "corpus")) == -(-found.rows("corpus", "corpus") // 2) > 3


def test_an_earlier_release_is_replaced_and_names_no_machine(small: Path, tmp_path: Path) -> None:
    build("--raw", small, "--out", tmp_path / "out")
    build("--raw", small, "--out", tmp_path / "out", "--unit", "char")
    assert json.loads((tmp_path / "out/manifest.json").read_text())["builds"][0]["options"]["unit"] == "char"
    for name in ("manifest.json", "README.md", "stats.json"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()


def test_splits_can_be_given(small: Path, tmp_path: Path) -> None:
    rows, other = tmp_path / "rows.json", tmp_path / "other.json"
    rows.write_bytes((small / "search.train.json").read_bytes())
    other.write_bytes((small / "search.test.json").read_bytes())
    build("--dev", rows, "--test", other, "--out", tmp_path / "out", "--unit", "char")
    assert open_release(tmp_path / "out").rows("qrels", "dev") == 3
    error = build("--raw", rows, "--out", tmp_path / "out", code=1).stderr
    assert "expected one of train, dev and test in the name" in error


def test_a_build_or_its_worker_is_killed_and_goes_on(shared_data: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "raw", tmp_path / "out"
    source.mkdir()
    for split in ("train", "dev", "test"):
        packed = (shared_data / f"dureader-2.0-demo/search.{split}.json.gz").read_bytes()
        # The same rows again are merged away: more work to be killed in, the same release.
        (source / f"search.{split}.json").write_bytes(gzip.decompress(packed) * 7)
    options = ["--raw", source, "--unit", "char", "--workers", 2]
    run("builders", "release", *options, "--out", tmp_path / "whole")
    finished = dict[str, int]()
    for number in range(4):
        words = command("builders", "release", *options, "--out", out)
        process = psutil.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(blocks_of(tmp_path)) <= len(finished):
            time.sleep(0.01)
        children = process.children(recursive=True)
        for each in children[-1:] if number % 2 else [process, *children]:
            each.kill()
        assert process.wait(60) and not psutil.wait_procs(children, timeout=30)[1] and not out.exists()
        assert finished.items() <= blocks_of(tmp_path).items()  # no block was built again
        finished = blocks_of(tmp_path)
    run("builders", "release", *options, "--out", out)
    assert tree(out) == tree(tmp_path / "whole")
    assert {p.name for p in tmp_path.iterdir() if p.name[0] != "."} == {"raw", "out", "whole"}


def blocks_of(folder: Path) -> dict[str, int]:
    """Return the inode of every finished block of the build. A block that is labelled again gets another inode."""
    found = folder.glob(".out.building/*/*")
    return {p.name: p.stat().st_ino for p in found if p.name.isdigit() and p.parent.name != "discarded"}


documents = st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=12)
lengths = st.integers(1, 40)


def cut(*documents: list[tuple[str, bool]], least: int) -> list[tuple[int, str, bool]]:
    marks = np.array([mark for document in documents for _, mark in document], np.bool_)
    found = cut_passages([[text for text, _ in document] for document in documents], marks, least)
    assert found.chars.tolist() == [len(text) for text in found.texts.to_pylist()]
    assert found.ids.to_pylist() == [hashlib.md5(text.encode()).hexdigest() for text in found.texts.to_pylist()]
    assert found.blank().tolist() == [not text.strip() for text in found.texts.to_pylist()]
    return list(zip(found.document.tolist(), found.texts.to_pylist(), found.positive.tolist(), strict=True))


@given(documents, lengths)
def test_passages_have_all_text_and_the_right_length(paragraphs: list[tuple[str, bool]], least: int) -> None:
    texts = [text for _, text, _ in cut(paragraphs, least=least)]
    assert "".join(texts) == "".join(text for text, _ in paragraphs)
    assert all(len(text) >= least for text in texts[:-1]) and all(texts)
    for text in texts:  # without its last paragraph, the passage is too short
        assert any(len(text) - len(last) < least for last, _ in paragraphs if last and text.endswith(last))


@given(documents, lengths)
def test_a_passage_is_positive_if_any_of_its_paragraphs_is(paragraphs: list[tuple[str, bool]], least: int) -> None:
    rest = [(text, mark) for text, mark in paragraphs if text]
    for _, text, mark in cut(rest, least=least):
        own = []
        while sum(len(paragraph) for paragraph, _ in own) < len(text):
            own.append(rest.pop(0))
        assert mark == any(positive for _, positive in own)


@given(st.lists(documents, max_size=4), lengths)
def test_documents_cut_together_are_cut_as_alone(many: list[list[tuple[str, bool]]], least: int) -> None:
    alone = [(number, text, mark) for number, own in enumerate(many) for _, text, mark in cut(own, least=least)]
    assert cut(*many, least=least) == alone


def test_what_is_kept_stays_together() -> None:
    found = cut_passages([["一", " "], ["三"]], np.array([True, True, False]), 1)
    kept = found.keep(~found.blank())
    assert kept.texts.to_pylist() == ["一", "三"]
    assert (kept.chars.tolist(), kept.positive.tolist(), kept.document.tolist()) == ([1, 1], [True, False], [0, 1])


THRESHOLDS = [Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(9, 10), Fraction(1)]


def brute_best(paragraph: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Return the maximum of F1(s, a) over all spans s, as the paper defines it."""
    spans = itertools.combinations(range(len(paragraph) + 1), 2)
    return max((f1(paragraph[start:end], answer) for start, end in spans), default=Fraction(0))


def questions(*rows: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]) -> Questions:
    """Return questions of these (paragraphs, answers), whose texts are lists of token ids."""
    texts, answers = [p for row in rows for p in row[0]], [a for row in rows for a in row[1]]
    flat, flat_answers = (np.array([t for text in group for t in text], np.int32) for group in (texts, answers))
    ends, answer_ends = (np.cumsum([len(text) for text in group], dtype=np.int64) for group in (texts, answers))
    counts, answer_counts = (np.cumsum([len(row[side]) for row in rows], dtype=np.int64) for side in (0, 1))
    return Questions(flat, ends, counts, flat_answers, answer_ends, answer_counts)


def best(paragraph: Sequence[int], answer: Sequence[int]) -> Fraction:
    texts = (np.array(text, np.int32) for text in (paragraph, answer))
    return Fraction(*best_f1(*texts, np.zeros(1 + max([*paragraph, *answer], default=0), np.int32)))


def label(
    paragraphs: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    threshold: Fraction = Fraction(1, 2),
    match: str = "threshold",
) -> list[bool]:
    return label_questions(questions((paragraphs, answers)), threshold, match).tolist()  # type: ignore[no-any-return]


def chars(texts: Sequence[str]) -> list[list[int]]:
    return [[ord(c) for c in text] for text in texts]


tokens = st.lists(st.integers(0, 5), max_size=14)


@given(
    paragraph=st.lists(st.integers(0, 9), max_size=40) | tokens, answer=tokens, threshold=st.sampled_from(THRESHOLDS)
)
@settings(max_examples=150)
def test_f1_and_decision_equal_brute_force(paragraph: list[int], answer: list[int], threshold: Fraction) -> None:
    expected = brute_best(paragraph, answer)
    assert best(paragraph, answer) == expected
    assert label([paragraph], [answer], threshold) == [expected >= threshold]
    assert is_positive(paragraph, [answer], threshold) == (expected >= threshold)


@given(
    paragraphs=st.lists(st.text(alphabet="一二三ab", max_size=9), max_size=4),
    answers=st.lists(st.text(alphabet="一二三ab", max_size=6), max_size=3),
    threshold=st.sampled_from(THRESHOLDS),
)
@settings(max_examples=100)
def test_labels_of_a_question_equal_brute_force(paragraphs: list[str], answers: list[str], threshold: Fraction) -> None:
    scores = [[brute_best(paragraph, answer) for answer in answers] for paragraph in paragraphs]
    reached = [any(score >= threshold for score in row) for row in scores]
    assert label(chars(paragraphs), chars(answers), threshold) == reached
    top = [max((row[j] for row in scores), default=Fraction(0)) for j in range(len(answers))]
    expected = [any(s == top[j] and s >= threshold for j, s in enumerate(row)) for row in scores]
    assert label(chars(paragraphs), chars(answers), threshold, "best") == expected


rows = st.lists(st.tuples(st.lists(tokens, max_size=3), st.lists(tokens, max_size=2)), max_size=4)


@given(rows=rows, match=st.sampled_from(["threshold", "best"]))
@settings(max_examples=100)
def test_questions_are_labelled_independently(rows: list[tuple[list[list[int]], list[list[int]]]], match: str) -> None:
    together = label_questions(questions(*rows), match=match).tolist() if rows else []
    assert together == [mark for paragraphs, answers in rows for mark in label(paragraphs, answers, match=match)]
