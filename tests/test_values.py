"""The columns and values of a shard from anybody: what no reader could take is named before anything is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commands import run
from releases import BUILD, NO_UTF8, release_of

from builders.core.errors import InputError
from builders.store.draft import draft_release
from builders.store.layout import PASSAGES
from builders.store.reader import open_release

CORPUS = {"_id": pa.array(["a", "b"]), "title": pa.array(["", ""]), "text": pa.array(["c", "d"])}
QRELS = {"query-id": pa.array(["q"]), "corpus-id": pa.array(["a"]), "score": pa.array([1])}
PASSAGE = {"docid": "a", "title": "", "text": "c"}


def joined(**passage: Any) -> dict[str, pa.Array]:
    """A joined row whose one positive passage is changed so."""
    passages = pa.array([[PASSAGE | passage]], PASSAGES)
    none = pa.array([[]], PASSAGES)
    given = {"positive_passages": passages, "negative_passages": none}
    return {"query_id": pa.array(["q"]), "query": pa.array(["?"]), **given}


@pytest.mark.parametrize(
    ("config", "columns", "message"),
    [
        (
            "corpus",
            {"_id": CORPUS["_id"], "texts": CORPUS["text"]},
            "expected a column title (string); it has _id (str",
        ),
        ("corpus", CORPUS | {"text": pa.array([1, 2])}, "expected a column text (string); it has _id (string), title"),
        ("corpus", CORPUS | {"text": pa.array([["c"], ["d"]])}, "expected a column text (string); it has"),
        ("corpus", CORPUS | {"text": pa.array(["c", None])}, "the column text: expected no null"),
        ("corpus", CORPUS | {"_id": pa.array([None, "b"])}, "the column _id: expected no null"),
        ("corpus", CORPUS | {"_id": pa.array(["a", "b\0"])}, "the column _id: expected ids without null characters"),
        ("corpus", CORPUS | {"text": NO_UTF8}, "the column text: expected UTF-8 text (Invalid UTF8 sequence at string"),
        ("qrels", QRELS | {"score": pa.array(["1"])}, "expected a column score (int64); it has"),
        ("qrels", QRELS | {"score": pa.array([None], pa.int64())}, "the column score: expected no null"),
        ("train", joined(text=None), "the column positive_passages.text: expected no null"),
        ("train", joined(docid="a\0"), "the column positive_passages.docid: expected ids without null characters"),
    ],
)
def test_a_column_of_something_else_is_named_with_its_file(
    tmp_path: Path, config: str, columns: dict[str, pa.Array], message: str
) -> None:
    split = "corpus" if config == "corpus" else "train"
    release = open_release(release_of(tmp_path / "release", pa.table(columns), config, split))
    with pytest.raises(InputError) as error:
        release.table(config, split)
    shard = release.path / config / f"{split}-00000-of-00001.parquet"
    assert str(error.value).startswith(f"{shard}: {message}")


def test_texts_may_hold_null_characters_and_a_shard_more_columns(tmp_path: Path) -> None:
    columns = CORPUS | {"text": pa.array(["c\0", ""]), "more": pa.array([None, 1])}
    release = open_release(release_of(tmp_path / "release", pa.table(columns)))
    assert release.table("corpus", "corpus", ["text"])["text"].to_pylist() == ["c\0", ""]


def test_a_null_is_found_by_check(tmp_path: Path) -> None:
    release = release_of(tmp_path / "release", pa.table(CORPUS | {"text": pa.array(["c", None])}))
    report = json.loads(run("builders", "check", "--release", release, "--format", "json", code=1).stdout)
    (manifest,) = [test for test in report["tests"] if test["test"] == "manifest"]
    assert manifest["findings"][0]["what"] == "the column text: expected no null"


def test_a_release_with_a_shard_of_no_config_is_not_added_to(tmp_path: Path) -> None:
    base = open_release(release_of(tmp_path / "release", pa.table(CORPUS), "nonsense", "dev"))
    said = r"nonsense/dev-00000-of-00001\.parquet: is of no config of a release"
    with pytest.raises(InputError, match=said), draft_release(tmp_path / "out", BUILD, base):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["release"]
