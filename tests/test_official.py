"""`official`: from archives to a release, to official files, and to the same release again."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from commands import run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_archives import (
    BOTH,
    DEV,
    ORIGINAL,
    PASSAGES,
    PREPROCESSED,
    TRAIN,
    original_files,
    preprocessed_files,
    tables,
)
from releases import md5

from builders.core.errors import InputError
from builders.export.export_formats import export_set
from builders.official import blocks
from builders.official.assembly import build_from_archives
from builders.official.numbered import NumberedIds, as_keys
from builders.sources.archives import read_archives
from builders.store.reader import open_release

QUESTIONS = list(TRAIN)
PASSAGE_IDS = [md5(text) for text in PASSAGES]


def convert(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """Build the release ``folder/release`` from files in ``folder/in``. Return ``official`` of its stats."""
    shutil.rmtree(folder / "in", ignore_errors=True)
    return build_from_archives([made.write_files(folder / "in", files)], folder / "release")["official"]


def check_round_trip(folder: Path) -> None:
    """Export the release and build it again. Both releases have the same tables."""
    for name in ("out", "again"):
        shutil.rmtree(folder / name, ignore_errors=True)
    export_set(open_release(folder / "release"), "official", folder / "out")
    build_from_archives([folder / "out"], folder / "again")
    assert tables(folder / "again") == tables(folder / "release")


def texts_of(passages: list[dict[str, str]]) -> list[str]:
    return [passage["text"] for passage in passages]


def texts_at(*numbers: int) -> list[str]:
    return [PASSAGES[number] for number in numbers]


def pairs_of(rows: list[dict[str, Any]], column: str) -> list[tuple[str, str]]:
    """Return (question, passage) for each passage in a column of joined rows."""
    pairs = []
    for row in rows:
        pairs += [(row["query"], text) for text in texts_of(row[column])]
    return pairs


def test_the_preprocessed_release_brings_its_negatives(tmp_path: Path) -> None:
    official_stats = convert(tmp_path, preprocessed_files())
    rows = tables(tmp_path / "release")
    train = {row["query"]: row for row in rows["train", "train"]}
    # Negatives of dual.train.tsv, each once, then of cross.train.tsv.
    assert texts_of(train[QUESTIONS[0]]["negative_passages"]) == texts_at(7, 9, 6)
    negative_ids = [passage["docid"] for passage in train[QUESTIONS[1]]["negative_passages"]]
    assert negative_ids == [PASSAGE_IDS[8], PASSAGE_IDS[11], PASSAGE_IDS[7]]
    assert texts_of(train[QUESTIONS[0]]["positive_passages"]) == texts_at(0)
    assert [row["_id"] for row in rows["corpus", "corpus"]] == PASSAGE_IDS
    assert official_stats["files"][f"{PREPROCESSED}/train/dual.train.tsv"] == len(made.DUAL)


def test_the_preprocessed_release_brings_the_top_50(tmp_path: Path) -> None:
    convert(tmp_path, preprocessed_files())
    trec_path = tmp_path / "release/runs/official-dev-top50.trec"
    query_id = md5(next(iter(DEV)))
    expected_lines = []
    for rank, text in enumerate(texts_at(4, 7, 9), 1):
        expected_lines.append(f"{query_id} Q0 {md5(text)} {rank} {4 - rank} official-dual-encoder")
    assert trec_path.read_text().splitlines()[:3] == expected_lines
    export_set(open_release(tmp_path / "release"), "trec", tmp_path / "trec")
    assert (tmp_path / "trec/runs" / trec_path.name).read_bytes() == trec_path.read_bytes()
    # The file of texts gives the same run without the file of ids.
    convert(tmp_path / "half", {name: text for name, text in preprocessed_files().items() if "id_map" not in name})
    assert (tmp_path / "half/release/runs" / trec_path.name).read_bytes() == trec_path.read_bytes()


def test_real_rows_of_the_preprocessed_release(tmp_path: Path, shared_data: Path) -> None:
    folder = shared_data / "dureader-retrieval-samples"
    cross_tsv = (folder / "cross.train.tsv").read_text(encoding="utf-8")
    queries = (folder / "dureader.q").read_text(encoding="utf-8")
    official_stats = convert(tmp_path, {"dev/dev.q.format": queries, "train/cross.train.tsv": cross_tsv})
    assert set(official_stats["files"].values()) == {100}
    train = tables(tmp_path / "release")["train", "train"]
    pairs_by_label: dict[str, set[tuple[str, str]]] = {"1": set(), "0": set()}
    for line in cross_tsv.splitlines():
        question, _, passage, label = line.split("\t")
        pairs_by_label[label].add((question, passage))
    assert set(pairs_of(train, "positive_passages")) == pairs_by_label["1"]
    assert sorted(pairs_of(train, "negative_passages")) == sorted(pairs_by_label["0"] - pairs_by_label["1"])
    check_round_trip(tmp_path)


def reverse_lines(files: dict[str, str]) -> None:
    """Reverse the lines of the files whose order is free, without a final line end."""
    for name, text in files.items():
        if name.endswith(("json", "dual.train.tsv")) and "map" not in name:
            files[name] = "\n".join(reversed(text.splitlines()))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.sampled_from(sorted(BOTH)), min_size=1) | st.just(set(BOTH)),
    form=st.sampled_from(["folder", "w", "w:gz"]),
    block=st.sampled_from([8 << 20, 300, 40]),
    style=st.sampled_from([{}, {"ensure_ascii": True}, {"ensure_ascii": True, "separators": (",", ":")}]),
    backwards=st.booleans(),
    wrapped=st.sampled_from([None, 2, 4]) | st.none(),
)
def test_any_part_in_any_form_survives_a_release_and_an_export(
    tmp_path: Path, names: set[str], form: str, block: int, style: dict[str, Any], backwards: bool, wrapped: int | None
) -> None:
    files = {name: text for name, text in (BOTH | original_files(**style)).items() if name in names}
    if backwards:
        reverse_lines(files)
    collection = f"{ORIGINAL}/passage_collection.json"
    if wrapped and collection in files:
        rows = [json.loads(line) for line in files[collection].splitlines()]
        files[collection] = json.dumps({"data": rows}, indent=wrapped)
    # Every example uses the same folder.
    for name in ("in", "release"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    source = made.write_files(tmp_path / "in", files)
    if form != "folder":
        source = made.write_tar(tmp_path / "archive", files, tmp_path / "scratch", form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block)
        if not any(name.endswith(("json", "tsv", "format")) or "part-" in name for name in files):
            return  # a readme and a licence
        build_from_archives([source], tmp_path / "release")
    if open_release(tmp_path / "release").splits():  # the map or the top 50 by themselves have no split
        check_round_trip(tmp_path)


def test_the_exported_files_are_in_the_published_style(tmp_path: Path) -> None:
    convert(tmp_path, BOTH)
    check_round_trip(tmp_path)
    for name in ("train.json", "dev.json", "passage_collection.json"):
        assert (tmp_path / "out" / ORIGINAL / name).read_text(encoding="utf-8") == BOTH[f"{ORIGINAL}/{name}"]
    dual_lines = []
    cross_lines = []
    for row in tables(tmp_path / "release")["train", "train"]:
        question = row["query"]
        positives = texts_of(row["positive_passages"])
        negatives = texts_of(row["negative_passages"])
        dual_lines += [f"{question}\t\t{positives[0]}\t\t{negative}\t0" for negative in negatives]
        cross_lines += [f"{question}\t\t{positive}\t1" for positive in positives]
        cross_lines += [f"{question}\t\t{negative}\t0" for negative in negatives]
    tsv_folder = tmp_path / "out" / PREPROCESSED / "train"
    assert (tsv_folder / "dual.train.tsv").read_text(encoding="utf-8").splitlines() == dual_lines
    assert (tsv_folder / "cross.train.tsv").read_text(encoding="utf-8").splitlines() == cross_lines


def test_tabs_and_line_ends_become_spaces_in_the_tsvs_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train_name = f"{ORIGINAL}/train.json"
    cross_name = f"{PREPROCESSED}/train/cross.train.tsv"
    rows = [made.question("问\t题", ["答\n案"]), made.question("问题", ["答案", "答\r案"])]
    convert(tmp_path, {train_name: made.lines(rows), cross_name: "问题\t\t答案\t1\n问题\t\t别的\t0\n"})
    export_set(open_release(tmp_path / "release"), "official", tmp_path / "out")
    assert (tmp_path / "out" / train_name).read_text(encoding="utf-8").count("\\") == 3
    cross_lines = (tmp_path / "out" / cross_name).read_bytes().decode().splitlines()
    assert cross_lines == ["问 题\t\t答 案\t1", "问题\t\t答案\t1", "问题\t\t答 案\t1", "问题\t\t别的\t0"]
    assert "cross.train.tsv: replaced tabs and line ends by spaces in 2 of 4 lines" in caplog.text


PARTS = f"{PREPROCESSED}/passage-collection/part-0"
MAP = f"{PREPROCESSED}/passage-collection/passage2id.map.json"
DUAL_TSV = f"{PREPROCESSED}/train/dual.train.tsv"


def check_findings(official_stats: dict[str, Any], expected: dict[str, int]) -> None:
    """Compare the counts of the findings whose descriptions contain the keys of ``expected``."""
    for part, expected_count in expected.items():
        counts = [count for description, count in official_stats["findings"].items() if part in description]
        assert sum(counts) == expected_count, part


def check_ids(rows: dict[tuple[str, str], list[dict[str, Any]]], expected_ids: list[str]) -> None:
    """The corpus has these ids, and every judged passage is in the corpus."""
    assert [row["_id"] for row in rows["corpus", "corpus"]] == expected_ids
    for (config, _), config_rows in rows.items():
        if config == "qrels":
            assert {row["corpus-id"] for row in config_rows} <= set(expected_ids)


def test_a_passage_whose_text_was_changed_keeps_its_id(tmp_path: Path) -> None:
    files = preprocessed_files()
    changed_text = PASSAGES[4] + "改"  # simulates a text that was cleaned for the TSV
    files[f"{PARTS}1"] = files[f"{PARTS}1"].replace(PASSAGES[4], changed_text)
    official_stats = convert(tmp_path, files)
    check_findings(official_stats, {"passages whose id is not the MD5": 1, "text differs from the collection": 1})
    check_round_trip(tmp_path)
    rows = tables(tmp_path / "release")
    assert rows["corpus", "corpus"][4]["text"] == changed_text
    assert official_stats["examples"]["passages whose id is not the MD5 of their text"] == [md5(PASSAGES[4])]
    check_ids(rows, PASSAGE_IDS)


def test_lines_of_a_tsv_that_contradict_the_judgments_are_counted(tmp_path: Path) -> None:
    files = dict(BOTH)
    for question, positive, negative in ((QUESTIONS[0], 5, 10), (QUESTIONS[0], 0, 5), ("没有的问题", 5, 10)):
        files[DUAL_TSV] += f"{question}\t\t{PASSAGES[positive]}\t\t{PASSAGES[negative]}\t0\n"
    official_stats = convert(tmp_path, files)
    expected = {
        "positives of the TSVs that train.json does not judge": 1,
        "negatives of the TSVs that are positives": 1,
        "questions of the TSVs": 1,
    }
    check_findings(official_stats, expected)
    check_round_trip(tmp_path)
    rows = tables(tmp_path / "release")
    first_row = rows["train", "train"][0]
    assert texts_of(first_row["positive_passages"]) == texts_at(0)
    assert PASSAGES[5] not in texts_of(first_row["negative_passages"])
    check_ids(rows, PASSAGE_IDS)


def test_without_the_first_part_the_ids_are_md5s(tmp_path: Path) -> None:
    """Line numbers are useless then. Judged passages of the first part are not in the corpus."""
    convert(tmp_path, {name: text for name, text in preprocessed_files().items() if "part-00" not in name})
    check_round_trip(tmp_path)
    corpus = tables(tmp_path / "release")["corpus", "corpus"]
    assert [row["_id"] for row in corpus] == PASSAGE_IDS[3:]


def test_ids_that_are_no_md5s_are_kept(tmp_path: Path) -> None:
    files = {}
    for name, text in preprocessed_files().items():
        if "dev" not in name and "auxiliary" not in name:
            files[name] = text
    files[MAP] = files[MAP].replace(md5(PASSAGES[0]), "0" * 32).replace(md5(PASSAGES[7]), "f" * 32)
    official_stats = convert(tmp_path, files)
    check_findings(official_stats, {"passages whose id is not the MD5": 2})
    check_round_trip(tmp_path)
    rows = tables(tmp_path / "release")
    first_row = rows["train", "train"][0]
    assert first_row["positive_passages"][0]["docid"] == "0" * 32
    assert first_row["negative_passages"][0]["docid"] == "f" * 32
    assert rows["qrels", "train"][0]["corpus-id"] == "0" * 32
    expected_ids = list(PASSAGE_IDS)
    expected_ids[0] = "0" * 32
    expected_ids[7] = "f" * 32
    check_ids(rows, expected_ids)


def as_bytes(values: Iterable[int]) -> bytes:
    """Write every value as an id of 16 bytes."""
    return b"".join(value.to_bytes(16, "big") for value in values)


@given(st.lists(st.lists(st.integers(0, 300), max_size=50), max_size=12), st.lists(st.integers(0, 600), max_size=50))
def test_ids_are_numbered_as_they_come(portions: list[list[int]], looked_up: list[int]) -> None:
    table = NumberedIds()
    expected_numbers: dict[int, int] = {}
    resize = NumberedIds._resize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NumberedIds, "_resize", lambda self, size: resize(self, min(size, 1 << 11)))
        table._resize(4)  # small, so that the table must grow
        for portion in portions:
            numbers, is_new = table.add(as_keys(as_bytes(portion)))
            for value, number, value_is_new in zip(portion, numbers, is_new, strict=True):
                assert value_is_new == (value not in expected_numbers)
                assert number == expected_numbers.setdefault(value, len(expected_numbers))
    assert table.keys().tobytes() == as_bytes(expected_numbers)
    found_numbers = table.find(as_keys(as_bytes(looked_up)))
    assert found_numbers.tolist() == [expected_numbers.get(value, -1) for value in looked_up]


def test_the_list_names_addresses_checksums_and_what_is_got_by_hand() -> None:
    printed = run("builders", "official", "--list").stdout
    assert "  from     https://dataset-bj.cdn.bcebos.com/dureader/dureader_raw.zip\n" in printed
    assert "  md5      dc7658b8cdf4f94b8714d130b7d15196\n  sha256   unknown\n" in printed
    assert printed.count("\n\n") == len(read_archives()) - 1
    one_archive = run("builders", "official", "--list", "datafountain-424").stdout
    assert "  by hand  register for competition 424 on DataFountain" in one_archive


def test_a_map_is_not_used_with_two_parts_of_the_same_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = {f"one/{MAP}": BOTH[MAP], "one/part-00": BOTH[f"{PARTS}0"], "two/part-00": BOTH[f"{PARTS}1"]}
    convert(tmp_path, files)
    assert "ids are MD5s, because the map needs each of the parts 00, 01 ... once; found 00, 00" in caplog.text


@pytest.mark.parametrize("block", [8 << 20, 60])
def test_an_error_names_the_line_of_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    entries = [f'"{number}": "{md5(text)}"' for number, text in enumerate(PASSAGES)]
    entries[8] = '"8": "wrong"'
    with pytest.raises(InputError, match=r"map\.json:10: expected pairs .* found '\"8\": \"wrong\"'"):
        convert(tmp_path, {MAP: "{\n " + ",\n ".join(entries) + "\n}\n"})
