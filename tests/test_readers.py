"""Readers recognise compression and encodings by content, count everything they drop, and take paths literally."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.core.passages import open_passages
from baselines.measure.qrels import read_qrels
from baselines.retrieve.question_pairs import PairFile, read_question_pairs
from baselines.train.recipe import read_recipe
from baselines.train.training_pairs import read_pairs
from builders.add.cmedqa import read_cmedqa
from builders.add.squad_files import read_squad
from builders.check.release_report import run_check
from builders.core.database import open_database
from builders.core.errors import InputError
from builders.core.locks import plain_folder
from builders.core.read_files import read_toml
from builders.export.export_formats import export_set
from builders.official.copies import build_copy
from builders.similar.pairs import Names
from builders.similar.pairs import read_pairs as read_training_pairs
from builders.sources.source_files import Source
from builders.store.judgments import read_negative_ids
from builders.store.reader import open_release
from builders.store.runs import read_run

RUN = b"q Q0 a 1 2.0 t\nq Q0 b 2 1.0 t\n"
HITS = {"q": [("a", 2.0), ("b", 1.0)]}
JSON_PAIR = '{"text1": "问", "text2": "答", "label": 1}\n'.encode()
NEGATIVES = b'{"query-id": "q", "negative-ids": ["a"]}\n'
BOM = b"\xef\xbb\xbf"


def read_training(path: Path) -> list[Any]:
    """Read training pairs of a file."""
    return list(read_training_pairs(path, Names()))


# Reader -> a valid content, and a function that reads a file of it.
READERS: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "run": (RUN, lambda path: read_run(path).hits),
    "predictions": (b'{"q": ["a", "b"]}', lambda path: read_run(path).hits),
    "qrels": (b"q 0 a 1\n", lambda path: read_qrels(path).positives),
    "negatives": (NEGATIVES, read_negative_ids),
    "pairs": (JSON_PAIR, lambda path: read_question_pairs([PairFile(path)])),
    "training pairs": ('{"query": "问", "pos": ["答"]}\n'.encode(), read_training),
    "TOML": (b"a = 1\n", read_toml),
    "SQuAD": (
        '{"data": [{"paragraphs": [{"context": "文", "qas": [{"question": "问"}]}]}]}'.encode(),
        lambda path: read_squad({"train": [Source(path, None, path.name)]}).queries,
    ),
}


@pytest.mark.parametrize("reader_name", READERS)
def test_gzip_is_found_by_content(tmp_path: Path, reader_name: str) -> None:
    content, read_file = READERS[reader_name]
    plain = tmp_path / "plain"
    disguised = tmp_path / "GZ.GZ.txt"
    misnamed = tmp_path / "misnamed.gz"
    plain.write_bytes(content)
    disguised.write_bytes(gzip.compress(content))
    misnamed.write_bytes(content)
    assert read_file(disguised) == read_file(misnamed) == read_file(plain)


@pytest.mark.parametrize("reader_name", READERS)
def test_another_format_is_named(tmp_path: Path, reader_name: str) -> None:
    content, read_file = READERS[reader_name]
    path = tmp_path / "file"
    parquet_buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": ["b"]}), parquet_buffer)
    contents = {
        "is compressed by xz; decompress": lzma.compress(content),
        "is compressed by bzip2; decompress": bz2.compress(content),
        "is compressed by Zstandard; decompress": pa.compress(content, "zstd", asbytes=True),
        "is gzipped twice": gzip.compress(gzip.compress(content)),
        "UTF-16; save the file as UTF-8": content.decode().encode("utf-16"),
        "Parquet|one of query, question": parquet_buffer.getvalue().to_pybytes(),
    }
    for message, foreign_content in contents.items():
        path.write_bytes(foreign_content)
        with pytest.raises(InputError, match=message) as error:
            read_file(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_chinese_text_in_gb18030_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    first_line = b'{"query": "a", "pos": ["b"]}\n'
    second_line = '{"query": "今天天气怎么样", "pos": ["很好"]}\n'.encode("gb18030")
    path.write_bytes(first_line + second_line)
    with pytest.raises(InputError, match=r"pairs.jsonl:2: .*found GB18030; save the file as UTF-8"):
        read_training(path)


def test_a_byte_order_mark_does_not_change_the_line_in_an_error(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(BOM + b"a = 1\n\xff")
    with pytest.raises(InputError, match=r"settings\.toml:2: expected UTF-8 text"):
        read_toml(path)


@pytest.mark.parametrize(
    ("reader_name", "content", "message"),
    [
        ("run", b'[{"query": "q"}]', "JSON list; expected 6 columns"),
        ("qrels", b'[{"query": "q"}]', "JSON list; expected TREC qrels"),
        ("predictions", b'{"q": {"a": [1.0]}}', "best first"),
        ("pairs", b"[\n" + JSON_PAIR + b"]", "JSON list; expected JSON lines"),
        ("negatives", NEGATIVES.replace(b", ", b",\n"), "found a JSON object that does not end in this line"),
        ("negatives", b"[\n" + NEGATIVES + b"]", "found a JSON list; write one value a line"),
        ("predictions", b'{"q": ["a"]}\n{"p": ["a"]}', "expected one JSON value, found more text"),
        ("predictions", '{"q": ["a"]}'.encode("utf-32"), "is UTF-32; save the file as UTF-8"),
        ("qrels", "\ufeffq 0 a 1".encode("gb18030"), "is GB18030; save the file as UTF-8"),
        ("SQuAD", b'[{"context_text": "a", "qas": []}]', "CMRC 2018's own format; expected SQuAD.*squad-style-data"),
        ("SQuAD", b'[{"paragraphs": []}]', r"a JSON object \(data\), found a JSON list; expected SQuAD"),
    ],
)
def test_another_form_or_encoding_is_named(tmp_path: Path, reader_name: str, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    _, read_file = READERS[reader_name]
    with pytest.raises(InputError, match=message):
        read_file(path)


def test_a_utf16_table_is_named_and_a_blank_line_before_the_header_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "dev_candidates.txt").write_text("\nquestion_id,ans_id,cnt,label\n1,2,0,1\n")
    (tmp_path / "question.csv").write_text("\n\nquestion_id,content\n1,头疼\n", encoding="utf-8")
    answers = "ans_id,question_id,content\n2,1,休息\n"
    (tmp_path / "answer.csv").write_text(answers, encoding="utf-8")
    collection, _ = read_cmedqa([tmp_path])
    assert collection.queries["test"] == {"头疼": [md5("休息")]}
    (tmp_path / "answer.csv").write_text(answers, encoding="utf-16")
    with pytest.raises(InputError, match=r"answer\.csv:1: is UTF-16; save the file as UTF-8 or GB18030"):
        read_cmedqa([tmp_path])


def test_blank_lines_before_the_header_of_beir_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("\n \nquery-id\tcorpus-id\tscore\nq\ta\t1\n")
    assert read_qrels(path).positives == {"q": {"a": 1}}


def test_a_query_that_occurs_twice_in_predictions_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    path.write_text('{"q[": ["a"],\n"p": ["b"]}')
    assert read_run(path).rankings == {"q[": ["a"], "p": ["b"]}  # a bracket in an id is no second list
    path.write_text('{"p": ["a"],\n"q": ["q"],\n"p": ["b"]}')
    with pytest.raises(InputError, match=r"predictions\.json:3: the key 'p' occurs twice"):
        read_run(path)


@pytest.mark.parametrize("in_one_file", [True, False])
def test_negatives_of_several_lines_and_files_are_joined(tmp_path: Path, in_one_file: bool) -> None:
    release = open_release(make_release(tmp_path / "release"))
    query_id = md5(QUESTIONS["train"][0])
    lines = []
    for text in (TEXTS[1], TEXTS[2]):
        lines.append(json.dumps({"query-id": query_id, "negative-ids": [md5(text)]}))
    file_contents = ["\n".join(lines)] if in_one_file else lines
    paths = []
    for number, content in enumerate(file_contents):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(content)
        paths.append(path)
    recipe = read_recipe("de-bm25-neg", ["data.negatives_per_positive=2"])
    pairs = read_pairs(release, recipe, open_passages(release, keep=tmp_path / "keep"), paths)
    assert sorted(pairs.negatives[0].tolist()) == [1, 2]
    assert pairs.counts["negatives"] == 2


def test_a_missing_negative_is_named_with_its_own_line(tmp_path: Path) -> None:
    release = open_release(make_release(tmp_path / "release"))
    path = tmp_path / "negatives.jsonl"
    lines = []
    for passage_id in (md5(TEXTS[1]), "unknown"):
        lines.append(json.dumps({"query-id": md5(QUESTIONS["train"][0]), "negative-ids": [passage_id]}))
    path.write_text("\n".join(lines))
    passages = open_passages(release, keep=tmp_path / "keep")
    with pytest.raises(InputError, match=r"negatives.jsonl:2: .*unknown"):
        read_pairs(release, read_recipe("de-bm25-neg"), passages, [path])


def read_squad_questions(tmp_path: Path, *questions: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    """Return the queries of train, and the counts of the input, for questions about one paragraph."""
    path = tmp_path / "train.json"
    answered_question = {"question": "有答案的", "answers": [{"text": "雨", "answer_start": 0}]}
    paragraph = {"context": "上海的春天多雨", "qas": [answered_question, *questions]}
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}), encoding="utf-8")
    collection = read_squad({"train": [Source(path, None, path.name)]})
    return list(collection.queries["train"]), collection.read


@pytest.mark.parametrize("answers", [[], {"text": [], "answer_start": []}, [{"text": " "}], [""], [None], ""])
def test_a_question_with_empty_answers_is_skipped_and_counted(tmp_path: Path, answers: Any) -> None:
    queries, counts = read_squad_questions(tmp_path, {"question": "无答案的", "answers": answers})
    assert queries == ["有答案的"]
    assert (counts["unanswered"], counts["impossible"]) == (1, 0)


def test_questions_without_the_key_answers_stay_and_blank_questions_are_counted(tmp_path: Path) -> None:
    without_answers = {"question": "未公布答案的"}
    blank_question = {"question": " "}
    null_answers = {"question": "空", "answers": None}
    queries, counts = read_squad_questions(tmp_path, without_answers, blank_question, null_answers)
    assert queries == ["有答案的", "未公布答案的", "空"]
    assert counts["blank_questions"] == 1
    assert "unanswered" not in counts


def test_titles_and_grades_of_a_copy_are_counted(tmp_path: Path) -> None:
    copy_folder = tmp_path / "copy"
    (copy_folder / "qrels").mkdir(parents=True)
    passages = [
        {"_id": md5("雨"), "title": "天气", "text": "雨"},
        {"_id": md5("雪"), "title": "", "text": "雪"},
    ]
    judgments = [
        {"query-id": "q", "corpus-id": md5("雨"), "score": 2},
        {"query-id": "q", "corpus-id": md5("雪"), "score": 1},
    ]
    (copy_folder / "CORPUS.JSONL").write_text("\n".join(map(json.dumps, passages)))
    (copy_folder / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "问"}))
    (copy_folder / "qrels" / "dev.jsonl").write_text("\n".join(map(json.dumps, judgments)))
    counts = build_copy([str(copy_folder)], tmp_path / "release")["copy"]["findings"]
    assert counts["passages with a title (joined before the text)"] == 1
    assert counts["judgments of dev with another grade than 1 (kept)"] == 1
    counts = build_copy([str(copy_folder)], tmp_path / "dropped", titles="drop")["copy"]["findings"]
    assert counts["passages with a title (dropped)"] == 1


@pytest.mark.parametrize("content", [BOM + RUN, RUN[:-1], b"\n\r\n" + RUN, BOM + RUN[:15] + BOM + RUN[15:]])
def test_an_exported_run_has_no_mark_and_no_blank_line_and_its_hits_are_counted(tmp_path: Path, content: bytes) -> None:
    release = open_release(make_release(tmp_path / "release"))
    path = tmp_path / "my.run"
    path.write_bytes(content)
    assert read_run(path).hits == HITS
    rows = export_set(release, "trec", tmp_path / "out", runs=[path], runs_only=True)
    assert (tmp_path / "out" / "runs" / "my.trec").read_bytes() == RUN
    assert rows == {"runs/my.trec": 2}


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?", "back\\slash", "_id=5", "text=1", "~run", "{run1,runx}"])
def test_a_release_in_a_folder_with_any_name_is_read_itself(tmp_path: Path, name: str) -> None:
    decoys = {config: rows[:1] for config, rows in tables().items()}
    for sibling in ("run1", "runx"):  # patterns would match these folders
        make_release(tmp_path / sibling, decoys)
    outputs = []
    for folder in (tmp_path / "plain", tmp_path / name):
        release = open_release(make_release(folder))
        out = tmp_path / f"export of {folder.name}"
        export_set(release, "flagembedding", out)
        exported_files = {path.name: path.read_bytes() for path in out.rglob("*.jsonl")}
        findings = [(finding.test, finding.where, finding.count) for finding in run_check(release).findings]
        outputs.append((exported_files, findings))
    assert outputs[0] == outputs[1]


def test_a_temporary_folder_with_any_name_holds_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "back\\slash?"
    work.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work))
    with open_database(work / "spill", 50, file=work / "test.duckdb") as connection:
        connection.execute("CREATE TABLE numbers AS SELECT range AS number FROM range(10)")
        connection.execute("CREATE TABLE texts AS SELECT md5(range::VARCHAR) AS text FROM range(1000000)")
        connection.execute("CREATE TABLE sorted AS SELECT text FROM texts ORDER BY text")  # more than the memory
        assert list(work.glob("spill/*")) and not Path(str(work).replace("\\", "/")).exists()


def test_a_link_to_an_odd_folder_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "a*").mkdir()
    with plain_folder(tmp_path / "a*") as folder:
        assert "*" not in str(folder) and folder.resolve() == tmp_path / "a*"
    assert [path.name for path in tmp_path.iterdir()] == ["a*"]
    with plain_folder(tmp_path) as folder:
        assert folder == tmp_path
