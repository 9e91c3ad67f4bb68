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
from releases import make_release, md5, passage

from builders.add.squad_files import cut_article
from builders.store.reader import Release, open_release


def add(*words: object) -> Done:
    return run("builders", "add", words)


QUESTIONS = {"1": "头疼怎么办", "2": "发烧了吃什么药", "3": "头疼怎么办", "4": "咳嗽, 有痰", "5": "胃疼", "6": "失眠"}
ANSWERS = {"11": "多休息", "12": "喝水", "21": "退烧药", "31": "多休息", "32": "看医生"}
ANSWERS |= {"41": "止咳", "51": "吃软的", "61": "少喝茶"}


def csv_bytes(rows: list[list[str]], encoding: str) -> bytes:
    """Write rows as CSV in an encoding."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode(encoding)


def write_cmedqa(folder: Path, encoding: str) -> Path:
    """Write the files of cMedQA2, of which one is compressed and one is in a zip archive."""
    folder.mkdir()
    question_rows = [["question_id", "content"]]
    for question_id, text in QUESTIONS.items():
        question_rows.append([question_id, text])
    answer_rows = [["ans_id", "question_id", "content"]]
    for answer_id, text in ANSWERS.items():
        answer_rows.append([answer_id, answer_id[0], text])
    (folder / "question.csv").write_bytes(csv_bytes(question_rows, encoding))
    (folder / "answer.csv.gz").write_bytes(gzip.compress(csv_bytes(answer_rows, encoding)))
    with zipfile.ZipFile(folder / "dev_candidates.zip", "w") as archive:
        dev = "question_id,ans_id,cnt,label\n1,11,0,1\n1,12,1,1\n1,99,2,1\n1,41,3,0\n3,31,0,1\n3,32,1,1\n2,98,0,1\n"
        archive.writestr("dev_candidates.txt", dev)
    (folder / "test_candidates.txt").write_text("question_id,ans_id,cnt,label\n5,51,0,1\n5,11,1,0\n7,11,0,1\n")
    (folder / "train_candidates.txt").write_text("question_id,pos_ans_id,neg_ans_id\n4,41,11\n4,41,12\n")
    (folder / "README.txt").write_text("About it.\n")
    return folder


def read_rows(release: Release, config: str, split: str) -> list[dict[str, Any]]:
    return list(release.table(config, split).to_pylist())


def read_texts(release: Release, config: str, split: str) -> list[str]:
    return [row["text"] for row in read_rows(release, config, split)]


def read_judged_pairs(release: Release, config: str, split: str) -> list[tuple[str, str]]:
    """Return (query id, passage id) of every judgment."""
    return [(row["query-id"], row["corpus-id"]) for row in read_rows(release, config, split)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030"])
def test_every_answer_is_a_passage_and_labels_make_the_judgments(tmp_path: Path, encoding: str) -> None:
    base = make_release(tmp_path / "base")
    source = write_cmedqa(tmp_path / "in", encoding)
    for earlier in (base, tmp_path / "out"):  # a second build in place duplicates nothing
        words = ["--source", source, "--release", earlier, "--out", tmp_path / "out", "--format", "json"]
        done = add("cmedqa", *words)
    release = open_release(tmp_path / "out")
    assert [build.verb for build in release.manifest.builds].count("cmedqa") == 1
    assert set(open_release(base).splits()) < set(release.splits())
    texts = ["多休息", "喝水", "退烧药", "看医生", "止咳", "吃软的", "少喝茶"]
    passages = [{"_id": md5(text), "title": "", "text": text} for text in texts]
    assert read_rows(release, "cmedqa-corpus", "corpus") == passages
    # Questions 1 and 3 have the same text, as have answers 11 and 31. Passages 98 and 99 do not exist.
    headache = md5("头疼怎么办")
    test_pairs = [(headache, md5("多休息")), (headache, md5("喝水")), (headache, md5("看医生"))]
    assert read_judged_pairs(release, "cmedqa-qrels", "test") == test_pairs
    assert read_judged_pairs(release, "cmedqa-qrels", "dev") == [(md5("胃疼"), md5("吃软的"))]
    # Question 6 is in no candidates file, so its answer comes from answer.csv.
    train_pairs = [(md5("咳嗽, 有痰"), md5("止咳")), (md5("失眠"), md5("少喝茶"))]
    assert read_judged_pairs(release, "cmedqa-qrels", "train") == train_pairs
    for split in ("train", "dev", "test"):
        assert all(row["score"] == 1 for row in read_rows(release, "cmedqa-qrels", split))
    assert read_rows(release, "cmedqa-queries", "test") == [{"_id": headache, "text": "头疼怎么办"}]
    counts = json.loads(done.stdout)["read"]["test"]
    expected = {"questions": 3, "judgments": 6, "passage_missing": 2, "same_text_again": 1, "without_positive": 1}
    assert {name: counts[name] for name in expected} == expected
    assert "skipped 2 judgments of passages that the sources lack" in done.stderr


@pytest.mark.slow
def test_the_real_candidates_give_the_sizes_of_the_paper(shared_data: Path, tmp_path: Path) -> None:
    """Real candidates with made-up texts: 4,000 questions, of which two have the same text, and 7,527 positives."""
    candidates = shared_data / "cmedqa2-candidates"
    judged_questions: list[str] = []
    answer_ids: set[str] = set()
    for split in ("dev", "test"):
        with zipfile.ZipFile(candidates / f"{split}_candidates.zip") as archive:
            lines = archive.read(f"{split}_candidates.txt").decode().split("\n")[1:]
        for line in filter(None, lines):
            question_id, answer_id, _, label = line.split(",")
            answer_ids.add(answer_id)
            if split == "dev" and label == "1":
                judged_questions.append(question_id)
    question_ids = list(dict.fromkeys(judged_questions))
    assert (len(question_ids), len(judged_questions)) == (4000, 7527)

    question_csv = "question_id,content\n"
    for question_id in question_ids:
        # The last question has the text of the first one.
        text_number = question_ids[0] if question_id == question_ids[-1] else question_id
        question_csv += f"{question_id},我的第{text_number}个问题\n"
    (tmp_path / "question.csv").write_text(question_csv, "gb18030")
    answer_csv = "ans_id,question_id,content\n"
    for answer_id in answer_ids:
        answer_csv += f"{answer_id},0,第{answer_id}个回答。\n"
    (tmp_path / "answer.csv").write_text(answer_csv, "utf-8-sig")
    sources = (candidates, tmp_path / "question.csv", tmp_path / "answer.csv")
    add("cmedqa", "--source", *sources, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    assert release.rows("cmedqa-queries", "test") == 3999
    assert release.rows("cmedqa-qrels", "test") == 7527
    assert release.rows("cmedqa-corpus", "corpus") == len(answer_ids)


DOCUMENTS = {"d1": "北京市发布通知。", "d2": '“抗疫"贷款\t说明', "d3": "北京市发布通知。", "d4": "上海的措施"}
# (document id, question); d9 does not exist.
JUDGED = [("d1", "北京市发布了什么？"), ("d3", "北京市发布了什么？"), ("d2", "什么是贷款？")]
JUDGED += [("d4", "上海怎么做？"), ("d9", "无"), ("d4", "几项措施？")]


def write_ccovid(folder: Path, encoding: str, byte_order_mark: str) -> Path:
    """Write the files of the competition."""
    folder.mkdir()
    context = f"{byte_order_mark}docid\ttext\n"
    for document_id, text in DOCUMENTS.items():
        context += f"{document_id}\t{text}\n"
    train = f"{byte_order_mark}id\tdocid\tquestion\tanswer\n"
    for number, (document_id, question) in enumerate(JUDGED):
        train += f"{number}\t{document_id}\t{question}\t略\n"
    (folder / "NCPPolicies_context_20200301.csv").write_bytes(context.encode(encoding))
    (folder / "NCPPolicies_train_20200301.csv.gz").write_bytes(gzip.compress(train.encode(encoding)))
    (folder / "NCPPolicies_test.csv").write_bytes("\ufeffid\tquestion\n1\t问题\n".encode())
    return folder


@pytest.mark.parametrize(("encoding", "byte_order_mark"), [("utf-8", "\ufeff"), ("gb18030", "")])
def test_policies_become_passages_and_every_judgment_is_kept(
    tmp_path: Path, encoding: str, byte_order_mark: str
) -> None:
    source = write_ccovid(tmp_path / "in", encoding, byte_order_mark)
    done = add("ccovid", "--source", source, "--out", tmp_path / "out", "--test-size", 2, "--format", "json")
    release = open_release(tmp_path / "out")
    assert read_texts(release, "ccovid-corpus", "corpus") == [DOCUMENTS["d1"], DOCUMENTS["d2"], DOCUMENTS["d4"]]
    pairs = set()
    for split in ("train", "test"):
        pairs.update(read_judged_pairs(release, "ccovid-qrels", split))
        assert release.rows("ccovid-queries", split) == 2
    expected_pairs = set()
    for document_id, question in JUDGED:
        if document_id in DOCUMENTS:
            expected_pairs.add((md5(question), md5(DOCUMENTS[document_id])))
    assert pairs == expected_pairs
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
    expected_pairs = set()
    with gzip.open(folder / "NCPPolicies_train_20200301.csv.gz", "rt", encoding="utf-8", newline="\n") as file:
        next(file)  # the header
        for line in file:
            _, document_id, question, _ = line.rstrip("\n").split("\t")
            if document_id in texts:
                expected_pairs.add((md5(question), md5(texts[document_id])))
    add("ccovid", "--source", folder, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    pairs = read_judged_pairs(release, "ccovid-qrels", "train") + read_judged_pairs(release, "ccovid-qrels", "test")
    assert len(pairs) == len(expected_pairs)
    assert set(pairs) == expected_pairs
    query_count = len({query_id for query_id, _ in expected_pairs})
    assert release.rows("ccovid-queries", "test") == 949
    assert release.rows("ccovid-queries", "train") == query_count - 949 == 310
    assert release.rows("ccovid-corpus", "corpus") == len(set(texts.values())) == 593


CONTEXTS = ["长城在北京北边，始建于春秋。", "黄河长五千四百六十四公里。", "泰山在山东，高一千五百余米。"]


def squad(*words: object) -> Done:
    return run("builders", "squad", words)


def write_squad(path: Path, *paragraphs: tuple[str, list[str]], **question_fields: Any) -> Path:
    """Write a SQuAD file of (paragraph, its questions), compressed if the name ends in .gz."""
    articles = []
    for context, questions in paragraphs:
        qas = []
        for question in questions:
            qas.append({"question": question, "id": "x"} | question_fields)
        articles.append({"title": "t", "paragraphs": [{"id": "p", "context": context, "qas": qas}]})
    content = json.dumps({"version": "v1", "data": articles}, ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_a_release_of_questions_and_distractors(tmp_path: Path) -> None:
    where, when, length = ["长城在哪里？", "什么时候建的？", "有多长？"]
    train = write_squad(tmp_path / "train.json.gz", (CONTEXTS[0], [where, when]), (CONTEXTS[1], [length, "  ", when]))
    dev = write_squad(tmp_path / "dev.json", (CONTEXTS[2], ["泰山在哪里？", length]))
    news = tmp_path / "news.gz"
    # The second line is a known paragraph. U+2028 does not end a line.
    news.write_bytes(gzip.compress(f"第一条\u2028新闻。{'后' * 300}。尾\n\n{CONTEXTS[1]}\n第二条新闻。\n".encode()))
    out = tmp_path / "out"
    squad("--train", train, "--dev", dev, "--passages", news, "--out", out)
    release = open_release(out)
    passages = []
    for text in [*CONTEXTS, f"第一条\u2028新闻。{'后' * 300}。", "第二条新闻。"]:
        passages.append({"_id": md5(text), "title": "", "text": text})
    assert read_rows(release, "corpus", "corpus") == passages
    # A question in both splits stays in dev. Equal questions share their paragraphs.
    assert read_texts(release, "queries", "train") == [where, when]
    assert read_texts(release, "queries", "dev") == ["泰山在哪里？", length]
    assert set(read_judged_pairs(release, "qrels", "train")) == {
        (md5(where), md5(CONTEXTS[0])),
        (md5(when), md5(CONTEXTS[0])),
        (md5(when), md5(CONTEXTS[1])),
    }
    joined_row = read_rows(release, "train", "train")[1]
    assert (joined_row["query"], joined_row["negative_passages"]) == (when, [])
    assert joined_row["positive_passages"] == [passage(text) for text in CONTEXTS[:2]]
    assert "published by Baidu" not in (out / "README.md").read_text("utf-8")
    run("builders", "check", "--release", out)


@given(st.text("一二。！？”!，", min_size=1).filter(str.strip), st.integers(1, 9))
def test_cutting_loses_nothing(article: str, min_chars: int) -> None:
    parts = cut_article(article, "all", min_chars)
    assert "".join(parts) == article
    assert all(len(part) >= min_chars for part in parts[:-1])
    assert cut_article(article, "head", min_chars) == parts[:1]
    assert cut_article(article, "whole", 1) == [article]


def test_an_article_is_cut_after_the_closing_quote() -> None:
    assert cut_article("一二三。四五！”六七八九十。", "all", 6) == ["一二三。四五！”", "六七八九十。"]


def test_some_of_the_dev_questions(tmp_path: Path) -> None:
    questions = [f"第{number}个问题？" for number in range(20)]
    paragraphs = [(f"{number}号段落。", [question]) for number, question in enumerate(questions)]
    dev = write_squad(tmp_path / "dev.json", *paragraphs)
    samples = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        squad("--dev", dev, "--out", tmp_path / name, "--dev-size", 5, "--seed", seed)
        release = open_release(tmp_path / name)
        assert release.rows("corpus", "corpus") == 20
        assert release.rows("qrels", "dev") == 5
        samples.append(read_texts(release, "queries", "dev"))
    assert samples[0] == samples[1] != samples[2]
    assert samples[0] == sorted(samples[0], key=questions.index)


def test_impossible_questions_and_zip_archives(tmp_path: Path) -> None:
    possible = write_squad(tmp_path / "a.json", (CONTEXTS[0], ["答得了吗？"]))
    impossible = write_squad(tmp_path / "b.json", (CONTEXTS[1], ["答不了？"]), is_impossible=True)
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.write(possible, possible.name)
        archive.write(impossible, impossible.name)
    done = squad("--test", tmp_path / "both.zip", "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    assert read_texts(release, "queries", "test") == ["答得了吗？"]
    assert release.rows("corpus", "corpus") == 2  # the paragraph stays as a distractor
    assert "skipped 1 questions that are marked is_impossible" in done.stderr


def test_the_real_files_give_their_known_counts(shared_data: Path, tmp_path: Path) -> None:
    cmrc = shared_data / "cmrc2018"
    drcd_test = shared_data / "drcd" / "DRCD_test.json.gz"
    news = shared_data / "crud-news" / "documents_dup_part_1_part_1.gz"
    words = ["--train", cmrc / "train.json.gz", "--dev", cmrc / "dev.json.gz", "--test", drcd_test]
    words += ["--passages", news, "--out", tmp_path / "out", "--format", "json"]
    stats = json.loads(squad(*words).stdout)
    # 10,142 and 3,219 questions with a paragraph each; equal questions are one query.
    assert stats["main"]["read"]["train"]["judgments"] == 10_142
    assert stats["table3"]["train"]["positive_passages"] == 10_142
    assert stats["table3"]["dev"]["positive_passages"] == 3_219
    assert stats["table3"]["test"]["positive_passages"] == 3_493
    lines = {line for line in gzip.decompress(news.read_bytes()).decode().split("\n") if line.strip()}
    paragraph_count = 2_403 + 848 + 1_000
    # Equal passages are merged.
    assert 0 <= paragraph_count + len(lines) - stats["collections"]["corpus"]["passages"] < 10
