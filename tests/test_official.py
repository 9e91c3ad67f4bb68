"""Official archives to a release and back: contents, disagreements, refused archives, bad lines, round trips."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from commands import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_archives import DEV, ORIGINAL, PASSAGES, PREPROCESSED, TRAIN, md5, original_files, preprocessed_files

from builders import official
from builders.common.command import InputError
from builders.export.official import export_official
from builders.official import archives, build_official
from builders.official import blocks as official_blocks
from builders.official.text_pool import KeyTable, as_keys
from builders.store.reader import open_release

FUZZ_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "300"))
BOTH = original_files() | preprocessed_files()


def convert(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """The release in ``folder/release``, made from files in ``folder/in``; returns its stats' official part."""
    shutil.rmtree(folder / "in", ignore_errors=True)
    return build_official([made.write_files(folder / "in", files)], folder / "release")["official"]


def rows(folder: Path, config: str, split: str) -> list[dict[str, Any]]:
    return open_release(folder / "release").table(config, split).to_pylist()


def round_trip(folder: Path, files: dict[str, str]) -> None:
    shutil.rmtree(folder / "out", ignore_errors=True)
    written = export_official(open_release(folder / "release"), folder / "out")
    found = {
        p.relative_to(folder / "out").as_posix(): p.read_bytes() for p in (folder / "out").rglob("*") if p.is_file()
    }
    assert found == {name: content.encode() for name, content in files.items()}
    assert all(entry["equal"] for entry in written)


def without(files: dict[str, str], *parts: str) -> dict[str, str]:
    return {name: content for name, content in files.items() if not any(part in name for part in parts)}


# What comes out


def test_original_release(tmp_path: Path) -> None:
    found = convert(tmp_path, original_files())
    assert found["findings"] == {}
    assert rows(tmp_path, "corpus", "corpus") == [{"_id": md5(p), "title": "", "text": p} for p in PASSAGES]
    assert [row["query"] for row in rows(tmp_path, "train", "train")] == list(TRAIN)
    assert rows(tmp_path, "qrels", "dev") == [
        {"query-id": md5(question), "corpus-id": md5(PASSAGES[n]), "score": 1}
        for question, ns in DEV.items()
        for n in ns
    ]
    assert [row["text"] for row in rows(tmp_path, "queries", "test")] == made.TEST1 + made.TEST2
    assert ("qrels", "test") not in open_release(tmp_path / "release").splits()
    stats = json.loads((tmp_path / "release" / "stats.json").read_text())
    assert stats["table3"]["dev"]["positive_passages"] == 3
    assert stats["collections"]["corpus"]["passages"] == len(PASSAGES)


def test_preprocessed_release(tmp_path: Path) -> None:
    found = convert(tmp_path, preprocessed_files())
    train = {row["query"]: row for row in rows(tmp_path, "train", "train")}
    assert list(train) == list(TRAIN)
    questions = list(TRAIN)
    # dual.train.tsv's negatives, each once, then cross.train.tsv's.
    assert [p["text"] for p in train[questions[0]]["negative_passages"]] == [PASSAGES[n] for n in (7, 9, 6)]
    assert [p["docid"] for p in train[questions[1]]["negative_passages"]] == [md5(PASSAGES[n]) for n in (8, 11, 7)]
    assert [p["text"] for p in train[questions[0]]["positive_passages"]] == [PASSAGES[0]]
    assert [row["_id"] for row in rows(tmp_path, "corpus", "corpus")] == [md5(p) for p in PASSAGES]
    assert found["files"][f"{PREPROCESSED}/train/dual.train.tsv"] == len(made.DUAL)


