"""Addresses of object stores as input and output, on one machine."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from commands import SAMPLE
from fsspec.implementations.memory import MemoryFileSystem
from object_store import objects, put
from rows import row, write_rows
from test_release import tree

from builders.common.addresses import path_of
from builders.common.command import InputError, main
from builders.release import rows as raw
from builders.release.build import build_release
from builders.release.options import Options
from builders.store.layout import MANIFEST

pytest.importorskip("upath", reason="what addresses need is not installed: pip install --group ray")
CHAR = Options(unit="char")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Path:
    opened = MemoryFileSystem._open

    def open_apart(self: MemoryFileSystem, path: str, mode: str = "rb", **options: Any) -> Any:
        """All readers of an object in memory would move one position; those of a real store do not."""
        file = opened(self, path, mode, **options)
        return io.BytesIO(file.getvalue()) if mode == "rb" else file

    monkeypatch.setattr(MemoryFileSystem, "_open", open_apart)
    return path_of(f"memory://{uuid4().hex}/data")


def test_from_a_store_to_a_store(bucket: Path, tmp_path: Path) -> None:
    build_release(raw.find_sources([SAMPLE]), tmp_path / "out", CHAR)
    (bucket / "out/manifest.json").write_text("{}")
    (bucket / "out/corpus/old.parquet").write_text("of an earlier release")
    build_release(raw.find_sources([put(SAMPLE, bucket / "raw")]), bucket / "out", CHAR)
    assert objects(bucket / "out") == tree(tmp_path / "out")
    assert {name.split("/")[0] for name in objects(bucket)} == {"raw", "out"}


def test_archives_in_a_store(bucket: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        for file in SAMPLE.iterdir():
            archive.write(file, file.name)
    for path in (tmp_path / "rows.zip", bucket / "rows.zip"):
        path.write_bytes((tmp_path / "rows.zip").read_bytes())
        build_release(raw.find_sources([path]), tmp_path / path.parent.name, CHAR)
    assert tree(tmp_path / tmp_path.name) == tree(tmp_path / "data")


def test_an_interrupted_build_goes_on_and_the_earlier_release_stays(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = raw.find_sources([SAMPLE])
    (bucket / "out" / MANIFEST).write_text("{}")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("builders.release.build.select", interrupt)
        build_release(sources, bucket / "out", CHAR)
    assert list(objects(bucket / "out")) == [MANIFEST]
    with monkeypatch.context() as patched:
        patched.setattr("builders.release.build.label_block", interrupt)  # nothing is labelled a second time
        build_release(sources, bucket / "out", CHAR)
    build_release(sources, tmp_path / "out", CHAR)
    assert objects(bucket / "out") == tree(tmp_path / "out")
    assert {name.split("/")[0] for name in objects(bucket)} == {"out"}


def test_errors_name_the_address(bucket: Path, tmp_path: Path) -> None:
    (bucket / "notes/thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"data/notes: exists and is not a release"):
        build_release(raw.find_sources([SAMPLE]), bucket / "notes", CHAR)
    write_rows(tmp_path / "raw/train.json", [row(1, "绿萝怎么养", [["见干见湿"]]), row(2, "", [])])
    with pytest.raises(InputError, match=r"^memory://.*/raw/train.json:2: a question with no text"):
        build_release(raw.find_sources([put(tmp_path / "raw", bucket / "raw")]), bucket / "out", CHAR)
    with pytest.raises(InputError, match=r"^memory://.*/none: no such file"):
        raw.find_sources([bucket / "none"])
    assert set(objects(bucket)) == {"notes/thesis.txt", "raw/train.json"}


@pytest.mark.parametrize(
    ("address", "missing", "message"),
    [
        ("nosuch://bucket/out", None, "nosuch://bucket/out: not an address that fsspec knows"),
        ("gs://bucket/out", "gcsfs", "gs://bucket/out: needs the group ray (pip install"),
        ("s3://bucket/out", "upath", "s3://bucket/out: needs the group ray (pip install"),
        ("memory://", None, "expected a name within the store"),
    ],
)
def test_addresses_that_cannot_be_used_are_one_line(
    address: str, missing: str | None, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    words = ["release", "--quiet", "--raw", str(SAMPLE), "--out", address]
    assert main("builders", "", {"release": "builders.release"}, words) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]
