"""Releases from folders of other projects: BEIR, MS MARCO and TREC. Grades, titles and the original ids are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import make_release, md5, tables

import dureader_retrieval
from baselines import evaluate
from builders.check.release_report import run_check
from builders.core.errors import InputError
from builders.export.export_formats import export_set
from builders.official.copies import build_copy
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

SAME = "同一段文字。"
PASSAGES = [
    {"_id": "d1", "title": "饺子", "text": "水开后下锅。"},
    {"_id": "d2", "title": "", "text": SAME},
    {"_id": "d3", "text": SAME, "metadata": {"url": "u"}},
    {"_id": "d4", "title": "只有题目", "text": ""},
    {"_id": md5("无关。"), "title": "", "text": "无关。"},
]
DUMPLINGS, SAME_ID, TITLE_ID = md5("饺子 水开后下锅。"), md5(SAME), md5("只有题目")
QUERIES = [{"_id": "1", "text": "饺子怎么煮"}, {"_id": "2", "text": "哪段相同"}, {"_id": "3", "text": "没有答案"}]
Q1, Q2 = md5("饺子怎么煮"), md5("哪段相同")
QRELS = "query-id\tcorpus-id\tscore\n1\td1\t3\n1\td4\t0\n2\td2\t1\n2\td3\t2\n3\td1\t0\n9\td1\t1\n"


def write_beir(folder: Path) -> Path:
    """Write a folder of BEIR with titles, grades and two passages of the same text."""
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", PASSAGES), ("queries", QUERIES)):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(QRELS)
    return folder


def rows_of(release: Path, config: str, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split."""
    return open_release(release).table(config, split).to_pylist()


def grades_of(release: Path, split: str) -> dict[tuple[str, str], int]:
    """Return (query, passage) -> grade."""
    return {(row["query-id"], row["corpus-id"]): row["score"] for row in rows_of(release, "qrels", split)}


def test_a_folder_of_beir_becomes_a_release_with_grades_titles_and_original_ids(tmp_path: Path) -> None:
    done = run("builders", "official", "--copy", write_beir(tmp_path / "beir"), "--out", tmp_path / "out")
    release = tmp_path / "out"
    texts = {row["_id"]: row["text"] for row in rows_of(release, "corpus", "corpus")}
    assert texts == {
        DUMPLINGS: "饺子 水开后下锅。",
        SAME_ID: SAME,
        TITLE_ID: "只有题目",
        md5("无关。"): "无关。",
    }
    assert grades_of(release, "test") == {(Q1, DUMPLINGS): 3, (Q1, TITLE_ID): 0, (Q2, SAME_ID): 2}
    ids = {row["original-id"]: row["_id"] for row in rows_of(release, "original-ids", "corpus")}
    assert ids == {"d1": DUMPLINGS, "d2": SAME_ID, "d3": SAME_ID, "d4": TITLE_ID}
    assert rows_of(release, "original-ids", "queries") == [
        {"original-id": "1", "_id": Q1},
        {"original-id": "2", "_id": Q2},
    ]
    first, _ = rows_of(release, "test", "test")
    assert [passage["docid"] for passage in first["negative_passages"]] == [TITLE_ID]
    for finding in (
        "passages with a title (joined before the text): 2; ",
        "passages whose text occurred before (merged): 1",
        "judgments of test of a pair that was judged before (the highest grade is kept): 1",
        "judgments of test with a score of 0 or less (kept as judged negatives): 2",
        "judgments of test with another grade than 1 (kept): 2",
        "queries of test without a positive judgment (skipped): 1; 3",
        "judgments of test whose query or passage the copy lacks (skipped): 1; 9 d1",
    ):
        assert finding in done.stdout, finding
    run("builders", "check", "--release", release)


def test_titles_are_dropped_by_an_option_and_counted(tmp_path: Path) -> None:
    stats = build_copy([str(write_beir(tmp_path / "beir"))], tmp_path / "out", titles="drop")
    assert [row["text"] for row in rows_of(tmp_path / "out", "corpus", "corpus")] == ["水开后下锅。", SAME, "无关。"]
    assert stats["copy"]["findings"]["passages with a title (dropped)"] == 2
    assert open_release(tmp_path / "out").manifest.builds[0].options["titles"] == "drop"