def test_the_top_50_is_a_run(tmp_path: Path) -> None:
    convert(tmp_path, preprocessed_files())
    run = (tmp_path / "release" / "runs" / "official-dev-top50.trec").read_text().splitlines()
    first = next(iter(DEV))
    ranked = [PASSAGES[4], PASSAGES[7], PASSAGES[9]]
    tag = "official-dual-encoder"
    assert run[:3] == [f"{md5(first)} Q0 {md5(p)} {rank} {4 - rank} {tag}" for rank, p in enumerate(ranked, 1)]
    assert len(run) == 6
    listed = {entry["path"] for entry in open_release(tmp_path / "release").manifest["files"]}
    assert "runs/official-dev-top50.trec" in listed


@pytest.mark.parametrize("kept", ["top50.res.tsv", "id_map.tsv"])
def test_half_of_the_top_50_is_enough(tmp_path: Path, kept: str) -> None:
    whole = preprocessed_files()
    convert(tmp_path / "whole", whole)
    half = {name: text for name, text in whole.items() if "auxiliary" not in name or name.endswith(kept)}
    convert(tmp_path / "half", half)
    run = "release/runs/official-dev-top50.trec"
    assert (tmp_path / "whole" / run).read_bytes() == (tmp_path / "half" / run).read_bytes()


def test_real_rows(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "dureader-retrieval-samples"
    files = {
        "dev/dev.q.format": (folder / "dureader.q").read_text(encoding="utf-8"),
        "train/cross.train.tsv": (folder / "cross.train.tsv").read_text(encoding="utf-8"),
    }
    found = convert(tmp_path, files)
    assert set(found["files"].values()) == {100}
    train = rows(tmp_path, "train", "train")
    assert len(train) == 7
    pairs: dict[int, set[tuple[str, str]]] = {1: set(), 0: set()}
    for line in files["train/cross.train.tsv"].splitlines():
        question, _, passage, label = line.split("\t")
        pairs[int(label)].add((question, passage))
    assert {(r["query"], p["text"]) for r in train for p in r["positive_passages"]} == pairs[1]
    assert sorted((r["query"], p["text"]) for r in train for p in r["negative_passages"]) == sorted(pairs[0] - pairs[1])
    round_trip(tmp_path, files)


# Round trips


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
@pytest.mark.parametrize(
    "files", [original_files(), preprocessed_files(), BOTH], ids=["original", "preprocessed", "both"]
)
def test_round_trip(tmp_path: Path, files: dict[str, str], form: str) -> None:
    source = tmp_path / f"archive.{form}"
    if form == "folder":
        made.write_files(source, files)
    else:
        made.write_tar(source, files, tmp_path / "scratch", "w:gz" if form == "tar.gz" else "w")
    build_official([source], tmp_path / "release")
    round_trip(tmp_path, files)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from(sorted(without(BOTH, "readme", "License"))), min_size=1))
def test_round_trip_of_any_part(tmp_path: Path, names: set[str]) -> None:
    files = {name: BOTH[name] for name in names}
    convert(tmp_path, files)
    round_trip(tmp_path, files)


