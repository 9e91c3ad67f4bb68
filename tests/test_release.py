"""Test `release`: the rows and files of a release built from raw rows."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run, tree
from releases import md5
from rows import row, write_rows

from builders.release import rows as raw
from builders.release.build import build_release
from builders.release.label import label_rows
from builders.release.options import Options
from builders.sources import lines as blocks
from builders.store import layout
from builders.store.reader import open_release

LONG = "绿萝喜阴,放在散光处,见干见湿,冬天少浇水。" * 15  # 330 characters


def build(*words: object, code: int = 0) -> Done:
    return run("builders", "release", *words, code=code)


def rows_of(release: Path, config: str, split: str) -> list[dict[str, Any]]:
    return open_release(release).table(config, split).to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    shared = "两个问题都用得上的一段话,同一篇文章里写着答案。"
    train = [
        row(1, "绿萝怎么养", [["步骤阅读", LONG, "最后一句。"], [shared]], ["见干见湿,冬天少浇水"]),
        row(2, "绿萝怎么浇水", [[shared], [""], [" ", "\u3000"]], ["同一篇文章里写着答案"]),
        row(3, "谁也答不上来的问题", [["无关的话。"]], ["完全不同"]),
        row(4, "没有人答", [["没有人答这个。"]], []),
        row(1, "绿萝怎么养", [["绿萝要少晒太阳,见干见湿,冬天少浇水。"]], ["见干见湿,冬天少浇水"]),
    ]
    test = [row(9, "测试问题", [["行分隔\u2028符", LONG]])]
    write_rows(tmp_path / "raw/search.train.json", train)
    write_rows(tmp_path / "raw/search.test.json", test)
    return tmp_path / "raw"


def test_a_small_release_by_hand(small: Path, tmp_path: Path) -> None:
    done = build("--raw", small, "--out", tmp_path / "out", "--unit", "char", "--format", "json")
    first, rest = "步骤阅读" + LONG, "最后一句。"
    shared = "两个问题都用得上的一段话,同一篇文章里写着答案。"
    again = "绿萝要少晒太阳,见干见湿,冬天少浇水。"
    texts = [first, rest, shared, "无关的话。", "没有人答这个。", again, "行分隔\u2028符" + LONG]
    assert rows_of(tmp_path / "out", "corpus", "corpus") == [{"_id": md5(t), "title": "", "text": t} for t in texts]
    assert rows_of(tmp_path / "out", "queries", "train") == [
        {"_id": md5(text), "text": text} for text in ("绿萝怎么养", "绿萝怎么浇水")
    ]
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
    bare = row(1, "绿萝怎么浇水", [["绿萝浇水要见干见湿"]], ["浇水要见干见湿"])
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
    build_release(sources, tmp_path / "plain", options)
    monkeypatch.setattr("builders.release.build._SMALL", 0)
    monkeypatch.setattr(blocks.read_blocks, "__defaults__", (64, ()))  # so that the shared passage is in several blocks
    build_release(sources, tmp_path / "blocks", options, workers)
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
    assert "contains no split" in build("--raw", rows, "--out", tmp_path / "out", code=1).stderr
