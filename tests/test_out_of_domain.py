"""Releases and sets from other data: cMedQA2, the competition of cCOVID-News, and SQuAD files."""

import csv
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from hypothesis import given
from hypothesis import strategies as st
from releases import make_release, md5

from builders.add.squad_files import cut_article
from builders.store.reader import Release, open_release


def add(*words: object) -> Done:
    return run("builders", "add", *words)


QUESTIONS = {"1": "头疼怎么办", "2": "发烧了吃什么药", "3": "头疼怎么办", "4": "咳嗽, 有痰", "5": "胃疼", "6": "失眠"}
ANSWERS = {"11": "多休息", "12": "喝水", "21": "退烧药", "31": "多休息", "32": "看医生"}
ANSWERS |= {"41": "止咳", "51": "吃软的", "61": "少喝茶"}


def cmedqa_source(folder: Path, encoding: str) -> Path:
    folder.mkdir()

    def table(rows: list[list[str]]) -> bytes:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        return text.getvalue().encode(encoding)

    questions = table([["question_id", "content"], *map(list, QUESTIONS.items())])
    answers = table([["ans_id", "question_id", "content"], *([a, a[0], text] for a, text in ANSWERS.items())])
    (folder / "question.csv").write_bytes(questions)
    (folder / "answer.csv.gz").write_bytes(gzip.compress(answers))
    with zipfile.ZipFile(folder / "dev_candidates.zip", "w") as archive:
        dev = "question_id,ans_id,cnt,label\n1,11,0,1\n1,12,1,1\n1,99,2,1\n1,41,3,0\n3,31,0,1\n3,32,1,1\n2,98,0,1\n"
        archive.writestr("dev_candidates.txt", dev)
    (folder / "test_candidates.txt").write_text("question_id,ans_id,cnt,label\n5,51,0,1\n5,11,1,0\n7,11,0,1\n")
    (folder / "train_candidates.txt").write_text("question_id,pos_ans_id,neg_ans_id\n4,41,11\n4,41,12\n")
    (folder / "README.txt").write_text("About it.\n")
    return folder


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030"])
def test_every_answer_is_a_passage_and_labels_make_the_judgments(tmp_path: Path, encoding: str) -> None:
    base, source = make_release(tmp_path / "base"), cmedqa_source(tmp_path / "in", encoding)
    for earlier in (base, tmp_path / "out"):  # a second build in place duplicates nothing
        words = ("--source", source, "--release", earlier, "--out", tmp_path / "out", "--format", "json")
        done = add("cmedqa", *words)
    release = open_release(tmp_path / "out")
    assert [build.verb for build in release.manifest.builds].count("cmedqa") == 1
    assert set(open_release(base).splits()) < set(release.splits())
    corpus = release.table("cmedqa-corpus", "corpus").to_pylist()
    texts = ["多休息", "喝水", "退烧药", "看医生", "止咳", "吃软的", "少喝茶"]
    assert corpus == [{"_id": md5(text), "title": "", "text": text} for text in texts]
    qrels = {
        split: [(r["query-id"], r["corpus-id"], r["score"]) for r in release.table("cmedqa-qrels", split).to_pylist()]
        for split in ("train", "dev", "test")
    }
    # Questions 1 and 3 have the same text, as have answers 11 and 31. Passages 98 and 99 do not exist.
    assert qrels["test"] == [(md5("头疼怎么办"), md5(text), 1) for text in ("多休息", "喝水", "看医生")]
    assert qrels["dev"] == [(md5("胃疼"), md5("吃软的"), 1)]
    # Question 6 is in no candidates file, so its answer comes from answer.csv.
    assert qrels["train"] == [(md5("咳嗽, 有痰"), md5("止咳"), 1), (md5("失眠"), md5("少喝茶"), 1)]
    assert release.table("cmedqa-queries", "test").to_pylist() == [{"_id": md5("头疼怎么办"), "text": "头疼怎么办"}]
    counts = json.loads(done.stdout)["read"]["test"]
    expected = {"questions": 3, "judgments": 6, "passage_missing": 2, "same_text_again": 1, "without_positive": 1}
    assert counts == {**counts, **expected}
    assert "skipped 2 judgments of passages that the sources lack" in done.stderr


