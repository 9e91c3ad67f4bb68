"""Test `squad`: paragraphs, questions and distractors of a release from reading comprehension."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from releases import md5

from builders.add.squad import cut_article
from builders.core.command import main
from builders.store.reader import Release, open_release

VERBS = {"squad": "builders.add.squad", "check": "builders.check"}
CONTEXTS = ["长城在北京北边，始建于春秋。", "黄河长五千四百六十四公里。", "泰山在山东，高一千五百余米。"]


def run(*words: object) -> int:
    return main("builders", "", VERBS, list(map(str, words)))


def questions(path: Path, *paragraphs: tuple[str, list[str]], **more: Any) -> Path:
    data = []
    for context, asked in paragraphs:
        qas = [{"question": question, "id": "x"} | more for question in asked]
        data.append({"title": "t", "paragraphs": [{"id": "p", "context": context, "qas": qas}]})
    content = json.dumps({"version": "v1", "data": data}, ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def rows(release: Release, config: str, split: str) -> list[dict[str, Any]]:
    return list(release.table(config, split).to_pylist())


def test_a_release_of_questions_and_distractors(tmp_path: Path) -> None:
    asked = ["长城在哪里？", "什么时候建的？"]
    train = questions(tmp_path / "train.json.gz", (CONTEXTS[0], asked), (CONTEXTS[1], ["有多长？", "  ", asked[1]]))
    dev = questions(tmp_path / "dev.json", (CONTEXTS[2], ["泰山在哪里？", "有多长？"]))
    news = tmp_path / "news.gz"
    # The second line is a known paragraph. U+2028 does not end a line.
    news.write_bytes(gzip.compress(f"第一条\u2028新闻。{'后' * 300}。尾\n\n{CONTEXTS[1]}\n第二条新闻。\n".encode()))
    out = tmp_path / "out"
    assert run("squad", "--train", train, "--dev", dev, "--passages", news, "--out", out) == 0
    release = open_release(out)
    head = f"第一条\u2028新闻。{'后' * 300}。"
    texts = [*CONTEXTS, head, "第二条新闻。"]
    assert rows(release, "corpus", "corpus") == [{"_id": md5(text), "title": "", "text": text} for text in texts]
    # A question in both splits stays in dev. Equal questions share their paragraphs.
    assert [row["text"] for row in rows(release, "queries", "train")] == asked
    assert [row["text"] for row in rows(release, "queries", "dev")] == ["泰山在哪里？", "有多长？"]
    judged = {(row["query-id"], row["corpus-id"]) for row in rows(release, "qrels", "train")}
    assert judged == {(md5(q), md5(c)) for q, c in ((asked[0], CONTEXTS[0]), *((asked[1], c) for c in CONTEXTS[:2]))}
    joined = rows(release, "train", "train")[1]
    assert (joined["query"], joined["negative_passages"]) == (asked[1], [])
    assert joined["positive_passages"] == [{"docid": md5(c), "title": "", "text": c} for c in CONTEXTS[:2]]
    assert "published by Baidu" not in (out / "README.md").read_text("utf-8")
    assert run("check", "--release", out) == 0


@given(st.text("一二。！？”!，", min_size=1).filter(str.strip), st.integers(1, 9))
def test_cutting_loses_nothing(article: str, min_chars: int) -> None:
    every = cut_article(article, "all", min_chars)
    assert "".join(every) == article
    assert all(len(text) >= min_chars for text in every[:-1])
    assert cut_article(article, "head", min_chars) == every[:1] and cut_article(article, "whole", 1) == [article]
    assert cut_article("一二三。四五！”六七八九十。", "all", 6) == ["一二三。四五！”", "六七八九十。"]


def test_some_of_the_dev_questions(tmp_path: Path) -> None:
    asked = [f"第{number}个问题？" for number in range(20)]
    dev = questions(tmp_path / "dev.json", *((f"{number}号段落。", [asked[number]]) for number in range(20)))
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert run("squad", "--dev", dev, "--out", tmp_path / name, "--dev-size", 5, "--seed", seed) == 0
        release = open_release(tmp_path / name)
        assert release.rows("corpus", "corpus") == 20 and release.rows("qrels", "dev") == 5
        found.append([row["text"] for row in rows(release, "queries", "dev")])
    assert found[0] == sorted(found[0], key=asked.index) == found[1] != found[2]


def test_impossible_questions_and_zip_archives(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plain = questions(tmp_path / "a.json", (CONTEXTS[0], ["答得了吗？"]))
    bad = questions(tmp_path / "b.json", (CONTEXTS[1], ["答不了？"]), is_impossible=True)
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for path in (plain, bad):
            archive.write(path, path.name)
    assert run("squad", "--test", tmp_path / "both.zip", "--out", tmp_path / "out") == 0
    release = open_release(tmp_path / "out")
    assert [row["text"] for row in rows(release, "queries", "test")] == ["答得了吗？"]
    assert release.rows("corpus", "corpus") == 2  # the paragraph stays as a distractor
    assert "skipped 1 questions that are marked is_impossible" in capfd.readouterr().err


def test_the_real_files_give_their_known_counts(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cmrc, drcd, news = (shared_data / name for name in ("cmrc2018", "drcd", "crud-news"))
    argv = ["--train", cmrc / "train.json.gz", "--dev", cmrc / "dev.json.gz", "--test", drcd / "DRCD_test.json.gz"]
    part = news / "documents_dup_part_1_part_1.gz"
    assert run("squad", *argv, "--passages", part, "--out", tmp_path / "out", "--format", "json") == 0
    stats = json.loads(capsys.readouterr().out)
    # 10,142 and 3,219 questions with a paragraph each; equal questions are one query.
    assert stats["main"]["read"]["train"]["judgments"] == stats["table3"]["train"]["positive_passages"] == 10_142
    assert stats["table3"]["dev"]["positive_passages"] == 3_219
    assert stats["table3"]["test"]["positive_passages"] == 3_493
    lines = {line for line in gzip.decompress(part.read_bytes()).decode().split("\n") if line.strip()}
    paragraphs = 2_403 + 848 + 1_000
    assert 0 <= paragraphs + len(lines) - stats["collections"]["corpus"]["passages"] < 10  # equal passages are merged