def test_a_second_call_with_other_titles_builds_again(tmp_path: Path) -> None:
    command = ["official", "--copy", write_beir(tmp_path / "beir"), "--out", tmp_path / "out"]
    run("builders", command)
    manifest = (tmp_path / "out" / "manifest.json").read_bytes()
    run("builders", command, "--titles", "drop")
    dropped = (tmp_path / "out" / "manifest.json").read_bytes()
    assert dropped != manifest
    run("builders", command)
    assert (tmp_path / "out" / "manifest.json").read_bytes() == manifest


@pytest.mark.parametrize("form", ["beir", "trec", "msmarco", "tevatron"])
def test_what_export_writes_is_read_back(tmp_path: Path, form: str) -> None:
    release = make_release(tmp_path / "release")
    export_set(open_release(release), form, tmp_path / "exported", runs=[])
    build_copy([str(tmp_path / "exported")], tmp_path / "out")
    splits = ["train", "dev"]
    # Only TREC's and MS MARCO's files have the split of a query without judgments.
    if form in ("trec", "msmarco"):
        splits.append("test")
    for split in splits:
        assert rows_of(tmp_path / "out", "queries", split) == rows_of(release, "queries", split)
    for split in ("train", "dev"):
        assert rows_of(tmp_path / "out", "qrels", split) == rows_of(release, "qrels", split)
    assert {row["_id"] for row in rows_of(tmp_path / "out", "corpus", "corpus")} <= {
        row["_id"] for row in rows_of(release, "corpus", "corpus")
    }
    assert ("original-ids", "corpus") not in open_release(tmp_path / "out").splits()
    run("builders", "check", "--release", tmp_path / "out")


TOPICS = """<top>
<num> Number: 301
<title> 饺子怎么煮
<desc> Description:
Find recipes.
</top>
"""
DOCUMENTS = """<DOC>
<DOCNO> FT-1 </DOCNO>
<HEADLINE>饺子</HEADLINE>
<TEXT>
水开后<b>下锅</b>。
</TEXT>
</DOC>
<doc><docno>FT-2</docno>只有一行。</doc>
"""


