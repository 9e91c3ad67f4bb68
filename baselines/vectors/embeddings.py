"""A directory of embeddings: ``manifest.json`` and chunks of 16-bit floats that are memory-mapped.

Row n of all chunks together is row n of the split of the release that the manifest names by its fingerprint, so no ids
are kept. Every chunk is a NumPy file of shape (rows, dimensions). The manifest says what was encoded (``of``: passages
or queries, ``config``, ``split``, ``fingerprint``), by what (``model``: name and fingerprint, ``similarity``,
``dtype``) and lists the chunks under ``shards``, with rows, bytes, SHA-256 and the length (Euclidean norm) of their
longest embedding. It holds no times and no machine's paths.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from baselines.models.settings import SaidSettings
from builders.core.cache import fault_once, other_sha256
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.typed import Count, name_within, read_json
from builders.store.reader import Release

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval embeddings"
_REMEDY = "encode it again"
_ROWS = 1 << 14  # looked at at a time: 50 MB in 32 bits at 768 dimensions


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

    def fault(self) -> str:
        """What is wrong with the chunks, in words; empty where all are what the manifest says.

        They are read for this once: see :func:`builders.core.cache.fault_once`.
        """
        look = functools.partial(_chunk_fault, dim=self.dim)
        paths = [self.path / chunk["path"] for chunk in self.chunks]
        with ThreadPoolExecutor(usable_cores()) as pool:
            faults = progress(pool.map(look, paths, self.chunks), total=len(paths), unit="file", label="verify")
            return next((f"{path.name} {fault}" for path, fault in zip(paths, faults, strict=True) if fault), "")

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
        if self.rows != (rows := release.rows(config, split)):
            raise InputError(f"holds {self.rows:,} rows where the release has {rows:,}; {_REMEDY}", path=self.path)


def widened(block: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """The numbers in 32 bits. By PyTorch, which converts ten times as fast as NumPy does."""
    wide: npt.NDArray[np.float32] = torch.from_numpy(np.ascontiguousarray(block)).float().numpy()
    return wide


def longest(block: npt.NDArray[np.float16]) -> float:
    """What a chunk's entry says of its longest embedding: rounded up."""
    return 1.0001 * _longest_norm(block)


def _longest_norm(block: npt.NDArray[np.float16]) -> float:
    norms = []
    for start in range(0, len(block), _ROWS):
        wide = widened(block[start : start + _ROWS])
        norms.append(np.einsum("ij,ij->i", wide, wide).max())
    return float(np.sqrt(np.max(norms)))


class _Head(msgspec.Struct):
    name: Any = None
    format: Any = None


class _Model(msgspec.Struct):
    name: str
    fingerprint: str
    max_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: SaidSettings | None = None


class Chunk(msgspec.Struct):
    """One file: its name, rows, size, SHA-256 (hex), and a little more than the length of its longest embedding."""

    path: str
    rows: Annotated[int, msgspec.Meta(ge=1)]
    bytes: Count
    sha256: str
    longest: Annotated[float, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        name_within(self.path)


class _Manifest(msgspec.Struct):
    """What a manifest must say; what else it says is only compared as a whole."""

    of: Literal["passages", "queries"]
    config: str
    split: str
    fingerprint: str
    model: _Model
    dim: Annotated[int, msgspec.Meta(ge=1)]
    shards: Annotated[list[Chunk], msgspec.Meta(min_length=1)]


def chunk_name(of: str, number: int, chunks: int) -> str:
    """The file of a chunk of so many."""
    return f"{of}-{number:05d}-of-{chunks:05d}.npy"


def read_vectors(path: Path) -> Vectors:
    """A directory of embeddings, of which only the manifest is read. :class:`InputError` for what is none."""
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
    said = read_json(manifest, _Manifest, _REMEDY)
    for number, chunk in enumerate(said.shards):
        if chunk.path != (expected := chunk_name(said.of, number, len(said.shards))):
            raise InputError(
                f"shards[{number}].path: expected {expected}, found {chunk.path!r}; {_REMEDY}", path=manifest
            )
    return Vectors(path, read_json(manifest, dict[str, Any]))


def open_vectors(path: Path) -> Vectors:
    """Open a directory of embeddings: :class:`InputError` for what is none, and for chunks that are damaged."""
    vectors = read_vectors(path)
    if fault := vectors.fault():
        raise InputError(f"{fault}; {_REMEDY}", path=path)
    return vectors


def _chunk_fault(path: Path, entry: dict[str, Any], dim: int) -> str:
    """What is wrong with a chunk, in words; empty where its numbers are those that its entry says, and finite."""

    def look() -> str:
        if fault := other_sha256(path, entry["sha256"]):
            return fault
        try:
            found = np.lib.format.open_memmap(path, mode="c")  # (PyTorch wants what could be written to)
        except Exception as error:  # NumPy raises a dozen kinds for wrong bytes
            return f"is damaged ({error})"
        if found.shape != (entry["rows"], dim) or found.dtype != np.float16:
            expected = f"float16 of ({entry['rows']}, {dim})"
            return f"holds {found.dtype} of shape {found.shape} where the manifest says {expected}"
        # Not a number is no more than any.
        if not (norm := _longest_norm(found)) <= 1.00001 * entry["longest"] <= 1.01 * norm:
            return f"has embeddings as long as {norm} where the manifest says {entry['longest']}"
        return ""

    try:
        if (size := path.stat().st_size) != entry["bytes"]:
            return f"has {size:,} bytes where the manifest says {entry['bytes']:,}"
        return fault_once(path, ["embeddings", entry, dim], look)
    except FileNotFoundError:
        return "is listed in the manifest but missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
