"""`release` from raw rows: Algorithm 1, passages, rows and files, and builds that are killed."""

import gzip
import hashlib
import itertools
import json
import math
import subprocess
import time
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import ROOT, Done, command, run, tree
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from releases import md5, raw_row, write_rows

from builders.core.errors import UsageError
from builders.release import rows as raw
from builders.release.build import build_from_raw
from builders.release.build_release import build_release
from builders.release.label import label_rows
from builders.release.paragraphs import cut_passages
from builders.sources import lines as source_lines
from builders.store import layout
from builders.store.reader import open_release
from builders.store.written_release import WrittenRelease
from builders.text.span_f1 import QuestionTokens, is_positive, label_questions, token_f1
from builders.text.span_options import SpanOptions
from builders.text.span_scan import best_f1

SECONDS_TO_END = 300  # limit for the end of a killed process on a busy machine
LONG = "绿萝喜阴,放在散光处,见干见湿,冬天少浇水。" * 15  # 330 characters


def build(*words: object, code: int = 0) -> Done:
    return run("builders", "release", words, code=code)


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
    assert isinstance(release, WrittenRelease)
    assert release.rows("queries", "test") == 1
    same_release = build_release(
        train=[small / "search.train.json"], test=[small / "search.test.json"], out=tmp_path / "again", unit="char"
    )
    assert tree(release.path) == tree(same_release.path)
    table, _ = release.report.all_tables()
    assert list(table.columns) == ["statistic", "train", "test"]
    assert table.rows[0] == ["queries", 2, 1]
    with pytest.raises(UsageError, match="threshold: expected a number above 0 and at most 1"):
        build_release([small], out=tmp_path / "more", threshold=Fraction(3, 2))


# Texts of the release of ``small``, in the order of the corpus.
FIRST_TEXT = "步骤阅读" + LONG
SHARED_TEXT = "两个问题都用得上的一段话,同一篇文章里写着答案。"
SECOND_TEXT = "绿萝要少晒太阳,见干见湿,冬天少浇水。"
SMALL_TEXTS = [
    FIRST_TEXT,
    "最后一句。",
    SHARED_TEXT,
    "无关的话。",
    "没有人答这个。",
    SECOND_TEXT,
    "行分隔\u2028符" + LONG,
]


