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
from builders.core.cache import FileEntry, describe, wrong_file
from builders.core.errors import InputError, log
from builders.core.files import check_place, write_text
from builders.core.folders import (
    check_output,
    expect_known_output,
    key_of,
    replace_directory,
    states_of_output,
    work_beside,
)
from builders.core.progress import progress
from builders.core.typed import read_json

MANIFEST = "manifest.json"
_VECTORS = "vectors"
_NUMBER_BYTES = 4
# If the largest number of a model is below 2**-102, then numbers of a millionth of it have fewer digits in 32 bits.
_SMALLEST = 2.0**-102
_REMEDY = "{} all vectors by a constant, or compare by cosine"
_PART = 256  # texts whose vectors are written together


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

    def blocks(self, rows: int = BLOCK) -> Iterator[tuple[int, Floats]]:
        """Yield (first row, at most ``rows`` vectors), in order."""
        stored = np.memmap(self.path, np.float32, "r", shape=(self.rows, self.dim))
        for start in range(0, self.rows, rows):
            yield start, np.asarray(stored[start : start + rows])

    def at(self, places: Rows) -> Floats:
        """Return the vectors at places of the file."""
        stored = np.memmap(self.path, np.float32, "r", shape=(self.rows, self.dim))
        return np.asarray(stored[places])

    def places(self, rows: Rows) -> Rows:
        """Return the places of rows of the corpus in the file. A row that the file lacks has the place -1."""
        if self.chosen is None:
            return rows
        places = np.minimum(np.searchsorted(self.chosen, rows), self.rows - 1)
        return np.where(self.chosen[places] == rows, places, -1)


def build_vectors(
    folder: Path,
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
        folder: the folder to write. A folder of another model is replaced.
        about: everything that the vectors depend on, as JSON values, with ``dim``.
        corpus_rows: number of rows of the corpus.
        chosen: the rows to encode, in ascending order (None: all rows).
        texts_of: a function that returns the texts of rows.
        encode: a function that returns the vectors of texts, shape (texts, ``dim``).
        texts_per_call: texts per call of the model.
        sources: further folders of this function. Their vectors are reused if they have the same ``about``.

    Raises:
        InputError: ``folder`` has other files, another call has just written the folder for another model, or a vector
            has numbers that 32 bits cannot hold.
    """
    folder = check_output(folder, "an index", MANIFEST)
    check_place(folder)
    key = key_of({**about, "rows": None if chosen is None else chosen.tolist()})
    known_states = states_of_output(folder, MANIFEST)
    with work_beside(folder, key, wait=True) as work:
        rows = np.arange(corpus_rows) if chosen is None else chosen
        stored = _open_stored(folder, about, corpus_rows)
        if stored is not None and np.array_equal(stored.places(rows), np.arange(stored.rows)):
            log.info("%s: already encoded", folder)
            return stored
        expect_known_output(folder, MANIFEST, known_states)
        reused = _open_sources(sources, about, corpus_rows)
        path = work / _VECTORS
        row_bytes = about["dim"] * _NUMBER_BYTES
        done = path.stat().st_size // row_bytes if path.exists() else 0
        if done:
            log.info("%s: %d of %d texts are encoded already", folder, done, len(rows))
        part = max(_PART // texts_per_call, 1) * texts_per_call
        with (
            open(path, "ab") as file,
            progress(total=len(rows), unit="text", label="encode", done=done) as bar,
        ):
            file.truncate(done * row_bytes)  # a killed process may leave half of a vector
            for start in range(done, len(rows), part):
                chunk = rows[start : start + part]
                with bar.task(len(chunk)):
                    vectors, is_missing = _copy_vectors(reused, chunk, about["dim"])
                    if is_missing.any():
                        texts = texts_of(chunk[is_missing].tolist())
                        vectors[is_missing] = to_32_bits(encode(texts), about["model"])
                    file.write(vectors.tobytes())
                    file.flush()
        longest, zeros = _measure(OwnVectors(path, len(rows), about["dim"], 0.0, 0))
        if zeros == len(rows):  # an index of zeros must not be reused when the model is mended
            raise InputError(f"{about['model']}: expected vectors, found only zeros for all passages")
        manifest = {
            "name": "dureader_retrieval own vectors",
            "format": 1,
            "about": about,
            "dim": about["dim"],
            "longest": longest,
            "zeros": zeros,
            "file": msgspec.to_builtins(describe(work, _VECTORS, len(rows))),
            "rows": None if chosen is None else chosen.tolist(),
        }
        manifest["checksum"] = _checksum(manifest)
        write_text(work / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        replace_directory(work, folder)
    return OwnVectors(folder / _VECTORS, len(rows), about["dim"], longest, zeros, chosen)


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
    """Return (the vectors of rows from the first source that has them, a mask of rows that no source has)."""
    vectors: Floats = np.zeros((len(rows), dim), np.float32)
    is_missing = np.ones(len(rows), bool)
    for source in sources:
        places = source.places(rows)
        is_copied = is_missing & (places >= 0)
        vectors[is_copied] = source.at(places[is_copied])
        is_missing &= ~is_copied
    return vectors, is_missing


def to_32_bits(vectors: Numbers, name: str) -> Floats:
    """Convert vectors of the model ``name`` to 32 bits.

    Raises :class:`InputError` if a number is too large, or all numbers are too small.
    """
    with np.errstate(over="ignore", under="ignore"):
        narrow: Floats = vectors.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise InputError(f"{name}: the vectors have numbers that are too large for 32 bits; {_REMEDY.format('divide')}")
    if 0 < np.abs(vectors).max(initial=0) < _SMALLEST:
        raise InputError(
            f"{name}: the vectors have numbers that are too small for 32 bits; {_REMEDY.format('multiply')}"
        )
    return narrow


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
    path = folder / _VECTORS
    rows = corpus_rows if manifest.rows is None else len(manifest.rows)
    if manifest.about != about or manifest.file.bytes != rows * manifest.dim * _NUMBER_BYTES:
        return None
    if fault := wrong_file(path, manifest.file):
        log.warning("%s: damaged (%s); encoded again", path, fault)
        return None
    chosen = None if manifest.rows is None else np.array(manifest.rows, np.int64)
    return OwnVectors(path, rows, manifest.dim, manifest.longest, manifest.zeros, chosen)


def _measure(vectors: OwnVectors) -> tuple[float, int]:
    """Return the largest Euclidean norm, rounded up, and the number of vectors of zeros."""
    longest, zeros = 0.0, 0
    for _, block in vectors.blocks():
        norms = np.linalg.norm(block.astype(np.float64), axis=1)
        longest = max(longest, 1.0001 * float(norms.max()))
        zeros += int((norms == 0).sum())
    return longest, zeros


def unit_rows(vectors: Numbers) -> npt.NDArray[np.float64]:
    """Scale vectors to unit length, whatever their magnitude. A vector of zeros stays."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    # The division keeps the squares below from overflowing and from vanishing.
    scaled = vectors / np.where(largest > 0, largest, 1)
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: npt.NDArray[np.float64] = scaled / np.where(norms > 0, norms, 1)
    return unit
