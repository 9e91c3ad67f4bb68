"""Official archives to a release: what comes out, of one release or both, and of part of them."""

from __future__ import annotations

import json
from pathlib import Path

import official_archives as made
import pytest
from commands import run
from official_archives import (
    BOTH,
    DEV,
    PASSAGES,
    PREPROCESSED,
    TRAIN,
    md5,
    original_files,
    preprocessed_files,
)
from official_release import check_round_trip, convert, rows

from builders.export.formats import export
from builders.official import blocks
from builders.official.build import build_official
from builders.store.reader import open_release


def test_the_original_release_comes_out_whole(tmp_path: Path) -> None:
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


def test_the_preprocessed_release_brings_its_negatives(tmp_path: Path) -> None:
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
    release = open_release(tmp_path / "release")
    assert "runs/official-dev-top50.trec" in {entry.path for entry in release.manifest.files}
    export(release, "trec", tmp_path / "out")
    assert (tmp_path / "out/runs/official-dev-top50.trec").read_text().splitlines() == run


@pytest.mark.parametrize("kept", ["top50.res.tsv", "id_map.tsv"])
def test_half_of_the_top_50_is_enough(tmp_path: Path, kept: str) -> None:
    whole = preprocessed_files()
    convert(tmp_path / "whole", whole)
    half = {name: text for name, text in whole.items() if "auxiliary" not in name or name.endswith(kept)}
    convert(tmp_path / "half", half)
    run = "release/runs/official-dev-top50.trec"
    assert (tmp_path / "whole" / run).read_bytes() == (tmp_path / "half" / run).read_bytes()


def test_real_rows_of_the_preprocessed_release(tmp_path: Path, shared_data: Path) -> None:
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
    check_round_trip(tmp_path)


def test_small_blocks_give_the_same_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(tmp_path / "one", BOTH)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 300)
    build_official([made.write_files(tmp_path / "in", BOTH)], tmp_path / "two")
    one, two = (tmp_path / name for name in ("one/release", "two"))
    assert (one / "manifest.json").read_bytes() == (two / "manifest.json").read_bytes()


def test_the_command_prints_table_3_and_refuses_a_place_that_is_taken(tmp_path: Path) -> None:
    archive = made.write_tar(tmp_path / "a.tar.gz", original_files(), tmp_path / "scratch")
    assert (
        "queries" in run("builders", "official", "--quiet", "--archive", archive, "--out", tmp_path / "release").stdout
    )
    refused = run("builders", "official", "--quiet", "--archive", archive, "--out", archive, code=1)
    assert "exists and is not a release" in refused.error
