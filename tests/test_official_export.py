"""Official archives to a release, to plain official files, and to the same release again; in any style of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import official_archives as made
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_archives import (
    BOTH,
    ORIGINAL,
    PASSAGES,
    PREPROCESSED,
    md5,
    original_files,
    preprocessed_files,
)
from official_release import check_round_trip, convert, rows, without

from builders.export.formats import export
from builders.official import blocks
from builders.official.build import build_official
from builders.store.reader import open_release


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
@pytest.mark.parametrize(
    "files", [original_files(), preprocessed_files(), BOTH], ids=["original", "preprocessed", "both"]
)
def test_archives_survive_a_release_and_an_export(tmp_path: Path, files: dict[str, str], form: str) -> None:
    source = tmp_path / f"archive.{form}"
    if form == "folder":
        made.write_files(source, files)
    else:
        made.write_tar(source, files, tmp_path / "scratch", "w:gz" if form == "tar.gz" else "w")
    build_official([source], tmp_path / "release")
    check_round_trip(tmp_path)
    written = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "out").rglob("*.*")}
    if files is not preprocessed_files():  # in the published style, as the official files are
        for name in ("train.json", "dev.json", "passage_collection.json"):
            assert written[name] == BOTH[f"{ORIGINAL}/{name}"]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from(sorted(without(BOTH, "readme", "License"))), min_size=1))
def test_round_trip_of_any_part(tmp_path: Path, names: set[str]) -> None:
    files = {name: BOTH[name] for name in names}
    convert(tmp_path, files)
    if open_release(tmp_path / "release").splits():  # there are none of the map or of the top 50 alone
        check_round_trip(tmp_path)


@pytest.mark.parametrize("style", [{"ensure_ascii": True}, {"ensure_ascii": True, "separators": (",", ":")}])
def test_round_trip_of_json_styles(tmp_path: Path, style: dict[str, Any]) -> None:
    convert(tmp_path, original_files(**style))
    assert [row["text"] for row in rows(tmp_path, "corpus", "corpus")] == PASSAGES
    check_round_trip(tmp_path)


@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"indent": 4, "ensure_ascii": False}, {"separators": (",", ":")}])
@pytest.mark.parametrize("block", [8 << 20, 40])
def test_round_trip_of_a_wrapped_collection(
    tmp_path: Path, style: dict[str, Any], block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    passages = [{"paragraph_id": md5(p), "paragraph_text": p} for p in PASSAGES]
    files = {"passage_collection.json": json.dumps({"data": passages}, **style)}
    convert(tmp_path, files)
    assert [row["text"] for row in rows(tmp_path, "corpus", "corpus")] == PASSAGES
    check_round_trip(tmp_path)


def test_round_trip_of_files_in_another_order_and_without_a_last_line_end(tmp_path: Path) -> None:
    convert(tmp_path, {name: "\n".join(reversed(text.splitlines())) for name, text in original_files().items()})
    check_round_trip(tmp_path)
    # Without negatives there are the original files alone.
    written = {path.name for path in (tmp_path / "out").rglob("*.*")}
    assert written == {"dev.json", "passage_collection.json", "test1.json", "train.json"}


def test_the_training_files_have_the_columns_that_the_official_code_reads(tmp_path: Path) -> None:
    """Its reader cuts a line at the tabs: query, title, text, title, text, 0; and query, title, text, label."""
    convert(tmp_path, BOTH)
    check_round_trip(tmp_path)
    folder = tmp_path / "out" / PREPROCESSED / "train"
    dual, cross = (
        [line.split("\t") for line in (folder / f"{name}.train.tsv").read_text(encoding="utf-8").splitlines()]
        for name in ("dual", "cross")
    )
    joined = rows(tmp_path, "train", "train")
    texts = {
        row["query"]: [[each["text"] for each in row[f"{kind}_passages"]] for kind in ("positive", "negative")]
        for row in joined
    }
    assert [(row[0], row[4]) for row in dual] == [(q, negative) for q, (_, ns) in texts.items() for negative in ns]
    assert all(len(row) == 6 and row[2] in texts[row[0]][0] and row[5] == "0" for row in dual)
    assert cross == [
        [query, "", text, label]
        for query, both in texts.items()
        for label, each in zip("10", both, strict=True)
        for text in each
    ]
    assert {row[1] for row in dual} | {row[3] for row in dual} == {""}


def test_tabs_and_line_ends_of_a_text_become_spaces_in_the_tsvs_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = {f"{ORIGINAL}/train.json": made.lines([made.question("问\t题", ["答\n案"])])}
    files[f"{PREPROCESSED}/train/cross.train.tsv"] = "问题\t\t答案\t1\n问题\t\t别的\t0\n"
    files[f"{ORIGINAL}/train.json"] += made.lines([made.question("问题", ["答案", "答\r案"])])
    convert(tmp_path, files)
    export(open_release(tmp_path / "release"), "official", tmp_path / "out")
    assert (tmp_path / "out" / ORIGINAL / "train.json").read_text(encoding="utf-8").count("\\") == 3
    written = (tmp_path / "out" / PREPROCESSED / "train/cross.train.tsv").read_bytes().decode()
    assert written.splitlines() == ["问 题\t\t答 案\t1", "问题\t\t答案\t1", "问题\t\t答 案\t1", "问题\t\t别的\t0"]
    assert "cross.train.tsv: in 2 of 4 lines, tabs and line ends were written as spaces" in caplog.text
