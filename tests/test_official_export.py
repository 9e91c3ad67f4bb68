"""Official archives to a release and back: every file byte for byte, in whatever style it is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import official_archives as made
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from official_archives import (
    BOTH,
    ORIGINAL,
    PASSAGES,
    md5,
    original_files,
    preprocessed_files,
)
from official_release import check_round_trip, convert, edit_layout, put, rows, without
from releases import TEXTS, make_release

from builders.common.command import InputError
from builders.official import blocks
from builders.official.build import build_official
from builders.official.export import export_official
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
    check_round_trip(tmp_path, files)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.sampled_from(sorted(without(BOTH, "readme", "License"))), min_size=1))
def test_round_trip_of_any_part(tmp_path: Path, names: set[str]) -> None:
    files = {name: BOTH[name] for name in names}
    convert(tmp_path, files)
    check_round_trip(tmp_path, files)


@pytest.mark.parametrize(
    "style",
    [{"ensure_ascii": True}, {"separators": (",", ":")}, {"ensure_ascii": True, "separators": (",", ":")}],
    ids=["escaped", "compact", "both"],
)
def test_round_trip_of_json_styles(tmp_path: Path, style: dict[str, Any]) -> None:
    files = original_files(**style)
    convert(tmp_path, files)
    check_round_trip(tmp_path, files)


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
    check_round_trip(tmp_path, files)


def test_round_trip_of_files_in_another_order_and_without_a_last_line_end(tmp_path: Path) -> None:
    files = dict(BOTH)
    for name in list(files):
        if name.startswith(ORIGINAL):
            files[name] = "\n".join(reversed(files[name].splitlines()))
    convert(tmp_path, files)
    check_round_trip(tmp_path, files)


def test_a_release_from_elsewhere_is_written_as_the_original_release(tmp_path: Path) -> None:

    written = export_official(open_release(make_release(tmp_path / "release")), tmp_path / "out")
    assert {file.equal for file in written} == {None}
    content = (tmp_path / "out" / ORIGINAL / "passage_collection.json").read_text(encoding="utf-8")
    assert content == made.lines([{"paragraph_id": md5(p), "paragraph_text": p} for p in TEXTS])
    assert (tmp_path / "out" / ORIGINAL / "test1.json").exists()


def test_a_changed_release_does_not_claim_to_be_equal(tmp_path: Path) -> None:
    convert(tmp_path, original_files())
    edit_layout(tmp_path / "release", lambda files: [file.update(sha256="0" * 64) for file in files])
    assert not any(file.equal for file in export_official(open_release(tmp_path / "release"), tmp_path / "out"))


LAYOUTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "expected the role train of": lambda file: file.update(role="dev"),
    "rows: expected `int` >= 0": lambda file: file.update(rows=-1),
    "style: object missing required field `item`": lambda file: file["style"].pop("item"),
    "style: expected `bool`": lambda file: file["style"].update(ascii="no"),
    "expected 0 texts in nothing, found 1": lambda file: file.update(nothing=["-"]),
    "manifest.json: lists no official/009.arrow": lambda file: file.update(columns="official/009.arrow"),
}


@pytest.mark.parametrize("said", LAYOUTS)
def test_a_layout_that_no_conversion_writes_is_one_error(tmp_path: Path, said: str) -> None:
    convert(tmp_path, {f"{ORIGINAL}/train.json": original_files()[f"{ORIGINAL}/train.json"]})
    edit_layout(tmp_path / "release", lambda files: LAYOUTS[said](files[0]))
    with pytest.raises(InputError) as error:
        export_official(open_release(tmp_path / "release"), tmp_path / "out")
    assert said in str(error.value).replace("Expected", "expected").replace("Object", "object")
    assert str(error.value).startswith(str(tmp_path / "release"))


@pytest.mark.parametrize("name", ["layout.json", "00?.arrow", "texts.arrow"])
def test_damaged_files_of_the_official_data_are_named(tmp_path: Path, name: str) -> None:
    convert(tmp_path, preprocessed_files())
    path = next((tmp_path / "release" / "official").glob(name))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        export_official(open_release(tmp_path / "release"), tmp_path / "out")
    assert str(error.value).startswith(f"{path}: has the SHA-256")


def arrow(columns: dict[str, pa.Array]) -> bytes:
    sink, table = pa.BufferOutputStream(), pa.table(columns)
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"query": [0], "passage": [0]}, "expected the columns query (int32), passage (int32), label (int8)"),
        ({"query": [0], "passage": [None], "label": [1]}, "without nulls"),
        ({"query": [0], "passage": [10**6], "label": [1]}, "lacks texts that its official files need"),
        ({"query": [-1], "passage": [0], "label": [1]}, "lacks texts that its official files need"),
    ],
)
def test_columns_that_no_conversion_writes_are_one_error(
    tmp_path: Path, columns: dict[str, list[int | None]], said: str
) -> None:
    convert(tmp_path, {name: text for name, text in preprocessed_files().items() if name.endswith("cross.train.tsv")})
    types = {"query": pa.int32(), "passage": pa.int32(), "label": pa.int8()}
    content = arrow({name: pa.array(values, types[name]) for name, values in columns.items()})
    put(tmp_path / "release", "official/000.arrow", content)
    with pytest.raises(InputError) as error:
        export_official(open_release(tmp_path / "release"), tmp_path / "out")
    assert said in str(error.value)


def test_numbers_of_rows_that_a_release_lacks(tmp_path: Path) -> None:
    """The largest that the layout may hold, and one too many in an order."""
    name = f"{ORIGINAL}/train.json"
    convert(tmp_path, {name: original_files()[name]})
    edit_layout(tmp_path / "release", lambda files: files[0].update(rows=2**63 - 1, start=2**63 - 1, sha256=None))
    export_official(open_release(tmp_path / "release"), tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == b""
    name = f"{ORIGINAL}/dev.json"
    convert(tmp_path, BOTH | {name: "\n".join(reversed(BOTH[name].splitlines()))})
    layout = json.loads((tmp_path / "release/official/layout.json").read_text())
    ordered = next(file for file in layout["files"] if file["role"] == "dev" and "columns" in file)
    put(tmp_path / "release", ordered["columns"], arrow({"row": pa.array([0, 10**6], pa.int32())}))
    with pytest.raises(InputError, match="names rows that dev/dev lacks"):
        export_official(open_release(tmp_path / "release"), tmp_path / "again")
