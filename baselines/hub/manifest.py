"""The manifest of a checkpoint on the hub: every file with its size and SHA-256. `push` writes it, `pull` obeys it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from baselines.hub.checkpoint import CARD, belongs
from builders.core.files import sha256_of
from builders.core.typed import Count, Sha256, read_json

NAME = "dureader_retrieval checkpoint"


class File(Struct, frozen=True):
    """One file: its path in the repository, its size, its lower-case hex SHA-256."""

    path: str
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if not belongs(self.path) and self.path != CARD:
            raise ValueError(f"its manifest names {self.path}, which no checkpoint of ours holds")


class Result(Struct, frozen=True):
    """A file of ``.eval_results``: no part of the checkpoint, and never pulled; the next push replaces it."""

    path: str


class Manifest(Struct, frozen=True):
    """All files of a checkpoint on the hub but the manifest itself; ``results``: what is beside the checkpoint."""

    files: list[File]
    results: list[Result] = []
    name: str = NAME
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        if self.name != NAME:
            raise ValueError(f"its manifest is not one of a {NAME}")

    def text(self) -> str:
        """The content of the file."""
        content = {"name": self.name, "format": self.format, "files": msgspec.to_builtins(self.files)}
        if self.results:
            content["results"] = msgspec.to_builtins(self.results)
        return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def listed(path: str, file: Path) -> File:
    """The entry of a file that is to be at ``path`` in the repository."""
    return File(path, file.stat().st_size, sha256_of(file))


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file that was fetched; :class:`InputError` where it is none that `push` writes."""
    return read_json(path, Manifest)
