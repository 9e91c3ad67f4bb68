"""The bundle: a zip archive with a manifest that lists every other file with its size and SHA-256.

| file | what it holds |
|---|---|
| `manifest.json` | what was measured, on what, the figures, the files: :class:`Manifest` |
| `run.trec` or `predictions.json` | the run as it was given, unpacked where it was gzipped |
| `per-query.jsonl` | the values of each query, a JSON object a line: :class:`Values` |
| `made-by.json` | the commands behind the run, the first one first: :class:`MadeBy` |
| `models/NAME/recipe.json`, `training.json` | of each model that the run was made by |
| `environment.json` | the versions of Python, of the project and of all packages: :class:`Environment` |

A bundle may come from anybody. It is never unpacked to disk under its own names; no more is read of a file than the
manifest lists, and nothing at all of an archive that is larger than :data:`LARGEST` when it is unpacked. The run is not
gzipped inside, so that no size is unknown before it is read.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from baselines.runs.sets import QRELS, QUERIES
from builders.common.command import InputError
from builders.common.files import new_file, reading
from builders.common.names import problem_of
from builders.common.typed import Count, Sha256, json_of
from builders.store.layout import DRAWN, MANIFEST, SETS, is_config

NAME = "dureader_retrieval run bundle"
RUN, PREDICTIONS, PER_QUERY = "run.trec", "predictions.json", "per-query.jsonl"
MADE_BY, ENVIRONMENT = "made-by.json", "environment.json"
LARGEST = 2 << 30  # bytes, unpacked: the run of all training questions at 50 passages each has 0.3 GB
_MOST_FILES = 200
_MANIFEST_BYTES = 1 << 24
_OF_MODEL = re.compile(r"models/[^/]+/(recipe|training)\.json")
_YEAR_ONE = (1980, 1, 1, 0, 0, 0)  # the first that a zip archive can name: the same content gives the same bytes
Word = Annotated[str, Meta(max_length=1000)]
Value = Annotated[float, Meta(ge=-1e12, le=1e12)]  # far above any measure, and any sum of them is a number


class File(Struct, frozen=True):
    """One file: its name in the bundle, its size, its lower-case hex SHA-256."""

    path: Word
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if self.path not in (RUN, PREDICTIONS, PER_QUERY, MADE_BY, ENVIRONMENT) and not _OF_MODEL.fullmatch(self.path):
            raise ValueError(f"its manifest names {self.path!r}, which no bundle holds")
        if problem := problem_of(self.path):
            raise ValueError(problem)


class Reference(Struct, frozen=True):
    """What the run was measured against: as of :class:`baselines.reproduce.matrix.Reference`."""

    set: Word
    split: Word
    queries: Word = ""
    qrels: Word = ""

    def __post_init__(self) -> None:
        known = self.qrels in ("", *QRELS) or (self.qrels.startswith(DRAWN) and is_config(self.qrels))
        if self.set not in SETS or self.queries not in ("", *QUERIES) or not known:
            raise ValueError(f"no set {self.set!r} with the queries {self.queries!r} by the judgments {self.qrels!r}")


class Manifest(Struct, frozen=True):
    """``manifest.json``.

    Attributes:
        run: the name of the run's file as it was given.
        reference: what it was measured against.
        queries: with positives there: the number behind every mean.
        figures: means by name, as fractions, and ``QueriesRanked``, a count.
        release: the fingerprint of each split of the release, by ``CONFIG/SPLIT``.
        files: every other file.
    """

    run: Word
    reference: Reference
    queries: Count
    figures: dict[Word, Value]
    release: dict[Word, Sha256]
    files: list[File]
    name: str = ""
    format: int = 0

    def __post_init__(self) -> None:
        if self.name != NAME or self.format != 1:
            raise ValueError(f"expected the manifest of a {NAME}, format 1")
        names = [file.path for file in self.files]
        if len({*names}) < len(names):
            raise ValueError("files: one is listed twice")
        if len({RUN, PREDICTIONS} & {*names}) != 1 or not {PER_QUERY, ENVIRONMENT} <= {*names}:
            raise ValueError(f"files: expected {RUN} or {PREDICTIONS}, {PER_QUERY} and {ENVIRONMENT}")


class Values(Struct, frozen=True):
    """One query's values: fractions by measure; its positives; the rank of the first one, None where none is found."""

    query_id: Word
    values: dict[Word, Value | None]
    positives: Count
    first_positive_rank: Annotated[int, Meta(ge=1, le=2**53)] | None


