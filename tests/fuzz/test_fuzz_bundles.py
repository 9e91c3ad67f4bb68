"""Bundles, and what lies beside a run that is packed, spoiled in every way."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import Reader, any_result, fuzz_and_count, same
from releases import QUESTIONS, TEXTS, make_release, md5
from spoil import BYTES, JSON, JSON_LINES, TEXT

from baselines.bundle.pack import pack
from baselines.bundle.packed import read_bundle
from baselines.verify import text, verify
from builders.common.ending import exit_code
from builders.store.runs import write_run

_MAIN = ("main", "dev", "", "")


def _beside(folder: Path) -> None:
    make_release(folder / "release")
    (folder / "model").mkdir()
    (folder / "model" / "recipe.json").write_text(json.dumps({"name": "m", "model": {"kind": "dual", "start": "/x/y"}}))
    (folder / "model" / "training.json").write_text(json.dumps({"steps": 3, "losses": [[1, 0.5]]}))
    ids = [md5(text) for text in TEXTS]
    write_run(folder / "run", [(md5(q), [(ids[n], 3.0 - n) for n in range(3)]) for q in QUESTIONS["dev"]])
    command = ["baselines", "search", "--model", str(folder / "model"), "--out", str(folder / "run")]
    (folder / ".run.step.json").write_text(json.dumps({"key": "0", "command": command, "files": {}}))


def _bundle(folder: Path) -> None:
    _beside(folder)
    pack(folder / "run", folder / "release", _MAIN, [], folder / "bundle.zip")


def _parts(folder: Path) -> None:
    """A bundle, and its files beside it, of which it is made anew after each change."""
    _bundle(folder)
    with zipfile.ZipFile(folder / "bundle.zip") as archive:
        archive.extractall(folder / "parts")


def _made_anew(folder: Path) -> None:
    """As somebody would who knows how: the manifest lists each file as it is now."""
    parts = folder / "parts"
    content = {path.relative_to(parts).as_posix(): path.read_bytes() for path in parts.rglob("*") if path.is_file()}
    try:
        manifest = json.loads(content["manifest.json"])
        manifest["files"] = [
            {"path": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in sorted(content.items())
            if name != "manifest.json"
        ]
        content["manifest.json"] = json.dumps(manifest).encode()
    except (ValueError, TypeError, RecursionError):
        pass  # as it was spoiled
    with zipfile.ZipFile(folder / "bundle.zip", "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def _verified(folder: Path) -> Any:
    """With the release, and without; as text, too."""
    report = verify(folder / "bundle.zip", folder / "release")
    assert text(report) and text(verify(folder / "bundle.zip"))
    return report["rows"]


def _packed(folder: Path) -> Any:
    pack(folder / "run", folder / "release", _MAIN, [], folder / "out")
    return sorted(read_bundle(folder / "out").content)


_PACKED = "baselines.bundle.packed:"
READERS = [
    Reader(
        "a bundle",
        reaches=(f"{_PACKED}read_bundle", f"{_PACKED}_unpacked"),
        make=_bundle,
        spoils={"bundle.zip": BYTES},
        read=lambda folder: read_bundle(folder / "bundle.zip").content,
        right=same,
    ),
    Reader(
        "a forged bundle",
        reaches=(f"{_PACKED}read_bundle", "builders.store.runs:_parsed"),
        make=_parts,
        spoils={
            "parts/manifest.json": JSON,
            "parts/environment.json": JSON,
            "parts/made-by.json": JSON,
            "parts/per-query.jsonl": JSON_LINES,
            "parts/run.trec": TEXT,
        },
        read=_verified,
        right=any_result,
        mend=_made_anew,
        share=0.5,
    ),
    Reader(
        "what lies beside a run that is packed",
        reaches=(f"{_PACKED}write_bundle", "baselines.bundle.origin:_command", "baselines.bundle.origin:recipes_of"),
        make=_beside,
        spoils={".run.step.json": JSON, "model/*.json": JSON},
        read=_packed,
        right=any_result,
        share=0.2,
    ),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_spoiled_bundles_are_refused_or_give_what_they_say(
    reader: Reader, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    fuzz_and_count(reader, tmp_path, record_property)


def test_a_word_of_a_bundle_never_reaches_the_terminal_as_an_order(tmp_path: Path) -> None:
    _parts(tmp_path)
    manifest = json.loads((tmp_path / "parts" / "manifest.json").read_text())
    manifest["run"] = "\x1b[2J\nrun"
    (tmp_path / "parts" / "manifest.json").write_text(json.dumps(manifest))
    _made_anew(tmp_path)
    assert exit_code(lambda: verify(tmp_path / "bundle.zip") and 0) == 0
    assert "\x1b" not in text(verify(tmp_path / "bundle.zip")) and "\\x1b[2J\\nrun" in text(
        verify(tmp_path / "bundle.zip")
    )