@pytest.mark.parametrize(
    "style",
    [{"ensure_ascii": True}, {"separators": (",", ":")}, {"ensure_ascii": True, "separators": (",", ":")}],
    ids=["escaped", "compact", "both"],
)
def test_round_trip_of_json_styles(tmp_path: Path, style: dict[str, Any]) -> None:
    files = original_files(**style)
    convert(tmp_path, files)
    round_trip(tmp_path, files)


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"indent": 4, "ensure_ascii": False}, {"separators": (",", ":")}])
@pytest.mark.parametrize("block", [8 << 20, 40])
def test_round_trip_of_a_wrapped_collection(
    tmp_path: Path, style: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(official_blocks, "BLOCK_BYTES", block)
    passages = [{"paragraph_id": md5(p), "paragraph_text": p} for p in PASSAGES]
    files = {"passage_collection.json": json.dumps({"data": passages}, **style)}
    convert(tmp_path, files)
    assert [row["text"] for row in rows(tmp_path, "corpus", "corpus")] == PASSAGES
    round_trip(tmp_path, files)


def test_round_trip_of_files_in_another_order_and_without_a_last_line_end(tmp_path: Path) -> None:
    files = dict(BOTH)
    for name in list(files):
        if name.startswith(ORIGINAL):
            files[name] = "\n".join(reversed(files[name].splitlines()))
    convert(tmp_path, files)
    round_trip(tmp_path, files)


def test_a_release_from_elsewhere_is_written_as_the_original_release(tmp_path: Path) -> None:
    from releases import TEXTS, make_release

    written = export_official(open_release(make_release(tmp_path / "release")), tmp_path / "out")
    assert {entry["equal"] for entry in written} == {None}
    content = (tmp_path / "out" / ORIGINAL / "passage_collection.json").read_text(encoding="utf-8")
    assert content == made.lines([{"paragraph_id": md5(p), "paragraph_text": p} for p in TEXTS])
    assert (tmp_path / "out" / ORIGINAL / "test1.json").exists()


def test_a_changed_release_does_not_claim_to_be_equal(tmp_path: Path) -> None:
    convert(tmp_path, original_files())
    path = tmp_path / "release" / "official" / "layout.json"
    path.write_text(path.read_text().replace('"sha256": "', '"sha256": "0'))
    assert not any(entry["equal"] for entry in export_official(open_release(tmp_path / "release"), tmp_path / "out"))


def test_several_workers_and_small_blocks_give_the_same_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(tmp_path / "one", BOTH)
    monkeypatch.setattr(official_blocks, "BLOCK_BYTES", 300)
    monkeypatch.setattr(official, "_SMALL", 0)
    build_official([made.write_files(tmp_path / "in", BOTH)], tmp_path / "two", workers=2)
    one, two = (tmp_path / name for name in ("one/release", "two"))
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()


def test_command(tmp_path: Path) -> None:
    archive = made.write_tar(tmp_path / "a.tar.gz", original_files(), tmp_path / "scratch")
    command = [sys.executable, "-m", "builders", "official", "--quiet", "--archive", str(archive), "--out"]
    done = subprocess.run([*command, str(tmp_path / "release")], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "queries" in done.stdout
    again = subprocess.run([*command, str(archive)], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1


# What disagrees


def count(found: dict[str, Any], part: str) -> int:
    return sum(times for what, times in found["findings"].items() if part in what)


def test_ids_of_the_map_that_are_not_the_texts_md5(tmp_path: Path) -> None:
    """The archive's id stays, since judgments use it; it is counted; no judgment hangs in the air."""
    files = preprocessed_files()
    name = f"{PREPROCESSED}/passage-collection/part-01"
    files[name] = files[name].replace(PASSAGES[4], PASSAGES[4] + "改")  # as if a text had been cleaned for the TSV
    found = convert(tmp_path, files)
    assert count(found, "passages whose id is not the MD5") == 1
    assert count(found, "text is not the collection's") == 1
    assert md5(PASSAGES[4]) in found["examples"]["passages whose id is not the MD5 of their text"][0]
    ids = {row["_id"]: row["text"] for row in rows(tmp_path, "corpus", "corpus")}
    assert ids[md5(PASSAGES[4])] == PASSAGES[4] + "改"
    assert {row["corpus-id"] for split in ("train", "dev") for row in rows(tmp_path, "qrels", split)} <= set(ids)
    round_trip(tmp_path, files)


def test_texts_of_the_tsvs_have_the_ids_of_the_collection(tmp_path: Path) -> None:
    files = without(preprocessed_files(), "dev", "auxiliary")
    name = f"{PREPROCESSED}/passage-collection/passage2id.map.json"
    files[name] = files[name].replace(md5(PASSAGES[0]), "0" * 32).replace(md5(PASSAGES[7]), "f" * 32)
    convert(tmp_path, files)
    row = rows(tmp_path, "train", "train")[0]
    assert row["positive_passages"][0]["docid"] == "0" * 32
    assert row["negative_passages"][0]["docid"] == "f" * 32
    assert rows(tmp_path, "qrels", "train")[0]["corpus-id"] == "0" * 32
    round_trip(tmp_path, files)


def test_lines_and_map_of_different_length(tmp_path: Path) -> None:
    files = preprocessed_files()
    ids = {str(n): md5(p) for n, p in enumerate(PASSAGES[:10])} | {"30": "0" * 32}
    files[f"{PREPROCESSED}/passage-collection/passage2id.map.json"] = json.dumps(ids)
    found = convert(tmp_path, files)
    assert count(found, "lines without an entry") == 2
    assert count(found, "lines that no part holds") > 0
    assert [row["_id"] for row in rows(tmp_path, "corpus", "corpus")] == [md5(p) for p in PASSAGES]


def test_a_missing_part_makes_line_numbers_useless(tmp_path: Path) -> None:
    files = without(preprocessed_files(), "part-00")
    convert(tmp_path, files)
    assert [row["_id"] for row in rows(tmp_path, "corpus", "corpus")] == [md5(p) for p in PASSAGES[3:]]
    round_trip(tmp_path, files)


def test_judgments_whose_passage_is_missing_are_left_out_of_the_qrels(tmp_path: Path) -> None:
    files = original_files()
    name = f"{ORIGINAL}/passage_collection.json"
    files[name] = "".join(line + "\n" for line in files[name].splitlines() if md5(PASSAGES[9]) not in line)
    found = convert(tmp_path, files)
    assert count(found, "judgments of dev whose passage the collection lacks") == 1
    assert len(rows(tmp_path, "qrels", "dev")) == 2
    assert len(rows(tmp_path, "dev", "dev")[0]["positive_passages"]) == 2
    round_trip(tmp_path, files)


def test_positives_of_the_tsvs_that_train_json_does_not_judge(tmp_path: Path) -> None:
    files = dict(BOTH)
    question = next(iter(TRAIN))
    files[f"{PREPROCESSED}/train/dual.train.tsv"] += (
        f"{question}\t\t{PASSAGES[5]}\t\t{PASSAGES[10]}\t0\n{question}\t\t{PASSAGES[0]}\t\t{PASSAGES[5]}\t0\n"
        f"没有的问题\t\t{PASSAGES[5]}\t\t{PASSAGES[10]}\t0\n"
    )
    found = convert(tmp_path, files)
    assert count(found, "positives of the TSVs that train.json does not judge") == 1
    assert count(found, "negatives of the TSVs that are positives") == 1
    assert count(found, "questions of the TSVs") == 1
    row = rows(tmp_path, "train", "train")[0]
    assert [p["text"] for p in row["positive_passages"]] == [PASSAGES[0]]
    assert PASSAGES[5] not in [p["text"] for p in row["negative_passages"]]
    round_trip(tmp_path, files)


def test_ids_of_the_top_50_that_are_not_their_texts(tmp_path: Path) -> None:
    files = preprocessed_files()
    name = f"{PREPROCESSED}/auxiliary/dev.retrieval.top50.res.id_map.tsv"
    files[name] = files[name].replace(md5(PASSAGES[7]), md5(PASSAGES[1]))
    found = convert(tmp_path, files)
    assert count(found, "passages of the top 50 whose id") == 1
    round_trip(tmp_path, files)


# What is refused


@pytest.mark.parametrize(
    ("name", "line", "content", "message"),
    [
        ("dual.train.tsv", 2, "问\t\t答\t\t否\t0\n问\t\t答\t\t否\n", "expected 6 columns"),
        ("cross.train.tsv", 2, "问\t\t答\t1\n问\t\t答\t2\n", "expected the label 0 or 1"),
        ("cross.train.tsv", 1, "问\t\t\t1\n", "expected the text of a passage"),
        ("part-00", 1, "-\t\t一段\t0\r\n", "CR LF"),
        ("part-00", 2, "-\t\t一段\t0\n-\t一段\n", "expected 4 columns"),
        ("dev.q.format", 3, "问\t-\t-\t0\n问二\t-\t-\t0\n\n", "expected 4 columns"),
        ("dev.json", 1, '{"question_id": "1", "question": "问"}\n', "question_id"),
        ("dev.json", 1, json.dumps(made.question("问", None)) + "\n", "answer_paragraphs is missing"),
        ("test1.json", 2, json.dumps(made.question("问", None)) + "\n[]\n", "Expected `object`"),
        ("passage_collection.json", 1, '{"paragraph_id": 5, "paragraph_text": ""}\n', "not a passage"),
        ("passage_collection.json", 1, '{"data": [{"paragraph_id": "x"}]}', "not a passage"),
        ("passage2id.map.json", 1, '{"0": "' + "0" * 32 + '", "x": "' + "1" * 32 + '"}', "line number"),
        ("dev.retrieval.top50.res.tsv", 1, "问\t17\t1\t0.93\n", "retriever's output"),
        ("dev.retrieval.top50.res.id_map.tsv", 1, "1\t2\n", "32 hex digits"),
        ("q2qid.dev.json", None, "[]", "one JSON object"),
        ("train.json", None, "", "is empty"),
        ("train.json", None, "\ufeff{}", "byte order mark"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, line: int | None, content: str, message: str) -> None:
    folder = made.write_files(tmp_path / "in", {name: content})
    with pytest.raises(InputError) as error:
        build_official([folder], tmp_path / "release")
    where = f"{folder / name}:" + (f"{line}:" if line else "")
    assert str(error.value).startswith(where)
    assert message in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]  # nothing half-made is left


def test_one_id_with_two_texts_is_refused(tmp_path: Path) -> None:
    row = made.question("问", None)
    files = {"test1.json": made.lines([row, {**row, "question": "另问"}])}
    with pytest.raises(InputError, match=r"test1.json:2: .*two texts"):
        convert(tmp_path, files)


def test_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "part-00").write_bytes("-\t\t一\t0\n-\t\t".encode() + "二".encode("gb18030") + b"\t0\n")
    with pytest.raises(InputError, match="part-00:2: not UTF-8"):
        build_official([tmp_path / "part-00"], tmp_path / "release")


@pytest.mark.parametrize("what", ["missing", "folder", "text"])
def test_nothing_official(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "folder":
        made.write_files(path, {"other.txt": "文", "readme.md": "文"})
    elif what == "text":
        path.write_text("<html>404</html>")
    with pytest.raises(InputError):
        build_official([path], tmp_path / "release")


def info(name: str, **values: Any) -> tarfile.TarInfo:
    result = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(result, key, value)
    return result


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize(
    "member",
    [
        info("../train.json"),
        info("a/../../x.txt"),
        info("/etc/train.json"),
        info("..\\train.json"),
        info("train.json", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        info("train.json", type=tarfile.LNKTYPE, linkname="dev.json"),
        info("unwanted", type=tarfile.CHRTYPE),
        info("train.json", type=tarfile.FIFOTYPE),
    ],
    ids=lambda member: member.name + member.type.decode(),
)
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, member: tarfile.TarInfo, mode: str) -> None:
    path = tmp_path / "archive"
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        good = original_files()[f"{ORIGINAL}/dev.json"].encode()
        tar.addfile(info("dev.json", size=len(good)), io.BytesIO(good))
        tar.addfile(member)
    with pytest.raises(InputError, match="refused"):
        build_official([path], tmp_path / "release")
    assert [p.name for p in tmp_path.iterdir()] == ["archive"]


@pytest.mark.parametrize("form", ["w", "w:gz"])
def test_far_too_large_members_are_refused(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MEMBER_BYTES", 100)
    path = made.write_tar(tmp_path / "archive", original_files(), tmp_path / "scratch", form)
    with pytest.raises(InputError, match=r"refused.*above 100"):
        build_official([path], tmp_path / "release")


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    header = info("x", type=tarfile.XHDTYPE, size=1 << 32).tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "archive").write_bytes(header + b"\0" * 4096)
    with pytest.raises(InputError):
        build_official([tmp_path / "archive"], tmp_path / "release")


@pytest.mark.parametrize("form", ["w", "w:gz"])
def test_damaged_archives(tmp_path: Path, form: str) -> None:
    whole = made.write_tar(tmp_path / "whole", BOTH, tmp_path / "scratch", form).read_bytes()
    # The last KiB of a plain tar is padding beyond the end mark.
    end = len(whole) if form == "w:gz" else whole.rstrip(b"\0").__len__() + 512
    chance = random.Random(0)
    for _ in range(30):
        (tmp_path / "cut").write_bytes(whole[: chance.randrange(1, end)])
        with pytest.raises(InputError):
            build_official([tmp_path / "cut"], tmp_path / "release")
    if form == "w:gz":  # its checksum tells; a plain tar has none but its headers'
        for _ in range(30):
            place = chance.randrange(40, len(whole))  # after the header, whose fields mean nothing
            (tmp_path / "cut").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
            with pytest.raises(InputError):
                build_official([tmp_path / "cut"], tmp_path / "release")


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 300), max_size=50), max_size=12), st.lists(st.integers(0, 600), max_size=50))
def test_the_key_table_numbers_keys_as_they_come(portions: list[list[int]], asked: list[int]) -> None:
    table, expected = KeyTable(), {}  # type: ignore[var-annotated]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyTable, "_resize", lambda self, size, resize=KeyTable._resize: resize(self, min(size, 1 << 11)))
        table._resize(4)  # so that it grows
        for portion in portions:
            keys = as_keys(b"".join(value.to_bytes(16, "big") for value in portion))
            numbers, fresh = table.add(keys)
            for value, number, new in zip(portion, numbers, fresh, strict=True):
                assert new == (value not in expected)
                assert number == expected.setdefault(value, len(expected))
    assert table.keys().tobytes() == b"".join(value.to_bytes(16, "big") for value in expected)
    found = table.find(as_keys(b"".join(value.to_bytes(16, "big") for value in asked)))
    assert found.tolist() == [expected.get(value, -1) for value in asked]