def test_the_markup_of_trec_is_read(tmp_path: Path) -> None:
    for name, content in (("docs.sgml", DOCUMENTS), ("topics.301-450.txt", TOPICS), ("qrels.txt", "301 0 FT-1 2\n")):
        (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "LICENSE.txt").write_text("no data")
    build_copy([str(tmp_path)], tmp_path / "out")
    texts = [row["text"] for row in rows_of(tmp_path / "out", "corpus", "corpus")]
    assert texts == ["饺子 水开后下锅。", "只有一行。"]
    assert grades_of(tmp_path / "out", "dev") == {(Q1, DUMPLINGS): 2}
    assert rows_of(tmp_path / "out", "original-ids", "queries") == [{"original-id": "301", "_id": Q1}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "corpus.jsonl",
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y", "_id": "b"}\n',
            "jsonl:2: the key '_id' occ",
        ),
        (
            "corpus.jsonl",
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n',
            "jsonl:2: the id 'a' has a second text",
        ),
        ("corpus.tsv", "1\ta\n2\n", "corpus.tsv:2: expected 2 columns, as in the first line, found 1"),
        ("corpus.tsv", "1\ta\tb\tc\td\n", "corpus.tsv:1: expected an id and a text, 3 columns of judgments"),
        ("qrels/test.tsv", "1\td1\thigh\n", "test.tsv:1: expected a number as the score, found 'high'"),
        ("qrels/test.tsv", "1\td1\t1e9\n", "test.tsv:1: expected scores of at most 1,000,000, found 1e+09"),
        ("docs.xml", "<DOC>\n<DOCNO>1</DOCNO>\n", "docs.xml:1: <doc> does not end; expected </doc>"),
        ("docs.xml", "<DOC>\n<TEXT>x</TEXT>\n</DOC>\n", "docs.xml:1: expected an element <DOCNO> with the id"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = write_beir(tmp_path / "beir")
    (folder / name).write_text(content)
    with pytest.raises(InputError) as error:
        build_copy([str(folder)], tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


OLD_RUN = [
    ("1", [("d1", 3.0), ("d4", 2.0)]),
    ("2", [("d4", 5.0), ("d3", 4.0), ("d1", 3.0), ("d2", 2.0)]),
]
NEW_RUN = [
    (Q1, [(DUMPLINGS, 3.0), (TITLE_ID, 2.0)]),
    (Q2, [(TITLE_ID, 5.0), (SAME_ID, 4.0), (DUMPLINGS, 3.0)]),
]


def test_a_run_may_have_the_original_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_copy([str(write_beir(tmp_path / "beir"))], tmp_path / "out")
    release = open_release(tmp_path / "out")
    write_run(tmp_path / "old.run", OLD_RUN)
    write_run(tmp_path / "new.run", NEW_RUN)
    hits = dict(OLD_RUN)
    results = {query_id: dict(ranking) for query_id, ranking in hits.items()}
    old = evaluate(tmp_path / "old.run", release, "test")
    assert "old.run: 1 hits are passages whose text has a better rank under another original id" in caplog.text
    assert old == evaluate(tmp_path / "new.run", release, "test") == evaluate(results, release, "test")
    # d1 answers the first query at rank 1, and the merged passage answers the second at rank 2.
    assert old["MRR@10"] == 0.75
    command = ["evaluate", "--release", tmp_path / "out", "--split", "test", "--format", "json"]
    printed = [run("baselines", command, tmp_path / name).stdout.replace(name, "") for name in ("old.run", "new.run")]
    assert printed[0] == printed[1]
    command[0:1] = ["errors", "stages"]
    printed = []
    for name in ("old.run", "new.run"):
        stages = run("baselines", command, tmp_path / name, tmp_path / name)
        printed.append(stages.stdout.replace(name, ""))
    assert printed[0] == printed[1]


def test_an_export_of_a_run_with_original_ids_has_the_ids_of_the_release(tmp_path: Path) -> None:
    build_copy([str(write_beir(tmp_path / "beir"))], tmp_path / "out")
    write_run(tmp_path / "old.run", OLD_RUN)
    export_set(
        open_release(tmp_path / "out"), "trec", tmp_path / "exported", runs=[tmp_path / "old.run"], runs_only=True
    )
    assert read_run(tmp_path / "exported" / "runs" / "old.trec").hits == dict(NEW_RUN)


def test_the_release_of_a_copy_is_loaded_and_exported_and_built_upon(tmp_path: Path) -> None:
    build_copy([str(write_beir(tmp_path / "beir"))], tmp_path / "out")
    rows = dureader_retrieval.load_dataset("original-ids", data_dir=str(tmp_path / "out"), split="corpus").to_list()
    assert rows == rows_of(tmp_path / "out", "original-ids", "corpus")
    assert "`original-id`" in (tmp_path / "out" / "README.md").read_text("utf-8")
    export_set(open_release(tmp_path / "out"), "beir", tmp_path / "exported")
    build_copy([str(tmp_path / "exported")], tmp_path / "again")
    assert grades_of(tmp_path / "again", "test") == grades_of(tmp_path / "out", "test")


def test_check_finds_wrong_original_ids(tmp_path: Path) -> None:
    rows = tables()
    rows["original-ids", "corpus"] = [{"original-id": "p", "_id": md5("nowhere")}]
    rows["original-ids", "queries"] = [{"original-id": "q", "_id": row["_id"]} for row in rows["queries", "dev"]]
    findings = run_check(open_release(make_release(tmp_path / "release", rows))).findings
    found = {(finding.test, finding.where, finding.count) for finding in findings}
    assert ("dangling-ids", "original-ids/corpus", 1) in found
    assert ("original-ids", "original-ids/queries", 1) in found
