"""The files of an index of embeddings: the manifest, memory-mapped arrays, and their verification.

:mod:`.vector_index` describes and builds such directories. This module does not import PyTorch.
"""

import functools
import math
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
from baselines.retrieve.vector_stores import BINARY, FLOAT16, VectorStore, open_store
from builders.core.cache import FileEntry, wrong_file
from builders.core.errors import InputError
from builders.core.finished_outputs import VerbInput, file_input
from builders.core.jobs import in_threads
from builders.core.limits import usable_cores
from builders.core.progress import show_progress
from builders.core.typed import read_json
from builders.store.reader import Release

NAME = "dureader_retrieval embeddings"
MANIFEST = "manifest.json"
RANGES = "ranges.npy"  # the ranges of int8 embeddings
_ADVICE = "encode it again"
# A manifest records 1.0001 times the largest norm. A norm that is computed again, on another machine, may differ in its
# last digits, so the recorded number may be 1.00001 times too low, or 1.01 times too high.
ROUNDED_UP = 1.0001
_LOW_FACTOR = 1.00001
_HIGH_FACTOR = 1.01
_NORM_TOLERANCE = 1e-6  # of a norm in 32 bits
# NumPy parses file headers with ast, which is not thread-safe in Python 3.11.
_HEADERS = threading.Lock()
Halves = npt.NDArray[np.float16]


class IndexFile(FileEntry, frozen=True):
    """A file of an index. ``longest`` is the largest norm of its embeddings, rounded up. Other arrays have 0."""

    longest: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Model(msgspec.Struct):
    name: str
    fingerprint: str
    max_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: Overrides | None = None


class _Manifest(msgspec.Struct):
    """The fields of a manifest that are validated. The manifest may have further fields."""

    name: Literal["dureader_retrieval embeddings"]
    # 2: smaller embeddings than 16-bit floats, which earlier versions cannot read.
    format: Literal[1, 2]
    of: Literal["passages", "queries"]
    config: str
    split: str
    fingerprint: str
    model: _Model
    shards: Annotated[list[IndexFile], msgspec.Meta(min_length=1)]
    dtype: Literal["float16", "int8", "binary"] = "float16"
    dim: Annotated[int, msgspec.Meta(ge=1)] | None = None
    ranges: FileEntry | None = None
    rows: Annotated[list[int], msgspec.Meta(min_length=1)] | None = None


