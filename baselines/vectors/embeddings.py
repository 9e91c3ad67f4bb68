"""A directory of embeddings: ``manifest.json`` and chunks of 16-bit floats that are memory-mapped.

Row n of all chunks together is row n of the split of the release that the manifest names by its fingerprint, so no ids
are kept. Every chunk is a NumPy file of shape (rows, dimensions). The manifest says what was encoded (``of``: passages
or queries, ``config``, ``split``, ``fingerprint``), by what (``model``: name and fingerprint, ``similarity``,
``dtype``) and lists the chunks under ``shards``, with rows, bytes, SHA-256 and the length (Euclidean norm) of their
longest embedding. It holds no times and no machine's paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from builders.common.command import InputError
from builders.common.typed import Count, read_json
from builders.store.reader import Release

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval embeddings"
_REMEDY = "encode it again"


@dataclass(frozen=True)
class Vectors:
    """Embeddings, opened: the directory and its manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks' entries in the manifest."""
        return list(self.manifest["shards"])

    @property
    def rows(self) -> int:
        return sum(chunk["rows"] for chunk in self.chunks)

    @property
    def dim(self) -> int:
        return int(self.manifest["dim"])

    @property
    def longest(self) -> float:
        """The length (Euclidean norm) of the longest embedding, or a little more."""
        return float(max(chunk["longest"] for chunk in self.chunks))

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, npt.NDArray[np.float16]]]:
        """(first row, at most ``rows`` rows of one chunk), in order: views of the files, nothing is read yet."""
        start = 0
        for chunk in self.chunks:
            # A map a chunk: pages of a chunk that is done with do not count as this process's memory. Private ("c"):
            # PyTorch wants arrays that could be written to.
            whole = np.load(self.path / chunk["path"], mmap_mode="c")
            for begin in range(0, len(whole), rows):
                yield start + begin, whole[begin : begin + rows]
            start += len(whole)

    def all(self) -> npt.NDArray[np.float16]:
        """Every row in memory: for queries."""
        return np.concatenate([np.asarray(block) for _, block in self.blocks()])

    def check(self, of: str, release: Release, config: str, split: str) -> None:
        """Raise :class:`InputError` unless these are the ``of`` (passages, queries) of this split of the release."""
        have = [self.manifest[key] for key in ("of", "config", "split")]
        if have != [of, config, split]:
            raise InputError(
                f"holds the {have[0]} of {have[1]}/{have[2]}; expected the {of} of {config}/{split}", path=self.path
            )
        if self.manifest["fingerprint"] != release.fingerprint(config, split):
            raise InputError(
                f"was encoded from another release: {config}/{split} of {release.path} has other bytes; {_REMEDY}",
                path=self.path,
            )


def widened(block: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """The numbers in 32 bits. By PyTorch, which converts ten times as fast as NumPy does."""
    wide: npt.NDArray[np.float32] = torch.from_numpy(np.ascontiguousarray(block)).float().numpy()
    return wide


def longest(block: npt.NDArray[np.float16]) -> float:
    """What a chunk's entry says of its longest embedding: rounded up."""
    wide = widened(block)
    return 1.0001 * float(np.sqrt(np.einsum("ij,ij->i", wide, wide).max()))


class _Head(msgspec.Struct):
    name: Any = None
    format: Any = None


class _Model(msgspec.Struct):
    name: str
    fingerprint: str


class _Chunk(msgspec.Struct):
    path: str
    rows: Count
    bytes: Count
    longest: float


class _Manifest(msgspec.Struct):
    """What a manifest must say; what else it says is only compared as a whole."""

    of: str
    config: str
    split: str
    fingerprint: str
    model: _Model
    dim: Annotated[int, msgspec.Meta(ge=1)]
    shards: Annotated[list[_Chunk], msgspec.Meta(min_length=1)]


def open_vectors(path: Path) -> Vectors:
    """Open a directory of embeddings. Raises :class:`InputError` for what is none, and for chunks that are damaged."""
    manifest = path / MANIFEST
    try:
        head = read_json(manifest, _Head)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            f"not a directory of embeddings (no {MANIFEST}); `python -m baselines encode --release DIR --model M --out "
            "DIR` makes one",
            path=path,
        ) from None
    if head.name != NAME or head.format != FORMAT:
        raise InputError(f"expected a manifest of {NAME}, format {FORMAT}", path=manifest)
    read_json(manifest, _Manifest, _REMEDY)
    content = read_json(manifest, dict[str, Any])
    for chunk in content["shards"]:
        check_chunk(path / chunk["path"], chunk, content["dim"])
    return Vectors(path, content)


def check_chunk(path: Path, entry: dict[str, Any], dim: int) -> None:
    """Raise :class:`InputError` where a chunk is missing or has not the size and shape that its entry says."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise InputError(f"is listed in the manifest but missing; {_REMEDY}", path=path) from None
    if size != entry["bytes"]:
        raise InputError(f"has {size} bytes where the manifest says {entry['bytes']}; {_REMEDY}", path=path)
    try:
        found = np.load(path, mmap_mode="r")
    except ValueError as error:
        raise InputError(f"is damaged ({error}); {_REMEDY}", path=path) from None
    if found.shape != (entry["rows"], dim) or found.dtype != np.float16:
        raise InputError(
            f"holds {found.dtype} of shape {found.shape} where the manifest says float16 of ({entry['rows']}, {dim})",
            path=path,
        )
