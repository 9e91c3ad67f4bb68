"""A directory of embeddings: ``manifest.json`` and chunks of 16-bit floats that are memory-mapped.

Row n of all chunks together is row n of the split of the release that the manifest names by its fingerprint, so no ids
are kept. Every chunk is a NumPy file of shape (rows, dimensions). The manifest says what was encoded (``of``: passages
or queries, ``config``, ``split``, ``fingerprint``), by what (``model``: name and fingerprint, ``similarity``,
``dtype``) and lists the chunks under ``shards``, with rows, bytes, SHA-256 and the length (Euclidean norm) of their
longest embedding. It holds no times and no machine's paths.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from baselines.retrieve.encoder import Encoder, Halves, largest_norm
from baselines.retrieve.index import Arrays, File, Index, Job, build
from baselines.retrieve.models import described, open_encoder
from baselines.retrieve.passages import Rows
from baselines.retrieve.settings import Overrides
from builders.core.cache import fault_once, other_sha256
from builders.core.errors import InputError
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release, open_release

FORMAT = 1
_FROM_1 = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class Vectors(Index):
    """Embeddings, opened. ``chosen``: only these rows (ascending) are seen, numbered from 0, in their order."""

    chosen: Rows | None = None

    name, file, listing = "dureader_retrieval embeddings", "manifest.json", "shards"
    remedy = "encode it again"

    @classmethod
    def read(cls, path: Path) -> Vectors:
        manifest = path / cls.file
        try:
            head = read_json(manifest, _Head)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"not a directory of embeddings (no {cls.file}); `python -m baselines encode --release DIR --model M "
                "--out DIR` makes one",
                path=path,
            ) from None
        if head.name != cls.name or head.format != FORMAT:
            raise InputError(f"expected a manifest of {cls.name}, format {FORMAT}", path=manifest)
        checked = read_json(manifest, _Manifest, cls.remedy)
        for number, file in enumerate(checked.shards):
            if file.path != (expected := f"{cls.chunk_name(checked.of, number, len(checked.shards))}.npy"):
                raise InputError(
                    f"shards[{number}].path: expected {expected}, found {file.path!r}; {cls.remedy}", path=manifest
                )
        return cls(path, read_json(manifest, dict[str, Any]))

    @staticmethod
    def chunk_name(of: str, number: int, chunks: int) -> str:
        return f"{of}-{number:05d}-of-{chunks:05d}"

    @staticmethod
    def listed(files: list[list[File]]) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(file) for (file,) in files]

    @property
    def rows(self) -> int:
        return sum(chunk["rows"] for chunk in self.manifest[self.listing]) if self.chosen is None else len(self.chosen)

    @property
    def dim(self) -> int:
        return int(self.manifest["dim"])

    @property
    def longest(self) -> float:
        """The length (Euclidean norm) of the longest embedding, or a little more."""
        return float(max(chunk["longest"] for chunk in self.manifest[self.listing]))

    @property
    def precision(self) -> str:
        """The precision that the embeddings were computed in."""
        return str(self.manifest["model"].get("computed_in", "unknown"))

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, Halves]]:
        """(first row, at most ``rows`` rows of one chunk), in order: views of the files, nothing is read yet.

        Blocks of chosen rows are copied, and may be short.
        """
        start = begin = 0
        for chunk in self.manifest[self.listing]:
            # A map a chunk: pages of a chunk that is done with do not count as this process's memory. Private ("c"):
            # PyTorch wants arrays that could be written to.
            whole = np.load(self.path / chunk["path"], mmap_mode="c")
            for low in range(0, len(whole), rows):
                block = whole[low : low + rows]
                if self.chosen is not None:
                    own = self.chosen[begin : int(np.searchsorted(self.chosen, start + low + len(block)))]
                    block = block[own - start - low]
                if len(block):
                    yield begin, block
                begin += len(block)
            start += len(whole)

    def all(self) -> Halves:
        """Every row in memory: for queries."""
        return np.concatenate([np.asarray(block) for _, block in self.blocks()])

    def fault(self) -> str:
        look = functools.partial(_chunk_fault, dim=self.dim)
        paths = [self.path / chunk["path"] for chunk in self.manifest[self.listing]]
        with ThreadPoolExecutor(usable_cores()) as pool:
            faults = progress(
                pool.map(look, paths, self.manifest[self.listing]), total=len(paths), unit="file", label="verify"
            )
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
                f"was encoded from another release: {config}/{split} of {release.path} has other bytes; {self.remedy}",
                path=self.path,
            )
        if self.rows != (rows := release.rows(config, split)):
            raise InputError(f"holds {self.rows:,} rows where the release has {rows:,}; {self.remedy}", path=self.path)


class _Head(msgspec.Struct):
    name: Any = None
    format: Any = None


class _Model(msgspec.Struct):
    name: str
    fingerprint: str
    max_length: _FROM_1 | None = None
    settings: Overrides | None = None


class _Manifest(msgspec.Struct):
    """The fields of a manifest that are read; the others are only compared as a whole."""

    of: Literal["passages", "queries"]
    config: str
    split: str
    fingerprint: str
    model: _Model
    dim: _FROM_1
    shards: Annotated[list[File], msgspec.Meta(min_length=1)]


def open_vectors(path: Path) -> Vectors:
    """Open a directory of embeddings: :class:`InputError` for what is none, and for chunks that are damaged."""
    vectors = Vectors.read(path)
    if fault := vectors.fault():
        raise InputError(f"{fault}; {vectors.remedy}", path=path)
    return vectors


def _chunk_fault(path: Path, entry: dict[str, Any], dim: int) -> str:
    """Describe what is wrong with a chunk; empty where its numbers are those that its entry says, and finite."""

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
        if not (norm := largest_norm(found)) <= 1.00001 * entry["longest"] <= 1.01 * norm:
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


def encode(job: Job, out: Path, devices: Sequence[str]) -> None:
    """Write the embeddings of one split into the directory ``out``, or leave the same embeddings that are there."""
    release, model = open_release(job.release), open_encoder(job.settings)  # on the CPU, and given back
    about = {
        "name": Vectors.name,
        "format": FORMAT,
        "of": job.of,
        "config": job.config,
        "split": job.split,
        "fingerprint": release.fingerprint(job.config, job.split),
        "model": described(job.settings, model, job.dtype),
        "similarity": model.similarity_fn_name,
        "dim": model.get_embedding_dimension(),
        "dtype": "float16",
        "shard_rows": job.chunk_rows,
        "batch_tokens": job.batch_tokens,
    }
    del model
    build(Vectors, job, out, about, devices)
    _encoder.cache_clear()


def encode_chunk(job: Job, device: str, texts: list[str]) -> Arrays:
    """The embeddings of a chunk: one file."""
    return {"": _encoder(job, device).encode(texts)}


@functools.lru_cache(maxsize=1)
def _encoder(job: Job, device: str) -> Encoder:
    model = open_encoder(job.settings, device, job.dtype)
    return Encoder(model, "document" if job.of == "passages" else "query", job.batch_tokens, job.tokenizers)
