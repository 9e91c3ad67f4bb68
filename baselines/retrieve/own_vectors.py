"""Vectors of a user's encoder in a file: built call by call, resumed after a failure, and reused.

The folder has ``vectors``, 32-bit floats of shape (rows, dimensions), and ``manifest.json``, which is written last. A
failed or killed build loses only the texts of its last call. This module does not import PyTorch.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from baselines.core.passages import Rows
from baselines.retrieve.exact_search import BLOCK
from baselines.retrieve.own_models import Numbers
from baselines.retrieve.search_engines import Floats
from builders.core.cache import FileEntry, describe_file, wrong_file
from builders.core.errors import InputError, log
from builders.core.folders import (
    check_output,
    expect_known_output,
    key_of,
    replace_directory,
    states_of_output,
    work_beside,
)
from builders.core.paths import check_place
from builders.core.progress import show_progress
from builders.core.typed import read_json
from builders.core.write_files import write_text

MANIFEST = "manifest.json"
_VECTORS_FILE = "vectors"
_NUMBER_BYTES = 4
# If the largest number of a model is below 2**-102, then numbers of a millionth of it have fewer digits in 32 bits.
_SMALLEST_MAXIMUM = 2.0**-102
# A stored norm is rounded up by this factor, because bounds of scores rely on it.
_NORM_ROUNDING = 1.0001
_TEXTS_PER_WRITE = 256  # texts whose vectors are written together


class _Manifest(msgspec.Struct):
    """The manifest of an index.

    Attributes:
        about: everything that the vectors depend on.
        zeros: number of vectors of zeros.
        checksum: :func:`_checksum` of the other values.
        rows: the rows of the corpus in ascending order, if the index does not have all rows.
    """

    name: Literal["dureader_retrieval own vectors"]
    format: Literal[1]
    about: dict[str, Any]
    dim: int
    longest: float
    zeros: int
    file: FileEntry
    checksum: str
    rows: list[int] | None = None


@dataclass(frozen=True)
class OwnVectors:
    """The vectors of an index, as :class:`.exact_search.StoredVectors`.

    Attributes:
        path: the file.
        rows, dim: shape of the file.
        longest: largest Euclidean norm of a vector.
        zeros: number of vectors of zeros.
        chosen: the rows of the corpus in ascending order, if the file has only these rows.
    """

    path: Path
    rows: int
    dim: int
    longest: float
    zeros: int
    chosen: Rows | None = None

    @property
    def exponent(self) -> int:
        """Power of two that gives the longest vector a norm below 1."""
        return int(np.frexp(self.longest)[1])

    def _map_file(self) -> Floats:
        return np.memmap(self.path, np.float32, "r", shape=(self.rows, self.dim))

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[int, Floats]]:
        """Yield (first row, at most ``rows`` vectors), in order."""
        file_vectors = self._map_file()
        for start in range(0, self.rows, rows):
            yield start, np.asarray(file_vectors[start : start + rows])

    def at(self, positions: Rows) -> Floats:
        """Return the vectors at positions of the file."""
        return np.asarray(self._map_file()[positions])

    def positions_of(self, corpus_rows: Rows) -> Rows:
        """Return the positions of rows of the corpus in the file. A row that the file lacks has the position -1."""
        if self.chosen is None:
            return corpus_rows
        # searchsorted returns the position of the next higher row if the file lacks a row, and the end after the last.
        positions = np.minimum(np.searchsorted(self.chosen, corpus_rows), self.rows - 1)
        return np.where(self.chosen[positions] == corpus_rows, positions, -1)


def build_vectors(
    index_folder: Path,
    about: dict[str, Any],
    *,
    corpus_rows: int,
    chosen: Rows | None,
    texts_of: Callable[[Sequence[int]], list[str]],
    encode: Callable[[list[str]], Numbers],
    texts_per_call: int,
    sources: Sequence[Path] = (),
) -> OwnVectors:
    """Encode rows of a corpus into a folder, or reuse the folder's vectors. An interrupted build resumes.

    Args:
        index_folder: the folder to write. A folder of another model is replaced.
        about: everything that the vectors depend on, as JSON values. ``dim`` is the number of dimensions, and
            ``model`` the model's name for errors.
        corpus_rows: number of rows of the corpus.
        chosen: the rows to encode, in ascending order (None: all rows).
        texts_of: a function that returns the texts of rows.
        encode: a function that returns the vectors of texts, shape (texts, ``dim``).
        texts_per_call: texts per call of the model.
        sources: further folders of this function. Their vectors are reused if they have the same ``about``.

    Raises:
        InputError: the folder has other files, another call has just written the folder for another model, or a vector
            has numbers that 32 bits cannot hold.
    """
    index_folder = check_output(index_folder, "an index", MANIFEST)
    check_place(index_folder)
    chosen_list = None
    rows = np.arange(corpus_rows)
    if chosen is not None:
        chosen_list = chosen.tolist()
        rows = chosen
    work_key = key_of({**about, "rows": chosen_list})
    known_states = states_of_output(index_folder, MANIFEST)
    with work_beside(index_folder, work_key, wait=True) as work:
        # Another process may have encoded the same rows while this process waited.
        earlier_vectors = _open_stored(index_folder, about, corpus_rows)
        if earlier_vectors is not None:
            positions = earlier_vectors.positions_of(rows)
            # True if the folder has exactly these rows.
            if np.array_equal(positions, np.arange(earlier_vectors.rows)):
                log.info("%s: already encoded", index_folder)
                return earlier_vectors
        expect_known_output(index_folder, MANIFEST, known_states)

        # Encode the rows, and count what the manifest records.
        source_vectors = _open_sources(sources, about, corpus_rows)
        vectors_path = work / _VECTORS_FILE
        _encode_rows(
            vectors_path,
            about,
            rows,
            index_folder=index_folder,
            source_vectors=source_vectors,
            texts_of=texts_of,
            encode=encode,
            texts_per_call=texts_per_call,
        )
        unmeasured_vectors = OwnVectors(vectors_path, len(rows), about["dim"], longest=0.0, zeros=0)
        longest_norm, zero_count = _measure(unmeasured_vectors)
        # An index of zeros must not be reused when the model is mended.
        if zero_count == len(rows):
            raise InputError(f"{about['model']}: expected vectors, found only zeros for all passages")

        # The manifest is written last, so a folder with a manifest has all vectors.
        _write_manifest(work, about, longest_norm, zero_count, chosen_list, len(rows))
        replace_directory(work, index_folder)
    return OwnVectors(index_folder / _VECTORS_FILE, len(rows), about["dim"], longest_norm, zero_count, chosen)


def _encode_rows(
    vectors_path: Path,
    about: dict[str, Any],
    rows: Rows,
    *,
    index_folder: Path,
    source_vectors: Sequence[OwnVectors],
    texts_of: Callable[[Sequence[int]], list[str]],
    encode: Callable[[list[str]], Numbers],
    texts_per_call: int,
) -> None:
    """Append the vectors of ``rows`` to a file that an interrupted call may have begun.

    Vectors that one of ``source_vectors`` has are copied. ``index_folder`` is the index's name for the log. The other
    arguments are those of :func:`build_vectors`.
    """
    row_bytes = about["dim"] * _NUMBER_BYTES
    done_count = 0
    if vectors_path.exists():
        done_count = vectors_path.stat().st_size // row_bytes
    if done_count:
        log.info("%s: %d of %d texts are encoded already", index_folder, done_count, len(rows))
    # Whole calls of the model are written, so that only the last call has fewer texts.
    rows_per_write = max(_TEXTS_PER_WRITE // texts_per_call, 1) * texts_per_call
    with (
        open(vectors_path, "ab") as file,
        show_progress(total=len(rows), unit="text", label="encode", done=done_count) as bar,
    ):
        file.truncate(done_count * row_bytes)  # a killed process may leave half of a vector
        for start in range(done_count, len(rows), rows_per_write):
            part_rows = rows[start : start + rows_per_write]
            with bar.task(len(part_rows)):
                vectors, is_missing = _copy_vectors(source_vectors, part_rows, about["dim"])
                if is_missing.any():
                    texts = texts_of(part_rows[is_missing].tolist())
                    vectors[is_missing] = to_32_bits(encode(texts), about["model"])
                file.write(vectors.tobytes())
                file.flush()


def _write_manifest(
    folder: Path, about: dict[str, Any], longest_norm: float, zero_count: int, chosen: list[int] | None, row_count: int
) -> None:
    """Write the manifest of the vectors in a folder. ``chosen`` lists the encoded rows, or is None for all rows."""
    manifest = {
        "name": "dureader_retrieval own vectors",
        "format": 1,
        "about": about,
        "dim": about["dim"],
        "longest": longest_norm,
        "zeros": zero_count,
        "file": msgspec.to_builtins(describe_file(folder, _VECTORS_FILE, row_count)),
        "rows": chosen,
    }
    manifest["checksum"] = _checksum(manifest)
    write_text(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def _checksum(manifest: dict[str, Any]) -> str:
    """Return a hash of a manifest's values. A damaged number, for example of ``longest``, has another hash."""
    return key_of({name: value for name, value in manifest.items() if name != "checksum"})


