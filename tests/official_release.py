"""Made-up official archives as a release, and the release as official files again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from official_archives import write_files

from builders.official.build import build_official
from builders.official.export import export_official
from builders.official.layout import LAYOUT
from builders.store.layout import MANIFEST
from builders.store.reader import open_release


def convert(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    """The release in ``folder/release``, made from files in ``folder/in``; returns its stats' official part."""
    shutil.rmtree(folder / "in", ignore_errors=True)
    found: dict[str, Any] = build_official([write_files(folder / "in", files)], folder / "release")["official"]
    return found


def rows(folder: Path, config: str, split: str) -> list[dict[str, Any]]:
    """The rows of the release that :func:`convert` made."""
    found: list[dict[str, Any]] = open_release(folder / "release").table(config, split).to_pylist()
    return found


def check_round_trip(folder: Path, files: dict[str, str]) -> None:
    """The release that :func:`convert` made gives back exactly ``files``, and says so."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    written = export_official(open_release(folder / "release"), folder / "out")
    paths = [path for path in (folder / "out").rglob("*") if path.is_file()]
    found = {path.relative_to(folder / "out").as_posix(): path.read_bytes() for path in paths}
    assert found == {name: content.encode() for name, content in files.items()}
    assert all(file.equal for file in written)


def edit_layout(release: Path, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    """Change the entries of a release's ``official/layout.json``, and the manifest with it; returns its path."""
    content = json.loads((release / LAYOUT).read_text())
    change(content["files"])
    return put(release, LAYOUT, json.dumps(content).encode())


def put(release: Path, name: str, content: bytes) -> Path:
    """Write a file of a release anew, and what its manifest says of it; returns its path."""
    path = release / name
    path.write_bytes(content)
    manifest = json.loads((release / MANIFEST).read_text())
    entry = next(entry for entry in manifest["files"] if entry["path"] == name)
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (release / MANIFEST).write_text(json.dumps(manifest))
    return path


def without(files: dict[str, str], *words: str) -> dict[str, str]:
    return {name: content for name, content in files.items() if not any(word in name for word in words)}