@pytest.mark.slow
def test_the_real_candidates_give_the_sizes_of_the_paper(shared_data: Path, tmp_path: Path) -> None:
    """Real candidates with made-up texts: 4,000 questions, of which two have the same text, and 7,527 positives."""
    lists, lines = shared_data / "cmedqa2-candidates", {}
    for split in ("dev", "test"):
        with zipfile.ZipFile(lists / f"{split}_candidates.zip") as archive:
            text = archive.read(f"{split}_candidates.txt").decode()
        lines[split] = [line.split(",") for line in text.split("\n")[1:] if line]
    judged = [question for question, _, _, label in lines["dev"] if label == "1"]
    questions, answers = list(dict.fromkeys(judged)), {answer for own in lines.values() for _, answer, *_ in own}
    assert (len(questions), len(judged)) == (4000, 7527)
    rows = "".join(f"{q},我的第{n}个问题\n" for q, n in zip(questions, [*questions[:-1], questions[0]], strict=True))
    (tmp_path / "question.csv").write_text(f"question_id,content\n{rows}", "gb18030")
    rows = "".join(f"{answer},0,第{answer}个回答。\n" for answer in answers)
    (tmp_path / "answer.csv").write_text(f"ans_id,question_id,content\n{rows}", "utf-8-sig")
    source = (lists, tmp_path / "question.csv", tmp_path / "answer.csv")
    add("cmedqa", "--source", *source, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    assert release.rows("cmedqa-queries", "test") == 3999
    assert release.rows("cmedqa-qrels", "test") == 7527
    assert release.rows("cmedqa-corpus", "corpus") == len(answers)


DOCUMENTS = {"d1": "北京市发布通知。", "d2": '“抗疫"贷款\t说明', "d3": "北京市发布通知。", "d4": "上海的措施"}
JUDGED = [("d1", "北京市发布了什么？"), ("d3", "北京市发布了什么？"), ("d2", "什么是贷款？")]
JUDGED += [("d4", "上海怎么做？"), ("d9", "无"), ("d4", "几项措施？")]


def ccovid_source(folder: Path, encoding: str, mark: str) -> Path:
    folder.mkdir()
    context = "docid\ttext\n" + "".join(f"{docid}\t{text}\n" for docid, text in DOCUMENTS.items())
    train = "id\tdocid\tquestion\tanswer\n" + "".join(f"{n}\t{d}\t{q}\t略\n" for n, (d, q) in enumerate(JUDGED))
    (folder / "NCPPolicies_context_20200301.csv").write_bytes((mark + context).encode(encoding))
    (folder / "NCPPolicies_train_20200301.csv.gz").write_bytes(gzip.compress((mark + train).encode(encoding)))
    (folder / "NCPPolicies_test.csv").write_bytes("\ufeffid\tquestion\n1\t问题\n".encode())
    return folder


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "\ufeff"), ("gb18030", "")])
def test_policies_become_passages_and_every_judgment_is_kept(tmp_path: Path, encoding: str, mark: str) -> None:
    folder = ccovid_source(tmp_path / "in", encoding, mark)
    done = add("ccovid", "--source", folder, "--out", tmp_path / "out", "--test-size", 2, "--format", "json")
    release = open_release(tmp_path / "out")
    texts = [DOCUMENTS["d1"], DOCUMENTS["d2"], DOCUMENTS["d4"]]
    assert [row["text"] for row in release.table("ccovid-corpus", "corpus").to_pylist()] == texts
    pairs = {split: release.table("ccovid-qrels", split).to_pylist() for split in ("train", "test")}
    every = {(row["query-id"], row["corpus-id"]) for rows in pairs.values() for row in rows}
    assert every == {(md5(question), md5(DOCUMENTS[d])) for d, question in JUDGED if d in DOCUMENTS}
    assert {split: release.rows("ccovid-queries", split) for split in pairs} == {"train": 2, "test": 2}
    counts = json.loads(done.stdout)["read"]["all"]
    assert (counts["questions"], counts["judgments"], counts["passage_missing"]) == (5, 6, 1)
    assert "skipped 1 judgments of passages that the sources lack" in done.stderr