def test_a_small_release_by_hand(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build("--raw", small, "--out", out, "--unit", "char")
    assert rows_of(out, "corpus", "corpus") == [{"_id": md5(text), "title": "", "text": text} for text in SMALL_TEXTS]
    assert [row["text"] for row in rows_of(out, "queries", "train")] == ["绿萝怎么养", "绿萝怎么浇水"]
    assert rows_of(out, "qrels", "train") == [
        {"query-id": md5("绿萝怎么养"), "corpus-id": md5(FIRST_TEXT), "score": 1},
        {"query-id": md5("绿萝怎么养"), "corpus-id": md5(SECOND_TEXT), "score": 1},
        {"query-id": md5("绿萝怎么浇水"), "corpus-id": md5(SHARED_TEXT), "score": 1},
    ]
    training_rows = []
    for row in rows_of(out, "train", "train"):
        positive_texts = [passage["text"] for passage in row["positive_passages"]]
        training_rows.append((row["query"], positive_texts, row["negative_passages"]))
    assert training_rows == [
        ("绿萝怎么养", [FIRST_TEXT, SECOND_TEXT], []),
        ("绿萝怎么浇水", [SHARED_TEXT], []),
    ]
    assert rows_of(out, "test", "test") == [
        {"query_id": md5("测试问题"), "query": "测试问题", "positive_passages": [], "negative_passages": []}
    ]
    assert not (out / "qrels/test-00000-of-00001.parquet").exists()


def test_the_statistics_of_a_small_release_by_hand(small: Path, tmp_path: Path) -> None:
    done = build("--raw", small, "--out", tmp_path / "out", "--unit", "char", "--format", "json")
    stats = json.loads(done.stdout)
    assert stats == json.loads((tmp_path / "out/stats.json").read_text())
    positive_chars = len(FIRST_TEXT) + len(SECOND_TEXT) + len(SHARED_TEXT)
    assert stats["table3"]["train"] == {
        "queries": 2,
        "positive_passages": 3,
        "passages_per_query": 1.5,
        "chars_per_query": 5.5,
        "chars_per_passage": round(positive_chars / 3, 4),
    }
    assert stats["read"]["train"] == {
        "questions": 5,
        "answered": 4,
        "same_text_again": 1,
        "without_positive": 2,
        "blank_passages_dropped": 1,
    }
    assert stats["collections"]["corpus"]["passages"] == len(SMALL_TEXTS)


def read_documents(raw_folder: Path) -> dict[str, list[str]]:
    """Return the documents of each question, with joined paragraphs."""
    documents: dict[str, list[str]] = {}
    for path in raw_folder.iterdir():
        for line in gzip.decompress(path.read_bytes()).splitlines():
            row = json.loads(line)
            documents[row["question"]] = ["".join(document["paragraphs"]) for document in row["documents"]]
    return documents


def read_fields(path: Path) -> list[list[str]]:
    """Return the fields of every line of a table with tabs."""
    return [line.split("\t") for line in path.read_text("utf-8").split("\n") if line]


@pytest.mark.parametrize("workers", [1, 3])
def test_the_real_rows_give_the_official_passages(shared_data: Path, tmp_path: Path, workers: int) -> None:
    raw_folder = shared_data / "dureader-2.0-demo"
    samples = shared_data / "dureader-retrieval-samples"
    done = build("--raw", raw_folder, "--out", tmp_path / "out", "--workers", workers)
    for split in ("train", "dev", "test"):
        assert f"{split}: 100 questions read" in done.stdout
    corpus = {row["_id"]: row["text"] for row in rows_of(tmp_path / "out", "corpus", "corpus")}
    assert all(md5(text) == passage_id for passage_id, text in corpus.items())
    # Every passage of the official samples from these rows' documents equals a passage of the release.
    documents = read_documents(raw_folder)
    all_documents = "\n".join("\n".join(texts) for texts in documents.values())
    training_fields = read_fields(samples / "cross.train.tsv")
    official = {fields[2] for fields in training_fields}
    official |= {fields[1] for fields in read_fields(samples / "dureader.para")}
    comparable = {text for text in official if text in all_documents}
    assert comparable == official & set(corpus.values())
    positives = {(fields[0], fields[2]) for fields in training_fields if fields[3] == "1"}
    assert (len(official), len(comparable), len(positives)) == (186, 22, 20)
    for question, text in positives:
        assert any(text in document for document in documents[question])
    # The ids of the published dev questions are also the MD5 of their texts.
    for query in rows_of(tmp_path / "out", "queries", "test"):
        assert query["_id"] == md5(query["text"])


def test_the_count_of_positive_paragraphs_on_the_real_rows(shared_data: Path) -> None:
    """Compare with an independent count: 993 positives on characters, 997 on the words of the rows."""
    for unit, expected_count in (("char", 993), ("word", 997)):
        positive_count = 0
        for block in source_lines.read_blocks(raw.find_sources([shared_data / "dureader-2.0-demo"])):
            rows = [row for _, row in raw.parse_rows(block, segmented=unit == "word")]
            positive_count += int(label_rows(rows, SpanOptions(unit=unit)).sum())
        assert positive_count == expected_count


def test_words_are_cut_where_the_rows_carry_none(tmp_path: Path) -> None:
    import jieba

    bare_row = raw_row(1, "绿萝怎么浇水", [["绿萝浇水要见干见湿"]], ["浇水要见干见湿"])
    cut_row = json.loads(json.dumps(bare_row))
    document = cut_row["documents"][0]
    document["segmented_paragraphs"] = [jieba.lcut(text) for text in document["paragraphs"]]
    cut_row["segmented_answers"] = [jieba.lcut(text) for text in cut_row["answers"]]
    for name, row in (("bare", bare_row), ("cut", cut_row)):
        write_rows(tmp_path / name / "train.json", [row])
        build("--raw", tmp_path / name, "--out", tmp_path / f"{name}.out")
    assert rows_of(tmp_path / "bare.out", "qrels", "train") == rows_of(tmp_path / "cut.out", "qrels", "train")


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_not_a_byte(small: Path, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = raw.find_sources([small])
    options = SpanOptions(unit="char", min_chars=4)
    monkeypatch.setattr(layout, "ROWS_PER_SHARD", 2)
    build_from_raw(sources, tmp_path / "plain", options)
    monkeypatch.setattr("builders.release.build._SMALL_INPUT_BYTES", 0)
    monkeypatch.setattr(source_lines, "BLOCK_BYTES", 64)  # so that the shared passage is in several blocks
    build_from_raw(sources, tmp_path / "blocks", options, workers)
    assert tree(tmp_path / "plain") == tree(tmp_path / "blocks")
    release = open_release(tmp_path / "blocks")
    shard_count = len(release.shards("corpus", "corpus"))
    assert shard_count == math.ceil(release.rows("corpus", "corpus") / 2)
    assert shard_count > 3


def test_an_earlier_release_is_replaced_and_names_no_machine(small: Path, tmp_path: Path) -> None:
    build("--raw", small, "--out", tmp_path / "out")
    build("--raw", small, "--out", tmp_path / "out", "--unit", "char")
    assert json.loads((tmp_path / "out/manifest.json").read_text())["builds"][0]["options"]["unit"] == "char"
    for name in ("manifest.json", "README.md", "stats.json"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()


def test_whole_documents_are_passages(tmp_path: Path) -> None:
    long_document = ["绿萝喜欢潮湿的环境。" * 40, "绿萝浇水要见干见湿。", " "]
    row = raw_row(1, "绿萝怎么浇水", [long_document, ["松树长在山上。"]], ["浇水要见干见湿"])
    write_rows(tmp_path / "raw/dev.json", [row])
    build("--raw", tmp_path / "raw", "--out", tmp_path / "out", "--whole-documents")
    passages = [passage["text"] for passage in rows_of(tmp_path / "out", "corpus", "corpus")]
    assert passages == ["".join(long_document), "松树长在山上。"]
    assert [row["corpus-id"] for row in rows_of(tmp_path / "out", "qrels", "dev")] == [md5(passages[0])]
    options = json.loads((tmp_path / "out/manifest.json").read_text())["builds"][0]["options"]
    assert options["whole_documents"] is True and "min_chars" not in options
    # The same call finds the release, and another cut builds it anew.
    assert "whole_documents" in build("--raw", tmp_path / "raw", "--out", tmp_path / "out", "--min-chars", 64).stderr
    words = ["--raw", tmp_path / "raw", "--out", tmp_path / "out", "--whole-documents", "--min-chars", 64]
    assert "--min-chars and --whole-documents exclude each other" in build(*words, code=2).stderr


def test_splits_can_be_given(small: Path, tmp_path: Path) -> None:
    dev_path = tmp_path / "rows.json"
    test_path = tmp_path / "other.json"
    dev_path.write_bytes((small / "search.train.json").read_bytes())
    test_path.write_bytes((small / "search.test.json").read_bytes())
    build("--dev", dev_path, "--test", test_path, "--out", tmp_path / "out", "--unit", "char")
    assert open_release(tmp_path / "out").rows("qrels", "dev") == 3
    error = build("--raw", dev_path, "--out", tmp_path / "out", code=1).stderr
    assert "expected one of train, dev and test in the name" in error


def test_a_build_or_its_worker_is_killed_and_goes_on(shared_data: Path, tmp_path: Path) -> None:
    source = tmp_path / "raw"
    out = tmp_path / "out"
    source.mkdir()
    for split in ("train", "dev", "test"):
        packed = (shared_data / f"dureader-2.0-demo/search.{split}.json.gz").read_bytes()
        # The same rows again are merged away: more work to be killed in, the same release.
        (source / f"search.{split}.json").write_bytes(gzip.decompress(packed) * 7)
    options = ["--raw", source, "--unit", "char", "--workers", 2]
    run("builders", "release", options, "--out", tmp_path / "whole")
    finished_blocks = dict[str, int]()
    for number in range(4):
        words = command("builders", "release", options, "--out", out)
        process = psutil.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(blocks_of(tmp_path)) <= len(finished_blocks):
            time.sleep(0.01)
        children = process.children(recursive=True)
        # By turns, kill the whole build, and only its last worker.
        victims = children[-1:] if number % 2 else [process, *children]
        for victim in victims:
            victim.kill()
        assert process.wait(SECONDS_TO_END)
        _, alive = psutil.wait_procs(children, timeout=SECONDS_TO_END)
        assert not alive
        assert not out.exists()
        assert finished_blocks.items() <= blocks_of(tmp_path).items()  # no block was built again
        finished_blocks = blocks_of(tmp_path)
    run("builders", "release", options, "--out", out)
    assert tree(out) == tree(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir() if path.name[0] != "."} == {"raw", "out", "whole"}


def blocks_of(folder: Path) -> dict[str, int]:
    """Return the inode of every finished block of the build. A block that is labelled again gets another inode."""
    inodes = {}
    for path in folder.glob(".out.building/*/*"):
        if path.name.isdigit() and path.parent.name != "discarded":
            inodes[path.name] = path.stat().st_ino
    return inodes


documents = st.lists(st.tuples(st.text(max_size=20), st.booleans()), max_size=12)
lengths = st.integers(1, 40)


def cut(*documents: list[tuple[str, bool]], least: int) -> list[tuple[int, str, bool]]:
    """Cut documents of (paragraph, mark) into passages: the document's number, the text, and the mark of each."""
    document_texts = []
    marks = []
    for document in documents:
        document_texts.append([text for text, _ in document])
        marks += [mark for _, mark in document]
    passages = cut_passages(document_texts, np.array(marks, np.bool_), least)
    texts = passages.texts.to_pylist()
    assert passages.chars.tolist() == [len(text) for text in texts]
    assert passages.ids.to_pylist() == [hashlib.md5(text.encode()).hexdigest() for text in texts]
    assert passages.blank().tolist() == [not text.strip() for text in texts]
    return list(zip(passages.document.tolist(), texts, passages.positive.tolist(), strict=True))


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
        # The passage's paragraphs are the next ones, up to its length.
        passage_marks = []
        char_count = 0
        while char_count < len(text):
            paragraph, paragraph_mark = rest.pop(0)
            char_count += len(paragraph)
            passage_marks.append(paragraph_mark)
        assert mark == any(passage_marks)


@given(st.lists(documents, max_size=4), lengths)
def test_documents_cut_together_are_cut_as_alone(many: list[list[tuple[str, bool]]], least: int) -> None:
    alone = []
    for number, document in enumerate(many):
        for _, text, mark in cut(document, least=least):
            alone.append((number, text, mark))
    assert cut(*many, least=least) == alone


def test_what_is_kept_stays_together() -> None:
    passages = cut_passages([["一", " "], ["三"]], np.array([True, True, False]), 1)
    not_blank = passages.keep(~passages.blank())
    assert not_blank.texts.to_pylist() == ["一", "三"]
    assert not_blank.chars.tolist() == [1, 1]
    assert not_blank.positive.tolist() == [True, False]
    assert not_blank.document.tolist() == [0, 1]


THRESHOLDS = [Fraction(1, 2), Fraction(1, 3), Fraction(2, 3), Fraction(9, 10), Fraction(1)]


def brute_best(paragraph: Sequence[object], answer: Sequence[object]) -> Fraction:
    """Return the maximum of F1(s, a) over all spans s, as the paper defines it."""
    spans = itertools.combinations(range(len(paragraph) + 1), 2)
    return max((token_f1(paragraph[start:end], answer) for start, end in spans), default=Fraction(0))


def join_tokens(texts: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    """Return the token ids of all texts, one after another."""
    return np.array(list(itertools.chain.from_iterable(texts)), np.int32)


def running_sums(counts: Iterable[int]) -> NDArray[np.int64]:
    """Return the sum of the counts up to each, which is where each text or row ends."""
    return np.cumsum(list(counts), dtype=np.int64)


def questions(*rows: tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]) -> QuestionTokens:
    """Return questions of these (paragraphs, answers), whose texts are lists of token ids."""
    paragraphs: list[Sequence[int]] = []
    answers: list[Sequence[int]] = []
    for row_paragraphs, row_answers in rows:
        paragraphs += row_paragraphs
        answers += row_answers
    return QuestionTokens(
        join_tokens(paragraphs),
        running_sums(len(paragraph) for paragraph in paragraphs),
        running_sums(len(row_paragraphs) for row_paragraphs, _ in rows),
        join_tokens(answers),
        running_sums(len(answer) for answer in answers),
        running_sums(len(row_answers) for _, row_answers in rows),
    )


def best(paragraph: Sequence[int], answer: Sequence[int]) -> Fraction:
    """Return the best F1 that the compiled scan finds."""
    token_count = 1 + max(itertools.chain(paragraph, answer), default=0)
    work_space = np.zeros(token_count, np.int32)
    numerator, denominator = best_f1(np.array(paragraph, np.int32), np.array(answer, np.int32), work_space)
    return Fraction(numerator, denominator)


def label(
    paragraphs: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    threshold: Fraction = Fraction(1, 2),
    match: str = "threshold",
) -> list[bool]:
    """Return the label of each paragraph of one question."""
    return label_questions(questions((paragraphs, answers)), threshold, match).tolist()  # type: ignore[no-any-return]


def chars(texts: Sequence[str]) -> list[list[int]]:
    """Return the code points of each text as token ids."""
    return [list(map(ord, text)) for text in texts]


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
    above_threshold = [False] * len(paragraphs)
    best_of_an_answer = [False] * len(paragraphs)
    for answer in answers:
        scores = [brute_best(paragraph, answer) for paragraph in paragraphs]
        for number, score in enumerate(scores):
            if score >= threshold:
                above_threshold[number] = True
                best_of_an_answer[number] |= score == max(scores)
    assert label(chars(paragraphs), chars(answers), threshold) == above_threshold
    assert label(chars(paragraphs), chars(answers), threshold, "best") == best_of_an_answer


rows = st.lists(st.tuples(st.lists(tokens, max_size=3), st.lists(tokens, max_size=2)), max_size=4)


@given(rows=rows, match=st.sampled_from(["threshold", "best"]))
@settings(max_examples=100)
def test_questions_are_labelled_independently(rows: list[tuple[list[list[int]], list[list[int]]]], match: str) -> None:
    together = label_questions(questions(*rows), match=match).tolist() if rows else []
    alone = []
    for paragraphs, answers in rows:
        alone += label(paragraphs, answers, match=match)
    assert together == alone
