"""cMedQA out of cMedQA2's own files: counts, merging, what is left out, and the configs of a release."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zipfile
from pathlib import Path

import pytest
from releases import md5
from whole_release import edit_stats

from builders.__main__ import VERBS
from builders.core.command import main
from builders.store.reader import open_release
from tests.releases import make_release


def run(*words: object) -> int:
    return main("builders", "", VERBS, ["add", "cmedqa", *map(str, words)])


QUESTIONS = {"1": "头疼怎么办", "2": "发烧了吃什么药", "3": "头疼怎么办", "4": "咳嗽, 有痰", "5": "胃疼", "6": "失眠"}
ANSWERS = {
    "11": "多休息",
    "12": "喝水",
    "21": "退烧药",
    "31": "多休息",
    "32": "看医生",
    "41": "止咳",
    "51": "吃软的",
    "61": "少喝茶",
}


def source(
    folder: Path, encoding: str = "utf-8", train: str = "question_id,pos_ans_id,neg_ans_id\n4,41,11\n4,41,12\n"
) -> Path:
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
    (folder / "train_candidates.txt").write_text(train)
    (folder / "README.txt").write_text("About it.\n")
    return folder


@pytest.mark.parametrize("encoding", ["utf-8-sig", "gb18030"])
def test_every_answer_is_a_passage_and_labels_make_the_judgments(
    tmp_path: Path, encoding: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--source", source(tmp_path / "in", encoding), "--out", tmp_path / "out", "--format", "json") == 0
    printed = capsys.readouterr()
    release = open_release(tmp_path / "out")
    corpus = release.table("cmedqa-corpus", "corpus").to_pylist()
    texts = ["多休息", "喝水", "退烧药", "看医生", "止咳", "吃软的", "少喝茶"]
    assert corpus == [{"_id": md5(text), "title": "", "text": text} for text in texts]
    qrels = {
        split: [(r["query-id"], r["corpus-id"], r["score"]) for r in release.table("cmedqa-qrels", split).to_pylist()]
        for split in ("train", "dev", "test")
    }
    # Questions 1 and 3 have one text; so have answers 11 and 31. Passages 98 and 99 exist nowhere.
    assert qrels["test"] == [(md5("头疼怎么办"), md5(text), 1) for text in ("多休息", "喝水", "看医生")]
    assert qrels["dev"] == [(md5("胃疼"), md5("吃软的"), 1)]
    # Question 6 is in no candidates file: its answer is the one that answer.csv gives it.
    assert qrels["train"] == [(md5("咳嗽, 有痰"), md5("止咳"), 1), (md5("失眠"), md5("少喝茶"), 1)]
    assert release.table("cmedqa-queries", "test").to_pylist() == [{"_id": md5("头疼怎么办"), "text": "头疼怎么办"}]
    counts = json.loads(printed.out)["read"]["test"]
    assert counts["questions"] == 3
    assert counts["judgments"] == 6
    assert counts["passage_missing"] == 2
    assert counts["same_text_again"] == 1
    assert counts["without_positive"] == 1
    assert "2 of 6 judgments name a passage that the sources do not have, and are left out (99, 98)" in printed.err
    stats = json.loads((tmp_path / "out/stats.json").read_text())
    assert stats["table3"]["cmedqa"] == {
        "queries": 1,
        "positive_passages": 3,
        "passages_per_query": 3.0,
        "chars_per_query": 5.0,
        "chars_per_passage": 2.6667,
    }
    assert stats["collections"]["cmedqa-corpus"]["passages"] == 7


def test_the_other_candidates_as_test(tmp_path: Path) -> None:
    assert run("--source", source(tmp_path / "in"), "--out", tmp_path / "out", "--test-candidates", "test") == 0
    release = open_release(tmp_path / "out")
    assert release.table("cmedqa-queries", "test")["text"].to_pylist() == ["胃疼"]
    assert release.table("cmedqa-queries", "dev")["text"].to_pylist() == ["头疼怎么办"]
    assert release.manifest.builds[0].options["test_candidates"] == "test"


def test_no_train_question_is_a_test_question(tmp_path: Path) -> None:
    train = "question_id,ans_id,cnt,label\n1,11,0,1\n3,32,0,1\n4,41,0,1\n"
    assert run("--source", source(tmp_path / "in", train=train), "--out", tmp_path / "out") == 0
    release = open_release(tmp_path / "out")
    assert "头疼怎么办" not in release.table("cmedqa-queries", "train")["text"].to_pylist()
    assert json.loads((tmp_path / "out/stats.json").read_text())["cmedqa"]["read"]["train"]["in_another_split"] == 2


def test_added_to_a_release_and_replaced(tmp_path: Path) -> None:
    base = make_release(tmp_path / "base")
    edit_stats(base, lambda stats: stats["table3"].update(dev={"queries": 2}))
    folder = source(tmp_path / "in")
    assert run("--source", folder, "--out", tmp_path / "out", "--release", base) == 0
    release = open_release(tmp_path / "out")
    assert set(open_release(base).splits()) < set(release.splits())
    assert release.fingerprint("corpus", "corpus") == open_release(base).fingerprint("corpus", "corpus")
    assert list(json.loads((tmp_path / "out/stats.json").read_text())["table3"]) == ["dev", "cmedqa"]
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")}
    # Once more, in place: nothing is there twice, not in the manifest either.
    assert run("--source", folder, "--out", tmp_path / "out", "--release", tmp_path / "out") == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*.json")} == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("question.csv", "question_id,content\n1,a\n1,b\n", r"question\.csv:3: a second text for the question '1'"),
        ("question.csv", "question_id,content\n1\n", r"question\.csv:2: expected 2 columns"),
        ("question.csv", "id,content\n1,a\n", "no questions of cMedQA"),
        (
            "test_candidates.txt",
            "question_id,ans_id,cnt,label\n5,51,0,2\n",
            "test_candidates.txt:2: expected the label",
        ),
        ("more.txt", "question_id,ans_id,cnt,label\n5,51,0,1\n", "candidates of which split"),
    ],
)
def test_a_wrong_source_is_one_error_and_leaves_nothing(
    tmp_path: Path, name: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source(tmp_path / "in")
    (folder / name).write_text(text)
    assert run("--source", folder, "--out", tmp_path / "out") == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_a_file_that_was_named_is_not_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = source(tmp_path / "in")
    assert run("--source", folder, folder / "README.txt", "--out", tmp_path / "out") == 1
    assert "none of cMedQA's files" in capsys.readouterr().err


def test_the_real_candidates_give_the_sizes_of_the_paper(shared_data: Path, tmp_path: Path) -> None:
    """The real candidates with made-up texts: 4,000 questions and 7,527 positives; one duplicate text leaves 3,999."""
    lists = shared_data / "cmedqa2-candidates"
    judged: dict[str, list[str]] = {}
    answers: dict[str, None] = {}
    for split in ("dev", "test"):
        with zipfile.ZipFile(lists / f"{split}_candidates.zip") as archive:
            for line in archive.read(f"{split}_candidates.txt").decode().split("\n")[1:]:
                if line:
                    question, answer, _, label = line.split(",")
                    answers[answer] = None
                    if split == "dev" and label == "1":
                        judged.setdefault(question, []).append(answer)
    assert (len(judged), sum(map(len, judged.values()))) == (4000, 7527)
    first, last = next(iter(judged)), list(judged)[-1]
    with open(tmp_path / "question.csv", "w", encoding="gb18030") as file:
        file.write("question_id,content\n")
        file.writelines(f"{q},我的第{first if q == last else q}个问题\n" for q in judged)
    with open(tmp_path / "answer.csv", "w", encoding="utf-8-sig") as file:
        file.write("ans_id,question_id,content\n")
        file.writelines(f"{a},0,第{a}个回答。\n" for a in answers)
    assert run("--source", lists, tmp_path / "question.csv", tmp_path / "answer.csv", "--out", tmp_path / "out") == 0
    release = open_release(tmp_path / "out")
    assert release.rows("cmedqa-queries", "test") == 3999
    assert release.rows("cmedqa-qrels", "test") == 7527
    assert release.rows("cmedqa-corpus", "corpus") == len(answers)


def test_the_real_epilepsy_questions_come_out_whole(shared_data: Path, tmp_path: Path) -> None:
    folder = shared_data / "cepilepsyqa"
    texts: dict[str, dict[str, str]] = {}
    for name in ("question", "answer"):
        with gzip.open(folder / f"{name}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            texts[name] = {row[0]: row[-1] for row in list(csv.reader(file))[1:]}
    assert run("--source", folder, "--out", tmp_path / "out", "--test-size", 100, "--seed", 3) == 0
    release = open_release(tmp_path / "out")
    assert release.rows("cmedqa-corpus", "corpus") == len(set(texts["answer"].values())) == 4570
    sizes = {split: release.rows("cmedqa-queries", split) for split in ("train", "dev", "test")}
    assert sizes == {"train": 3920 + 390, "dev": 490, "test": 100}
    every = {md5(texts["question"][q]): md5(texts["answer"][q]) for q in texts["question"]}
    for split in sizes:
        for row in release.table("cmedqa-qrels", split).to_pylist():
            assert every[row["query-id"]] == row["corpus-id"]
    assert release.manifest.builds[0].options["seed"] == 3