def test_the_real_policies_come_out_whole(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "ncp-policies"
    texts: dict[str, str] = {}
    for name in ("local_train", "local_dev"):
        with gzip.open(folder / f"{name}.json.gz", "rt", encoding="utf-8", newline="\n") as file:
            for line in file:
                row = json.loads(line)
                texts[row["docid"]] = row["context"]
    with gzip.open(folder / "NCPPolicies_train_20200301.csv.gz", "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    expected = {(md5(question), md5(texts[docid])) for _, docid, question, _ in rows if docid in texts}
    add("ccovid", "--source", folder, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    found = [
        (row["query-id"], row["corpus-id"])
        for split in ("train", "test")
        for row in release.table("ccovid-qrels", split).to_pylist()
    ]
    assert len(found) == len(expected)
    assert set(found) == expected
    assert release.rows("ccovid-queries", "test") == 949
    assert release.rows("ccovid-queries", "train") == len({query for query, _ in expected}) - 949 == 310
    assert release.rows("ccovid-corpus", "corpus") == len(set(texts.values())) == 593


CONTEXTS = ["长城在北京北边，始建于春秋。", "黄河长五千四百六十四公里。", "泰山在山东，高一千五百余米。"]


def squad(*words: object) -> Done:
    return run("builders", "squad", *words)


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
    squad("--train", train, "--dev", dev, "--passages", news, "--out", out)
    release = open_release(out)
    texts = [*CONTEXTS, f"第一条\u2028新闻。{'后' * 300}。", "第二条新闻。"]
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
    run("builders", "check", "--release", out)


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
        squad("--dev", dev, "--out", tmp_path / name, "--dev-size", 5, "--seed", seed)
        release = open_release(tmp_path / name)
        assert release.rows("corpus", "corpus") == 20 and release.rows("qrels", "dev") == 5
        found.append([row["text"] for row in rows(release, "queries", "dev")])
    assert found[0] == sorted(found[0], key=asked.index) == found[1] != found[2]


def test_impossible_questions_and_zip_archives(tmp_path: Path) -> None:
    plain = questions(tmp_path / "a.json", (CONTEXTS[0], ["答得了吗？"]))
    bad = questions(tmp_path / "b.json", (CONTEXTS[1], ["答不了？"]), is_impossible=True)
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        for path in (plain, bad):
            archive.write(path, path.name)
    done = squad("--test", tmp_path / "both.zip", "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    assert [row["text"] for row in rows(release, "queries", "test")] == ["答得了吗？"]
    assert release.rows("corpus", "corpus") == 2  # the paragraph stays as a distractor
    assert "skipped 1 questions that are marked is_impossible" in done.stderr


def test_the_real_files_give_their_known_counts(shared_data: Path, tmp_path: Path) -> None:
    cmrc, drcd, news = (shared_data / name for name in ("cmrc2018", "drcd", "crud-news"))
    argv = ["--train", cmrc / "train.json.gz", "--dev", cmrc / "dev.json.gz", "--test", drcd / "DRCD_test.json.gz"]
    part = news / "documents_dup_part_1_part_1.gz"
    stats = json.loads(squad(*argv, "--passages", part, "--out", tmp_path / "out", "--format", "json").stdout)
    # 10,142 and 3,219 questions with a paragraph each; equal questions are one query.
    assert stats["main"]["read"]["train"]["judgments"] == stats["table3"]["train"]["positive_passages"] == 10_142
    assert stats["table3"]["dev"]["positive_passages"] == 3_219
    assert stats["table3"]["test"]["positive_passages"] == 3_493
    lines = {line for line in gzip.decompress(part.read_bytes()).decode().split("\n") if line.strip()}
    paragraphs = 2_403 + 848 + 1_000
    assert 0 <= paragraphs + len(lines) - stats["collections"]["corpus"]["passages"] < 10  # equal passages are merged