# Fuzzing: FUZZ_EXAMPLES=10000 python -m pytest tests/test_official.py -k fuzz

_PIECES = st.sampled_from(
    [
        b"\t",
        b"\n",
        b"\r",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\0",
        b"\xff",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"null",
        b"1e999",
        b"-",
        b"\xef\xbb\xbf",
        b" ",
        b"0",
        b"[" * 2000,
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    """An official file with a few bytes replaced, taken out or put in; or any bytes at all."""
    name = draw(st.sampled_from(sorted(without(BOTH, "readme", "License"))))
    if draw(st.integers(0, 9)) == 0:
        return name, draw(st.binary(max_size=200))
    content = BOTH[name].encode()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        gone = draw(st.sampled_from([0, 0, 1, 2, 30]))
        content = content[:place] + draw(_PIECES | st.binary(max_size=4)) + content[place + gone :]
    return name, content


@settings(
    max_examples=FUZZ_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(damaged(), st.sampled_from([8 << 20, 64]))
def test_fuzz_readers(tmp_path: Path, case: tuple[str, bytes], block: int) -> None:
    """A damaged file converts (and comes back, if its format allows) or ends in the one error; it never crashes."""
    name, content = case
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(official_blocks, "BLOCK_BYTES", block)
        patch.setattr(os, "fsync", lambda handle: None)
        try:
            build_official([path], tmp_path / "release")
        except InputError:
            return
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        export_official(open_release(tmp_path / "release"), tmp_path / "out")


# Sources


def test_sources_have_all_fields() -> None:
    sources = json.loads((ROOT / "builders" / "sources.json").read_text(encoding="utf-8"))
    for name, source in sources.items():
        assert set(source) == {"url", "bytes", "md5", "sha256", "licence", "holds", "by_hand"}, name
        assert source["url"] or source["by_hand"], name
        assert source["url"] is None or source["url"].startswith("https://"), name
        assert source["md5"] is None or len(bytes.fromhex(source["md5"])) == 16, name
