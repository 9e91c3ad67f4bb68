"""cCOVID-News out of the competition's files: documents, the seeded draw, missing documents, JSON lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import md5

from builders.__main__ import VERBS
from builders.add.ccovid import json_rows, read
from builders.core.command import main
from builders.core.errors import InputError
from builders.sources.tables import find_tables
from builders.store.reader import open_release


def run(*words: object) -> int:
    return main("builders", "", VERBS, ["add", "ccovid", *map(str, words)])


DOCUMENTS = {"d1": "北京市发布通知。", "d2": '“抗疫"贷款\t说明', "d3": "北京市发布通知。", "d4": "上海的措施"}
JUDGED = [
    ("d1", "北京市发布了什么？"),
    ("d3", "北京市发布了什么？"),
    ("d2", "什么是贷款？"),
    ("d4", "上海怎么做？"),
    ("d9", "无"),
    ("d4", "几项措施？"),
]


def source(folder: Path, encoding: str = "utf-8", mark: str = "") -> Path:
    folder.mkdir()
    context = "docid\ttext\n" + "".join(f"{docid}\t{text}\n" for docid, text in DOCUMENTS.items())
    train = "id\tdocid\tquestion\tanswer\n" + "".join(f"{n}\t{d}\t{q}\t略\n" for n, (d, q) in enumerate(JUDGED))
    (folder / "NCPPolicies_context_20200301.csv").write_bytes((mark + context).encode(encoding))
    (folder / "NCPPolicies_train_20200301.csv.gz").write_bytes(gzip.compress((mark + train).encode(encoding)))
    (folder / "NCPPolicies_test.csv").write_bytes("\ufeffid\tquestion\n1\t问题\n".encode())
    return folder


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "\ufeff"), ("gb18030", ""), ("utf-8", "")])
def test_every_different_policy_is_a_passage_and_every_judgment_is_kept(
    tmp_path: Path, encoding: str, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source(tmp_path / "in", encoding, mark)
    assert run("--source", folder, "--out", tmp_path / "out", "--test-size", 2, "--format", "json") == 0
    printed = capsys.readouterr()
    release = open_release(tmp_path / "out")
    texts = [DOCUMENTS["d1"], DOCUMENTS["d2"], DOCUMENTS["d4"]]
    assert [row["text"] for row in release.table("ccovid-corpus", "corpus").to_pylist()] == texts
    pairs = {split: release.table("ccovid-qrels", split).to_pylist() for split in ("train", "test")}
    every = {(row["query-id"], row["corpus-id"]) for rows in pairs.values() for row in rows}
    assert every == {(md5(question), md5(DOCUMENTS[d])) for d, question in JUDGED if d in DOCUMENTS}
    sizes = {split: release.rows("ccovid-queries", split) for split in pairs}
    assert sizes == {"train": 2, "test": 2}
    counts = json.loads(printed.out)["read"]["all"]
    assert (counts["questions"], counts["judgments"], counts["passage_missing"]) == (5, 6, 1)
    assert "1 of 6 judgments name a passage that the sources do not have" in printed.err


def test_the_draw_follows_the_seed(tmp_path: Path) -> None:
    folder = source(tmp_path / "in")
    found = []
    for number, seed in enumerate((0, 0, 1, 2, 3)):
        out = tmp_path / str(number)
        assert run("--source", folder, "--out", out, "--test-size", 2, "--seed", seed) == 0
        release = open_release(out)
        assert release.manifest.builds[0].options == {"test_size": 2, "seed": seed, "encoding": "auto"}
        found.append(frozenset(release.table("ccovid-queries", "test")["_id"].to_pylist()))
    assert found[0] == found[1]
    assert len(set(found)) > 1
    assert (tmp_path / "0/manifest.json").read_bytes() == (tmp_path / "1/manifest.json").read_bytes()


def test_documents_from_json_lines(tmp_path: Path) -> None:
    folder = source(tmp_path / "in")
    (folder / "NCPPolicies_context_20200301.csv").unlink()
    rows = [{"docid": d, "context": text, "id": 1, "answer": {"text": "略"}} for d, text in DOCUMENTS.items()]
    rows[0]["question"] = "谁发布了通知？"
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "local.json.gz").write_bytes(gzip.compress(lines.encode("utf-8-sig")))
    collection, used = read(find_tables([folder]))
    assert set(collection.passages.values()) == set(DOCUMENTS.values())
    assert collection.queries["all"]["谁发布了通知？"] == [md5(DOCUMENTS["d1"])]
    assert [source.name for source in used] == ["NCPPolicies_train_20200301.csv.gz", "local.json.gz"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("NCPPolicies_context_20200301.csv", "docid\ttext\nd1\n", "20200301.csv:2: expected 2 columns"),
        ("more.csv", "docid\ttext\nd1\tx\n", "more.csv:2: a second text for the document 'd1'"),
        ("more.json", '{"docid": "d1"}\n', "more.json:1: not a JSON line with docid and context"),
        ("more.json", '{"docid": "d8", "context": "x"}\n{"docid', "more.json:2: not a JSON line"),
        ("NCPPolicies_context_20200301.csv", "docid\ttext\n", "no documents in what --source names"),
    ],
)
def test_a_wrong_source_is_one_error_and_leaves_nothing(
    tmp_path: Path, name: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = source(tmp_path / "in")
    (folder / name).write_text(text)
    assert run("--source", folder, "--out", tmp_path / "out", "--test-size", 1) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_few_questions_for_the_test_split_are_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--source", source(tmp_path / "in"), "--out", tmp_path / "out") == 1
    assert "4 questions have a passage, fewer than the 949 of --test-size" in capsys.readouterr().err


json_bytes = st.one_of(
    st.binary(max_size=200),
    st.lists(
        st.sampled_from(
            [
                '{"docid":',
                '"context":',
                '"d"',
                ",",
                "}",
                "{",
                "[",
                "null",
                "1",
                '"\\ud800"',
                '"\\u0000"',
                "\n",
                "文",
                "\ufeff",
            ]
        )
    ).map(lambda parts: "".join(parts).encode()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(json_bytes)
def test_any_bytes_give_rows_or_the_one_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    try:
        for line, row in json_rows(find_tables([path])[0], "auto"):
            assert line >= 1
            md5(row.docid + row.context)
    except InputError as error:
        assert str(path) in str(error)


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
    assert run("--source", folder, "--out", tmp_path / "out") == 0
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
    counts = json.loads((tmp_path / "out/stats.json").read_text())["ccovid"]["read"]["all"]
    assert (counts["questions"], counts["judgments"], counts["passage_missing"]) == (4949, 4999, 3737)
