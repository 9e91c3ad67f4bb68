"""Read and write a release's ``manifest.json`` and ``stats.json``."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from builders.core.cache import FileEntry, describe_file
from builders.core.errors import InputError
from builders.core.typed import Count, Sha256, convert_to, read_json, read_object
from builders.core.write_files import write_text
from builders.store.answer_rule import AnswerRule
from builders.store.layout import MANIFEST
from builders.store.stored_stats import Stats

STATS = "stats.json"
CARD = "README.md"
CARD_ZH = "README.zh.md"
EVAL = "eval.yaml"
ANSWER_VERBS = ("answers", "release")  # the verbs of the builds that made the config `answers`
_PUBLISHED = {CARD_ZH, EVAL}


def is_published(file_path: str) -> bool:
    """True for files that only `publish` writes. A release that is built from another does not copy such files."""
    return file_path in _PUBLISHED or file_path.startswith("assets/")


class Source(msgspec.Struct, frozen=True):
    """A file from which a release was built: its name, size in bytes, and SHA-256 (hex)."""

    name: str
    bytes: Count
    sha256: Sha256


class Build(msgspec.Struct, frozen=True):
    """A command that made a part of the release: the verb, the options as JSON values, and the source files."""

    verb: str
    options: dict[str, Any] = {}
    sources: list[Source] = []


class Manifest(msgspec.Struct, frozen=True):
    """The files and builds of a release, without times and local paths."""

    name: Literal["dureader_retrieval"]
    format: Literal[1]
    builds: list[Build]
    files: list[FileEntry]

    def __post_init__(self) -> None:
        path_counts = Counter(entry.path for entry in self.files)
        for path, path_count in path_counts.items():
            if path_count > 1:
                raise ValueError(f"files: {path!r} is listed twice")


def read_manifest(manifest_path: Path) -> Manifest:
    """Read a release's manifest.

    Raise :class:`InputError` if the file is damaged or not a manifest of this format, and for a wrong option of a build
    whose options are used later.
    """
    manifest = read_json(manifest_path, Manifest)
    for number, build in enumerate(manifest.builds):
        # No later build computes anything with the options of other builds.
        if build.verb not in ANSWER_VERBS:
            continue
        options_field = f"builds[{number}].options"
        rule = convert_to(build.options, AnswerRule, manifest_path, field=options_field)
        problem = rule.problem()
        if problem:
            raise InputError(f"{options_field}.{problem}", path=manifest_path)
    return manifest


def write_manifest(release_path: Path, entries: Iterable[FileEntry], builds: Iterable[Build]) -> None:
    """Write ``release/manifest.json``. The manifest lists ``entries``, the card and ``stats.json``.

    ``entries`` are those of the shards, and of further files such as runs.
    """
    files = sorted(entries, key=lambda entry: entry.path)
    # The caller has written these two files last, so their entries are made here.
    for name in (CARD, STATS):
        if (release_path / name).exists():
            files.append(describe_file(release_path, name))
    manifest = Manifest(name="dureader_retrieval", format=1, builds=list(builds), files=files)
    json_value = msgspec.to_builtins(manifest)
    json_text = json.dumps(json_value, ensure_ascii=False, indent=1, sort_keys=True)
    write_text(release_path / MANIFEST, json_text + "\n")


def read_stats(release_path: Path) -> dict[str, Any]:
    """Return the whole content of a release's ``stats.json``. Empty if the file does not exist.

    Raises :class:`InputError` if a value does not fit :class:`.stored_stats.Stats`.
    """
    try:
        return read_object(release_path / STATS, Stats)
    except FileNotFoundError:
        return {}


def write_stats(release_path: Path, stats: Mapping[str, Any]) -> None:
    """Write ``release/stats.json``."""
    write_text(release_path / STATS, json.dumps(stats, ensure_ascii=False, indent=1) + "\n")
