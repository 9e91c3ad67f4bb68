"""The kept BM25 index: an engine's files beside ``index.json``, one folder for each corpus, segmentation and engine."""

from __future__ import annotations

import abc
import importlib
import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from baselines.bm25.tokens import segment_batches, segmenter
from builders.common.command import InputError, log, progress
from builders.common.files import sha256_of, write_text
from builders.common.folders import build_once, key_of
from builders.store.reader import Release

_FORMAT = 3
_ABOUT = "index.json"  # written last: a folder without it is half an index
# Corpus ids by row number, memory-mapped, one after the other, and where each ends: engines' own are slow in threads.
_IDS, _ENDS = "ids", "ids.ends"
_BATCH = 256  # passages that go to a segmentation process at a time
_FEW = 2_000  # passages below which starting processes takes longer than segmenting
K1, B = 1.2, 0.75  # Elasticsearch's and Lucene's defaults
# Modules with engine_version(), build(folder, token strings, threads) and open_folder(folder, k1, b, threads).
ENGINES = {"numba": "baselines.bm25.engine_numba", "tantivy": "baselines.bm25.engine_tantivy"}
DEFAULT_ENGINE = "numba"


class Index(abc.ABC):
    """An index opened for searching; safe to share between threads."""

    passages: int

    @abc.abstractmethod
    def search(self, words: list[str], top_k: int) -> list[tuple[str, float]]:
        """The ``top_k`` best passages (corpus id, score > 0): scores falling, ties by id, also where the list is cut.

        Every passage that holds one of ``words`` is a candidate; a word that comes twice counts twice, as in an
        Elasticsearch match query.
        """

    def search_many(self, queries: list[list[str]], top_k: int) -> list[list[tuple[str, float]]]:
        """:meth:`search` for several queries."""
        return [self.search(words, top_k) for words in queries]


class KeptIndex(Index):
    """An index in a folder, with the corpus ids of its rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ends = np.asarray(np.memmap(folder / _ENDS, np.int64, "r"))
        with open(folder / _IDS, "rb") as file:
            self._ids = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def ids_of(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The corpus ids of some rows."""
        limits = zip(self._ends[rows].tolist(), self._ends[rows + 1].tolist(), strict=True)
        return [self._ids[begin:end].decode() for begin, end in limits]


def index_key(release: Release, corpus: str, engine: str) -> dict[str, Any]:
    """What an index of a corpus config depends on."""
    return {
        "format": _FORMAT,
        "corpus": release.fingerprint(corpus, "corpus"),
        "segmenter": segmenter(),
        "engine": engine,
    }


def open_index(
    release: Release,
    keep: Path,
    workers: int,
    corpus: str = "corpus",
    engine: str = DEFAULT_ENGINE,
    k1: float = K1,
    b: float = B,
) -> KeptIndex:
    """The index of a release's corpus config from the folder ``keep``, built where it is missing or damaged.

    ``workers`` processes segment, as many threads index. The index is built beside its place and moved there when it
    is whole; a second process that wants the same index waits for the first. Raises :class:`InputError` where the
    engine has not the ``k1`` and ``b`` asked for.
    """
    module = importlib.import_module(ENGINES[engine])
    module.check(k1, b)
    key = index_key(release, corpus, module.engine_version())
    folder = keep / key_of(key)

    def build(new: Path) -> None:
        module.build(new, token_strings(release, corpus, workers), workers)
        write_ids(new, (batch.column("_id") for batch in release.batches(corpus, "corpus", ["_id"])))
        files = {path.name: sha256_of(path) for path in sorted(new.iterdir())}
        write_text(new / _ABOUT, json.dumps({"key": key, "files": files}, indent=1, sort_keys=True) + "\n")

    built = build_once(folder, lambda: _is_whole(folder, key), build)
    index: KeptIndex = module.open_folder(folder, k1, b, workers)
    log.info("BM25 index %s: %s (%d passages)", "built" if built else "reused", folder, index.passages)
    return index


def _is_whole(folder: Path, key: dict[str, Any]) -> bool:
    """Whether every file is as it was written."""
    if not folder.exists():
        return False
    try:
        about = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if about["key"] != key:
            raise ValueError("another key")
        for name, digest in about["files"].items():
            if sha256_of(folder / name) != digest:
                raise ValueError(f"{name} has changed")
        return True
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: damaged BM25 index (%s); it is built again", folder, error)
        return False


def token_strings(release: Release, corpus: str, workers: int) -> Iterator[str]:
    """The tokens of every passage, joined by spaces, in the release's order. ``workers`` processes segment."""
    rows = release.rows(corpus, "corpus")
    if rows == 0:
        raise InputError("has no passages", path=release.path)
    with progress(total=rows, unit="passage", label="index") as bar:
        for count, texts in segment_batches(_passages(release, corpus), workers if rows >= _FEW else 1):
            yield from texts
            bar.update(count)


def _passages(release: Release, corpus: str) -> Iterator[tuple[int, list[str]]]:
    for batch in release.batches(corpus, "corpus", ["text"], rows=_BATCH):
        yield batch.num_rows, batch.column("text").to_pylist()


def write_ids(folder: Path, ids: Iterable[pa.Array]) -> None:
    """The corpus ids of all rows, in order."""
    end = 0
    with open(folder / _IDS, "wb") as texts, open(folder / _ENDS, "wb") as ends:
        np.zeros(1, np.int64).tofile(ends)
        for part in ids:
            sizes = pc.binary_length(part).to_numpy(zero_copy_only=False).astype(np.int64)
            (end + np.cumsum(sizes)).tofile(ends)
            end += int(sizes.sum())
            texts.write("".join(part.to_pylist()).encode())
