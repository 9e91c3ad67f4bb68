"""What a release's ``manifest.json`` and ``stats.json`` hold, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError
from builders.core.files import sha256_of, write_text
from builders.core.typed import Count, Sha256, name_within, read_object, typed
from builders.store.layout import FORMAT, MANIFEST, NAME
from builders.store.tasks import EVAL

STATS, CARD = "stats.json", "README.md"
CARD_ZH = "README.zh.md"
_PUBLISHED = {CARD_ZH, EVAL, "croissant.json"}  # the last: of releases that earlier versions published


def is_published(path: str) -> bool:
    """Whether `publish` makes that file anew: it says what a release is, and is none of another that is made of it."""
    return path in _PUBLISHED or path.startswith("assets/")


class FileEntry(msgspec.Struct, frozen=True):
    """One file: its path in the release, its size, its SHA-256 (hex), its rows where it is a shard."""

    path: str
    bytes: Count
    rows: Count | None
    sha256: Sha256

    def __post_init__(self) -> None:
        name_within(self.path)


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
    """What a release consists of, and how it was built; no times, no machine's paths."""

    name: str
    format: int
    builds: list[Build]
    files: list[FileEntry]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for entry in self.files:
            if entry.path in seen:
                raise ValueError(f"files: {entry.path!r} is listed twice")
            seen.add(entry.path)


class _Head(msgspec.Struct):
    name: Any = None
    format: Any = None


def read_manifest(path: Path) -> Manifest:
    """The manifest of a release; :class:`InputError` where ``path`` is another's, of another format, or damaged."""
    content = read_object(path, _Head)
    if (content.get("name"), content.get("format")) != (NAME, FORMAT):
        raise InputError(f"expected a manifest of {NAME}, format {FORMAT}", path=path)
    return typed(content, Manifest, path)


def write_manifest(release: Path, entries: Iterable[FileEntry], builds: Iterable[Build]) -> None:
    """Write ``manifest.json`` over the shards' ``entries``, the card and the figures, which are in ``release``."""
    files = sorted(entries, key=lambda entry: entry.path)
    files += [describe(release, name) for name in (CARD, STATS) if (release / name).exists()]
    content = msgspec.to_builtins(Manifest(NAME, FORMAT, list(builds), files))
    write_text(release / MANIFEST, json.dumps(content, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def describe(release: Path, name: str) -> FileEntry:
    """The entry of a file of ``release`` that is no shard."""
    path = release / name
    return FileEntry(name, path.stat().st_size, None, sha256_of(path))


class Bar(msgspec.Struct):
    """One bar of a histogram: from ``from`` to ``to``, both included; the last has no end."""

    low: Count = msgspec.field(name="from")
    high: Count | None = msgspec.field(name="to")
    count: Count


class Collection(msgspec.Struct):
    """The passages of one corpus config and their characters."""

    passages: Count
    mean_chars: float | None
    median_chars: Count | None
    histogram: list[Bar] = []


class English(msgspec.Struct):
    """The English queries of a split."""

    queries: Count
    words_per_query: float | None


class Similar(msgspec.Struct):
    """Training questions that were removed, development and test questions that they are similar to, the paper's."""

    removed: Count
    duplicated: Count
    queries: Count
    share: float | None
    paper: dict[str, float]
    by: dict[str, Count] = {}
    splits: dict[str, dict[str, Count]] = {}


class Relabelled(msgspec.Struct):
    """What people's judgments have changed in a split: means and shares (0 to 1) of its queries."""

    queries: Count
    per_query_before: float
    per_query_after: float
    share_with_false_negatives: float
    share_with_false_positives: float


class Overlap(msgspec.Struct):
    """How many of a split's queries with positives share one with a training query; the share from 0 to 1."""

    test_queries: Count
    overlapping: Count | None
    overlapping_share: float | None


class Sampled(Overlap):
    """A set for interpolation or extrapolation: its queries, and how near they are (a mean of cosines)."""

    config: str
    test: str
    train_queries: Count
    nearest_cosine: float | None


class Sample(msgspec.Struct):
    """A sample of the collection: its passages, the positives of the splits in it, those that runs rank high."""

    passages: Count
    positives: Count
    split: list[str]
    hard: Count | None


class Stats(msgspec.Struct):
    """What ``stats.json`` says to those who read it; builders put what they have counted beside it."""

    table3: dict[str, dict[str, float | None]] = {}
    collections: dict[str, Collection] = {}
    positives_per_query: dict[str, list[Bar]] = {}
    english: dict[str, English] = {}
    relabelled: dict[str, Relabelled] = {}
    extrapolation: dict[str, Sampled | list[Sampled]] = {}
    label_overlap: dict[str, Overlap] = {}
    samples: dict[str, Sample] = {}
    similar: Similar | None = None


def read_stats(release: Path) -> dict[str, Any]:
    """The content of a release's ``stats.json``, everything in it; nothing where there is none.

    :class:`InputError` where it is not as :class:`Stats` says.
    """
    try:
        return read_object(release / STATS, Stats)
    except FileNotFoundError:
        return {}


def write_stats(release: Path, stats: Mapping[str, Any]) -> None:
    write_text(release / STATS, json.dumps(stats, ensure_ascii=False, indent=1) + "\n")
