"""The files of an index of embeddings: the manifest, memory-mapped arrays, and their verification.

:mod:`.vector_index` describes and builds such directories. This module does not import PyTorch.
"""

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from baselines.core.passages import Rows
from baselines.core.settings import Overrides
from baselines.retrieve.exact_search import largest_norm
from builders.core.cache import FileEntry, wrong_file
from builders.core.errors import InputError
from builders.core.finished_outputs import VerbInput, file_input
from builders.core.jobs import in_threads
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release

NAME, MANIFEST = "dureader_retrieval embeddings", "manifest.json"
_REMEDY = "encode it again"
_HEADERS = threading.Lock()  # NumPy parses file headers with ast, which is not thread-safe in Python 3.11
Halves = npt.NDArray[np.float16]


class File(FileEntry, frozen=True):
    """A file of an index. ``longest`` is the largest norm of 16-bit vectors, rounded up. Other arrays have 0."""

    longest: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Model(msgspec.Struct):
    name: str
    fingerprint: str
    max_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: Overrides | None = None


class _Manifest(msgspec.Struct):
    """The fields of a manifest that are validated. The manifest may have further fields."""

    name: Literal["dureader_retrieval embeddings"]
    format: Literal[1]
    of: Literal["passages", "queries"]
    config: str
    split: str
    fingerprint: str
    model: _Model
    shards: Annotated[list[File], msgspec.Meta(min_length=1)]
    rows: Annotated[list[int], msgspec.Meta(min_length=1)] | None = None


@dataclass(frozen=True)
class Index:
    """An open index. ``chosen`` selects rows, in ascending order. The selected rows are renumbered from 0."""

    path: Path
    manifest: dict[str, Any]
    files: list[File]
    chosen: Rows | None = None
    exponent: ClassVar[int] = 0  # products of 16-bit numbers fit into 32 bits

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the manifest of a directory. Raises :class:`InputError` if the manifest is missing or damaged."""
        try:
            files = read_json(path / MANIFEST, _Manifest, _REMEDY).shards
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"not a directory of embeddings (no {MANIFEST}); make one by `python -m baselines encode`", path=path
            ) from None
        index = cls(path, read_json(path / MANIFEST, dict[str, Any]), files)
        expected = [chunk_name(index.manifest["of"], number, len(index.chunks)) for number in range(len(index.chunks))]
        if index.chunks != expected:
            raise InputError(
                f"shards: expected the files of {expected[0]} to {expected[-1]}, in order; {_REMEDY}",
                path=path / MANIFEST,
            )
        return index

    @functools.cached_property
    def chunks(self) -> list[str]:
        """Names of the chunks: files without suffix, or folders."""
        return list(dict.fromkeys(file.path.partition("/")[0].removesuffix(".npy") for file in self.files))

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files) if self.chosen is None else len(self.chosen)

    @functools.cached_property
    def dim(self) -> int:
        return int(_mapped(self.path / self.files[0].path).shape[1])

    @property
    def longest(self) -> float:
        """Largest Euclidean norm of an embedding, rounded up."""
        return max(file.longest for file in self.files)

    @property
    def precision(self) -> str:
        """Precision of the model that encoded the texts."""
        return str(self.manifest["model"].get("computed_in", "unknown"))

    def arrays(self, chunk: str, *names: str) -> list[npt.NDArray[Any]]:
        """Memory-map arrays of a chunk. The arrays are copy-on-write, because PyTorch expects writable arrays."""
        return [np.asarray(_mapped(self.path / f"{chunk}{name}.npy")) for name in names]

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, Halves]]:
        """Yield (first row, at most ``rows`` embeddings of one chunk), in order.

        A block is a view of a mapped file, which is read on access. With ``chosen``, a block is a copy.
        """
        start = begin = 0
        for chunk in self.chunks:
            # Chunks are mapped one by one, so that pages of earlier chunks do not count as this process's memory.
            (whole,) = self.arrays(chunk, "")
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
        """Load all embeddings into memory. Use this method only for queries."""
        return np.concatenate([np.asarray(block) for _, block in self.blocks()])

    def fault(self) -> str:
        """Describe the first damaged file. Return "" if all files are intact. Checksums are cached."""

        def look(file: File) -> str:
            path = self.path / file.path
            return wrong_file(path, file, lambda: _wrong_array(path, file))

        found = in_threads(look, self.files, usable_cores())
        with progress(total=sum(file.bytes for file in self.files), unit="B", label="verify") as bar:
            for file, fault in zip(self.files, found, strict=True):
                if fault:
                    return f"{file.path} {fault}"
                bar.update(file.bytes)
        return ""

    def check(self, of: str, release: Release, config: str, split: str) -> None:
        """Raise :class:`InputError` if the index has another source. ``of`` is passages or queries."""
        have = [self.manifest[key] for key in ("of", "config", "split")]
        if have != [of, config, split]:
            raise InputError(
                f"has the {have[0]} of {have[1]}/{have[2]}; expected the {of} of {config}/{split}", path=self.path
            )
        if self.manifest["fingerprint"] != release.fingerprint(config, split):
            raise InputError(
                f"was encoded from another release: {config}/{split} of {release.path} differs; {_REMEDY}",
                path=self.path,
            )
        if self.rows != (rows := release.rows(config, split)):
            raise InputError(f"has {self.rows:,} rows, but the release has {rows:,}; {_REMEDY}", path=self.path)


def chunk_name(of: str, number: int, chunks: int) -> str:
    """Return the name of chunk ``number`` of ``chunks``. ``of`` is passages or queries."""
    return f"{of}-{number:05d}-of-{chunks:05d}"


def _mapped(path: Path) -> npt.NDArray[Any]:
    with _HEADERS:
        return np.lib.format.open_memmap(path, mode="c")


def _wrong_array(path: Path, file: File) -> str:
    """Describe a difference between an array and its entry in the manifest. Return "" if there is none."""
    try:
        found = _mapped(path)
    except Exception as error:  # NumPy raises many types of errors for damaged files
        return f"is damaged ({error})"
    if len(found) != file.rows:
        return f"has {len(found):,} rows, but the manifest says {file.rows}"
    norm = longest_vector(found)
    # Comparisons with NaN are false, so this condition also reports numbers that are not finite.
    if not norm <= 1.00001 * file.longest <= 1.01 * norm:
        return f"has embeddings of norm {norm}, but the manifest says {file.longest}"
    return ""


def longest_vector(array: npt.NDArray[Any]) -> float:
    return largest_norm(array) if array.dtype == np.float16 else 0.0


def vectors_input(vectors: Path | Index) -> VerbInput:
    """Describe embeddings as the input of a verb. Raises :class:`InputError` for a directory without embeddings.

    The manifest has the checksums of all files, and describes the model.
    """
    path = Index.read(vectors.path if isinstance(vectors, Index) else vectors).path
    return file_input(f"the directory {path}", path / MANIFEST)


def open_vectors(path: Path | Index) -> Index:
    """Open and verify a directory of embeddings. Raises :class:`InputError` for damaged or other files."""
    path = path.path if isinstance(path, Index) else path
    vectors = Index.read(path)
    if "dim" not in vectors.manifest:  # `run` writes such indexes for sparse and late-interaction models
        raise InputError("has no index with one vector per text; make one by `python -m baselines encode`", path=path)
    if fault := vectors.fault():
        raise InputError(f"{fault}; {_REMEDY}", path=path)
    return vectors
