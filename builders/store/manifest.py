"""The content of a release's ``manifest.json`` and ``stats.json``, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from builders.core.cache import FileEntry, describe
from builders.core.files import write_text
from builders.core.typed import Count, Sha256, read_json, read_object
from builders.store.layout import MANIFEST

STATS, CARD = "stats.json", "README.md"
CARD_ZH, EVAL = "README.zh.md", "eval.yaml"
_PUBLISHED = {CARD_ZH, EVAL, "croissant.json"}  # the last: of releases that earlier versions published


def is_published(path: str) -> bool:
    """True for files that `publish` makes anew: they describe one release, not another that is made of it."""
    return path in _PUBLISHED or path.startswith("assets/")


class Source(msgspec.Struct, frozen=True):
    """A file that a release was built from: its own name, its size, its SHA-256 (hex)."""

    name: str
    bytes: Count
    sha256: Sha256


class Build(msgspec.Struct, frozen=True):
    """One command that made a part of the release: the verb, its options as JSON values, its sources."""

    verb: str
    options: dict[str, Any] = {}
    sources: list[Source] = []


class Manifest(msgspec.Struct, frozen=True):
    """The files of a release and its builds; no times, no machine's paths."""

    name: Literal["dureader_retrieval"]
    format: Literal[1]
    builds: list[Build]
    files: list[FileEntry]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for entry in self.files:
            if entry.path in seen:
                raise ValueError(f"files: {entry.path!r} is listed twice")
            seen.add(entry.path)


def read_manifest(path: Path) -> Manifest:
    """The manifest of a release; :class:`InputError` where ``path`` is another's, of another format, or damaged."""
    return read_json(path, Manifest)


def write_manifest(release: Path, entries: Iterable[FileEntry], builds: Iterable[Build]) -> None:
    """Write ``manifest.json`` over the shards' ``entries``, the card and the figures, which are in ``release``."""
    files = sorted(entries, key=lambda entry: entry.path)
    files += [describe(release, name) for name in (CARD, STATS) if (release / name).exists()]
    content = msgspec.to_builtins(Manifest("dureader_retrieval", 1, list(builds), files))
    write_text(release / MANIFEST, json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


class _Stats(msgspec.Struct):
    """The outline of ``stats.json``; builders put other counts beside these."""

    table3: dict[str, dict[str, float | None]] = {}
    collections: dict[str, dict[str, Any]] = {}
    samples: dict[str, dict[str, Any]] = {}


def read_stats(release: Path) -> dict[str, Any]:
    """The content of a release's ``stats.json``, everything in it; nothing where there is none.

    :class:`InputError` where it is not as :class:`_Stats` says.
    """
    try:
        return read_object(release / STATS, _Stats)
    except FileNotFoundError:
        return {}


def write_stats(release: Path, stats: Mapping[str, Any]) -> None:
    write_text(release / STATS, json.dumps(stats, ensure_ascii=False, indent=1) + "\n")