class MadeBy(Struct, frozen=True):
    """The commands behind a run, the first one first; of paths of the machine, the last part alone."""

    commands: list[list[str]] = []


class Environment(Struct, frozen=True):
    """Where the figures were computed. ``code``: the version of the code that measures (reproduce/code.py)."""

    python: Word
    system: Word
    machine: Word
    project: Word
    code: Sha256
    packages: dict[Word, Word]


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read: every file is what its manifest lists.

    Attributes:
        path: the archive.
        content: the bytes of each file.
    """

    path: Path
    manifest: Manifest
    values: list[Values]
    made_by: MadeBy
    environment: Environment
    content: Mapping[str, bytes]

    @property
    def run(self) -> str:
        """The name of the run in the bundle."""
        return RUN if RUN in self.content else PREDICTIONS


def write_bundle(path: Path, about: Mapping[str, object], content: Mapping[str, bytes]) -> None:
    """Write a bundle of these files. The same content gives the same bytes.

    Args:
        path: the archive, which appears when it is whole.
        about: the manifest's other fields, as JSON values.
        content: the files by name.
    """
    files = [{"path": name, "bytes": len(data), "sha256": _sha256(data)} for name, data in content.items()]
    manifest = msgspec.json.format(msgspec.json.encode({"name": NAME, "format": 1, **about, "files": files}), indent=1)
    json_of(manifest, Manifest, path)  # what could not be read back is not written
    with new_file(path) as beside, zipfile.ZipFile(beside, "w") as archive:
        for name, data in {MANIFEST: manifest + b"\n", **content}.items():
            info = zipfile.ZipInfo(name, _YEAR_ONE)
            info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            archive.writestr(info, data)


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises :class:`InputError` where it is none, is damaged, or was tampered with."""
    content = _unpacked(path)
    manifest = json_of(content.pop(MANIFEST), Manifest, f"{path}!{MANIFEST}")
    listed = {file.path: file for file in manifest.files}
    if other := sorted(listed.keys() ^ content.keys()):
        which = "lists, and is missing" if other[0] in listed else "does not list"
        raise InputError(f"was tampered with: it is about {other[0]}, which its manifest {which}", path=path)
    for name, file in listed.items():
        if len(content[name]) != file.bytes or _sha256(content[name]) != file.sha256:
            raise InputError(f"was tampered with, or is damaged: {name} is not what its manifest lists", path=path)
    lines = enumerate(content[PER_QUERY].split(b"\n"), 1)
    values = [json_of(line, Values, f"{path}!{PER_QUERY}", number) for number, line in lines if line.strip()]
    if len({each.query_id for each in values}) != manifest.queries or len(values) != manifest.queries:
        problem = f"has values of {len(values)} queries; expected {manifest.queries} different ones"
        raise InputError(problem, path=f"{path}!{PER_QUERY}")
    return Bundle(
        *(path, manifest, values),
        json_of(content.get(MADE_BY, b"{}"), MadeBy, f"{path}!{MADE_BY}"),
        json_of(content[ENVIRONMENT], Environment, f"{path}!{ENVIRONMENT}"),
        content,
    )


def _unpacked(path: Path) -> dict[str, bytes]:
    """The bytes of every file of an archive, once it is known that they are few enough."""
    with reading(path), zipfile.ZipFile(path) as archive:
        found = archive.infolist()
        names = [info.filename for info in found]
        if MANIFEST not in names:
            raise InputError(f"is no bundle (no {MANIFEST}); `python -m baselines bundle` makes one", path=path)
        if len(found) > _MOST_FILES or len({*names}) < len(names):
            raise InputError(f"expected at most {_MOST_FILES} files, each once; found {len(found)}", path=path)
        sizes = {info.filename: info.file_size for info in found}
        if sum(sizes.values()) > LARGEST or sizes[MANIFEST] > _MANIFEST_BYTES:
            raise InputError(f"would be unpacked to {sum(sizes.values()):,} bytes; that is no bundle's", path=path)
        content = {}
        for info in found:
            with archive.open(info) as file:  # which gives no more than the size, and checks the sum
                content[info.filename] = file.read(info.file_size)
                if file.read(1):
                    raise InputError(f"{info.filename} is longer than the archive says", path=path)
    return content


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
