"""Official archives that do not agree with themselves: what is counted, what is kept, and that all comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from official_archives import (
    BOTH,
    ORIGINAL,
    PASSAGES,
    PREPROCESSED,
    TRAIN,
    md5,
    original_files,
    preprocessed_files,
)
from official_release import check_round_trip, convert, rows, without


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
    check_round_trip(tmp_path)


def test_texts_of_the_tsvs_have_the_ids_of_the_collection(tmp_path: Path) -> None:
    files = without(preprocessed_files(), "dev", "auxiliary")
    name = f"{PREPROCESSED}/passage-collection/passage2id.map.json"
    files[name] = files[name].replace(md5(PASSAGES[0]), "0" * 32).replace(md5(PASSAGES[7]), "f" * 32)
    convert(tmp_path, files)
    row = rows(tmp_path, "train", "train")[0]
    assert row["positive_passages"][0]["docid"] == "0" * 32
    assert row["negative_passages"][0]["docid"] == "f" * 32
    assert rows(tmp_path, "qrels", "train")[0]["corpus-id"] == "0" * 32
    check_round_trip(tmp_path)


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
    check_round_trip(tmp_path)


def test_judgments_whose_passage_is_missing_are_left_out_of_the_qrels(tmp_path: Path) -> None:
    files = original_files()
    name = f"{ORIGINAL}/passage_collection.json"
    files[name] = "".join(line + "\n" for line in files[name].splitlines() if md5(PASSAGES[9]) not in line)
    found = convert(tmp_path, files)
    assert count(found, "judgments of dev whose passage the collection lacks") == 1
    assert len(rows(tmp_path, "qrels", "dev")) == 2
    assert len(rows(tmp_path, "dev", "dev")[0]["positive_passages"]) == 2
    check_round_trip(tmp_path)


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
    check_round_trip(tmp_path)


def test_ids_of_the_top_50_that_are_not_their_texts(tmp_path: Path) -> None:
    files = preprocessed_files()
    name = f"{PREPROCESSED}/auxiliary/dev.retrieval.top50.res.id_map.tsv"
    files[name] = files[name].replace(md5(PASSAGES[7]), md5(PASSAGES[1]))
    found = convert(tmp_path, files)
    assert count(found, "passages of the top 50 whose id") == 1
    check_round_trip(tmp_path)