@dataclass(frozen=True)
class VectorIndex:
    """An open index.

    Attributes:
        path: the directory of the index.
        manifest: the content of manifest.json.
        files: the files of the arrays, in the order of the chunks.
        chosen: the rows that this object has, in ascending order (None: all rows). They are renumbered from 0.
    """

    path: Path
    manifest: dict[str, Any]
    files: list[IndexFile]
    chosen: Rows | None = None
    exponent: ClassVar[int] = 0  # products of 16-bit numbers fit into 32 bits

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the manifest of a directory. Raises :class:`InputError` if the manifest is missing or damaged."""
        try:
            fields = read_json(path / MANIFEST, _Manifest, _ADVICE)
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"not a directory of embeddings (no {MANIFEST}); make one by `python -m baselines encode`", path=path
            ) from None
        if fields.dtype != FLOAT16 and (fields.format == 1 or fields.dim is None):
            problem = f"dtype: {fields.dtype} embeddings need format 2 and dim; {_ADVICE}"
            raise InputError(problem, path=path / MANIFEST)
        index = cls(path, read_json(path / MANIFEST, dict[str, Any]), fields.shards)
        chunk_count = len(index.chunks)
        expected_chunks = [chunk_name(index.manifest["of"], number, chunk_count) for number in range(chunk_count)]
        if index.chunks != expected_chunks:
            problem = (
                f"shards: expected the files of {expected_chunks[0]} to {expected_chunks[-1]}, in order; {_ADVICE}"
            )
            raise InputError(problem, path=path / MANIFEST)
        return index

    @functools.cached_property
    def chunks(self) -> list[str]:
        """Names of the chunks: files without suffix, or folders."""
        names = [file.path.partition("/")[0].removesuffix(".npy") for file in self.files]
        return list(dict.fromkeys(names))  # once each, in order

    @property
    def rows(self) -> int:
        """Number of embeddings."""
        if self.chosen is not None:
            return len(self.chosen)
        return sum(file.rows or 0 for file in self.files)

    @functools.cached_property
    def dim(self) -> int:
        """Number of dimensions."""
        if self.store_name != FLOAT16:
            return int(self.manifest["dim"])
        return int(_map_array(self.path / self.files[0].path).shape[1])

    @property
    def store_name(self) -> str:
        """The form of the embeddings: float16, int8 or binary."""
        return str(self.manifest.get("dtype", FLOAT16))

    @functools.cached_property
    def store(self) -> VectorStore:
        """The form of the embeddings, which unpacks them. Raises :class:`InputError` for damaged ranges."""
        ranges = None
        if "ranges" in self.manifest:
            ranges = _map_array(self.path / RANGES)
        return open_store(self.store_name, self.dim, ranges)

    @property
    def bytes_per_row(self) -> int:
        """Number of bytes of an embedding."""
        return self.store.columns * np.dtype(self.store.code_type).itemsize

    @property
    def longest(self) -> float:
        """Largest Euclidean norm of an embedding, rounded up."""
        return max(file.longest for file in self.files)

    @property
    def precision(self) -> str:
        """Precision of the model that encoded the texts."""
        return str(self.manifest["model"].get("computed_in", "unknown"))

    def arrays(self, chunk: str, *name_ends: str) -> list[npt.NDArray[Any]]:
        """Memory-map arrays of a chunk, in the order of ``name_ends``.

        A name end follows the chunk's name in the path of a file: "/dims" is the file ``CHUNK/dims.npy`` of a chunk
        with several arrays, and "" is the file ``CHUNK.npy`` of a chunk with one array. The arrays are copy-on-write,
        because PyTorch expects writable arrays.
        """
        return [np.asarray(_map_array(self.path / f"{chunk}{name_end}.npy")) for name_end in name_ends]

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, Halves]]:
        """Yield (first row, at most ``rows`` embeddings of one chunk), in order. Smaller embeddings are unpacked.

        A block of 16-bit floats is a view of a mapped file, which is read on access. With ``chosen``, it is a copy.
        """
        for start, codes in self.code_blocks(rows):
            yield start, self.store.unpack(codes)

    def code_blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, npt.NDArray[Any]]]:
        """Yield the same as :meth:`blocks`, but the arrays as they are stored."""
        yielded_rows = 0
        # ``block_start`` counts all rows of the files, and ``yielded_rows`` the chosen rows.
        block_start = 0
        for chunk in self.chunks:
            # Chunks are mapped one by one, so that pages of earlier chunks do not count as this process's memory.
            (chunk_vectors,) = self.arrays(chunk, "")
            for start in range(0, len(chunk_vectors), rows):
                block = chunk_vectors[start : start + rows]
                block_end = block_start + len(block)
                if self.chosen is not None:
                    chosen_end = int(np.searchsorted(self.chosen, block_end))
                    chosen_in_block = self.chosen[yielded_rows:chosen_end]
                    block = block[chosen_in_block - block_start]
                if len(block):
                    yield yielded_rows, block
                yielded_rows += len(block)
                block_start = block_end

    def all(self) -> Halves:
        """Load all embeddings into memory. Use this method only for queries."""
        return np.concatenate([np.asarray(block) for _, block in self.blocks()])

    def fault(self) -> str:
        """Describe the first damaged file. Return "" if all files are intact. Checksums are cached."""

        def verify_file(file: IndexFile) -> str:
            path = self.path / file.path
            return wrong_file(path, file, lambda: _describe_wrong_array(path, file, self))

        fault = self._describe_wrong_store()
        if fault:
            return fault
        faults = in_threads(verify_file, self.files, usable_cores())
        with show_progress(total=sum(file.bytes for file in self.files), unit="B", label="verify") as bar:
            for file, fault in zip(self.files, faults, strict=True):
                if fault:
                    return f"{file.path} {fault}"
                bar.update(file.bytes)
        return ""

    def _describe_wrong_store(self) -> str:
        """Describe a file that has not the form of the manifest's ``dtype``. Return "" if there is none.

        This check runs each time, because the manifest may change while the files stay.
        """
        # Other kinds of models have several arrays with types of their own.
        if "dim" not in self.manifest or self.store_name == FLOAT16:
            return ""
        if "ranges" in self.manifest:
            ranges_entry = read_json(self.path / MANIFEST, _Manifest, _ADVICE).ranges
            if ranges_entry is None or ranges_entry.path != RANGES:
                return f"{MANIFEST}: ranges: expected the file {RANGES}"
            ranges_fault = wrong_file(self.path / RANGES, ranges_entry)
            if ranges_fault:
                return f"{RANGES} {ranges_fault}"
        try:
            for file in self.files:
                array_fault = self.store.describe_wrong_array(_map_array(self.path / file.path))
                if array_fault:
                    return f"{file.path} {array_fault}"
                # The bits of the last byte do not tell the number of dimensions, but the norm of signs does.
                sign_norm = ROUNDED_UP * math.sqrt(self.dim)
                if self.store_name == BINARY and not math.isclose(file.longest, sign_norm, rel_tol=_NORM_TOLERANCE):
                    return f"{file.path} has another number of dimensions than the manifest"
        except InputError as error:
            return str(error)
        except FileNotFoundError as error:
            return f"{error.filename} is listed in the manifest but missing"
        except Exception as error:  # NumPy raises many types of errors for damaged files
            return f"{file.path} is damaged ({error})"
        return ""

    def check(self, text_type: str, release: Release, config: str, split: str) -> None:
        """Raise :class:`InputError` if the index has not exactly the texts of a release's split.

        ``text_type`` is passages or queries.
        """
        index_type, index_config, index_split = [self.manifest[key] for key in ("of", "config", "split")]
        if (index_type, index_config, index_split) != (text_type, config, split):
            raise InputError(
                f"has the {index_type} of {index_config}/{index_split}; expected the {text_type} of {config}/{split}",
                path=self.path,
            )
        if self.manifest["fingerprint"] != release.fingerprint(config, split):
            raise InputError(
                f"was encoded from another release: {config}/{split} of {release.path} differs; {_ADVICE}",
                path=self.path,
            )
        release_rows = release.rows(config, split)
        if self.rows != release_rows:
            raise InputError(f"has {self.rows:,} rows, but the release has {release_rows:,}; {_ADVICE}", path=self.path)


def chunk_name(text_type: str, number: int, chunk_count: int) -> str:
    """Return the name of a chunk, for example passages-00000-of-00002. ``text_type`` is passages or queries."""
    return f"{text_type}-{number:05d}-of-{chunk_count:05d}"


def _map_array(path: Path) -> npt.NDArray[Any]:
    """Memory-map a NumPy file. Writing to the array changes only memory."""
    with _HEADERS:
        return np.lib.format.open_memmap(path, mode="c")


def _describe_wrong_array(path: Path, file: IndexFile, index: VectorIndex) -> str:
    """Describe a difference between an array and its entry in the manifest. Return "" if there is none."""
    try:
        array = _map_array(path)
    except Exception as error:  # NumPy raises many types of errors for damaged files
        return f"is damaged ({error})"
    if len(array) != file.rows:
        return f"has {len(array):,} rows, but the manifest says {file.rows}"
    norm = longest_vector(array, index.store if "dim" in index.manifest else None)
    # Comparisons with NaN are false, so this condition also reports numbers that are not finite.
    if not norm <= _LOW_FACTOR * file.longest <= _HIGH_FACTOR * norm:
        return f"has embeddings of norm {norm}, but the manifest says {file.longest}"
    return ""


def longest_vector(array: npt.NDArray[Any], store: VectorStore | None = None) -> float:
    """Return the largest Euclidean norm of embeddings, or 0 for other arrays.

    ``store`` is the form of the embeddings (default: 16-bit floats).
    """
    if store is not None and store.name != FLOAT16:
        return store.largest_norm(array)
    if array.dtype != np.float16:
        return 0.0
    return largest_norm(array)


def vectors_input(vectors: Path | VectorIndex) -> VerbInput:
    """Describe embeddings as the input of a verb. Raises :class:`InputError` for a directory without embeddings.

    The manifest has the checksums of all files, and describes the model.
    """
    folder = _folder_of(vectors)
    VectorIndex.read(folder)  # raises the error
    return file_input(f"the directory {folder}", folder / MANIFEST)


def open_vectors(vectors: Path | VectorIndex) -> VectorIndex:
    """Open and verify a directory of embeddings. Raises :class:`InputError` for damaged or other files."""
    folder = _folder_of(vectors)
    index = VectorIndex.read(folder)
    # `run` writes such indexes for sparse and late-interaction models.
    if "dim" not in index.manifest:
        raise InputError("has no index with one vector per text; make one by `python -m baselines encode`", path=folder)
    fault = index.fault()
    if fault:
        raise InputError(f"{fault}; {_ADVICE}", path=folder)
    return index


def _folder_of(vectors: Path | VectorIndex) -> Path:
    return vectors.path if isinstance(vectors, VectorIndex) else vectors