def _open_sources(folders: Sequence[Path], about: dict[str, Any], corpus_rows: int) -> list[OwnVectors]:
    """Open the folders that have vectors of the same model and corpus."""
    sources = []
    for folder in folders:
        with contextlib.suppress(InputError):  # the folder may have vectors of a named model
            source = _open_stored(folder, about, corpus_rows)
            if source is not None:
                sources.append(source)
    return sources


def _copy_vectors(sources: Sequence[OwnVectors], rows: Rows, dim: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the vectors of ``rows`` from the first source that has each, and a mask of the rows that no source has.

    ``rows`` are rows of the corpus. A row that no source has gets a vector of zeros.
    """
    vectors: Floats = np.zeros((len(rows), dim), np.float32)
    is_missing = np.ones(len(rows), bool)
    for source in sources:
        positions = source.positions_of(rows)
        is_copied = is_missing & (positions >= 0)
        vectors[is_copied] = source.at(positions[is_copied])
        is_missing &= ~is_copied
    return vectors, is_missing


def to_32_bits(vectors: Numbers, model_name: str) -> Floats:
    """Convert vectors of a model to 32 bits. The model's name is for the error.

    Raises :class:`InputError` if a number is too large, or all numbers are too small.
    """
    with np.errstate(over="ignore", under="ignore"):
        narrow_vectors: Floats = vectors.astype(np.float32)
    if not np.isfinite(narrow_vectors).all():
        raise InputError(
            f"{model_name}: the vectors have numbers that are too large for 32 bits; divide all vectors by a constant, "
            "or compare by cosine"
        )
    if 0 < np.abs(vectors).max(initial=0) < _SMALLEST_MAXIMUM:
        raise InputError(
            f"{model_name}: the vectors have numbers that are too small for 32 bits; multiply all vectors by a "
            "constant, or compare by cosine"
        )
    return narrow_vectors


def _open_stored(folder: Path, about: dict[str, Any], corpus_rows: int) -> OwnVectors | None:
    """Open the vectors in a folder. None if the folder is missing, damaged, or of another model or corpus.

    Raises :class:`InputError` for a folder of another kind, for example a release or the index of a named model.
    """
    try:
        manifest = read_json(folder / MANIFEST, _Manifest)
    except FileNotFoundError:
        return None
    except InputError as error:
        problem = "exists and is not an index of an own encoder; expected a new path or an earlier index"
        raise InputError(problem, path=folder) from error
    if manifest.checksum != _checksum(msgspec.to_builtins(manifest)):
        log.warning("%s: damaged (the values do not match their checksum); encoded again", folder / MANIFEST)
        return None
    row_count = corpus_rows
    chosen = None
    if manifest.rows is not None:
        row_count = len(manifest.rows)
        chosen = np.array(manifest.rows, np.int64)
    expected_bytes = row_count * manifest.dim * _NUMBER_BYTES
    if manifest.about != about or manifest.file.bytes != expected_bytes:
        return None
    vectors_path = folder / _VECTORS_FILE
    damage = wrong_file(vectors_path, manifest.file)
    if damage:
        log.warning("%s: damaged (%s); encoded again", vectors_path, damage)
        return None
    return OwnVectors(vectors_path, row_count, manifest.dim, manifest.longest, manifest.zeros, chosen)


def _measure(vectors: OwnVectors) -> tuple[float, int]:
    """Return the largest Euclidean norm, rounded up, and the number of vectors of zeros."""
    longest_norm = 0.0
    zero_count = 0
    for _, block in vectors.blocks():
        norms = np.linalg.norm(block.astype(np.float64), axis=1)
        longest_norm = max(longest_norm, _NORM_ROUNDING * float(norms.max()))
        zero_count += int((norms == 0).sum())
    return longest_norm, zero_count


def unit_rows(vectors: Numbers) -> npt.NDArray[np.float64]:
    """Return vectors of any number type scaled to unit length, in 64 bits, whatever their magnitude.

    A vector of zeros stays. ``vectors`` is not changed.
    """
    # Fewer bits would round the cosines. The copy is divided in place, because it may be large.
    unit_vectors = vectors.astype(np.float64)
    largest_numbers = np.abs(unit_vectors).max(axis=1, keepdims=True, initial=0)
    # The division keeps the squares below from overflowing and from vanishing. A row of zeros is divided by 1.
    unit_vectors /= np.where(largest_numbers > 0, largest_numbers, 1)
    norms = np.linalg.norm(unit_vectors, axis=1, keepdims=True)
    unit_vectors /= np.where(norms > 0, norms, 1)
    return unit_vectors
