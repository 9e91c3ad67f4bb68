"""The manifest of artefacts on the hub: each with its files, what it is of, and what is worth knowing of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from builders.common.names import name_within
from builders.common.typed import Count, Sha256, read_json

NAME = "dureader_retrieval artefacts"
Kind = Literal["embeddings", "run", "negatives"]
FOLDERS: dict[Kind, str] = {"embeddings": "embeddings", "run": "runs", "negatives": "negatives"}
BESIDE = ".manifest.json"  # what the record of how a run was made adds to its name
_CHUNK = re.compile(r"manifest\.json|(passages|queries)-\d{5}-of-\d{5}\.npy")


class File(Struct, frozen=True):
    """One file: its path in the repository, its size, its lower-case hex SHA-256."""

    path: str
    bytes: Count
    sha256: Sha256


class Artefact(Struct, frozen=True):
    """One artefact.

    Attributes:
        name: FOLDER/NAME in the repository: a folder of embeddings, or a file.
        kind: what it is.
        paths: of its files.
        of: the fingerprints of the release's splits that it is of, by CONFIG/SPLIT.
        about: for people.
    """

    name: str
    kind: Kind
    paths: Annotated[list[str], Meta(min_length=1)]
    of: dict[str, Sha256]
    about: dict[str, str] = {}

    def __post_init__(self) -> None:
        folder, _, rest = name_within(self.name).partition("/")
        if folder != FOLDERS[self.kind] or not rest or "/" in rest:
            raise ValueError(f"{self.name!r} is no name of an artefact of the kind {self.kind}")
        for path in self.paths:
            name_within(path)
            own = path in (self.name, f"{self.name}{BESIDE}")
            if self.kind == "embeddings":
                own = path.startswith(f"{self.name}/") and bool(_CHUNK.fullmatch(path[len(self.name) + 1 :]))
            if not own:
                raise ValueError(f"{path!r} is no file of {self.name!r}")


class Manifest(Struct, frozen=True):
    """All artefacts of a repository, and their files."""

    artefacts: list[Artefact]
    files: list[File]
    name: str = NAME
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.name != NAME:
            raise ValueError(f"is not one of {NAME}")
        listed = [file.path for file in self.files]
        own = [path for artefact in self.artefacts for path in artefact.paths]
        if len({*listed}) != len(listed) or sorted(listed) != sorted(own):
            raise ValueError("its files are not those of its artefacts, each once")

    def files_of(self, artefact: Artefact) -> list[File]:
        """The files of one of its artefacts."""
        return [file for file in self.files if file.path in artefact.paths]

    def bytes_of(self, artefact: Artefact) -> int:
        """The size of one of its artefacts."""
        return sum(file.bytes for file in self.files_of(artefact))

    def text(self) -> str:
        """The content of the file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file that was fetched; :class:`InputError` where it is none that `artefacts push` writes."""
    return read_json(path, Manifest)


def with_more(earlier: Manifest | None, artefacts: list[Artefact], files: list[File]) -> Manifest:
    """What a repository holds after ``artefacts`` came to it: those of the same names are replaced."""
    new = {artefact.name for artefact in artefacts}
    kept = [artefact for artefact in earlier.artefacts if artefact.name not in new] if earlier else []
    old = [file for artefact in kept for file in earlier.files_of(artefact)] if earlier else []
    every = sorted([*kept, *artefacts], key=lambda artefact: artefact.name)
    return Manifest(every, sorted([*old, *files], key=lambda file: file.path))
