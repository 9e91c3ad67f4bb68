"""Approximate indexes (FAISS: IVF, HNSW) over a directory of embeddings, kept in the user's cache.

Not beside the embeddings: those may be somebody else's, and FAISS believes what is written in an index.

They hold all passages in memory, in 16 bits (12.4 GB for 8.1 M passages of 768 dimensions, HNSW's links not counted).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from baselines.kept import Cache
from baselines.vectors.embeddings import Vectors, widened
from builders.common.command import InputError, log, progress

_FORMAT = 1
_INDEXES = Cache("faiss", "index.json")
_TRAINING = 64  # passages a list that the lists' centres are computed from
_EF_BUILD = 200


def ivf_lists(rows: int) -> int:
    """The number of lists where none is given: 4 times the root of the passages (11,400 for 8.1 M)."""
    return max(1, min(int(4 * math.sqrt(rows)), rows // 2))


def open_ivf(vectors: Vectors, lists: int, probes: int, device: str = "cpu") -> Any:
    """Passages in ``lists`` lists around k-means centres, of which a query looks into ``probes``.

    The centres are computed on ``device`` where that is a GPU and FAISS is built for it (group ``gpu``; never run yet).
    All else is done on the CPU.
    """
    import faiss

    if lists > vectors.rows:
        raise InputError(f"--lists {lists}: there are only {vectors.rows} passages", path=vectors.path)

    def train() -> Any:
        centres = faiss.IndexFlatIP(vectors.dim)
        index: Any = faiss.IndexIVFScalarQuantizer(
            centres, vectors.dim, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT, False
        )
        index.cp.min_points_per_centroid = 1  # small collections are told nothing
        if device != "cpu" and hasattr(faiss, "StandardGpuResources"):
            resources, number = faiss.StandardGpuResources(), torch.device(device).index or 0
            on_gpu = faiss.index_cpu_to_gpu(resources, number, faiss.IndexFlatIP(vectors.dim))
            index.clustering_index = on_gpu  # not kept alive by the index: the two names do that
        wanted = np.unique(np.linspace(0, vectors.rows - 1, min(vectors.rows, _TRAINING * lists)).astype(np.int64))
        index.train(_some(vectors, wanted))
        index.clustering_index = None
        return index

    index = _kept(vectors, f"ivf-{lists}", train)
    index.nprobe = min(probes, lists)
    return index


def open_hnsw(vectors: Vectors, links: int, ef: int) -> Any:
    """A graph with ``links`` neighbours a passage, searched with a list of ``ef`` candidates.

    Built on the CPU: FAISS builds HNSW nowhere else (its graph for GPUs, CAGRA, is another index).
    """
    import faiss

    def train() -> Any:
        kind: Any = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexHNSWSQ(vectors.dim, kind, links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _EF_BUILD
        index.train(_some(vectors, np.arange(1)))
        return index

    index = _kept(vectors, f"hnsw-{links}", train)
    index.hnsw.efSearch = ef
    return index


def _some(vectors: Vectors, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    found = []
    for start, block in vectors.blocks():
        inside = rows[(rows >= start) & (rows < start + len(block))] - start
        found.append(widened(block[inside]))
    return np.concatenate(found)


def _kept(vectors: Vectors, name: str, train: Callable[[], Any]) -> Any:
    """The kept index of that name over just these chunks; where there is none, ``train`` begins it.

    ``train`` gives an index without a passage.
    """
    import faiss

    def build(folder: Path) -> None:
        index = train()
        with progress(total=vectors.rows, unit="passage", label=name) as bar:
            for _, block in vectors.blocks():
                index.add(widened(block))
                bar.update(len(block))
        faiss.write_index(index, str(folder / f"{name}.faiss"))

    for path in vectors.path.glob("*.faiss"):
        log.warning("%s: an index of an earlier version, no longer used; it can be deleted", path)
    key = {"format": _FORMAT, "index": name, "passages": [chunk["sha256"] for chunk in vectors.chunks]}
    folder, made = _INDEXES.folder(None, key, build)
    log.info("%s %s: %s", name, "built" if made else "reused", folder)
    return faiss.read_index(str(folder / f"{name}.faiss"))
