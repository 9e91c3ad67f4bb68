"""Made-up official archives as a release, and that release as official files and as a release again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from official_archives import write_files

from builders.export.write import export
from builders.official.build import build_official
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


def tables(release: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All rows of a release."""
    opened = open_release(release)
    return {pair: opened.table(*pair).to_pylist() for pair in opened.splits()}


def check_round_trip(folder: Path) -> None:
    """The official files of the release that :func:`convert` made become a release of the same rows."""
    for name in ("out", "again"):
        shutil.rmtree(folder / name, ignore_errors=True)
    export(open_release(folder / "release"), "official", folder / "out")
    build_official([folder / "out"], folder / "again")
    assert tables(folder / "again") == tables(folder / "release")


def without(files: dict[str, str], *words: str) -> dict[str, str]:
    return {name: content for name, content in files.items() if not any(word in name for word in words)}
